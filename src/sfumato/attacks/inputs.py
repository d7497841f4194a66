# SPDX-License-Identifier: Apache-2.0
"""Attack on an archive by file names: which files the attacker has, which are bundled, and what is missing."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike

from sfumato.attacks.encoded import load_decoder
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.neighbours import NEIGHBOURS
from sfumato.attacks.registry import ATTACKS
from sfumato.attacks.run import AttackSummary, Materials, attack_archive, refuse_other_kinds
from sfumato.codebooks import first_header
from sfumato.concealment.decoys import Decoys, bundled_decoys, load_decoys
from sfumato.concealment.encoder import load_encoder
from sfumato.concealment.resolve import ResolvedRecipe, before_seal, find_encoders
from sfumato.errors import DecoyError, InputError
from sfumato.features.hloc import extractor_in_hloc, read_hloc
from sfumato.inversion.descriptors import Decoder
from sfumato.matching.match_file import load_matches
from sfumato.store.archive import Archive, load
from sfumato.store.layout import ImageHeader
from sfumato.types.extractor import GENERIC_EXTRACTORS, Extractor
from sfumato.types.progress import Progress
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record

log = logging.getLogger(__name__)

FilePath = str | PathLike[str]

OPTIONS = {
    "public": "--public",
    "decoys": "--decoys",
    "releases": "--releases",
    "partners": "--matches",
    "tracks": "--matches or --model",
    "clear": "--clear",
    "seeds": "--seeds",
    "decoder": "--decoder",
    "encoder": "--encoder",
}
"""Options by the knowledge they give. A pool of codes is in the archive; the rest only evaluations give."""

MAKERS = {
    "public": "--public is a decoys file of other photos: 'sfumato decoys build others/ -o public.safetensors', with "
    "the archive's kind of descriptor",
    "decoder": "--decoder is made by 'sfumato train decoder' for the recipe",
    "encoder": "--encoder is the file of the encoder that was used",
}
"""How to make what is most often missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackInputs:
    """Files of the attacker, as for ``attack``; None is what he does not have."""

    clear: FilePath | None = None
    public: FilePath | None = None
    decoys: FilePath | None = None
    releases: FilePath | None = None
    matches: FilePath | None = None
    model: FilePath | None = None
    decoder: FilePath | None = None
    point_decoder: FilePath | None = None
    encoder: FilePath | None = None
    seeds: tuple[int, ...] = ()


def attack(
    archive: FilePath,
    name: str | Iterable[str] | None = None,
    *,
    clear: FilePath | None = None,
    public: FilePath | None = None,
    decoys: FilePath | None = None,
    releases: FilePath | None = None,
    matches: FilePath | None = None,
    model: FilePath | None = None,
    decoder: FilePath | None = None,
    point_decoder: FilePath | None = None,
    encoder: FilePath | None = None,
    seeds: Iterable[int] = (),
    neighbours: int = NEIGHBOURS,
    progress: Progress = iter,
) -> Record | list[Record]:
    """Attack an archive with what the files give the attacker; return the record of an attack by name.

    Without a name, or with several, a list: the records of all attacks that fit the archive and that the files allow.
    ``sfumato.ATTACKS`` has every attack by name, with what it needs.

    ``clear``: clear features (``sfumato extract``), to score with and for oracles. ``public``: a decoys file of other
    photos; for sealed SIFT the bundled decoys stand in. ``decoys``: those the features were concealed with.
    ``releases``: a second archive of the same photos. ``matches`` and ``model``: a match file and a map folder.
    ``decoder``, ``point_decoder``, ``encoder``: trained networks. ``seeds``: to replay. ``neighbours``: offered to an
    oracle.

    Raises InputError if no attack is possible, an attack by name does not fit or lacks something it needs, or a file is
    of another kind of descriptor than the archive. Images that cannot be used are named in the record.
    """
    inputs = AttackInputs(
        clear=clear,
        public=public,
        decoys=decoys,
        releases=releases,
        matches=matches,
        model=model,
        decoder=decoder,
        point_decoder=point_decoder,
        encoder=encoder,
        seeds=tuple(seeds),
    )
    names = [name] if isinstance(name, str) else None if name is None else list(name)
    with open_materials(archive, names, inputs) as (images, materials):
        summaries, left_out = attack_archive(images, names, materials, neighbours=neighbours, progress=progress)
        refuse_nothing(images, summaries, materials, left_out)
    records = [summary.record(left_out) for summary in summaries]
    return records[0] if isinstance(name, str) else records


@contextmanager
def open_materials(
    archive: FilePath,
    names: Iterable[str] | None,
    inputs: AttackInputs,
    *,
    report: Callable[[str], None] = log.info,
) -> Iterator[tuple[Archive, Materials]]:
    """Open an archive and the files of the attacker; ``report`` is called with what a user should know about them.

    Raises FileError or InputError for a file that is missing, damaged or of another kind.
    """
    with ExitStack() as files:
        images = files.enter_context(load(archive))
        public = public_decoys(inputs.public, images, names, report)
        decoys = None if inputs.decoys is None else load_decoys(inputs.decoys)
        kind = None if inputs.clear is None else extractor_in_hloc(inputs.clear) or "unknown"
        yield (
            images,
            Materials(
                general=Knowledge(
                    public=None if public is None else public.descriptors,
                    decoys=None if decoys is None else decoys.descriptors,
                    seeds=inputs.seeds,
                    decoder=None if inputs.decoder is None else load_decoder(inputs.decoder),
                    encoder=encoder_of(images, inputs.encoder, report),
                    point_decoder=None
                    if inputs.point_decoder is None
                    else point_decoder_of(images, inputs.point_decoder),
                ),
                clear=None if inputs.clear is None else dict(read_hloc(inputs.clear, extractor=kind)),
                release=None if inputs.releases is None else files.enter_context(load(inputs.releases)),
                matches=None if inputs.matches is None else files.enter_context(load_matches(inputs.matches)),
                model=None if inputs.model is None else str(inputs.model),
                kinds=kinds_of(images, public, decoys, kind, report),
            ),
        )


def refuse_nothing(
    images: Archive, summaries: Iterable[AttackSummary], materials: Materials, left_out: Mapping[str, str]
) -> None:
    """Raise InputError if no attack was possible, naming what each that fits still needs."""
    if any(True for _ in summaries):
        return
    header = first_header(images)
    if header is None or len(left_out) == len(images):
        raise InputError("nothing was attacked: every image was left out")
    available, lacking, missing_fields = {"pool", *materials.general.known}, dict[str, list[str]](), set[str]()
    for name, one in ATTACKS.items():
        missing = [field for field in one.needs_on(header.recipe) or () if field not in available]
        if missing and set(missing) <= set(OPTIONS):
            lacking.setdefault(" and ".join(OPTIONS[field] for field in missing), []).append(name)
            missing_fields.update(missing)
    needs = "; ".join(f"{options} for {', '.join(names)}" for options, names in lacking.items())
    makers = "".join(f". {words}" for field, words in MAKERS.items() if field in missing_fields)
    raise InputError(
        f"no attack on {header.recipe} of {header.extractor.name} is possible with these files; add {needs}{makers}"
    )


def public_decoys(
    path: FilePath | None, images: Archive, names: Iterable[str] | None, report: Callable[[str], None]
) -> Decoys | None:
    """Return the public descriptors in a file; without one, for an attack on sealed SIFT, the bundled decoys.

    Anyone has those, and without public descriptors nobody can attack a seal.
    """
    if path is not None:
        return load_decoys(path)
    header = first_header(images)
    if header is None or not header.recipe.is_sealed:
        return None
    attacks = [ATTACKS[name] for name in (ATTACKS if names is None else names) if name in ATTACKS]
    if not any("public" in (one.sealed or ()) for one in attacks):
        return None
    try:
        decoys = bundled_decoys(header.extractor)
    except DecoyError:  # of another kind
        return None
    report(f"the attacker uses the {len(decoys)} bundled decoys as public descriptors (see --public)")
    return decoys


def kinds_of(
    images: Archive, public: Decoys | None, decoys: Decoys | None, clear: str | None, report: Callable[[str], None]
) -> dict[str, Extractor]:
    """Return the extractors of public descriptors, decoys and clear features; report what cannot be known.

    Raises InputError if one of them is of another kind than the archive.
    """
    kinds = {name: one.extractor for name, one in (("public", public), ("decoys", decoys)) if one is not None}
    if clear is not None:
        kinds["clear"] = Extractor(clear)
    header = first_header(images)
    if header is not None:
        refuse_other_kinds(header.extractor, kinds)
        for line in _doubts(header, decoys, clear):
            report(line)
    return kinds


def _doubts(header: ImageHeader, decoys: Decoys | None, clear: str | None) -> list[str]:
    lines = []
    if decoys is not None and header.recipe.decoys not in (None, decoys.checksum):
        lines.append(
            f"--decoys {decoys.checksum} is not the file the features were concealed with, {header.recipe.decoys}"
        )
    if clear is not None and {clear, header.extractor.name} & set(GENERIC_EXTRACTORS):
        silent = "--clear" if clear in GENERIC_EXTRACTORS else "the archive"
        lines.append(
            f"{silent} does not record its kind of descriptor: if --clear and the archive differ, the distances mean "
            f"nothing"
        )
    return lines


def encoder_of(images: Archive, path: FilePath | None, report: Callable[[str], None]) -> ResolvedRecipe | None:
    """Return the encoders that the features of an archive went through: from a file, bundled, or None.

    Raises InputError for an encoder that was not used.
    """
    header = first_header(images)
    if header is None or not header.recipe.has_encoder:
        if path is not None:
            raise InputError("--encoder is for features that went through an encoder; these did not")
        return None
    if header.recipe.is_sealed:
        return before_seal(header.recipe)
    encoders = find_encoders(header.recipe, [] if path is None else [load_encoder(path)])
    if encoders is None:
        report(f"the encoder of {header.recipe} is not bundled: pass its file with --encoder")
    return encoders


def point_decoder_of(images: Archive, path: FilePath) -> Decoder:
    """Read a decoder for the encoders alone that the features of an archive went through.

    Raises InputError if it is for something else.
    """
    decoder, header = load_decoder(path), first_header(images)
    trained = Recipe.of(str(decoder.facts.get("recipe", "raw")))
    if header is not None and (trained.lifting is not None or trained.space != header.recipe.space):
        raise InputError(
            f"--point-decoder was trained for {trained}; expected one for the encoders of {header.recipe} without the "
            f"lifting"
        )
    return decoder
