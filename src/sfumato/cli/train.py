# SPDX-License-Identifier: Apache-2.0
"""sfumato train: networks that attack, learned from other people's photos."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.filesize import decimal

from sfumato.cli.invert import concealer_of
from sfumato.cli.options import (
    AsJson,
    ContrastThreshold,
    Descriptor,
    Detector,
    ExtractorName,
    MaxFeatures,
    Quiet,
    Weights,
    Workers,
    complete_recipe,
    one_of,
    progress_bar,
    tell,
    warn_about,
)
from sfumato.concealment.encoder import save_encoder
from sfumato.device import ConcealOutcome, open_source, read_features
from sfumato.errors import FileError, InputError, suggest
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.inversion.load import HIDDEN, Concealer, figures, without_descriptors
from sfumato.inversion.patches import load_weights, save_weights
from sfumato.matching.executors import local_processes
from sfumato.training.compress import learn_compress
from sfumato.training.decoder import DecoderTrainParams, train_decoder
from sfumato.training.image import ImageTrainParams, train_image_inverter
from sfumato.training.inverter import InverterTrainParams, parts_of, train_patch_inverter
from sfumato.training.loop import TrainingState, flatness_message, part_of
from sfumato.training.pairs import PairParams, pairs_from_photos, save_pairs
from sfumato.types.recipe import Recipe

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
    tell(f"{line}: {output} ({decimal(facts['bytes'])})", facts, as_json=as_json)


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

    def report(state: TrainingState) -> None:
        if not quiet:
            left = f"{state.pace.seconds_left / 60:.1f} min left" if state.pace.steps else "begins"
            loss = state.losses["validation"][-1]
            print(f"{state.name}: step {state.pace.steps}, loss {loss:.4f}, {left}", file=sys.stderr)

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
            print(f"{name}: {flatness_message(value['flatness'])}", file=sys.stderr)
    return made


def _refuse(output: Path, architecture: str, *, overwrite: bool) -> None:
    if architecture not in ARCHITECTURES:
        hint = suggest(architecture, ARCHITECTURES)
        raise InputError(f"no architecture is called {architecture!r:.80}{hint}; there are {', '.join(ARCHITECTURES)}")
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")


# ----------------------------------------------------------------
# sfumato train decoder: other people's photos and a recipe in, a decoder that undoes the recipe out


DECODER_DEFAULTS = DecoderTrainParams()


def decoder(
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
    form: Annotated[str, typer.Option(help="direct, search (along the subspace), or auto.")] = DECODER_DEFAULTS.form,
    detector: Detector = DECODER_DEFAULTS.local.detector,
    descriptor: Descriptor = DECODER_DEFAULTS.local.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = DECODER_DEFAULTS.local.max_features,
    contrast_threshold: ContrastThreshold = DECODER_DEFAULTS.local.contrast_threshold,
    minutes: Annotated[float, typer.Option(help="How long to train.")] = DECODER_DEFAULTS.minutes,
    steps: Annotated[
        int | None, typer.Option(help="So many steps instead of minutes: repeatable.")
    ] = DECODER_DEFAULTS.steps,
    hidden: Annotated[int, typer.Option(help="Units in each layer.")] = DECODER_DEFAULTS.hidden,
    seed: Annotated[int, typer.Option(help="Decides all that is random.")] = DECODER_DEFAULTS.seed,
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
        print(flatness_message(result.flatness), file=sys.stderr)
    size = output.stat().st_size
    facts = result.facts() | {"output": str(output), "bytes": size, "recipe": recipe}
    share = 100 * result.scores["within 0.1"]
    line = f"decoder for {recipe} {descriptor} from {len(given)} photos: {share:.0f} % of rows held out within 0.1"
    tell(f"{line}: {output} ({decimal(size)})", facts, as_json=as_json)


# ----------------------------------------------------------------
# sfumato train compress: other people's photos or features in, the principal components of their descriptors out


LOCAL = LocalParams()


def compress(
    sources: Annotated[
        list[Path], typer.Argument(help="Folders of photos of other people, photos, features.h5 files, databases.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. mine.safetensors.")],
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    extractor: ExtractorName = None,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Learn the principal components of descriptors, for recipes such as compress-48:FILE+sub-hybrid-2.

    All components are written, the strongest first; the recipe says how many are kept. Fewer match worse, cost less and
    tell less. Before a lifting they take away what the vertex attack rests on. Alone they are a weak concealment: a
    linear map of what is kept undoes them ('sfumato train decoder --recipe compress-48:FILE' measures it). For SIFT
    components come with the package, and compress-48 names them. Never use photos you measure with.

    Example: sfumato train compress photos/ -o mine.safetensors --descriptor rootsift
    """
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    local = LocalParams(
        detector=detector, descriptor=descriptor, weights=weights, max_features=max_features,
        contrast_threshold=contrast_threshold,
    )  # fmt: skip
    opened = [open_source(path, params=local, extractor=extractor, workers=workers) for path in sources]
    outcome = ConcealOutcome()
    bar = progress_bar("reading", sum(len(source.names) for source in opened), quiet=quiet or as_json)
    images = [features for _, features in read_features(opened, outcome, bar) if len(features)]
    warn_about(outcome)
    if not images:
        raise InputError("no image of these has a feature: give other photos")
    kind = images[0].extractor
    if not all(features.extractor.matches(kind) for features in images):
        raise InputError("these are descriptors of different kinds: learn from one kind at a time")
    card = {"images": outcome.images, "settings": dict(kind.settings), "data": [path.name for path in sources]}
    learned = learn_compress(np.concatenate([features.descriptors for features in images]), kind.name, card)
    encoder = save_encoder(output, learned)
    size, kept = output.stat().st_size, encoder.card["kept"]
    facts = {"output": str(output), "bytes": size, "checksum": encoder.checksum, **encoder.card}
    shares = ", ".join(f"{dim}: {100 * share:.0f} %" for dim, share in kept.items())
    tell(
        f"{encoder.output_dim} components of {encoder.card['descriptors']} {kind.name} descriptors of {outcome.images} "
        f"images; spread kept by {shares}: {output} ({decimal(size)})",
        facts,
        as_json=as_json,
    )


# ----------------------------------------------------------------
# sfumato train pairs: photos in, a file of clear descriptors of the same points out, to train encoders with


PAIR_DEFAULTS = PairParams()


def pairs(
    photos: Annotated[list[Path], typer.Argument(help="Folders of photos, none that you measure with.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. pairs.npz. It is clear.")],
    per_folder: Annotated[
        int | None, typer.Option(min=1, help="So many photos of each folder, evenly chosen. Default: all.")
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="Pairs at most, an equal share of each photo; 0 for all.")] = 0,
    views: Annotated[int, typer.Option(min=1, help="Warped views of each photo.")] = PAIR_DEFAULTS.views,
    detector: Detector = PAIR_DEFAULTS.local.detector,
    descriptor: Descriptor = PAIR_DEFAULTS.local.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = PAIR_DEFAULTS.local.max_features,
    contrast_threshold: ContrastThreshold = PAIR_DEFAULTS.local.contrast_threshold,
    seed: Annotated[int, typer.Option(help="Decides the views.")] = PAIR_DEFAULTS.seed,
    workers: Annotated[int, typer.Option(min=1, help="Photos at once; the result is the same.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make pairs of descriptors of one point from photos and warped views of them: what 'train ninja' learns use from.

    'train ninja --patches FOLDER' does the same each time it is run; a file of pairs serves several lambdas. It holds
    clear descriptors: keep it where the photos are, and never publish it.

    Example: sfumato train pairs photos/ -o pairs.npz && sfumato train ninja --patches pairs.npz -o ninja.safetensors
    """
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    chosen = [path for folder in photos for path in evenly([path for _, path in list_images(folder)], per_folder)]
    local = LocalParams(
        detector=detector, descriptor=descriptor, weights=weights, max_features=max_features,
        contrast_threshold=contrast_threshold,
    )  # fmt: skip
    params = PairParams(views=views, seed=seed, most=most, local=local)
    bar = progress_bar("warping", len(chosen), quiet=quiet or as_json)
    if workers > 1:
        with local_processes(workers) as executor:
            pairs = pairs_from_photos(chosen, params, executor=executor, progress=bar)
    else:
        pairs = pairs_from_photos(chosen, params, progress=bar)
    save_pairs(output, pairs)
    groups, points, size = len(np.unique(pairs.groups)), len(np.unique(pairs.points)), output.stat().st_size
    facts = {"output": str(output), "bytes": size, "pairs": len(pairs), "points": points, "photos": groups}
    line = f"{len(pairs)} pairs of {points} points of {groups} of {len(chosen)} photos"
    tell(f"{line}: {output} ({decimal(size)}; clear, keep it private)", facts, as_json=as_json)


def evenly(paths: list[Path], count: int | None) -> list[Path]:
    """Return ``count`` of the paths, the first and the last among them; all if None or fewer."""
    if count is None or count >= len(paths):
        return paths
    return [paths[place] for place in np.linspace(0, len(paths) - 1, count).astype(int)]
