# SPDX-License-Identifier: Apache-2.0
"""Commands that train on other people's photos: inverters, decoders, components and pairs."""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.filesize import decimal

from sfumato.cli.options import (
    ExtractorName,
    FileOptions,
    LocalOptions,
    PhotoOptions,
    Workers,
    complete_recipe,
    one_of,
    tell,
    warn_about,
)
from sfumato.device import ConcealOutcome
from sfumato.errors import InputError, suggest
from sfumato.files.atomic import check_output
from sfumato.images.read import list_images
from sfumato.inversion.load import KEYPOINT_HIDDEN, without_descriptors
from sfumato.training.compress import train_compress
from sfumato.training.concealers import concealer_of
from sfumato.training.decoder import DecoderTrainParams, train_decoder
from sfumato.training.image import BLIND_CELLS, CELLS, ImageTrainParams, train_image_inverter
from sfumato.training.inverter import InverterTrainParams, add_figures, parts_of, train_patch_inverter
from sfumato.training.loop import TrainingState, flatness_message, part_of
from sfumato.training.pairs import PairParams, pairs_from_photos, pick_evenly, save_pairs
from sfumato.training.tracks import pairs_from_tracks
from sfumato.types.recipe import Recipe

PATCH, IMAGES, DECODER, PAIRS = InverterTrainParams(), ImageTrainParams(), DecoderTrainParams(), PairParams()
ARCHITECTURES = ("patch", "cells", "unet", "uresnet")

Steps = Annotated[int | None, typer.Option(help="Train for this many steps instead of minutes: repeatable.")]
Photos = Annotated[list[Path], typer.Argument(help="Folders of other people's photos; never those you measure with.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions(FileOptions):
    """Options of a training that can be resumed."""

    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted training.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InverterLocalOptions(PhotoOptions):
    """Options of local features, with a number of features that depends on the architecture."""

    max_features: Annotated[
        int, typer.Option(help="For photos: keep this many of each. 0: 2000, or 1000 for unet and uresnet.")
    ] = 0


def inverter(
    photos: Photos,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. inverter.safetensors.")],
    architecture: Annotated[
        str,
        typer.Option(
            help="patch (strongest where sizes and angles of keypoints are known) and cells (strongest from positions) "
            "run without torch; unet, uresnet as in the papers.",
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
        bool,
        typer.Option(
            "--keypoints-only",
            help="For patch: learn from keypoints without any descriptor; for cells from positions alone.",
        ),
    ] = False,
    outlines: Annotated[
        bool,
        typer.Option("--outlines", help="For cells with --keypoints-only: paint where the photo has contrast."),
    ] = False,
    decoys: Annotated[
        Path | None, typer.Option(help="For a recipe: the decoys, a public file. Default: the bundled ones, for SIFT.")
    ] = None,
    local: InverterLocalOptions = InverterLocalOptions(),
    minutes: Annotated[float, typer.Option(help="Length of the training, reading included.")] = PATCH.minutes,
    steps: Steps = None,
    refine_steps: Annotated[
        int | None, typer.Option(help="For patch: steps of the refinement. Default: half of --steps.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="To save time: an inverter that is trained further; for patch its refinement alone."),
    ] = None,
    perceptual: Annotated[
        Path | None, typer.Option(help="For unet and uresnet: a file of VGG16, for the perceptual loss.")
    ] = None,
    perceptual_weight: Annotated[
        float, typer.Option(help="Weight of the perceptual loss; 1 in the paper, where it outweighs all else.")
    ] = 1.0,
    width: Annotated[
        float, typer.Option(help="For unet and uresnet: factor of the number of channels; 1 in the paper.")
    ] = IMAGES.width,
    bfloat16: Annotated[
        bool,
        typer.Option("--bfloat16", help="Not for patch: multiply in half the bits, faster on processors that can."),
    ] = False,
    check: Annotated[
        Path | None, typer.Option(help="For patch: photos not learned from; their figures go into the file.")
    ] = None,
    max_photos: Annotated[int, typer.Option(help="Use at most this many photos.")] = PATCH.max_photos,
    refine_photos: Annotated[
        int, typer.Option(help="For patch: paint at most this many of them, for the refinement.")
    ] = PATCH.refine_photos,
    options: TrainOptions = TrainOptions(),
) -> None:
    """Train a network that turns features back into pictures: what 'sfumato invert' and the leakage table attack with.

    For a recipe the photos are concealed with it, anew at every step, and the network learns to invert it. For a sealed
    recipe they are sealed under other keys and read back by alignment, because no network can invert the bits
    themselves. Give a thousand photos or so. Training needs the extra 'learn' (torch). If the loss still falls at the
    end, the command says so: an undertrained attacker looks like privacy.

    Example: sfumato train inverter photos/ -o inverter.safetensors --minutes 15
    """
    if architecture not in ARCHITECTURES:
        hint = suggest(architecture, ARCHITECTURES)
        raise InputError(f"no architecture is called {architecture!r:.80}{hint}; there are {', '.join(ARCHITECTURES)}")
    is_patch = architecture == "patch"
    if keypoints_only and (recipe != "raw" or architecture not in ("patch", "cells")):
        raise InputError(
            "--keypoints-only is for --architecture patch and cells, without --recipe: no descriptor is used"
        )
    if outlines and not (keypoints_only and architecture == "cells"):
        raise InputError("--outlines is for --architecture cells with --keypoints-only")
    is_begun = any(part.is_file() for part in (*parts_of(output), part_of(output)))
    check_output(output, overwrite=options.overwrite or (options.resume and is_begun))
    local_params = replace(local, max_features=local.max_features or (2000 if is_patch else 1000)).params
    paths = list_photos(photos)
    concealer = without_descriptors if keypoints_only else concealer_of(recipe, decoys, options.seed)
    facts: dict[str, Any]
    if is_patch:
        params = InverterTrainParams(
            minutes=minutes,
            patch_steps=steps,
            refine_steps=refine_steps or (steps and math.ceil(steps / 2)),
            hidden=KEYPOINT_HIDDEN if keypoints_only else PATCH.hidden,
            seed=options.seed,
            max_photos=max_photos,
            refine_photos=refine_photos,
            local=local_params,
            start=start,
        )
        bar = options.bar("reading and painting")
        report = _ignore if options.is_silent else _print_stage
        trained = train_patch_inverter(
            params, paths, output, concealer=concealer, progress=bar, report=report, resume=options.resume
        )
        facts = dict(trained.made)
        if check is not None:
            checked = list_photos([check])
            facts = add_figures(output, checked, local_params, concealer=concealer, progress=options.bar("checking"))
        for name, stage in facts.items():
            if isinstance(stage, dict) and stage.get("is_flat") is False:
                print(f"{name}: {flatness_message(stage['flatness'])}", file=sys.stderr)
    else:
        cells = BLIND_CELLS if keypoints_only else CELLS
        settings = ImageTrainParams(
            architecture=architecture,
            minutes=minutes,
            steps=steps,
            seed=options.seed,
            max_photos=max_photos,
            local=local_params,
            perceptual=perceptual,
            perceptual_weight=perceptual_weight,
            width=width,
            start=start,
            bfloat16=bfloat16,
            target="outlines" if outlines else "picture",
            **(cells if architecture == "cells" else {}),
        )
        bar = options.bar("training")
        result = train_image_inverter(settings, paths, output, concealer=concealer, progress=bar, resume=options.resume)
        facts = result.facts()
    inverted = "keypoints of" if keypoints_only else recipe
    line = f"{architecture} inverter for {inverted} {local.descriptor} from {min(len(paths), max_photos)} photos"
    tell_file(line, facts, output, options)


def decoder(
    photos: Photos,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. decoder.safetensors.")],
    recipe: Annotated[
        str,
        typer.Option(
            help="The recipe of the attacked features; raw trains a control that has nothing to undo.",
            autocompletion=complete_recipe,
        ),
    ] = "sub-hybrid-2",
    decoys: Annotated[
        Path | None, typer.Option(help="The decoys that were used, a public file. Default: the bundled ones, for SIFT.")
    ] = None,
    form: Annotated[str, typer.Option(help="direct, search (along the subspace), or auto.")] = DECODER.form,
    local: PhotoOptions = PhotoOptions(max_features=DECODER.local.max_features),
    minutes: Annotated[float, typer.Option(help="Length of the training.")] = DECODER.minutes,
    steps: Steps = DECODER.steps,
    hidden: Annotated[int, typer.Option(help="Units in each layer.")] = DECODER.hidden,
    options: TrainOptions = TrainOptions(seed=DECODER.seed),
) -> None:
    """Train a decoder that guesses the clear descriptor from the concealed one: the attack of that name.

    The photos are concealed with the recipe, anew in every round, and the decoder learns to undo it; descriptors of
    held-out photos select the best. Give a hundred photos or more. Training needs the extra 'learn' (torch), attacking
    does not. If the loss still falls at the end, the command says so: train longer.

    Example: sfumato train decoder photos/ -o decoder.safetensors --recipe sub-hybrid-2
    """
    check_output(output, overwrite=options.overwrite or options.resume)
    if Recipe.of(recipe).is_sealed:
        raise InputError(
            f"--recipe {recipe}: no decoder learns from single sealed features, which the key turns at random; sfumato "
            f"attack runs alignment on them, and sfumato train inverter learns from its results"
        )
    params = DecoderTrainParams(
        form=form, hidden=hidden, minutes=minutes, steps=steps, seed=options.seed, local=local.params
    )
    paths, concealer = list_photos(photos), concealer_of(recipe, decoys, options.seed)
    result = train_decoder(
        params, paths, output, concealer=concealer, progress=options.bar("training"), resume=options.resume
    )
    if not result.is_flat:
        print(flatness_message(result.flatness), file=sys.stderr)
    share = 100 * result.scores["within 0.1"]
    line = (
        f"decoder for {recipe} {local.descriptor} from {len(paths)} photos: {share:.0f} % of held-out rows within 0.1"
    )
    tell_file(line, result.facts() | {"recipe": recipe}, output, options)


def compress(
    sources: Annotated[
        list[Path], typer.Argument(help="Folders of other people's photos, photos, features.h5 files, databases.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. mine.safetensors.")],
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    workers: Workers = None,
    options: FileOptions = FileOptions(),
) -> None:
    """Learn the principal components of descriptors, for recipes such as compress-48:FILE+sub-hybrid-2.

    All components are written, the strongest first; the recipe says how many are used. Fewer match worse, cost less and
    reveal less. Before a lifting they remove what the vertex attack rests on. Alone they are a weak concealment: a
    linear map undoes them ('sfumato train decoder --recipe compress-48:FILE' measures it). Components for SIFT come
    with the package: compress-48 names them. Never use photos you measure with.

    Example: sfumato train compress photos/ -o mine.safetensors --descriptor rootsift
    """
    check_output(output, overwrite=options.overwrite)
    outcome = ConcealOutcome()
    try:
        encoder = train_compress(
            sources,
            output,
            local=local.params,
            extractor=extractor,
            workers=workers,
            outcome=outcome,
            progress=options.bar("reading"),
        )
    finally:
        warn_about(outcome)
    shares = ", ".join(f"{dim}: {100 * share:.0f} %" for dim, share in encoder.card["kept"].items())
    line = f"{encoder.output_dim} components of {encoder.card['descriptors']} {encoder.extractor_name} descriptors of "
    line += f"{outcome.images} images; spread kept by {shares}"
    tell_file(line, {"checksum": encoder.checksum, **encoder.card}, output, options)


def pairs(
    photos: Photos,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. pairs.npz. It is clear.")],
    per_folder: Annotated[
        int | None, typer.Option(min=1, help="Use this many photos of each folder, evenly spaced. Default: all.")
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="Pairs at most, an equal share of each photo; 0 for all.")] = 0,
    views: Annotated[int, typer.Option(min=1, help="Warped views of each photo.")] = PAIRS.views,
    model: Annotated[
        Path | None,
        typer.Option(help="A COLMAP model of the photos of one folder: pair observations of its points, not views."),
    ] = None,
    local: PhotoOptions = PhotoOptions(max_features=PAIRS.local.max_features),
    seed: Annotated[int, typer.Option(help="Seed of the views.")] = PAIRS.seed,
    workers: Annotated[int, typer.Option(min=1, help="Photos at once; the result is the same.")] = 1,
    options: FileOptions = FileOptions(),
) -> None:
    """Make pairs of descriptors of one point from photos and warped views: 'train ninja' learns to match from them.

    'train ninja --patches FOLDER' makes them on each run; a file of pairs serves several lambdas. It holds clear
    descriptors: keep it where the photos are, and never publish it.

    Example: sfumato train pairs photos/ -o pairs.npz && sfumato train ninja --patches pairs.npz -o ninja.safetensors
    """
    check_output(output, overwrite=options.overwrite)
    if model is not None and len(photos) != 1:
        raise InputError(f"--model is a map of the photos of one folder, got {len(photos)}")
    paths = [path for folder in photos for path in pick_evenly(list_photos([folder]), per_folder)]
    if model is not None:
        descriptor_pairs = pairs_from_tracks(model, photos[0], local.params, progress=options.bar("reading"))
    else:
        params = PairParams(views=views, seed=seed, most=most, local=local.params)
        descriptor_pairs = pairs_from_photos(paths, params, workers=workers, progress=options.bar("warping"))
    save_pairs(output, descriptor_pairs)
    groups, points = (len(np.unique(part)) for part in (descriptor_pairs.groups, descriptor_pairs.points))
    line = f"{len(descriptor_pairs)} pairs of {points} points of {groups} of {len(paths)} photos"
    facts = {"pairs": len(descriptor_pairs), "points": points, "photos": groups}
    tell_file(line, facts, output, options, note="; clear, keep it private")


def list_photos(folders: list[Path]) -> list[Path]:
    """Return the paths of all images in folders."""
    return [path for folder in folders for _, path in list_images(folder)]


def _ignore(state: TrainingState) -> None:
    pass


def _print_stage(state: TrainingState) -> None:
    rest = f"{state.pace.seconds_left / 60:.1f} min left" if state.pace.steps else "begins"
    loss = state.losses["validation"][-1]
    print(f"{state.name}: step {state.pace.steps}, loss {loss:.4f}, {rest}", file=sys.stderr)


def tell_file(line: str, facts: dict[str, Any], output: Path, options: FileOptions, note: str = "") -> None:
    """Print what was written, and its size."""
    size = output.stat().st_size
    facts = facts | {"output": str(output), "bytes": size}
    tell(f"{line}: {output} ({decimal(size)}{note})", facts, as_json=options.as_json)
