# SPDX-License-Identifier: Apache-2.0
"""sfumato invert: what somebody sees who holds the features of a photo."""

import warnings
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sfumato.cli.options import AsJson, Descriptor, Detector, Weights, tell
from sfumato.concealment.decoy_file import load_decoys
from sfumato.concealment.encoder import load_encoder
from sfumato.concealment.lifting import conceal
from sfumato.concealment.resolve import remember, resolve
from sfumato.device import bundled_decoys
from sfumato.errors import EvaluationOnlyWarning, FileError, InputError
from sfumato.features.local import LocalParams
from sfumato.files.atomic import write_file
from sfumato.images.read import read_image
from sfumato.inversion.load import Concealer, invert_photo, load_blind, open_inverter
from sfumato.inversion.metrics import GREY, picture_scores
from sfumato.training.photos import reader_of
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.recipe import Recipe

LOCAL = LocalParams(max_features=1000)


def invert(
    photo: Annotated[Path, typer.Argument(help="The photo whose features are taken.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write, .png or .jpg.")],
    inverter: Annotated[
        Path | None, typer.Option(help="Made by 'sfumato train inverter'. Default: the bundled one, for clear SIFT.")
    ] = None,
    keypoints_only: Annotated[
        bool, typer.Option("--keypoints-only", help="What keypoints alone show, without any descriptor (SIFT's).")
    ] = False,
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: Annotated[int, typer.Option(help="Take the strongest so many.")] = LOCAL.max_features,
    decoys: Annotated[
        Path | None, typer.Option(help="For an inverter of concealed features: the decoys. Default: the bundled ones.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For an inverter of concealed features: makes the draws repeatable.")] = 0,
    encoder: Annotated[
        Path | None, typer.Option(help="For an inverter of encoded features: the encoder. Default: a bundled one.")
    ] = None,
    grey: Annotated[bool, typer.Option("--grey", help="Without guessed colours.")] = False,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="The photo to the left.")] = False,
    as_json: AsJson = False,
) -> None:
    """See a photo through its features: what a server can make of them, with no access to the photo.

    Keypoints and descriptors are extracted, and nothing else is used: a network guesses the patch behind each
    descriptor, the patches are merged into one picture, and a second network refines it. The bundled inverter takes
    clear SIFT, as a service that stores features unprotected would have them. An inverter trained for a recipe gets
    the features as this recipe releases them. The score says how near the result is (structural similarity: 1 is the
    same, an even grey has about 0.35).

    With --keypoints-only no descriptor is used at all: this is what every recipe that keeps keypoints shows.

    Example: sfumato invert photo.jpg -o seen.png --side-by-side
    """
    local = LocalParams(detector=detector, descriptor=descriptor, weights=weights, max_features=max_features)
    if keypoints_only and inverter is not None:
        raise InputError("--keypoints-only takes the bundled inverter of keypoints: leave out --inverter")
    opened = load_blind() if keypoints_only else open_inverter(inverter)
    if encoder is not None:
        remember(load_encoder(encoder))
    image = read_image(photo)
    seen, features = invert_photo(opened, image, local, concealer_of(opened.recipe, decoys, seed))
    scores = picture_scores(seen, image.pixels) if min(image.size) >= 11 else {}
    write_picture(output, seen, image.pixels if side_by_side else None, grey=grey)
    facts: dict[str, Any] = {"output": str(output), "features": features, "recipe": opened.recipe, **scores}
    scored = f" (structural similarity {scores['ssim']:.2f})" if scores else ""
    tell(f"{features} {opened.extractor_name} features, {opened.recipe}: {output}{scored}", facts, as_json=as_json)


def concealer_of(recipe: str, decoys: Path | None, seed: int) -> Concealer | None:
    """Return how features are concealed for an inverter, or None for clear ones; each call draws anew from the seed.

    Encoders are read here, once. What is sealed is sealed under keys of the attacker's own, and read back.
    """
    if Recipe.of(recipe).is_sealed:
        return _reader_of(Recipe.of(recipe), decoys, seed)
    link = resolve(recipe).recipe
    if link.is_clear:
        return None
    known = None if decoys is None else load_decoys(decoys)
    calls = count(1_000_000 * seed)

    def conceal_again(features: Features) -> ConcealedFeatures:
        nonlocal known
        if known is None and link.lifting is not None and link.lifting.decoy_count:
            known = bundled_decoys(features)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            return conceal(features, link, known, evaluation_seed=next(calls))

    return conceal_again


def _reader_of(recipe: Recipe, decoys: Path | None, seed: int) -> Concealer:
    """Return how sealed features are read back by alignment with a file of public descriptors, or the bundled ones."""
    made: list[Concealer] = []

    def read_back(features: Features) -> ConcealedFeatures:
        if not made:
            known = bundled_decoys(features) if decoys is None else load_decoys(decoys)
            made.append(reader_of(recipe, known.descriptors, seed=seed))
        return made[0](features)

    return read_back


def write_picture(output: Path, seen: Any, beside: Any = None, *, grey: bool = False) -> None:
    """Write a picture (H, W, 3), values 0 to 1, with another (uint8) to its left if one is given."""
    import cv2

    if output.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise FileError(f"{output}: pictures are written as .png or .jpg")
    pixels = np.rint(255 * seen).astype(np.uint8)
    if grey:
        pixels = np.repeat(np.rint(255 * (seen @ np.asarray(GREY, np.float32))).astype(np.uint8)[:, :, None], 3, axis=2)
    if beside is not None:
        colours = beside if beside.ndim == 3 else np.repeat(beside[:, :, None], 3, axis=2)
        pixels = np.concatenate([colours, pixels], axis=1)
    write_file(output, cv2.imencode(output.suffix.lower(), pixels[:, :, ::-1])[1].tobytes())
