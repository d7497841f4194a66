# SPDX-License-Identifier: Apache-2.0
"""Commands of the device that owns the photos: conceal, extract and cameras."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli import exit_code
from sfumato.cli.options import (
    AsJson,
    ExtractorName,
    Labels,
    LocalOptions,
    Quiet,
    Workers,
    complete_recipe,
    outcome_facts,
    printable,
    progress_bar,
    quantity,
    read_labels,
    tell,
    warn_about,
)
from sfumato.concealment.keys import read_key
from sfumato.device import (
    ReleaseOutcome,
    ReleaseParams,
    conceal_photos,
    draw_releases,
    infer_cameras,
    release_positions,
    write_clear_features,
)
from sfumato.device.claims import RULES
from sfumato.errors import FileError, InputError
from sfumato.features.hloc import WARNING
from sfumato.geometry.cameras import GUESSED_FOCAL, write_cameras
from sfumato.geometry.outputs import CAMERAS, refuse_existing
from sfumato.types.recipe import DEFAULT

RELEASE_DEFAULTS = ReleaseParams()
Photos = Annotated[Path, typer.Argument(help="A folder of photos, a photo, an hloc features.h5, or a COLMAP database.")]


def conceal(
    photos: Photos,
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write, e.g. private.sfm.")],
    recipe: Annotated[
        str,
        typer.Option(
            help="How to conceal. default is sealed-512: a 512-bit code made with your device key, which nobody needs "
            "to compare codes. Or a lifting, its kind and dimension: sub-hybrid-2, with -generated for decoys that no "
            "database contains. Or an encoder, ninja:FILE or compress-48, alone or before a lifting: "
            "compress-48+sub-hybrid-2. All: 'sfumato help recipes'.",
            autocompletion=complete_recipe,
        ),
    ] = DEFAULT,
    decoys: Annotated[
        Path | None, typer.Option(help="Decoys made by 'sfumato decoys build'. Default: the bundled ones, for SIFT.")
    ] = None,
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    labels: Labels = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="A device key: a file of at least 16 random bytes, not words. Sealed recipes need one (default: "
            "yours, made at first use). With other recipes a key gives the same descriptor always the same subspace."
        ),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            help="For sealed recipes: seal under the key of this place, derived from the device key. Features of two "
            "places do not match, and the key of one opens no other."
        ),
    ] = None,
    evaluation_seed: Annotated[
        int | None, typer.Option(help="Repeatable draws, for evaluations only: this protects nobody.")
    ] = None,
    frames: Annotated[
        bool | None,
        typer.Option(
            "--frames/--no-frames",
            help="Keep the sizes and angles of keypoints, and the order of rows in hloc and COLMAP files. Sfumato does "
            "not need them, and much of a picture can be painted from them alone. Default: not for sealed recipes, "
            "where it needs --positions.",
        ),
    ] = None,
    positions: Annotated[
        bool,
        typer.Option(
            "--positions",
            help="For sealed recipes: let the positions of all features leave the device. Outlines of the photo show "
            "in them. Default: they stay home, in a file beside the archive, and 'sfumato release' lets those go that "
            "several photos see.",
        ),
    ] = False,
    with_cameras: Annotated[
        bool,
        typer.Option(
            "--with-cameras",
            help="Let the focal length that EXIF gives go with each photo, and nothing else of EXIF: maps and poses "
            "are better with it, and it may tell which camera model took the photo.",
        ),
    ] = False,
    float16: Annotated[
        bool, typer.Option("--float16", help="Half the size; 'sfumato help file_formats' states the loss.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew instead of adding what is missing.")
    ] = False,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Conceal the features of photos, or features that another program extracted.

    The archive may leave the device. Positions of sealed features stay, in a file beside it (private.sfm.positions):
    'sfumato release' lets those go that a map needs.

    Images already in the archive are skipped: a second, independent lifting of a descriptor would reveal it.
    Unreadable images are named and left out.

    Example: sfumato conceal photos/ -o private.sfm
    """
    with _interrupt_explained(output):
        outcome = conceal_photos(
            photos,
            output,
            recipe=recipe,
            secret=None if secret_file is None else read_key(secret_file),
            place=place,
            decoys=decoys,
            labels=None if labels is None else read_labels(labels),
            frames=frames,
            with_cameras=with_cameras,
            dtype="float16" if float16 else "float32",
            evaluation_seed=evaluation_seed,
            positions=True if positions else None,
            overwrite=overwrite,
            local=local.params,
            extractor=extractor,
            workers=workers,
            progress=progress_bar("concealing", None, quiet=quiet or as_json),
        )
    warn_about(outcome)
    size = output.stat().st_size
    notes = "".join(
        f", {count} {what}"
        for count, what in (
            (outcome.skipped, "images already there"),
            (len(outcome.featureless), "without features"),
            (len(outcome.unreadable), "unreadable"),
        )
        if count
    )
    line = f"{outcome.features} features of {outcome.images} images concealed with {outcome.recipe}{notes}"
    facts = {**outcome_facts(outcome), "recipe": outcome.recipe, "output": str(output), "bytes": size}
    facts |= {} if outcome.privacy is None else {"privacy spent": outcome.privacy}
    if with_cameras:
        facts |= {"focal lengths": outcome.focal_lengths}
        line += f", focal lengths of {outcome.focal_lengths} in the archive"
    privacy = "" if outcome.privacy is None else f"\nprivacy spent: {outcome.privacy}"
    tell(f"{line}: {output} ({decimal(size)}){privacy}", facts, as_json=as_json)


@contextmanager
def _interrupt_explained(output: Path) -> Iterator[None]:
    """Say after Ctrl-C that nothing is kept, where no image was finished; else the command's own words are right."""
    before = _state(output)
    try:
        yield
    except KeyboardInterrupt as stop:
        if _state(output) != before:
            raise
        print("interrupted: nothing was written; an archive that was there is as it was", file=sys.stderr)
        raise typer.Exit(exit_code()) from stop


def _state(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written to or replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOptions:
    """Options that say which positions may leave the device."""

    rule: Annotated[str, typer.Option(help=f"{'; '.join(f'{name}: {words}' for name, words in RULES.items())}.")] = (
        RELEASE_DEFAULTS.rule
    )
    limit: Annotated[
        float, typer.Option(help="If more than this share of a photo's rows is asked for, nothing new of it leaves.")
    ] = RELEASE_DEFAULTS.most_share
    never: Annotated[
        Path | None,
        typer.Option(help="A folder of masks, photo.jpg.png for photo.jpg: what lies where they are black stays home."),
    ] = None

    @property
    def params(self) -> ReleaseParams:
        """Return the conditions of a release, checked."""
        return ReleaseParams(rule=self.rule, most_share=self.limit)


def release(
    archive: Annotated[Path, typer.Argument(help="The archive that was matched, e.g. private.sfm.")],
    matches: Annotated[Path, typer.Option(help="The matches of its images, made by 'sfumato match'.")],
    options: ReleaseOptions = ReleaseOptions(),
    photos: Annotated[
        Path | None,
        typer.Option(help="The photos: for --pictures, and where the file of positions beside the archive is lost."),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(help="A folder: draw what of each photo can be seen from now on, or could. Needs --photos."),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(help="The device key that the archive was sealed with. Default: yours.")
    ] = None,
    place: Annotated[str | None, typer.Option(help="The place that the archive was sealed for, if it was.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would leave, and let nothing go.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Release positions of what several photos see, so that a map can be made. Runs on the device that has them.

    The device checks what the matches claim: rows must be of real photos of the place, agree in their bits and, where
    it has the photos, in the geometry. What agrees over three photos goes into the archive (--rule), and shows what a
    map shows. Run it again when there are more photos. Ends with exit code 1 if something was kept back.

    Example: sfumato release private.sfm --matches pairs.h5
    Example: sfumato release private.sfm --matches pairs.h5 --photos photos/ --pictures seen/
    """
    if pictures is not None and photos is None:
        raise InputError("--pictures draws on the photos: give their folder too (--photos)")
    outcome = release_positions(
        archive,
        matches,
        options.params,
        secret=None if secret_file is None else read_key(secret_file),
        place=place,
        photos=photos,
        never=options.never,
        dry_run=dry_run,
        progress=progress_bar("reading matches", None, quiet=quiet or as_json),
    )
    drawn = draw_releases(archive, photos, pictures, outcome) if pictures is not None and photos is not None else []
    report_release(outcome, str(archive), [*map(str, drawn)], dry_run=dry_run, as_json=as_json)


def report_release(
    outcome: ReleaseOutcome, where: str, drawn: Sequence[str] = (), *, dry_run: bool = False, as_json: bool = False
) -> None:
    """Say what left the device; ends with exit code 1 if something was kept back."""
    line, facts = describe_release(outcome, dry_run=dry_run)
    note = f"; pictures of what is seen: {Path(drawn[0]).parent}" if drawn else ""
    tell(f"{line}: {where}{note}", {**facts, "pictures": list(drawn), "output": where}, as_json=as_json)
    if outcome.kept_back:
        raise typer.Exit(1)


def describe_release(outcome: ReleaseOutcome, *, dry_run: bool = False) -> tuple[str, dict[str, Any]]:
    """Name on standard error what was kept back; return what left the device as a line, and as facts."""
    for name, reason in outcome.kept_back.items():
        print(printable(f"{name}: {reason}"), file=sys.stderr)
    new, shown = sum(outcome.new.values()), sum(outcome.shown.values())
    facts = {
        "photos": len(outcome.rows), "rows": sum(outcome.rows.values()), "released": shown, "new": new,
        "share": outcome.share, "pairs": outcome.claimed, "proven pairs": outcome.proven,
        "kept back": dict(outcome.kept_back), "by photo": dict(outcome.shown), "dry run": dry_run,
    }  # fmt: skip
    would = "would leave" if dry_run else "left"
    line = (
        f"{new} positions {would}, {shown} of {sum(outcome.rows.values())} in all ({outcome.share:.1%}) of "
        f"{quantity(len(outcome.rows), 'photo')}; {outcome.proven} of {quantity(outcome.claimed, 'pair')} proven"
    )
    return line, facts


def extract(
    photos: Photos,
    output: Annotated[Path, typer.Option("--output", "-o", help="The features file to write, e.g. clear.h5.")],
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    frames: Annotated[
        bool,
        typer.Option(
            "--frames",
            help="For hloc and COLMAP files: keep the order of their rows, as archives with frames do. Default: order "
            "of position, as in archives made with --positions.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Extract clear features, in hloc's format: keep the file on the device that owns the photos.

    'sfumato attack --clear' scores against this file. Give the same options as to 'sfumato conceal', and to that
    --positions for sealed recipes, so that row i of one stands for row i of the other. Unreadable images are named and
    left out.

    Example: sfumato extract photos/ -o clear.h5 --max-features 1000
    """
    outcome = write_clear_features(
        photos,
        output,
        local=local.params,
        extractor=extractor,
        frames=frames,
        overwrite=overwrite,
        workers=workers,
        progress=progress_bar("extracting", None, quiet=quiet or as_json),
    )
    warn_about(outcome)
    print(f"warning: {output} holds {WARNING}", file=sys.stderr)
    size = output.stat().st_size
    facts = {**outcome_facts(outcome), "output": str(output), "bytes": size, "clear": True}
    line = f"{outcome.features} clear features of {outcome.images} images: {output} ({decimal(size)})"
    tell(line, facts, as_json=as_json)


def cameras(
    source: Annotated[Path, typer.Argument(help="A folder of photos, a photo, or an archive of concealed features.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The list of cameras to write, e.g. cameras.txt.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a list of cameras that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a list of cameras, as hloc has it, from the EXIF of photos or from an archive.

    A line is 'name MODEL width height parameters...'. Where EXIF, or an archive made with --with-cameras, gives no
    focal length, it is guessed as 1.2 times the longer side, and a comment above the line says so. 'sfumato map
    --cameras' keeps cameras as they are given and adjusts guesses: correct a guess and delete the comment, or leave it.

    Example: sfumato cameras photos/ -o cameras.txt
    """
    refuse_existing(output, CAMERAS, {"the archive": source}, overwrite=overwrite)
    found = infer_cameras(source, progress=progress_bar("reading", None, quiet=quiet or as_json))
    for name, reason in found.unreadable.items():
        print(printable(f"no camera for {name}: {reason}"), file=sys.stderr)
    if not found.cameras:
        raise FileError(f"nothing to write: no image of {source} can be read")
    write_cameras(output, found.cameras, found.guessed)
    known, guessed = len(found.cameras) - len(found.guessed), len(found.guessed)
    note = f", {guessed} guessed as {GUESSED_FOCAL} times the longer side" if guessed else ""
    facts = {"cameras": len(found.cameras), "focal lengths known": known, "focal lengths guessed": guessed}
    line = f"{quantity(len(found.cameras), 'camera')}, focal lengths of {known} known{note}: {output}"
    tell(line, {**facts, "unreadable": dict(found.unreadable), "output": str(output)}, as_json=as_json)
    rest = ", and adjusts the marked guesses" if guessed else ""
    print(f"sfumato map keeps given cameras as they are{rest}: --refine-intrinsics adjusts all", file=sys.stderr)
