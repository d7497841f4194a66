# SPDX-License-Identifier: Apache-2.0
"""From a picture to the embedding of the one face in it (extra ``face``): found, aligned, described. Clear.

Two networks: dlib's, 128 dimensions, which installs with the extra; or any ArcFace-style file for onnxruntime. Faces
are found by dlib in both cases. Knows pictures and vectors; neither templates nor galleries.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError, InputError, MissingDependency, need
from sfumato.features.facealignment import SIDE, align, roll, sharpness
from sfumato.features.facefinder import FaceFinder, Found
from sfumato.types.clear import Image
from sfumato.types.embeddings import Embeddings
from sfumato.types.extractor import Extractor

MODELS = "face_recognition_models"
LANDMARKS, RECOGNITION = "shape_predictor_68_face_landmarks.dat", "dlib_face_recognition_resnet_model_v1.dat"

TURNS = {1: "a quarter to the left", 3: "a quarter to the right", 2: "upside down"}
"""Turns against the clock, and what to tell people."""

UPRIGHT_DEGREES = 10
"""Points of a face that was found leaning are wrong if they say that it leans less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceParams:
    """``network`` None for dlib's, or an ONNX file. ``largest`` takes the largest of several faces.

    A face narrower than ``min_width_px``, less sharp than ``min_sharpness`` (variance of the Laplacian at 112 x 112),
    or turned by more than ``max_roll_degrees`` is refused; what the detector finds with less than ``min_score`` is no
    face. ``upsample``: how often the picture is doubled to find small ones; one of more than ``max_pixels`` is made
    smaller for that. ``mean`` and ``scale``: what an ONNX network wants of pixels, (pixel - mean) / scale.
    """

    network: Path | None = None
    largest: bool = False
    min_width_px: int = 48
    min_sharpness: float = 15.0
    max_roll_degrees: float = 35.0
    min_score: float = 0.25
    upsample: int = 1
    max_pixels: int = 2_000_000
    mean: float = 127.5
    scale: float = 127.5

    def __post_init__(self) -> None:
        if min(self.min_width_px, self.max_pixels) < 1 or self.upsample < 0 or not self.scale > 0:
            raise InputError(
                "face settings: min_width_px, max_pixels and scale must be positive, upsample not negative"
            )


class Network(Protocol):
    """Turns a found face into a vector."""

    extractor: Extractor

    def describe(self, pixels: NDArray[np.uint8], face: Found) -> NDArray[np.float32]:
        """Return the vector (n,) of a face of a picture (H, W, 3)."""


class FaceReader:
    """A detector and a network, loaded once, for many pictures.

    Raises MissingDependency without the extra, FileError for a network's file that can not be used.
    """

    def __init__(self, params: FaceParams) -> None:
        self.params = params
        dlib = need("dlib", extra="face")
        self._finder = FaceFinder(dlib, model_file(LANDMARKS), least_score=params.min_score, most=params.max_pixels)
        self._network: Network = DlibNetwork(dlib) if params.network is None else OnnxNetwork(params)

    @property
    def extractor(self) -> Extractor:
        """What the embeddings are."""
        return self._network.extractor

    def embed(self, image: Image) -> Embeddings:
        """Return the embedding of the one face of a picture, named as the picture.

        Raises ImageError saying what is wrong: no face, several, too small, blurred, turned.
        """
        pixels = image.pixels if image.pixels.ndim == 3 else np.repeat(image.pixels[:, :, None], 3, axis=2)
        pixels = np.ascontiguousarray(pixels)
        faces = self.find(pixels)
        face = self._choose(faces, pixels, image.name or "the picture")
        self._refuse_unusable(face, pixels, image.name or "the picture")
        vector = self._network.describe(pixels, face)
        return Embeddings(vector[None], (image.name or "face",), self.extractor)

    def find(self, pixels: NDArray[np.uint8]) -> list[Found]:
        """Return the faces of a picture (H, W, 3), the widest first."""
        return self._finder.find(pixels, self.params.upsample)

    def _choose(self, faces: list[Found], pixels: NDArray[np.uint8], name: str) -> Found:
        if not faces:
            raise ImageError(f"{name}: {self._why_none(pixels)}")
        if len(faces) > 1 and not self.params.largest:
            raise ImageError(f"{name}: {len(faces)} faces are in it: cut out one, or take the largest (--largest)")
        return faces[0]

    def _why_none(self, pixels: NDArray[np.uint8]) -> str:
        """Return why no face may have been found: it lies on its side, or only a smaller copy is sharp enough."""
        import cv2

        for turns, told in TURNS.items():
            if self._finder.find(np.ascontiguousarray(np.rot90(pixels, turns)), 0):
                return f"the face in it is not upright: turn the picture {told}"
        small = pixels
        while min(small.shape[:2]) >= 2 * self.params.min_width_px:
            small = cv2.resize(small, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
            if self._finder.find(small, 1):
                return "its face is blurred, it is found in a smaller copy only: use a sharper picture"
        return "no face was found: use a sharp, well-lit picture from the front"

    def _refuse_unusable(self, face: Found, pixels: NDArray[np.uint8], name: str) -> None:
        if face.width < self.params.min_width_px:
            raise ImageError(
                f"{name}: its face is {face.width} pixels wide, at least {self.params.min_width_px} are needed: use a "
                f"larger picture"
            )
        if abs(roll(face.points)) > self.params.max_roll_degrees:
            raise ImageError(f"{name}: its face is turned by {roll(face.points):.0f} degrees: turn the picture")
        if face.tilted and abs(roll(face.points)) < UPRIGHT_DEGREES:
            raise ImageError(f"{name}: its face leans to one side, and eyes and mouth are not found: turn the picture")
        sharp = sharpness(align(pixels, face.points))
        if sharp < self.params.min_sharpness:
            raise ImageError(
                f"{name}: its face is blurred (sharpness {sharp:.0f}, at least {self.params.min_sharpness:.0f} is "
                f"needed): use a sharper picture"
            )


class DlibNetwork:
    """dlib's residual network: 128 dimensions; it aligns faces itself."""

    def __init__(self, dlib: Any) -> None:
        self._model = dlib.face_recognition_model_v1(str(model_file(RECOGNITION)))
        self.extractor = Extractor("dlib-face")

    def describe(self, pixels: NDArray[np.uint8], face: Found) -> NDArray[np.float32]:
        """Return the vector (128,) of a face."""
        return np.array(self._model.compute_face_descriptor(pixels, face.shape), np.float32)


class OnnxNetwork:
    """An ArcFace-style file: one input (1, 3, 112, 112) of red-green-blue, one output (1, n).

    Embeddings of two files can not be compared: the name holds the first digits of the file's checksum.
    """

    def __init__(self, params: FaceParams) -> None:
        runtime, path = need("onnxruntime", extra="face"), params.network
        assert path is not None
        try:
            content = path.read_bytes()
        except OSError as cause:
            raise FileError(f"{path}: the network can not be read: {cause.strerror}") from cause
        try:
            self._session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
            (self._input,) = self._session.get_inputs()
        except Exception as cause:  # the runtime raises errors of its own, which are not public
            raise FileError(f"{path}: not a network of one input that onnxruntime can run") from cause
        if list(self._input.shape)[1:] != [3, SIDE, SIDE]:
            raise FileError(f"{path}: not an ArcFace-style network: its input is not 3 x {SIDE} x {SIDE}")
        self._path, self._mean, self._scale = path, np.float32(params.mean), np.float32(params.scale)
        checksum = hashlib.sha256(content).hexdigest()[:12]
        self.extractor = Extractor(f"arcface@{checksum}", {"mean": params.mean, "scale": params.scale})

    def describe(self, pixels: NDArray[np.uint8], face: Found) -> NDArray[np.float32]:
        """Return the vector (n,) of a face, aligned by its five points."""
        aligned = (align(pixels, face.points).astype(np.float32) - self._mean) / self._scale
        batch = np.ascontiguousarray(aligned.transpose(2, 0, 1)[None])
        found = np.asarray(self._session.run(None, {self._input.name: batch})[0], np.float32)
        if found.ndim != 2 or len(found) != 1 or not np.isfinite(found).all():
            raise FileError(f"{self._path}: the network gave no vector, but an array of shape {found.shape}")
        row: NDArray[np.float32] = found[0]
        return row


def model_file(name: str) -> Path:
    """Return where a model of dlib's is; the package that brings it is not imported, which would need setuptools."""
    spec = importlib.util.find_spec(MODELS)
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    for place in places:
        path = Path(place) / "models" / name
        if path.is_file():
            return path
    raise MissingDependency(f"this needs {MODELS} with {name}, which is not installed: pip install 'sfumato[face]'")
