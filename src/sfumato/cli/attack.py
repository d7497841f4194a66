# SPDX-License-Identifier: Apache-2.0
"""Command ``sfumato attack``: an archive of concealed features in, how much of them an attacker recovers out."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.attacks.inputs import OPTIONS, AttackInputs, open_materials, refuse_nothing
from sfumato.attacks.knowledge import Recovery
from sfumato.attacks.liftings.neighbours import NEIGHBOURS
from sfumato.attacks.liftings.oracle_curves import draw_curves
from sfumato.attacks.registry import ATTACKS
from sfumato.attacks.run import WITHIN, AttackSummary, Materials, archive_curves, attack_archive
from sfumato.auditing.pictures import paint_recovery, save_picture
from sfumato.auditing.tables import Cell, Table
from sfumato.cli.options import AsJson, Quiet, expand_groups, one_of, printable, progress_bar, show_table
from sfumato.errors import InputError
from sfumato.files.atomic import write_text
from sfumato.store import Archive
from sfumato.types.concealed import ConcealedFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOptions:
    """Options for what the attacker knows."""

    clear: Annotated[
        Path | None, typer.Option(help="Clear features, made by 'sfumato extract': to score, and for the oracle.")
    ] = None
    public: Annotated[
        Path | None,
        typer.Option(
            help="Descriptors of other photos that the attacker has: a decoys file. Default for sealed SIFT: the "
            "bundled decoys."
        ),
    ] = None
    decoys: Annotated[
        Path | None, typer.Option(help="The decoys the features were concealed with, if the attacker knows them.")
    ] = None
    releases: Annotated[Path | None, typer.Option(help="A second archive of the same photos.")] = None
    matches: Annotated[Path | None, typer.Option(help="Matches between the images, made by 'sfumato match'.")] = None
    model: Annotated[Path | None, typer.Option(help="A map of the images: a folder made by 'sfumato map'.")] = None
    decoder: Annotated[Path | None, typer.Option(help="A decoder, made by 'sfumato train decoder'.")] = None
    point_decoder: Annotated[
        Path | None,
        typer.Option(
            help="For features lifted after an encoder: a decoder trained for the encoder alone, which carries points "
            "of its space back. Default: least squares over --public."
        ),
    ] = None
    encoder: Annotated[
        Path | None,
        typer.Option(help="The encoder the features went through, for nearest and oracle. Default: a bundled one."),
    ] = None
    seeds: Annotated[str, typer.Option(help="Seeds to replay, e.g. 0-999 or 7,8,9.")] = ""

    @property
    def inputs(self) -> AttackInputs:
        """The files of the attacker."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return AttackInputs(**{**values, "seeds": read_seeds(self.seeds)})


def _show_list(is_on: bool) -> None:
    if is_on:
        show_table(attack_list())
        raise typer.Exit


@expand_groups
def attack(
    archive: Annotated[Path, typer.Argument(help="The archive of concealed features, e.g. private.sfm.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help=f"Attacks to run. Default: all that fit. There are {', '.join(ATTACKS)}.",
            autocompletion=one_of(ATTACKS),
        ),
    ] = None,
    knowledge: AttackOptions = AttackOptions(),
    inverter: Annotated[
        Path | None, typer.Option(help="For pictures: made by 'sfumato train inverter'. Default: the one for SIFT.")
    ] = None,
    neighbours: Annotated[int, typer.Option(help="Number of nearest neighbours offered to the oracle.")] = NEIGHBOURS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for attack.json and pictures of what is recovered.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Also draw how near the oracle comes over its number of neighbours, in -o.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--list", callback=_show_list, is_eager=True, help="List what each attack needs and assumes, and exit."
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Try to undo concealment, and report how near it comes to the clear descriptors.

    The attacker knows what you pass: nothing but the archive is enough for the vertex attack on SIFT. With --clear the
    distances to the clear descriptors are reported (unit norm: within 0.02 is broken); without it, only how many rows
    the attack is confident of. With -o a folder, pictures show what a server could see.

    For encoded features (ninja, compress) the public descriptors go through the encoder too; the attacks ending in
    -base and -encoded do without one or the other. A lifting after an encoder is attacked in the encoder's space and
    carried back: distances are then given in both spaces. Sealed features are attacked by alignment with public
    descriptors, which takes a minute or more. Clear features, public descriptors and decoys of another kind than the
    archive's are refused. Exit code 1 if no attack was possible, or an image was left out.

    Example: sfumato attack private.sfm --clear clear.h5
    Example: sfumato attack lifted.sfm vertex --clear clear.h5
    """
    inputs = knowledge.inputs
    if curves and (output is None or inputs.clear is None or inputs.public is None):
        raise InputError("--curves needs --public and --clear, and a folder with -o")
    with open_materials(archive, names or None, inputs, report=_warn) as (images, materials):
        summaries, left_out = attack_archive(
            images,
            names or None,
            materials,
            neighbours=neighbours,
            on_recovery=None if output is None else RecoveryPainter(output, inverter),
            progress=progress_bar("attacking", len(images), quiet=quiet or as_json),
        )
        if curves and output is not None:
            draw_archive_curves(images, materials, output)
        report(summaries, left_out, output, as_json=as_json)
        refuse_nothing(images, summaries, materials, left_out)
    if left_out:
        raise typer.Exit(1)


def _warn(line: str) -> None:
    print(printable(line), file=sys.stderr)


def draw_archive_curves(images: Archive, materials: Materials, output: Path) -> None:
    """Write curves.json and curves.png: mean distances of the oracle's answers over K, of all images."""
    curves = archive_curves(images, materials)
    facts = {name: asdict(curve) for name, curve in curves.items()}
    write_text(output / "curves.json", json.dumps(facts, indent=2, sort_keys=True) + "\n", with_folder=True)
    draw_curves(output / "curves.png", curves, "oracle")


class RecoveryPainter:
    """Painter of what is recovered, into a folder; descriptors that the inverter does not take are reported once."""

    def __init__(self, folder: Path, inverter: Path | None) -> None:
        from sfumato.inversion.load import open_inverter

        self.folder, self.has_warned = folder, False
        self.inverters = {has_frames: open_inverter(inverter, has_frames=has_frames) for has_frames in (False, True)}

    def __call__(self, attack: str, image: str, features: ConcealedFeatures, recovery: Recovery) -> None:
        try:
            picture = paint_recovery(self.inverters[features.has_frames], features, recovery)
        except InputError as problem:
            if not self.has_warned:
                _warn(f"no pictures: {problem}")
            self.has_warned = True
            return
        save_picture(self.folder, image, attack, picture)


def read_seeds(text: str) -> tuple[int, ...]:
    """Read seeds written as 7,8,9 or 0-999."""
    seeds: list[int] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) - int(first) > 1_000_000:
            raise InputError(f"--seeds: expected numbers such as 7,8,9 or 0-999, got {part!r:.80}")
        seeds += range(int(first), int(last or first) + 1)
    return tuple(seeds)


def report(summaries: Sequence[AttackSummary], left_out: dict[str, str], output: Path | None, *, as_json: bool) -> None:
    """Print a table, or everything as JSON, and keep the latter in the folder."""
    for name, reason in left_out.items():
        _warn(f"left out {name}: {reason}")
    rows = [summary.facts for summary in summaries]
    text = json.dumps({"attacks": rows, "left out": left_out}, indent=2, sort_keys=True)
    if output is not None:
        write_text(output / "attack.json", text + "\n", with_folder=True)
    if as_json:
        print(text)
    elif rows:
        show_table(attack_table(rows))


def attack_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return one row per attack: its knowledge, and either distances or confidences."""
    is_scored = all("median" in row for row in rows)
    scores = (
        ["median", *(f"within {limit}" for limit in WITHIN)] if is_scored else ["features", "with a guess", "confident"]
    )
    lifted = [f"within {limit}" for limit in WITHIN] if any("lifted space" in row for row in rows) else []
    cells = [
        [
            row["attack"],
            " + ".join(row["knowledge"]) or "-",
            *(_percent(row[name]) if name.startswith("within") else row[name] for name in scores),
            *(_percent(row["lifted space"][name]) if "lifted space" in row else "-" for name in lifted),
        ]
        for row in rows
    ]
    columns = ("attack", "knowledge", *scores, *(f"lifted space {name}" for name in lifted))
    return Table(columns, tuple(tuple(map(Cell, row)) for row in cells))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def attack_list() -> Table:
    """Return every attack with the options it needs and what it assumes."""
    rows = []
    for name, one in ATTACKS.items():
        needs = [field for field in one.needs if field != "pool"]  # the archive has the pool
        options = [OPTIONS[field] for field in needs] if set(needs) <= set(OPTIONS) else ["sfumato evaluate leakage"]
        only = "sealed" if one.only_sealed else "encoded" if one.only_encoded else ""
        assumes = f"{one.assumes} ({only} features only)" if only else one.assumes
        rows.append((Cell(name), Cell(" ".join(options) or "-"), Cell(assumes)))
    return Table(("attack", "needs", "assumes"), tuple(rows))
