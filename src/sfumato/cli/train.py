# SPDX-License-Identifier: Apache-2.0
"""sfumato train: networks that attack, learned from other people's photos."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.complete import complete_recipe, one_of
from sfumato.cli.invert import concealer_of
from sfumato.cli.options import AsJson, ContrastThreshold, Descriptor, Detector, Quiet, Weights
from sfumato.cli.output import human_size, progress_bar, tell
from sfumato.errors import FileError, InputError, suggest
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.learn.blind import HIDDEN, without_descriptors
from sfumato.learn.inverters import Concealer, figures
from sfumato.learn.pace import told_flatness
from sfumato.learn.resume import part_of
from sfumato.learn.stage import Stage
from sfumato.learn.train_image import ImageTrainParams, train_image_inverter
from sfumato.learn.train_inverter import InverterTrainParams, parts_of, train_patch_inverter
from sfumato.learn.weights import load_weights, save_weights

DEFAULTS = InverterTrainParams()
IMAGES = ImageTrainParams()
ARCHITECTURES = ("patch", "unet", "uresnet")
CHECKED = (1000, 2000)


def inverter(
    photos: Annotated[list[Path], typer.Argument(help="Folders of photos of other people, a thousand or so.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. inverter.safetensors.")],
    architecture: Annotated[
        str,
        typer.Option(
            help="patch (strongest for its cost, runs without torch), or unet, uresnet as in the papers.",
            autocompletion=one_of(ARCHITECTURES),
        ),
    ] = "patch",
    recipe: Annotated[
        str,
        typer.Option(
            help="raw for clear descriptors, or the recipe to invert directly.", autocompletion=complete_recipe
        ),
    ] = "raw",
    keypoints_only: Annotated[
        bool, typer.Option("--keypoints-only", help="For patch: learn what keypoints show without any descriptor.")
    ] = False,
    decoys: Annotated[
        Path | None, typer.Option(help="For a recipe: the decoys, a public file. Default: the bundled ones, for SIFT.")
    ] = None,
    detector: Detector = DEFAULTS.local.detector,
    descriptor: Descriptor = DEFAULTS.local.descriptor,
    weights: Weights = None,
    max_features: Annotated[int | None, typer.Option(help="Of each photo. Default: 2000, 1000 for unet.")] = None,
    contrast_threshold: ContrastThreshold = DEFAULTS.local.contrast_threshold,
    minutes: Annotated[float, typer.Option(help="How long, all in all.")] = DEFAULTS.minutes,
    steps: Annotated[int | None, typer.Option(help="So many steps instead of minutes: repeatable.")] = None,
    refine_steps: Annotated[
        int | None, typer.Option(help="For patch: steps of the refinement. Default: half of --steps.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="For patch: an inverter whose refinement is trained on, to save time.")
    ] = None,
    perceptual: Annotated[
        Path | None, typer.Option(help="For unet and uresnet: a file of VGG16, for the perceptual loss.")
    ] = None,
    perceptual_weight: Annotated[
        float, typer.Option(help="How often the perceptual loss counts; 1 in the paper, where it outweighs all else.")
    ] = 1.0,
    width: Annotated[
        float, typer.Option(help="For unet and uresnet: what channels are multiplied by; 1 in the paper.")
    ] = IMAGES.width,
    check: Annotated[
        Path | None, typer.Option(help="For patch: photos not learned from; their figures go into the file.")
    ] = None,
    max_photos: Annotated[int, typer.Option(help="At most so many photos.")] = DEFAULTS.max_photos,
    refine_photos: Annotated[
        int, typer.Option(help="For patch: at most so many of them are painted, for the refinement.")
    ] = DEFAULTS.refine_photos,
    seed: Annotated[int, typer.Option(help="Decides all that is random.")] = DEFAULTS.seed,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted training, or begin where there is none.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a network that turns features back into pictures: what 'sfumato invert' and the leakage table attack with.

    For a recipe the photos are concealed with it, anew at every step, and the network learns to see through it; for a
    sealed one they are sealed under other keys and read back by alignment, as no network sees through bits. Never
    train on photos you measure with. Training needs the extra 'learn' (torch). If the loss still falls at the end, the
    command says so: an attacker that was not trained enough looks like privacy.

    Example: sfumato train inverter photos/ -o inverter.safetensors --minutes 15
    """
    is_begun = any(part.is_file() for part in (*parts_of(output), part_of(output)))
    if keypoints_only and (architecture != "patch" or recipe != "raw"):
        raise InputError("--keypoints-only is for --architecture patch, and without --recipe: no descriptor is seen")
    _refuse(output, architecture, overwrite=overwrite or (resume and is_begun))
    local = LocalParams(
        detector=detector,
        descriptor=descriptor,
        weights=weights,
        max_features=max_features or (2000 if architecture == "patch" else 1000),
        contrast_threshold=contrast_threshold,
    )
    given = [path for place in photos for _, path in list_images(place)]
    hidden = quiet or as_json
    facts: dict[str, Any]
    if architecture == "patch":
        params = InverterTrainParams(
            minutes=minutes, patch_steps=steps, refine_steps=refine_steps or (steps and math.ceil(steps / 2)),
            seed=seed, max_photos=max_photos, refine_photos=refine_photos, local=local, start=start,
        )  # fmt: skip
        if keypoints_only:
            params = replace(params, hidden=HIDDEN)
        concealer = without_descriptors if keypoints_only else concealer_of(recipe, decoys, seed)
        facts = _train_patch(params, given, output, (concealer, check), quiet=hidden, resume=resume)
    else:
        settings = ImageTrainParams(
            architecture=architecture, minutes=minutes, steps=steps, seed=seed, max_photos=max_photos, local=local,
            perceptual=perceptual, perceptual_weight=perceptual_weight, width=width,
        )  # fmt: skip
        bar = progress_bar("training", None, quiet=hidden)
        concealer = concealer_of(recipe, decoys, seed)
        result = train_image_inverter(settings, given, output, concealer=concealer, progress=bar, resume=resume)
        facts = result.facts()
    facts |= {"output": str(output), "bytes": output.stat().st_size}
    of = "keypoints of" if keypoints_only else recipe
    line = f"{architecture} inverter for {of} {descriptor} from {min(len(given), max_photos)} photos"
    tell(f"{line}: {output} ({human_size(facts['bytes'])})", facts, as_json=as_json)


def _train_patch(
    params: InverterTrainParams,
    photos: list[Path],
    output: Path,
    attacked: tuple[Concealer | None, Path | None],
    *,
    quiet: bool,
    resume: bool,
) -> dict[str, Any]:
    """Train, check if asked to, and return what the file says about it."""
    concealer, check = attacked

    def report(stage: Stage) -> None:
        if not quiet:
            left = f"{stage.seconds_left / 60:.1f} min left" if stage.pace.steps else "begins"
            print(f"{stage.name}: step {stage.pace.steps}, loss {stage.losses[-1]:.4f}, {left}", file=sys.stderr)

    bar = progress_bar("reading and painting", None, quiet=quiet)
    trained = train_patch_inverter(
        params, photos, output, concealer=concealer, progress=bar, report=report, resume=resume
    )
    made = dict(trained.made)
    if check is not None:
        held = [path for _, path in list_images(check)]
        for most in CHECKED:
            bar = progress_bar(f"checking with {most} features", len(held), quiet=quiet)
            chosen = replace(params.local, max_features=most)
            made[f"figures with {most} features"] = figures(trained, held, chosen, concealer=concealer, progress=bar)
        header, tensors = load_weights(output)
        save_weights(output, replace(header, made=made), tensors)
    for name, value in made.items():
        if isinstance(value, dict) and value.get("is_flat") is False:
            print(f"{name}: {told_flatness(value['flatness'])}", file=sys.stderr)
    return made


def _refuse(output: Path, architecture: str, *, overwrite: bool) -> None:
    if architecture not in ARCHITECTURES:
        hint = suggest(architecture, ARCHITECTURES)
        raise InputError(f"no architecture is called {architecture!r:.80}{hint}; there are {', '.join(ARCHITECTURES)}")
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
