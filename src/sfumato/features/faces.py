# SPDX-License-Identifier: Apache-2.0
"""Embeddings of faces (extra ``face``): a face is found in a picture, aligned and described. Clear.

There are two networks: dlib's, 128 dimensions, which comes with the extra, and any ArcFace-style file for onnxruntime.
Faces are found by dlib in both cases.
"""

import hashlib
import importlib.util
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, ImageError, InputError, MissingDependency, need
from sfumato.files.atomic import read_bytes
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Embeddings, Image
from sfumato.types.extractor import Extractor

# --- alignment: five points, one similarity, one picture of 112 x 112

SIDE = 112
PLACES = np.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]])
"""Positions (x, y) in 112 x 112 where ArcFace networks expect the eyes, the tip of the nose and the corners of the
mouth; the first of each pair is the one further left in the picture."""


def similarity(points: ArrayLike, places: ArrayLike = PLACES) -> NDArray[np.float64]:
    """Return the (2, 3) turn, scale and shift that brings points (K, 2) nearest to their places (Umeyama 1991).

    Raises InputError if all points are the same.
    """
    source = frozen_array(points, "points", (None, 2), np.float64)
    target = frozen_array(places, "places", (len(source), 2), np.float64)
    mean0, mean1 = source.mean(axis=0), target.mean(axis=0)
    centred0, centred1 = source - mean0, target - mean1
    spread = float((centred0**2).sum())
    if not spread > 1e-12:
        raise InputError("all points of this face are the same")
    left, stretch, right = np.linalg.svd(centred1.T @ centred0)
    mirror = np.sign(np.linalg.det(left @ right)) or 1.0
    signs = np.array([1.0, mirror])  # a face is turned, never mirrored
    linear = (left * signs) @ right * (float(stretch @ signs) / spread)
    return np.concatenate([linear, (mean1 - linear @ mean0)[:, None]], axis=1)


def align(pixels: NDArray[np.uint8], points: ArrayLike) -> NDArray[np.uint8]:
    """Return the face (112, 112, 3) of a picture (H, W, 3), its five points (5, 2) brought to their places."""
    import cv2

    aligned: NDArray[np.uint8] = cv2.warpAffine(
        pixels, similarity(points), (SIDE, SIDE), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT
    )
    return aligned


def sharpness(face: NDArray[np.uint8]) -> float:
    """Return the variance of the Laplacian of an aligned face: small where it is blurred."""
    import cv2

    return float(cv2.Laplacian(cv2.cvtColor(face, cv2.COLOR_RGB2GRAY), cv2.CV_64F).var())


def roll(points: ArrayLike) -> float:
    """Return the angle of the line through the eyes, in degrees, 0 for an upright face."""
    left, right = np.asarray(points, np.float64)[:2]
    return float(np.degrees(np.arctan2(right[1] - left[1], right[0] - left[0])))


# --- detection: dlib's detector and its 68 points, of which five are used

EYES, NOSE, MOUTH = ((36, 42), (42, 48)), 30, (48, 54)
"""Of dlib's 68 points: those around each eye, the tip of the nose, the corners of the mouth."""

TILTED = (3, 4)
"""Of dlib's five detectors, those for faces that lean to the left or right; the others are for upright ones."""

SMALLEST = 16
"""A picture narrower than this holds no face, and dlib does not take one of a single pixel."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FaceDetection:
    """A face in a picture: its ``width`` in pixels, five ``points`` (5, 2), and the detector's own ``shape``.

    ``tilted``: it was found by a detector for faces that lean to one side.
    """

    width: int
    points: NDArray[np.float64]
    shape: Any
    tilted: bool = False


class FaceFinder:
    """dlib's detector of upright faces from the front, and the file of its points.

    Detections below ``least_score`` are left out: most are not faces. A picture of over ``most`` pixels is searched
    in a smaller copy, to save seconds; points are those of the original picture.
    """

    def __init__(self, dlib: Any, landmarks: Path, *, least_score: float, most: int) -> None:
        self._dlib, self._least, self._most = dlib, least_score, most
        self._detector = dlib.get_frontal_face_detector()
        self._predict = dlib.shape_predictor(str(landmarks))

    def find(self, pixels: NDArray[np.uint8], upsample: int) -> list[FaceDetection]:
        """Return the faces of a picture (H, W, 3), the widest first; it is doubled ``upsample`` times to find more."""
        import cv2

        height, width = pixels.shape[:2]
        if min(height, width) < SMALLEST:
            return []
        shrink = min(1.0, math.sqrt(self._most / (height * width)))
        small = pixels
        if shrink < 1:
            size = max(1, round(width * shrink)), max(1, round(height * shrink))
            small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        grow = width / small.shape[1], height / small.shape[0]
        detections = [
            self._measure(pixels, box, grow, which in TILTED)
            for box, score, which in zip(*self._detector.run(small, upsample, 0.0), strict=True)
            if score >= self._least
        ]
        return sorted(detections, key=lambda face: -face.width)

    def _measure(self, pixels: NDArray[np.uint8], box: Any, grow: tuple[float, float], tilted: bool) -> FaceDetection:
        """Return the points of a face whose box is that of a smaller picture."""
        across, down = ((round(at * factor) for at in ends) for ends, factor in zip(_sides(box), grow, strict=True))
        (left, right), (top, bottom) = across, down
        shape = self._predict(pixels, self._dlib.rectangle(left, top, right, bottom))
        parts = np.array([(shape.part(i).x, shape.part(i).y) for i in range(shape.num_parts)], np.float64)
        points = [parts[slice(*eye)].mean(axis=0) for eye in EYES] + [parts[NOSE], *parts[list(MOUTH)]]
        return FaceDetection(right - left, np.array(points), shape, tilted)


def _sides(box: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (box.left(), box.right()), (box.top(), box.bottom())


MODELS = "face_recognition_models"
LANDMARKS, RECOGNITION = "shape_predictor_68_face_landmarks.dat", "dlib_face_recognition_resnet_model_v1.dat"

TURNS = {1: "a quarter to the left", 3: "a quarter to the right", 2: "upside down"}
"""Counter-clockwise turns, and the advice for people."""

UPRIGHT_DEGREES = 10
"""Points of a face that was found leaning are wrong if they say that it leans less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceParams:
    """``network`` None for dlib's, or an ONNX file. ``largest`` takes the largest of several faces.

    A face narrower than ``min_width_px``, less sharp than ``min_sharpness`` (variance of the Laplacian at 112 x 112),
    or turned by more than ``max_roll_degrees`` is refused; a detection with less than ``min_score`` is not a
    face. ``upsample``: how often the picture is doubled to find small ones; one of more than ``max_pixels`` is made
    smaller for that. ``mean`` and ``scale``: what an ONNX network wants of pixels, (pixel - mean) / scale.
    """

    network: str | os.PathLike[str] | None = None
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
    """A network that turns a face into a vector."""

    extractor: Extractor

    def describe(self, pixels: NDArray[np.uint8], face: FaceDetection) -> NDArray[np.float32]:
        """Return the vector (n,) of a face of a picture (H, W, 3)."""


class FaceReader:
    """A detector and a network, loaded once, for many pictures.

    Raises MissingDependency without the extra, FileError for a network's file that cannot be used.
    """

    def __init__(self, params: FaceParams) -> None:
        self.params = params
        dlib = need("dlib", extra="face")
        self._finder = FaceFinder(dlib, model_file(LANDMARKS), least_score=params.min_score, most=params.max_pixels)
        self._network: Network = DlibNetwork(dlib) if params.network is None else OnnxNetwork(params)

    @property
    def extractor(self) -> Extractor:
        """The extractor of the embeddings."""
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

    def find(self, pixels: NDArray[np.uint8]) -> list[FaceDetection]:
        """Return the faces of a picture (H, W, 3), the widest first."""
        return self._finder.find(pixels, self.params.upsample)

    def _choose(self, faces: list[FaceDetection], pixels: NDArray[np.uint8], name: str) -> FaceDetection:
        if not faces:
            raise ImageError(f"{name}: {self._why_none(pixels)}")
        if len(faces) > 1 and not self.params.largest:
            raise ImageError(f"{name}: {len(faces)} faces are in it: cut out one, or take the largest (--largest)")
        return faces[0]

    def _why_none(self, pixels: NDArray[np.uint8]) -> str:
        """Return a likely reason: the face lies on its side, or only a smaller copy is sharp enough."""
        import cv2

        for turns, advice in TURNS.items():
            if self._finder.find(np.ascontiguousarray(np.rot90(pixels, turns)), 0):
                return f"the face in it is not upright: turn the picture {advice}"
        small = pixels
        while min(small.shape[:2]) >= 2 * self.params.min_width_px:
            small = cv2.resize(small, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
            if self._finder.find(small, 1):
                return "its face is blurred, it is found in a smaller copy only: use a sharper picture"
        return "no face was found: use a sharp, well-lit picture from the front"

    def _refuse_unusable(self, face: FaceDetection, pixels: NDArray[np.uint8], name: str) -> None:
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

    def describe(self, pixels: NDArray[np.uint8], face: FaceDetection) -> NDArray[np.float32]:
        """Return the vector (128,) of a face."""
        return np.array(self._model.compute_face_descriptor(pixels, face.shape), np.float32)


LARGEST_NETWORK = 2**31


class OnnxNetwork:
    """An ArcFace-style file: one input (1, 3, 112, 112) of red-green-blue, one output (1, n).

    Embeddings of two files cannot be compared: the name holds the first digits of the file's checksum.
    """

    def __init__(self, params: FaceParams) -> None:
        assert params.network is not None
        runtime, path = need("onnxruntime", extra="face"), Path(params.network)
        content = read_bytes(path, LARGEST_NETWORK)
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

    def describe(self, pixels: NDArray[np.uint8], face: FaceDetection) -> NDArray[np.float32]:
        """Return the vector (n,) of a face, aligned by its five points."""
        aligned = (align(pixels, face.points).astype(np.float32) - self._mean) / self._scale
        batch = np.ascontiguousarray(aligned.transpose(2, 0, 1)[None])
        output = np.asarray(self._session.run(None, {self._input.name: batch})[0], np.float32)
        if output.ndim != 2 or len(output) != 1 or not np.isfinite(output).all():
            raise FileError(f"{self._path}: the network gave no vector, but an array of shape {output.shape}")
        row: NDArray[np.float32] = output[0]
        return row


def model_file(name: str) -> Path:
    """Return the path of a dlib model; its package is not imported, which would need setuptools."""
    spec = importlib.util.find_spec(MODELS)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        path = Path(folder) / "models" / name
        if path.is_file():
            return path
    raise MissingDependency(
        f"this needs {MODELS} with {name}, which is not installed: "
        "pip install 'sfumato[face]', or in a clone: pip install '.[face]'"
    )
