# SPDX-License-Identifier: Apache-2.0
"""What an attacker is given on the command line: which files fit, which are bundled, and what is missing."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from sfumato.attack.decoder import load_decoder
from sfumato.attack.many import refuse_other_kinds
from sfumato.attack.table import ATTACKS
from sfumato.cli.codebook import first_header
from sfumato.cli.output import printable
from sfumato.concealment.decoyfile import load_decoys
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoders import Resolved, before_seal, find_encoders
from sfumato.device import bundled_decoys
from sfumato.errors import DecoyError, InputError
from sfumato.features.hloc import UNTOLD
from sfumato.learn.decoder import Decoder
from sfumato.learn.encoder import load_encoder
from sfumato.store import Archive
from sfumato.store.layout import Header
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

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
"""Which option gives which knowledge. A pool of codes is in the archive; what is left only evaluations give."""

MAKERS = {
    "public": "--public is a decoys file of other photos, made by 'sfumato decoys build others/ -o public.npz' with "
    "the archive's kind of descriptor",
    "decoder": "--decoder is made by 'sfumato train decoder' for the recipe",
    "encoder": "--encoder is the file of the encoder that was used",
}
"""Where what is most often missing comes from."""


def listed() -> list[list[str]]:
    """Return every attack with the options it needs and what it assumes, below a heading."""
    rows = [["attack", "needs", "assumes"]]
    for name, attack in ATTACKS.items():
        wanted = [one for one in attack.needs if one != "pool"]
        asked = [OPTIONS[one] for one in wanted] if set(wanted) <= set(OPTIONS) else ["sfumato evaluate leakage"]
        only = "sealed" if attack.only_sealed else "encoded" if attack.only_encoded else ""
        about = f"{attack.assumes} ({only} features only)" if only else attack.assumes
        rows.append([name, " ".join(asked) or "-", about])
    return rows


def public_of(path: Path | None, archive: Archive, names: Iterable[str] | None) -> Decoys | None:
    """Return the public descriptors in a file; without one, for an attack on sealed SIFT, the bundled decoys.

    Anyone has those, and without public descriptors nobody can attack a seal.
    """
    if path is not None:
        return load_decoys(path)
    header = first_header(archive)
    if header is None or not header.recipe.is_sealed:
        return None
    wanted = ATTACKS if names is None else [name for name in names if name in ATTACKS]
    if not any("public" in (ATTACKS[name].sealed or ()) for name in wanted):
        return None
    try:
        found = bundled_decoys(header)
    except DecoyError:  # of another kind
        return None
    print(f"the attacker has the {len(found)} bundled decoys as public descriptors: see --public", file=sys.stderr)
    return found


def why_nothing_ran(archive: Archive, known: Iterable[str], left_out: Mapping[str, str]) -> str:
    """Return in a line why no attack was possible: what each that is for such features still needs."""
    header = first_header(archive)
    if header is None or len(left_out) == len(archive):
        return "nothing was attacked, every image was left out"
    given, lacking = {"pool", *known}, dict[str, list[str]]()
    missed = set[str]()
    for name, attack in ATTACKS.items():
        needs = attack.needs_on(header.recipe)
        missing = [one for one in needs or () if one not in given]
        if missing and set(missing) <= set(OPTIONS):
            lacking.setdefault(" and ".join(OPTIONS[one] for one in missing), []).append(name)
            missed.update(missing)
    told = "; ".join(f"{options} for {', '.join(names)}" for options, names in lacking.items())
    makers = "".join(f". {made}" for one, made in MAKERS.items() if one in missed)
    kind = f"{header.recipe} of {header.extractor.name}"
    return f"no attack on {kind} is possible with what was given; give {told}{makers}"


def kinds_of(
    archive: Archive, *, public: Decoys | None, decoys: Decoys | None, clear: str | None
) -> dict[str, Extractor]:
    """Return which extractor public descriptors, decoys and clear features are of; say what can not be known.

    Raises InputError if one of them is of another kind than the archive.
    """
    kinds = {name: given.extractor for name, given in (("public", public), ("decoys", decoys)) if given is not None}
    if clear is not None:
        kinds["clear"] = Extractor(clear)
    header = first_header(archive)
    if header is None:
        return kinds
    refuse_other_kinds(header.extractor, kinds)
    for line in _doubts(header, decoys, clear):
        print(printable(line), file=sys.stderr)
    return kinds


def _doubts(header: Header, decoys: Decoys | None, clear: str | None) -> list[str]:
    """Return what to say about decoys that were not used, and clear features that may be of another kind."""
    lines = []
    if decoys is not None and header.recipe.decoys not in (None, decoys.checksum):
        lines.append(
            f"these are not the decoys the features were concealed with: {decoys.checksum}, used were "
            f"{header.recipe.decoys}"
        )
    if clear is not None and {clear, header.extractor.name} & set(UNTOLD):
        silent = "--clear" if clear in UNTOLD else "the archive"
        lines.append(
            f"the kind of the clear features is not known to be that of the concealed ones: {silent} does not say it; "
            f"of another kind, the distances mean nothing"
        )
    return lines


def encoder_of(archive: Archive, path: Path | None) -> Resolved | None:
    """Return the encoders that the features of an archive went through: given, bundled, or None.

    Raises InputError for an encoder that was not used.
    """
    header = first_header(archive)
    if header is None or not header.recipe.has_encoder:
        if path is not None:
            raise InputError("--encoder is for features that went through an encoder, these did not")
        return None
    if header.recipe.is_sealed:
        return before_seal(header.recipe)
    found = find_encoders(header.recipe, [] if path is None else [load_encoder(path)])
    if found is None:
        print(printable(f"the encoder of {header.recipe} is not at hand: see --encoder"), file=sys.stderr)
    return found


def point_decoder_of(archive: Archive, path: Path) -> Decoder:
    """Read a decoder for the encoders alone that the features of an archive went through.

    Raises InputError if it is for something else.
    """
    found, header = load_decoder(path), first_header(archive)
    trained = Recipe.of(str(found.facts.get("recipe", "raw")))
    if header is not None and (trained.lifting is not None or trained.space != header.recipe.space):
        raise InputError(
            f"--point-decoder: this one was trained for {trained}, wanted is one for the encoders of {header.recipe} "
            f"without the lifting"
        )
    return found
