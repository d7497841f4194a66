# SPDX-License-Identifier: Apache-2.0
"""Encoders run on numpy alone, come back from files as they were written, and hostile files are refused."""

import json
import subprocess
import sys
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from sfumato.concealment import encoder as module
from sfumato.concealment.encoder import (
    Encoder,
    bundled_encoder,
    bundled_names,
    cut_components,
    encode,
    load_encoder,
    save_encoder,
)
from sfumato.errors import FileError, InputError, RecipeError
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.images.samples import sample_image
from sfumato.training.pairs import PairParams, pairs_from_photos


@pytest.fixture
def make(make_encoder):
    return partial(make_encoder, dims=(16, 32, 16))


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(50, 16)).astype(np.float32)


def test_it_is_a_perceptron_with_unit_norm(make, rows):
    encoder = make()
    (w0, b0, r0), (w1, b1, r1) = encoder.layers
    assert (r0, r1) == (True, False)
    expected = np.maximum(rows @ w0.T + b0, 0) @ w1.T + b1
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = encode(encoder, rows)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-6
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6
    assert encode(encoder, rows[:0]).shape == (0, 16)
    assert encode(make(dims=(16, 8)), rows).shape == (50, 8)


def test_a_row_is_encoded_alike_in_any_company(make, rows, monkeypatch):
    encoder = make()
    whole = encode(encoder, rows)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    assert np.abs(encode(encoder, rows) - whole).max() < 1e-7
    assert np.abs(encode(encoder, rows[[3]]) - whole[[3]]).max() < 1e-7


def test_other_points_are_refused(make, rows):
    with pytest.raises(InputError, match="15"):
        encode(make(), rows[:, :15])
    with pytest.raises(InputError, match="finite"):
        encode(make(), np.full((2, 16), np.nan))


def test_the_checksum_is_of_the_layers(make, rows):
    encoder = make(note=1)
    assert encoder.checksum == make(note=2).checksum
    assert len(encoder.checksum) == 64
    assert encoder.checksum != make(1).checksum
    (w, b, relu), last = encoder.layers
    assert Encoder(layers=((w, b, not relu), last), extractor_name="sift").checksum != encoder.checksum
    assert "0." not in repr(encoder)
    assert "16 to 16" in repr(encoder)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_files_come_back(make, tmp_path, rows, dtype):
    encoder, path = make(lambda_=2.5, losses=[1, 2]), tmp_path / "e.safetensors"
    written = save_encoder(path, encoder, dtype)
    read = load_encoder(path)
    assert read.checksum == written.checksum
    assert (read.checksum == encoder.checksum) == (dtype == "float32")
    assert dict(read.card) == {"lambda_": 2.5, "losses": [1, 2]}
    assert read.extractor_name == "sift"
    assert np.abs(encode(read, rows) - encode(encoder, rows)).max() < 5e-3
    again = tmp_path / "again.safetensors"
    save_encoder(again, read, dtype)
    assert again.read_bytes() == path.read_bytes()
    texts = load_tensors(path)[1]
    assert texts["format"] == "sfumato-encoder"
    assert texts["relu"] == "1,0"
    assert {array.dtype.name for array in load_tensors(path)[0].values()} == {dtype}


def test_other_programs_can_read_it(make, tmp_path):
    numpy_format = pytest.importorskip("safetensors.numpy")
    save_encoder(tmp_path / "e.safetensors", make())
    assert set(numpy_format.load_file(tmp_path / "e.safetensors")) == {
        f"layer{n}.{part}" for n in (0, 1) for part in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer0.weight": np.full((32, 16), np.nan, np.float32)}, "finite"),
        ({"layer0.bias": np.full(32, np.inf, np.float16)}, "finite"),
        ({"layer1.weight": np.zeros((16, 31), np.float32)}, "layer1.weight"),
        ({"layer1.bias": np.zeros(15, np.float32)}, "layer1.bias"),
        ({"layer1.bias": np.zeros(16, np.int64)}, "int64"),
        ({"layer2.bias": np.zeros(16, np.float32)}, "layer2.bias"),
        ({"layer0.weight": np.zeros((32, 0), np.float32)}, "rows and columns"),
        ({"layer0.weight": np.zeros(32, np.float32)}, "shape"),
        ({"relu": "1,2"}, "relu"),
        ({"relu": "1,0,0"}, "layer2"),
        ({"relu": ",".join("1" * 1000)}, "relu"),
        ({"relu": ""}, "relu"),
        ({"extractor": "a\nb"}, "extractor_name"),
        ({"kind": "pirate"}, "kind"),
        ({"card": "[]"}, "card"),
        ({"card": "{"}, "card"),
        ({"card": "[" * 100_000}, "card"),
        ({"card": json.dumps({"a": "b" * 2**20})}, "card"),
        ({"version": "2"}, "version '2'"),
        ({"format": "sfumato-decoys"}, "train ninja"),
    ],
)
def test_hostile_files_are_refused(make, tmp_path, change, message):
    path = tmp_path / "e.safetensors"
    save_encoder(path, make())
    arrays, texts = load_tensors(path)
    for name, value in change.items():
        (texts if isinstance(value, str) else arrays)[name] = value
    save_tensors(path, arrays, texts)
    with pytest.raises(FileError, match=message) as told:
        load_encoder(path)
    assert str(path) in str(told.value)
    assert len(str(told.value)) < 500


def test_damaged_files_are_refused_at_every_length(make, tmp_path):
    path = tmp_path / "e.safetensors"
    save_encoder(path, make())
    whole = path.read_bytes()
    for length in [0, 3, 8, 100, 400, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FileError):
            load_encoder(path)
    rng = np.random.default_rng(0)
    for _ in range(100):  # a flipped byte is refused, or changes the checksum, or only the card
        broken = bytearray(whole)
        broken[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(broken))
        with suppress(FileError):
            load_encoder(path)
    with pytest.raises(FileError, match="no such"):
        load_encoder(tmp_path / "none.safetensors")
    with pytest.raises(FileError):
        load_encoder(tmp_path)


def test_what_can_not_be_written_is_told(make, tmp_path):
    large = Encoder(layers=((np.full((4, 4), 1e6), np.zeros(4), False),), extractor_name="sift")
    with pytest.raises(InputError, match="finite"):
        save_encoder(tmp_path / "e.safetensors", large)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="float16, float32"):
        save_encoder(tmp_path / "e.safetensors", make(), "float8")
    with pytest.raises(FileError):
        save_encoder(tmp_path / "missing" / "e.safetensors", make())


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": ()},
        {"layers": ((np.zeros((2, 2)), np.zeros(2), 1),)},
        {"layers": ((np.zeros((2, 2)), np.zeros(3), True),)},
        {"extractor_name": ""},
        {"card": {"a": object()}},
        {"card": {"a": float("nan")}},
    ],
)
def test_what_is_no_encoder_is_refused(make, wrong):
    given = {"layers": make().layers, "extractor_name": "sift", "card": {}} | wrong
    with pytest.raises(InputError):
        Encoder(**given)


def test_compress_is_linear_and_cut_to_its_strongest(tmp_path, rows):
    layer = (np.eye(16) * 0.5, np.full(16, -0.25), False)
    whole = Encoder(layers=(layer,), extractor_name="sift", kind="compress")
    found = encode(whole, np.vstack([rows, np.full((1, 16), 0.5)]))
    assert np.abs(found[:-1] - (rows * 0.5 - 0.25)).max() < 1e-6  # not scaled
    assert np.abs(found[-1]).max() == 0  # the mean is 0, and no mistake
    assert np.array_equal(encode(cut_components(whole, 5), rows), found[:-1, :5])
    assert cut_components(whole, 16) is whole
    assert whole.checksum != Encoder(layers=(layer,), extractor_name="sift").checksum
    save_encoder(tmp_path / "c.safetensors", whole)
    assert load_encoder(tmp_path / "c.safetensors").kind == "compress"
    with pytest.raises(InputError, match="17"):
        cut_components(whole, 17)
    with pytest.raises(InputError, match="components"):
        cut_components(Encoder(layers=(layer,), extractor_name="sift"), 4)
    with pytest.raises(InputError, match="ReLU"):
        Encoder(layers=(layer, layer), extractor_name="sift", kind="compress")


def test_bundled_ones_are_found_by_name(make, tmp_path, monkeypatch):
    monkeypatch.setattr(module.resources, "files", lambda package: tmp_path)
    with pytest.raises(RecipeError, match="come"):
        bundled_encoder("sift-2.5")
    (tmp_path / "data").mkdir()
    save_encoder(tmp_path / "data" / "ninja-sift-2.5.safetensors", make())
    assert bundled_names() == ("sift-2.5",)
    assert bundled_encoder("sift-2.5").input_dim == 16
    for name in ("sift-2.6", "../data/ninja-sift-2.5"):
        with pytest.raises(RecipeError, match="ninja-sift-2"):
            bundled_encoder(name)


def test_those_that_come_with_the_package_can_be_used_and_say_how_they_were_made():
    names = bundled_names()
    assert {"sift-0.1", "sift-1.0", "sift-2.5"} <= set(names)
    for name in names:
        known = bundled_encoder(name)
        assert known.extractor_name == name.split("-")[0]
        assert known.card["lambda"] == float(name.split("-")[1])
        assert {"data", "seed", "losses", "held out", "command", "differences", "measured"} <= set(known.card)
        assert "/" not in known.card["command"]
        file = module.resources.files("sfumato.concealment") / "data" / f"ninja-{name}.safetensors"
        assert len(file.read_bytes()) < 1_000_000
        found = encode(known, np.random.default_rng(0).random((20, known.input_dim)))
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5


def test_those_that_come_with_the_package_still_match_a_warped_photo(tmp_path):
    """Mutual nearest neighbours of true pairs of photos that none of them was trained on."""
    cv2 = pytest.importorskip("cv2")
    photos = [tmp_path / f"{name}.png" for name in ("chelsea", "coffee")]
    for photo in photos:
        cv2.imwrite(str(photo), sample_image(photo.stem).pixels)
    pairs = pairs_from_photos(photos, PairParams(views=1))
    assert len(pairs) > 200

    def matched(first: np.ndarray, second: np.ndarray) -> float:
        rows, likeness = np.arange(len(first)), first @ second.T
        return float(((likeness.argmax(axis=1) == rows) & (likeness.argmax(axis=0) == rows)).mean())

    clear = matched(pairs.first, pairs.second)
    for name in bundled_names():
        known = bundled_encoder(name)
        assert matched(encode(known, pairs.first), encode(known, pairs.second)) > 0.85 * clear


def test_it_needs_no_torch():
    code = "import sys, sfumato.concealment.encoder; assert not {'torch', 'safetensors'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_header_larger_than_the_file_is_refused(tmp_path):
    path = tmp_path / "e.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(FileError, match="damaged"):
        load_encoder(path)


def test_an_encoder_that_makes_nothing_of_rows_says_so(rows):
    dead = (np.zeros((4, 16), np.float32), np.zeros(4, np.float32), True)
    with pytest.raises(InputError, match="zeros"):
        encode(Encoder(layers=(dead,), extractor_name="sift"), rows)
    huge = (np.full((16, 16), 1e38, np.float32), np.zeros(16, np.float32), False)
    with pytest.raises(InputError, match="zeros"):
        encode(Encoder(layers=(huge,) * 20, extractor_name="sift"), rows)
