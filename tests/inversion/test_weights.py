# SPDX-License-Identifier: Apache-2.0
from dataclasses import asdict

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.files.tensors import save_checkpoint
from sfumato.inversion.paint import PaintParams
from sfumato.inversion.patches import KIND, VERSION, InverterHeader, load_weights, save_weights

HEADER = InverterHeader(
    extractor="sift", recipe="sub-hybrid-2", input_dim=12, hidden=8, refine=(4, 6), frame=4,
    paint=PaintParams(window=2.0), made={"seed": 3},
)  # fmt: skip


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in HEADER.shapes().items()}


def test_what_is_written_is_read(tensors, tmp_path):
    save_weights(tmp_path / "a.safetensors", HEADER, tensors)
    header, found = load_weights(tmp_path / "a.safetensors")
    assert header == HEADER
    for name, value in tensors.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], value.astype(np.float16).astype(np.float32))
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_safetensors_reads_it_too(tensors, tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    save_weights(tmp_path / "a.safetensors", HEADER, tensors)
    assert set(numpy.load_file(tmp_path / "a.safetensors")) == set(tensors)


def facts(**changes):
    return asdict(HEADER) | {"kind": KIND, "version": VERSION, "refine": [4, 6]} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "image inverter"}, "expected patch inverter"),
        ({"version": 2}, "version 2"),
        ({"extractor": ""}, "extractor"),
        ({"recipe": "sub-hybrd-2"}, "sub-hybrid"),
        ({"recipe": None}, "recipe"),
        ({"input_dim": 10**9}, "input_dim"),
        ({"input_dim": True}, "input_dim"),
        ({"hidden": 9}, "shape"),
        ({"refine": [4, -1]}, "refine"),
        ({"refine": "4"}, "refine"),
        ({"refine": [4]}, "does not belong"),
        ({"frame": -2}, "frame"),
        ({"paint": {"window": 1.0}}, "paint"),
        ({"paint": {"window": 1e9, "fineness": 3.0, "faint": 1e-3}}, "window"),
        ({"made": 3}, "made"),
    ],
)
def test_headers_that_lie(tensors, tmp_path, changes, message):
    half = {name: value.astype(np.float16) for name, value in tensors.items()}
    save_checkpoint(tmp_path / "a.safetensors", half, facts(**changes))
    with pytest.raises(FileError, match=message) as told:
        load_weights(tmp_path / "a.safetensors")
    assert "a.safetensors" in str(told.value)


def test_damaged_files(tensors, tmp_path):
    path = tmp_path / "a.safetensors"
    save_weights(path, HEADER, tensors)
    whole = path.read_bytes()
    for content in (b"", whole[:7], whole[:200], whole[:-1], b"\xff" * 64, (2**60).to_bytes(8, "little") + whole[8:]):
        path.write_bytes(content)
        with pytest.raises(FileError):
            load_weights(path)
    with pytest.raises(FileError, match="no such"):
        load_weights(tmp_path / "gone.safetensors")


def test_numbers_that_are_not_finite(tensors, tmp_path):
    save_weights(tmp_path / "a.safetensors", HEADER, tensors | {"patch.mean": np.full(13, np.nan, np.float32)})
    with pytest.raises(FileError, match=r"patch\.mean"):
        load_weights(tmp_path / "a.safetensors")
