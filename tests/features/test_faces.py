# SPDX-License-Identifier: Apache-2.0
"""With stand-ins for dlib and onnxruntime first; then, where the extra is installed, with the libraries themselves.

SFUMATO_ARCFACE names a real ArcFace file in the ONNX format, which is too large to come with the tests.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, ImageError, InputError, MissingDependency
from sfumato.features import faces as face
from sfumato.features import faces as facefinder
from sfumato.features.faces import PLACES, FaceParams, FaceReader, model_file, similarity
from sfumato.images.samples import sample_image
from sfumato.types.clear import Image

FACES: list[tuple[int, int, int]] = []
"""Where the stand-in finds faces in an upright picture: left, top, width."""
SCORES = [1.0, 0.9, 0.01]
WHICH = [0, 0, 0]


class Box(SimpleNamespace):
    def left(self):
        return self.x

    def right(self):
        return self.x + self.width

    def top(self):
        return self.y

    def bottom(self):
        return self.y + self.width


def detect(pixels, upsample, threshold):
    """Find the faces in pictures that are wider than high, or where a white corner says that it is upright."""
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.shape[2] == 3
    boxes = [Box(x=x, y=y, width=width) for x, y, width in FACES if pixels[0, 0].min() == 255]
    return boxes, SCORES[: len(boxes)], WHICH[: len(boxes)]


def landmarks(box):
    """The 68 points of dlib; only those that are used are in their place."""
    parts = np.zeros((68, 2))
    places = PLACES / 112 * box.width + [box.x, box.y]
    for (first, last), place in zip(facefinder.EYES, places[:2], strict=True):
        parts[first:last] = place
    parts[facefinder.NOSE], parts[facefinder.MOUTH[0]], parts[facefinder.MOUTH[1]] = places[2:]
    rounded = np.rint(parts).astype(int)
    return SimpleNamespace(num_parts=68, part=lambda i: SimpleNamespace(x=int(rounded[i, 0]), y=int(rounded[i, 1])))


@pytest.fixture
def standing_in(monkeypatch, tmp_path):
    """Put stand-ins in the place of both libraries, and return the picture of a face they can find."""
    dlib = SimpleNamespace(
        get_frontal_face_detector=lambda: SimpleNamespace(run=detect),
        rectangle=lambda left, top, right, bottom: Box(x=left, y=top, width=right - left),
        shape_predictor=lambda path: lambda pixels, box: landmarks(box),
        face_recognition_model_v1=lambda path: SimpleNamespace(
            compute_face_descriptor=lambda pixels, shape: [1.4 * (i == 3) for i in range(128)]
        ),
    )
    monkeypatch.setitem(sys.modules, "dlib", dlib)
    models = tmp_path / "models"
    models.mkdir()
    for name in (face.LANDMARKS, face.RECOGNITION):
        (models / name).touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == face.MODELS else None)
    monkeypatch.setattr(sys.modules[__name__], "FACES", [(100, 40, 150)])
    pixels = sample_image("astronaut").pixels.copy()
    pixels[0, 0] = 255
    return pixels


def test_dlib_gives_a_row_of_unit_norm_named_as_the_picture(standing_in):
    found = FaceReader(FaceParams()).embed(Image(standing_in, "alice.jpg"))
    assert found.names == ("alice.jpg",)
    assert found.extractor.name == "dlib-face"
    assert np.array_equal(found.values, np.eye(128, dtype=np.float32)[[3]])
    grey = Image(standing_in[:, :, 0].copy(), "")
    assert FaceReader(FaceParams()).embed(grey).names == ("face",)


@pytest.mark.parametrize(
    ("faces", "params", "words"),
    [
        ([], {}, "no face was found"),
        ([(100, 40, 150), (10, 10, 60)], {}, "2 faces are in it"),
        ([(100, 40, 20)], {}, "20 pixels wide, at least 48"),
        ([(100, 40, 150)], {"min_sharpness": 1e6}, "blurred"),
    ],
)
def test_what_can_not_be_used_is_told(standing_in, monkeypatch, faces, params, words):
    monkeypatch.setattr(sys.modules[__name__], "FACES", faces)
    with pytest.raises(ImageError, match=f"a.jpg: .*{words}"):
        FaceReader(FaceParams(**params)).embed(Image(standing_in, "a.jpg"))


def test_blurred_and_turned_pictures_are_told(standing_in):
    blurred = cv2.GaussianBlur(standing_in, (0, 0), 8)
    blurred[0, 0] = 255
    with pytest.raises(ImageError, match="blurred"):
        FaceReader(FaceParams()).embed(Image(blurred, "a.jpg"))
    lying = np.ascontiguousarray(np.rot90(standing_in, -1))
    lying[0, 0] = 0
    with pytest.raises(ImageError, match="quarter"):
        FaceReader(FaceParams()).embed(Image(lying, "a.jpg"))


def test_a_leaning_face_whose_points_say_upright_is_refused(standing_in, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "WHICH", [3])
    with pytest.raises(ImageError, match="leans"):
        FaceReader(FaceParams()).embed(Image(standing_in, "a.jpg"))


def test_of_several_the_largest_is_taken_if_wanted(standing_in, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FACES", [(10, 10, 60), (100, 40, 150)])
    reader = FaceReader(FaceParams(largest=True))
    assert [found.width for found in reader.find(standing_in)] == [150, 60]
    assert len(reader.embed(Image(standing_in, "a.jpg"))) == 1


class Session:
    """A network that returns the mean colours of what it is given, and remembers it."""

    shape = ("batch", 3, 112, 112)
    output = None

    def __init__(self, content, providers):
        if content == b"broken":
            raise RuntimeError("InvalidProtobuf")
        Session.given = []

    def get_inputs(self):
        return [SimpleNamespace(name="input.1", shape=list(self.shape))]

    def run(self, outputs, feed):
        assert outputs is None
        Session.given.append(feed["input.1"])
        return [feed["input.1"].mean(axis=(2, 3)) if self.output is None else self.output]


@pytest.fixture
def network(standing_in, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    (tmp_path / "arc.onnx").write_bytes(b"weights")
    return tmp_path / "arc.onnx"


def test_a_network_gets_the_aligned_face_as_it_wants_it(standing_in, network):
    reader = FaceReader(FaceParams(network=network))
    found = reader.embed(Image(standing_in, "a.jpg"))
    (batch,) = Session.given
    assert batch.shape == (1, 3, 112, 112)
    assert batch.dtype == np.float32
    points = reader.find(standing_in)[0].points
    aligned = cv2.warpAffine(standing_in, similarity(points), (112, 112))
    assert np.abs(batch[0].transpose(1, 2, 0) * 127.5 + 127.5 - aligned).max() < 1e-3  # red first
    assert found.values.shape == (1, 3)
    assert found.extractor.name.startswith("arcface@")
    network.write_bytes(b"other weights")
    assert FaceReader(FaceParams(network=network)).extractor.name != found.extractor.name


def test_networks_that_can_not_be_used_are_told(standing_in, network, monkeypatch):
    with pytest.raises(FileError, match="gone"):
        FaceReader(FaceParams(network=network.with_name("gone.onnx")))
    network.write_bytes(b"broken")
    with pytest.raises(FileError, match="input"):
        FaceReader(FaceParams(network=network))
    network.write_bytes(b"weights")
    monkeypatch.setattr(Session, "output", np.full((1, 4), np.nan))
    with pytest.raises(FileError, match="gave"):
        FaceReader(FaceParams(network=network)).embed(Image(standing_in, "a.jpg"))
    monkeypatch.setattr(Session, "shape", (1, 3, 160, 160))
    with pytest.raises(FileError, match="ArcFace-style"):
        FaceReader(FaceParams(network=network))


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dlib", None)
    with pytest.raises(MissingDependency, match=r"sfumato\[face\]"):
        FaceReader(FaceParams())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"sfumato\[face\]"):
        model_file(face.LANDMARKS)


def test_impossible_settings_are_refused():
    with pytest.raises(InputError, match="positive"):
        FaceParams(scale=0)


@pytest.fixture(scope="module")
def real():
    """dlib itself, with its models."""
    pytest.importorskip("dlib", reason="needs dlib: pip install 'sfumato[face]'")
    return FaceReader(FaceParams())


def turned(pixels, degrees):
    """Turn the astronaut's face against the clock, in its place."""
    matrix = cv2.getRotationMatrix2D((220, 110), degrees, 1)
    return cv2.warpAffine(pixels, matrix, pixels.shape[1::-1])


ASTRONAUT = sample_image("astronaut").pixels


def test_dlib_finds_one_face_twice(real):
    found = real.embed(Image(ASTRONAUT, "a.jpg")).values[0]
    assert found.shape == (128,)
    other = cv2.convertScaleAbs(cv2.resize(ASTRONAUT, None, fx=0.8, fy=0.8), alpha=0.8, beta=20)
    assert np.linalg.norm(found - real.embed(Image(other, "b.jpg")).values[0]) < 0.2
    large = cv2.resize(ASTRONAUT, (2500, 2500), interpolation=cv2.INTER_CUBIC)
    assert np.linalg.norm(found - real.embed(Image(large, "c.jpg")).values[0]) < 0.2


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (sample_image("chelsea").pixels, "no face was found"),
        (np.zeros((1, 1, 3), np.uint8), "no face was found"),
        (np.hstack([ASTRONAUT, ASTRONAUT[:, ::-1]]), "2 faces are in it"),
        (cv2.resize(ASTRONAUT, None, fx=0.4, fy=0.4, interpolation=cv2.INTER_AREA), "pixels wide, at least 48"),
        (cv2.GaussianBlur(ASTRONAUT, (0, 0), 2.5), "blurred"),
        (cv2.GaussianBlur(ASTRONAUT, (0, 0), 3), "blurred"),
        (np.rot90(ASTRONAUT, 1), "not upright: turn the picture a quarter to the right"),
        (np.rot90(ASTRONAUT, 2), "not upright: turn the picture upside down"),
        (turned(ASTRONAUT, 45), "leans to one side"),
        (turned(ASTRONAUT, -36), "turned by 3. degrees"),
    ],
)
def test_dlib_and_pictures_that_can_not_be_used(real, pixels, words):
    with pytest.raises(ImageError, match=f"a.jpg: .*{words}"):
        real.embed(Image(np.ascontiguousarray(pixels), "a.jpg"))


def field(number, value):
    """A field of a protocol buffer: a number, or bytes of a known length."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    assert len(value) < 2**14
    return bytes([number << 3 | 2, len(value) & 127 | 128, len(value) >> 7]) + value


def small_network(side):
    """An ONNX file, written by hand: the mean of each colour, as a row."""

    def value(name, *shape):
        dims = b"".join(
            field(1, field(1, length & 127))
            if length < 128
            else field(1, b"\x08" + bytes([length & 127 | 128, length >> 7]))
            for length in shape
        )
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))

    nodes = [("input", "pooled", "GlobalAveragePool"), ("pooled", "row", "Flatten")]
    graph = b"".join(field(1, field(1, into) + field(2, out) + field(4, kind)) for into, out, kind in nodes)
    graph += field(2, "small") + field(11, value("input", 1, 3, side, side)) + field(12, value("row", 1, 3))
    return field(1, 7) + field(8, field(1, "") + field(2, 13)) + field(7, graph)


def test_onnxruntime_runs_a_file(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'sfumato[face]'")
    path = tmp_path / "small.onnx"
    path.write_bytes(small_network(112))
    network = face.OnnxNetwork(FaceParams(network=path))
    points = PLACES + np.array([80, 40])
    found = network.describe(ASTRONAUT, facefinder.FaceDetection(112, points, None))
    wanted = cv2.warpAffine(ASTRONAUT, similarity(points), (112, 112)).mean(axis=(0, 1)) / 127.5 - 1
    assert np.allclose(found, wanted, atol=1e-4)
    path.write_bytes(small_network(96))
    with pytest.raises(FileError, match="ArcFace-style"):
        face.OnnxNetwork(FaceParams(network=path))
    path.write_bytes(small_network(112)[:-40])
    with pytest.raises(FileError, match="input"):
        face.OnnxNetwork(FaceParams(network=path))


def test_a_real_arcface_file_tells_one_person_from_another(real):
    path = os.environ.get("SFUMATO_ARCFACE")
    if not path:
        pytest.skip("needs a real ArcFace file: set SFUMATO_ARCFACE")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'sfumato[face]'")
    reader = FaceReader(FaceParams(network=Path(path)))
    same = [ASTRONAUT, cv2.convertScaleAbs(ASTRONAUT, alpha=0.7), cv2.resize(ASTRONAUT, (400, 400))]
    rows = np.concatenate([reader.embed(Image(pixels, "a.jpg")).values for pixels in same])
    assert rows.shape[1] == 512
    assert np.linalg.norm(rows[1:] - rows[0], axis=1).max() < 0.5
    mirrored = reader.embed(Image(np.ascontiguousarray(ASTRONAUT[:, ::-1]), "b.jpg")).values
    assert np.linalg.norm(mirrored - rows[0]) < 0.7
