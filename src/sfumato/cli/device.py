# SPDX-License-Identifier: Apache-2.0
"""sfumato conceal: pictures or clear features in, an archive of concealed features out."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.options import (
    AsJson,
    ContrastThreshold,
    Descriptor,
    Detector,
    ExtractorName,
    Labels,
    LocalOptions,
    MaxFeatures,
    Quiet,
    Weights,
    Workers,
    complete_recipe,
    human_size,
    make_key,
    outcome_facts,
    own_key_path,
    printable,
    progress_bar,
    read_labels,
    read_secret,
    tell,
    warn_about,
)
from sfumato.concealment.decoy_file import load_decoys
from sfumato.concealment.resolve import resolve_ahead
from sfumato.concealment.seal import key_for_place
from sfumato.concealment.subset import spent_by
from sfumato.device import ConcealParams, Outcome, conceal_to_archive, open_source, read_features
from sfumato.errors import FileError, InputError
from sfumato.features.hloc import WARNING, write_hloc
from sfumato.features.local import LocalParams
from sfumato.geometry.cameras import NAME_EARLIER, NAME_FIRST, fault, is_listable, some
from sfumato.types.clear import Features
from sfumato.types.recipe import Recipe

DEFAULTS, LOCAL = ConcealParams(), LocalParams()
Key = tuple[bytes | None, Callable[[], bytes] | None]
"""A key, or how it will be made; neither where none is needed."""


def decoy_count(recipe: str) -> int:
    """Return how many decoys a recipe takes for one descriptor, or as a dictionary: 0 for none."""
    lifting = Recipe.of(recipe).lifting
    return 0 if lifting is None else lifting.decoy_count


def _own_key(recipe: Recipe, evaluation_seed: int | None) -> Key:
    """Return for a sealed recipe the key of this user, or how it will be made if there is none."""
    if evaluation_seed is not None or not recipe.is_sealed:
        return None, None
    path = own_key_path()
    return (read_secret(path), None) if path.exists() else (None, partial(_new_key, path))


def _for_place(own: Key, recipe: Recipe, place: str) -> Key:
    """Return the key of a place instead of the device's; raise InputError where nothing is sealed."""
    key, new = own
    if not recipe.is_sealed or (key is None and new is None):
        raise InputError(f"--place is for sealed recipes under a device key: {recipe} is not sealed under one here")
    if key is not None:
        return key_for_place(key, place), None
    assert new is not None
    return None, lambda: key_for_place(new(), place)


def _new_key(path: Path) -> bytes:
    make_key(path)
    print(
        printable(
            f"made a device key, {path}: devices whose features are to match need the same one, so copy it to them "
            f"and keep it from every server; features sealed under a lost key match nothing new"
        ),
        file=sys.stderr,
    )
    return read_secret(path)


def warn_of_names(names: Iterable[str], *, is_drawn: bool) -> None:
    """Say before anything is concealed which names will stand in the way later; nothing can change them then.

    ``is_drawn``: liftings are drawn anew each time, so that concealing a photo again would reveal it.
    """
    wrong = [name for name in names if fault(name) or not is_listable(name)]
    if wrong:
        print(
            printable(
                f"{some(wrong)}: because of spaces, a # in front or control characters hloc's lists, and with them "
                f"sfumato localize and export, cannot hold such names; {NAME_EARLIER if is_drawn else NAME_FIRST}"
            ),
            file=sys.stderr,
        )


def conceal(
    source: Annotated[
        Path, typer.Argument(help="A folder of photos, a photo, an hloc features.h5, or a COLMAP database.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write, e.g. private.sfm.h5.")],
    recipe: Annotated[
        str,
        typer.Option(
            help="How to conceal. sealed-512: 512 bits under a device key, which whoever compares does not need "
            "(docs/sealing.md). Or a lifting, kind and dimension, e.g. random-2, sub-hybrid-2, with -generated for "
            "decoys that no database has; or an encoder, ninja:FILE (made by 'sfumato train ninja'), ninja-sift-2.5 or "
            "compress-48 (bundled), alone or before one: compress-48+sub-hybrid-2-generated. subset-4:eps=10 has a "
            "guarantee, at a price (a patent, US 12,462,057, claims its use for descriptors). See docs/recipes.md.",
            autocompletion=complete_recipe,
        ),
    ] = DEFAULTS.recipe,
    decoys: Annotated[
        Path | None, typer.Option(help="Decoys made by 'sfumato decoys build'. Default: the bundled ones, for SIFT.")
    ] = None,
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    extractor: ExtractorName = None,
    labels: Labels = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="A device key, 16 random bytes or more, and no words. Sealed recipes need it (default: one of yours, "
            "made at first use); with others the same descriptor then always gets the same subspace."
        ),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            help="Of a sealed archive: seal under a key of its own for this place, made of the device key. Features of "
            "two places do not match, and who breaks one has not broken the other (docs/sealing.md)."
        ),
    ] = None,
    evaluation_seed: Annotated[
        int | None, typer.Option(help="Repeatable draws, for evaluations only: protects nobody.")
    ] = None,
    frames: Annotated[
        bool | None,
        typer.Option(
            "--frames/--no-frames",
            help="Keep sizes and angles of keypoints. Nothing here needs them, and much of a picture can be painted "
            "from them alone. Default: positions only where the recipe is sealed.",
        ),
    ] = None,
    float16: Annotated[bool, typer.Option("--float16", help="Half the size, see docs/format.md for the loss.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew instead of adding what is missing.")
    ] = False,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Conceal the features of photos, or features that another program extracted.

    Images already in the archive are skipped: a second, independent lifting of a descriptor would reveal it.
    Unreadable images are named and left out. The archive names an encoder by its checksum, and takes no images of
    another one.

    Example: sfumato conceal photos/ -o private.sfm.h5
    """
    local = LocalParams(
        detector=detector,
        descriptor=descriptor,
        weights=weights,
        max_features=max_features,
        contrast_threshold=contrast_threshold,
    )
    ahead = resolve_ahead(recipe)
    if decoys is not None and not decoy_count(recipe):
        raise InputError(f"--decoys has no effect on {ahead}, which takes none: choose --recipe sub-hybrid-2 or so")
    opened = open_source(source, params=local, extractor=extractor, workers=workers)
    warn_of_names(opened.names, is_drawn=ahead.lifting is not None and secret_file is None)
    own = _own_key(ahead, evaluation_seed) if secret_file is None else (read_secret(secret_file), None)
    if place is not None:
        own = _for_place(own, ahead, place)
    params = ConcealParams(
        recipe=recipe,
        dtype="float16" if float16 else "float32",
        overwrite=overwrite,
        frames=frames,
        evaluation_seed=evaluation_seed,
        secret=own[0],
        new_secret=own[1],
    )
    outcome = conceal_to_archive(
        opened,
        output,
        params,
        None if decoys is None else load_decoys(decoys),
        labels=None if labels is None else read_labels(labels),
        progress=progress_bar("concealing", len(opened.names), quiet=quiet or as_json),
    )
    warn_about(outcome)
    size = output.stat().st_size
    counts = f"{outcome.features} features of {outcome.images} images concealed with {outcome.recipe}"
    notes = "".join(
        f", {count} {what}"
        for count, what in (
            (outcome.skipped, "images already there"),
            (len(outcome.featureless), "without features"),
            (len(outcome.unreadable), "unreadable"),
        )
        if count
    )
    facts = {**outcome_facts(outcome), "recipe": outcome.recipe, "output": str(output), "bytes": size}
    spent = spent_by(output)
    facts |= {} if spent is None else {"privacy spent": spent}
    told = "" if spent is None else f"\nprivacy spent: {spent}"
    tell(f"{counts}{notes}: {output} ({human_size(size)}){told}", facts, as_json=as_json)


# ----------------------------------------------------------------
# sfumato extract: pictures in, clear features in hloc's format out. For the device, to score attacks against


def extract(
    source: Annotated[
        Path, typer.Argument(help="A folder of photos, a photo, an hloc features.h5, or a COLMAP database.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The features file to write, e.g. clear.h5.")],
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Extract clear features, in hloc's format: keep the file on the device that owns the photos.

    It is what 'sfumato attack --clear' scores against; give the same options as to 'sfumato conceal', so that row i of
    one stands for row i of the other. Unreadable images are named and left out.

    Example: sfumato extract photos/ -o clear.h5 --max-features 1000
    """
    if output.name.endswith(".sfm.h5"):
        raise FileError(f"{output}: .sfm.h5 is for archives of concealed features; name clear ones otherwise")
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    outcome = Outcome()
    opened = open_source(source, params=local.params, extractor=extractor, workers=workers)
    bar = progress_bar("extracting", len(opened.names), quiet=quiet or as_json)
    write_hloc(output, at_least_one(read_features([opened], outcome, bar), outcome))
    warn_about(outcome)
    print(f"warning: {output} holds {WARNING}", file=sys.stderr)
    size = output.stat().st_size
    facts = {**outcome_facts(outcome), "output": str(output), "bytes": size, "clear": True}
    line = f"{outcome.features} clear features of {outcome.images} images: {output} ({human_size(size)})"
    tell(line, facts, as_json=as_json)


def at_least_one(images: Iterable[tuple[str, Features]], outcome: Outcome) -> Iterator[tuple[str, Features]]:
    """Pass images on, and refuse to end without any: a file of nothing looks like success."""
    yield from images
    if not outcome.images:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(outcome.unreadable.items())[:3])
        raise FileError(f"nothing to write: no image could be read. {reasons}")
