# SPDX-License-Identifier: Apache-2.0
"""sfumato attack: an archive of concealed features in, how much of them an attacker recovers out."""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.attacks.encoded import load_decoder
from sfumato.attacks.knowledge import Knowledge, Recovered
from sfumato.attacks.liftings.neighbours import NEIGHBOURS
from sfumato.attacks.liftings.oracle_curves import draw_curves
from sfumato.attacks.registry import ATTACKS
from sfumato.attacks.run import WITHIN, Materials, Outcome, archive_curves, attack_archive, refuse_other_kinds
from sfumato.auditing.pictures import paint_recovered, save_picture
from sfumato.cli.options import ALL, AsJson, Quiet, one_of, printable, progress_bar, several_of
from sfumato.codebooks import first_header
from sfumato.concealment.decoy_file import load_decoys
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import load_encoder
from sfumato.concealment.resolve import Resolved, before_seal, find_encoders
from sfumato.device import bundled_decoys
from sfumato.errors import DecoyError, InputError
from sfumato.features.hloc import UNTOLD, read_hloc, told_extractor
from sfumato.files.atomic import write_text
from sfumato.inversion.descriptors import Decoder
from sfumato.matching.match_file import load_matches
from sfumato.store import Archive, load
from sfumato.store.layout import Header
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

# ----------------------------------------------------------------
# What an attacker is given on the command line: which files fit, which are bundled, and what is missing


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
    """Return which extractor public descriptors, decoys and clear features are of; say what cannot be known.

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


def _show_list(wanted: bool) -> None:
    if wanted:
        print("\n".join(aligned(listed())))
        raise typer.Exit


def attack(
    archive: Annotated[Path, typer.Argument(help="The archive of concealed features, e.g. private.sfm.h5.")],
    attack: Annotated[
        str,
        typer.Option(
            "--attack",
            "-a",
            help=f"Names with commas, or all that are possible: {', '.join(ATTACKS)}.",
            autocompletion=several_of(one_of((ALL, *ATTACKS))),
        ),
    ] = "all",
    clear: Annotated[
        Path | None, typer.Option(help="Clear features, made by 'sfumato extract': to score, and for the oracle.")
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            help="Descriptors of other photos that the attacker has: a decoys file. Default for sealed SIFT: the "
            "bundled decoys."
        ),
    ] = None,
    decoys: Annotated[
        Path | None, typer.Option(help="The decoys the features were concealed with, if the attacker knows them.")
    ] = None,
    releases: Annotated[Path | None, typer.Option(help="A second archive of the same photos.")] = None,
    matches: Annotated[Path | None, typer.Option(help="Matches between the images, made by 'sfumato match'.")] = None,
    model: Annotated[Path | None, typer.Option(help="A map of the images: a folder made by 'sfumato map'.")] = None,
    decoder: Annotated[Path | None, typer.Option(help="A decoder, made by 'sfumato train decoder'.")] = None,
    point_decoder: Annotated[
        Path | None,
        typer.Option(
            help="Of features lifted after an encoder: a decoder trained for the encoder alone, which carries what is "
            "found in its space back. Default: least squares over --public."
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="The encoder the features went through, for nearest and oracle. Default: a bundled one."),
    ] = None,
    inverter: Annotated[
        Path | None, typer.Option(help="For pictures: made by 'sfumato train inverter'. Default: the one for SIFT.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds to replay, e.g. 0-999 or 7,8,9.")] = "",
    neighbours: Annotated[int, typer.Option(help="How many of the nearest the oracle is asked about.")] = NEIGHBOURS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for attack.json and pictures of what is recovered.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Also draw how near the oracle comes over its number of neighbours, in -o.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--list", callback=_show_list, is_eager=True, help="Say what each attack needs and assumes, and exit."
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Try to undo concealment, and say how near it comes to the clear descriptors.

    What the attacker knows is what you give: nothing but the archive is enough for the vertex attack on SIFT. With
    --clear the distances to the clear descriptors are reported (unit norm: within 0.02 is broken); without, only how
    many rows the attack is confident of. With -o a folder, pictures show what a server could see. Of encoded features
    (ninja, compress) the public descriptors go through the encoder too; the attacks ending in -base and -encoded do
    without one or the other. A lifting after an encoder is attacked in the encoder's space, and what is found is
    carried back: distances are then given in both. Sealed features are attacked by alignment with public descriptors,
    which takes a minute or more. Clear features, public descriptors and decoys of another kind than the archive's are
    refused. Exit code 1 if no attack was possible.

    Example: sfumato attack private.sfm.h5 --clear clear.h5
    Example: sfumato attack lifted.sfm.h5 --attack vertex --clear clear.h5
    """
    names = None if attack.strip() == "all" else [name.strip() for name in attack.split(",") if name.strip()]
    if curves and (output is None or clear is None or public is None):
        raise InputError("--curves needs --public and --clear, and a folder with -o")
    with ExitStack() as files:
        opened = files.enter_context(load(archive))
        others = public_of(public, opened, names)
        database = None if decoys is None else load_decoys(decoys)
        kind = None if clear is None else told_extractor(clear) or "unknown"
        materials = Materials(
            general=Knowledge(
                public=None if others is None else others.descriptors,
                decoys=None if database is None else database.descriptors,
                seeds=read_seeds(seeds),
                decoder=None if decoder is None else load_decoder(decoder),
                encoder=encoder_of(opened, encoder),
                point_decoder=None if point_decoder is None else point_decoder_of(opened, point_decoder),
            ),
            clear=None if clear is None else dict(read_hloc(clear, extractor=kind)),
            release=None if releases is None else files.enter_context(load(releases)),
            matches=None if matches is None else files.enter_context(load_matches(matches)),
            model=model,
            kinds=kinds_of(opened, public=others, decoys=database, clear=kind),
        )
        outcomes, left_out = attack_archive(
            opened,
            names,
            materials,
            neighbours=neighbours,
            seen=None if output is None else Painter(output, inverter),
            progress=progress_bar("attacking", len(opened), quiet=quiet or as_json),
        )
        if curves and output is not None:
            draw_archive_curves(opened, materials, output)
        report(outcomes, left_out, output, as_json=as_json)
        if not outcomes:
            raise InputError(f"{archive}: {why_nothing_ran(opened, materials.general.known, left_out)}")
    if left_out:
        raise typer.Exit(1)


def draw_archive_curves(archive: Archive, materials: Materials, output: Path) -> None:
    """Write curves.json and curves.png: mean distances of the oracle's answers over K, of all images."""
    found = archive_curves(archive, materials)
    told = {name: asdict(curve) for name, curve in found.items()}
    write_text(output / "curves.json", json.dumps(told, indent=2, sort_keys=True) + "\n", with_folder=True)
    draw_curves(output / "curves.png", found, "oracle")


class Painter:
    """Paints what is recovered into a folder; descriptors that the inverter does not take are told once."""

    def __init__(self, folder: Path, inverter: Path | None) -> None:
        from sfumato.inversion.patches import load_inverter

        self.folder, self.inverter = folder, load_inverter(inverter)
        self.told = False

    def __call__(self, attack: str, image: str, features: ConcealedFeatures, recovered: Recovered) -> None:
        try:
            picture = paint_recovered(self.inverter, features, recovered)
        except InputError as problem:
            if not self.told:
                print(printable(f"no pictures: {problem}"), file=sys.stderr)
            self.told = True
            return
        save_picture(self.folder, image, attack, picture)


def read_seeds(text: str) -> tuple[int, ...]:
    """Read seeds written as 7,8,9 or 0-999."""
    seeds: list[int] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) - int(first) > 1_000_000:
            raise InputError(f"seeds: expected numbers such as 7,8,9 or 0-999, got {part!r:.80}")
        seeds += range(int(first), int(last or first) + 1)
    return tuple(seeds)


def report(outcomes: list[Outcome], left_out: dict[str, str], output: Path | None, *, as_json: bool) -> None:
    """Print a table, or everything as JSON, and keep the latter in the folder."""
    for name, reason in left_out.items():
        print(printable(f"left out {name}: {reason}"), file=sys.stderr)
    rows = [outcome.facts for outcome in outcomes]
    text = json.dumps({"attacks": rows, "left out": left_out}, indent=2, sort_keys=True)
    if output is not None:
        write_text(output / "attack.json", text + "\n", with_folder=True)
    if as_json or rows:
        print(text if as_json else "\n".join(_table(rows)))


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of one row or more: attack, knowledge, and either distances or confidences."""
    scored = all("median" in row for row in rows)
    head = ["median", *(f"within {limit}" for limit in WITHIN)] if scored else ["features", "with a guess", "confident"]
    lifted = [f"lifted space {limit}" for limit in WITHIN] if any("lifted space" in row for row in rows) else []
    lines = [["attack", "knowledge", *head, *lifted]]
    for row in rows:
        values = (
            [f"{row['median']:.4f}", *(f"{100 * row[key]:.1f} %" for key in head[1:])]
            if scored
            else [str(row[key]) for key in head]
        )
        inside = row.get("lifted space", {})
        values += [f"{100 * inside[f'within {limit}']:.1f} %" if inside else "-" for limit in WITHIN if lifted]
        lines.append([row["attack"], " + ".join(row["knowledge"]) or "-", *values])
    return aligned(lines)


def aligned(lines: list[list[str]]) -> list[str]:
    """Return rows of cells as lines, column below column."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
