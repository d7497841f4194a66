# SPDX-License-Identifier: Apache-2.0
"""sfumato train decoder: other people's photos and a recipe in, a decoder that undoes the recipe out."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.complete import complete_recipe
from sfumato.cli.invert import concealer_of
from sfumato.cli.options import AsJson, ContrastThreshold, Descriptor, Detector, MaxFeatures, Quiet, Weights
from sfumato.cli.output import human_size, progress_bar, tell
from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.learn.decoderdata import DecoderTrainParams
from sfumato.learn.pace import told_flatness
from sfumato.learn.train_decoder import train_decoder
from sfumato.types.recipe import Recipe

DEFAULTS = DecoderTrainParams()


def run(
    photos: Annotated[list[Path], typer.Argument(help="Folders of photos of other people, a hundred or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. decoder.safetensors.")],
    recipe: Annotated[
        str,
        typer.Option(
            help="How the attacked features were concealed; raw trains a control that has nothing to do.",
            autocompletion=complete_recipe,
        ),
    ] = "sub-hybrid-2",
    decoys: Annotated[
        Path | None, typer.Option(help="The decoys that were used, a public file. Default: the bundled ones, for SIFT.")
    ] = None,
    form: Annotated[str, typer.Option(help="direct, search (along the subspace), or auto.")] = DEFAULTS.form,
    detector: Detector = DEFAULTS.local.detector,
    descriptor: Descriptor = DEFAULTS.local.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = DEFAULTS.local.max_features,
    contrast_threshold: ContrastThreshold = DEFAULTS.local.contrast_threshold,
    minutes: Annotated[float, typer.Option(help="How long to train.")] = DEFAULTS.minutes,
    steps: Annotated[int | None, typer.Option(help="So many steps instead of minutes: repeatable.")] = DEFAULTS.steps,
    hidden: Annotated[int, typer.Option(help="Units in each layer.")] = DEFAULTS.hidden,
    seed: Annotated[int, typer.Option(help="Decides all that is random.")] = DEFAULTS.seed,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a decoder that guesses the clear descriptor from the concealed one: the attack of that name.

    The photos are concealed with the recipe, anew in every round, and the decoder learns to undo it; descriptors of
    photos held out choose the best. Never train on photos you measure with. Training needs the extra 'learn' (torch),
    attacking does not. If the loss still falls at the end, the command says so: train longer.

    Example: sfumato train decoder photos/ -o decoder.safetensors --recipe sub-hybrid-2
    """
    if output.exists() and not (overwrite or resume):
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    if Recipe.of(recipe).is_sealed:
        raise InputError(
            f"recipe {recipe}: no decoder learns from single sealed features, which the key turns at random; sfumato "
            f"attack runs alignment on them, and sfumato train inverter learns from what that reads"
        )
    local = LocalParams(
        detector=detector, descriptor=descriptor, weights=weights, max_features=max_features,
        contrast_threshold=contrast_threshold,
    )  # fmt: skip
    params = DecoderTrainParams(form=form, hidden=hidden, minutes=minutes, steps=steps, seed=seed, local=local)
    given = [path for place in photos for _, path in list_images(place)]
    bar = progress_bar("training", None, quiet=quiet or as_json)
    concealer = concealer_of(recipe, decoys, seed)
    result = train_decoder(params, given, output, concealer=concealer, progress=bar, resume=resume)
    if not result.is_flat:
        print(told_flatness(result.flatness), file=sys.stderr)
    size = output.stat().st_size
    facts = result.facts() | {"output": str(output), "bytes": size, "recipe": recipe}
    share = 100 * result.scores["within 0.1"]
    line = f"decoder for {recipe} {descriptor} from {len(given)} photos: {share:.0f} % of rows held out within 0.1"
    tell(f"{line}: {output} ({human_size(size)})", facts, as_json=as_json)
