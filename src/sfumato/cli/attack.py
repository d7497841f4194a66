# SPDX-License-Identifier: Apache-2.0
"""sfumato attack: an archive of concealed features in, how much of them an attacker recovers out."""

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.attack.curves import draw_curves
from sfumato.attack.decoder import load_decoder
from sfumato.attack.knowledge import Knowledge, Recovered
from sfumato.attack.many import Materials, Outcome, archive_curves, attack_archive
from sfumato.attack.neighbours import NEIGHBOURS
from sfumato.attack.pictures import paint_recovered, save_picture
from sfumato.attack.score import WITHIN
from sfumato.attack.table import ATTACKS
from sfumato.cli.attackgiven import encoder_of, kinds_of, listed, point_decoder_of, public_of, why_nothing_ran
from sfumato.cli.complete import ALL, one_of, several_of
from sfumato.cli.options import AsJson, Quiet
from sfumato.cli.output import printable, progress_bar
from sfumato.concealment.decoyfile import load_decoys
from sfumato.errors import InputError
from sfumato.features.hloc import read_hloc, told_extractor
from sfumato.matching.matchfile import load_matches
from sfumato.store import Archive, load
from sfumato.types.concealed import ConcealedFeatures
from sfumato.whole import write_text


def _show_list(wanted: bool) -> None:
    if wanted:
        print("\n".join(aligned(listed())))
        raise typer.Exit


def run(
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
        from sfumato.learn.inverter import load_inverter

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
