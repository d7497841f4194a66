# SPDX-License-Identifier: Apache-2.0
"""Command invert: the picture that anyone with the features of a photo can reconstruct."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sfumato.cli.options import AsJson, PhotoOptions, tell
from sfumato.concealment.encoder import load_encoder
from sfumato.concealment.resolve import remember
from sfumato.errors import FileError, InputError
from sfumato.features.local import extract
from sfumato.files.atomic import write_file
from sfumato.images.read import read_image
from sfumato.inversion.load import invert as invert_features
from sfumato.inversion.load import load_keypoint_inverter, open_inverter, without_descriptors
from sfumato.inversion.metrics import GREY, picture_scores
from sfumato.training.concealers import concealer_of


def invert(
    photo: Annotated[Path, typer.Argument(help="The photo whose features are extracted.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write, .png or .jpg.")],
    inverter: Annotated[
        Path | None, typer.Option(help="Made by 'sfumato train inverter'. Default: the bundled one, for clear SIFT.")
    ] = None,
    keypoints_only: Annotated[
        bool, typer.Option("--keypoints-only", help="Use keypoints alone, without any descriptor (for SIFT).")
    ] = False,
    local: PhotoOptions = PhotoOptions(max_features=1000),
    decoys: Annotated[
        Path | None, typer.Option(help="For an inverter of concealed features: the decoys. Default: the bundled ones.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For an inverter of concealed features: makes the draws repeatable.")] = 0,
    encoder: Annotated[
        Path | None, typer.Option(help="For an inverter of encoded features: the encoder. Default: a bundled one.")
    ] = None,
    grey: Annotated[bool, typer.Option("--grey", help="Write grey, without guessed colours.")] = False,
    side_by_side: Annotated[bool, typer.Option("--side-by-side", help="Show the photo to the left.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reconstruct a photo from its features: what a server can make of them without the photo.

    Keypoints and descriptors are extracted, and nothing else is used: a network guesses the patch behind each
    descriptor, the patches are merged into one picture, and a second network refines it. The bundled inverter takes
    clear SIFT, as a service that stores features unprotected would have them. An inverter trained for a recipe gets
    the features as this recipe releases them. The score is the structural similarity to the photo: 1 for the same
    picture, about 0.35 for an even grey.

    With --keypoints-only no descriptor is used: every recipe that keeps keypoints shows this much.

    Example: sfumato invert photo.jpg -o seen.png --side-by-side
    """
    if keypoints_only and inverter is not None:
        raise InputError("--keypoints-only uses the bundled inverter of keypoints: leave out --inverter")
    opened = load_keypoint_inverter() if keypoints_only else open_inverter(inverter)
    if encoder is not None:
        remember(load_encoder(encoder))
    image = read_image(photo)
    features = extract(image, local.params)
    concealer = without_descriptors if opened.is_blind else concealer_of(opened.recipe, decoys, seed)
    picture = invert_features(features if concealer is None else concealer(features), opened)
    scores = picture_scores(picture, image.pixels) if min(image.size) >= 11 else {}
    write_picture(output, picture, image.pixels if side_by_side else None, grey=grey)
    facts: dict[str, Any] = {"output": str(output), "features": len(features), "recipe": opened.recipe, **scores}
    scored = f" (structural similarity {scores['ssim']:.2f})" if scores else ""
    tell(f"{len(features)} {opened.extractor_name} features, {opened.recipe}: {output}{scored}", facts, as_json=as_json)


def write_picture(output: Path, picture: Any, beside: Any = None, *, grey: bool = False) -> None:
    """Write a picture (H, W, 3), values 0 to 1, with another (uint8) to its left if one is given."""
    import cv2

    if output.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise FileError(f"{output}: pictures are written as .png or .jpg")
    pixels = np.rint(255 * picture).astype(np.uint8)
    if grey:
        pixels = np.repeat(
            np.rint(255 * (picture @ np.asarray(GREY, np.float32))).astype(np.uint8)[:, :, None], 3, axis=2
        )
    if beside is not None:
        colours = beside if beside.ndim == 3 else np.repeat(beside[:, :, None], 3, axis=2)
        pixels = np.concatenate([colours, pixels], axis=1)
    write_file(output, cv2.imencode(output.suffix.lower(), pixels[:, :, ::-1])[1].tobytes(), private=True)
