# SPDX-License-Identifier: Apache-2.0
import io
import json
import zipfile

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.training.pairs import DescriptorPairs, load_pairs, save_pairs
from sfumato.types.extractor import Extractor


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 5, 8))
    return DescriptorPairs(first, second, [4, 4, 5, 6, 2**40], [0, 0, 1, 1, 2], Extractor("sift", {"sigma": 1.6}))


def test_what_was_written_is_read(tmp_path, pairs):
    save_pairs(tmp_path / "pairs.npz", pairs)
    back = load_pairs(tmp_path / "pairs.npz")
    for name in ("first", "second", "points", "groups"):
        assert np.array_equal(getattr(back, name), getattr(pairs, name))
    assert back.extractor == pairs.extractor
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.npz"]


def test_no_pairs_are_a_file_too(tmp_path):
    save_pairs(tmp_path / "none.npz", DescriptorPairs(np.zeros((0, 8)), np.zeros((0, 8)), [], []))
    assert load_pairs(tmp_path / "none.npz").first.shape == (0, 8)


def rewritten(path, **changes):
    """Write the file anew with some members replaced (None: left out)."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, value in changes.items():
        if value is None:
            members.pop(f"{name}.npy")
            continue
        stream = io.BytesIO()
        np.lib.format.write_array(stream, value, allow_pickle=True)
        members[f"{name}.npy"] = stream.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def header(**changes):
    data = {"format": "sfumato-pairs", "version": 1, "extractor": Extractor("sift").to_json(), **changes}
    return np.frombuffer(json.dumps(data).encode(), np.uint8)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"first": None}, "exactly"),
        ({"first": np.array([{"a": 1}], object)}, "wrong type"),
        ({"first": np.zeros((5, 8))}, "wrong type"),
        ({"second": np.zeros((4, 8), np.float32)}, "second"),
        ({"points": np.zeros((5, 1), np.int64)}, "points"),
        ({"first": np.full((5, 8), np.inf, np.float32)}, "not finite"),
        ({"header": header(version=2)}, "version 2"),
        ({"header": header(format="other")}, "holds no pairs"),
        ({"header": header(extractor="{}")}, "not a usable file"),
        ({"header": np.frombuffer(b"[1", np.uint8)}, "not a usable file"),
    ],
)
def test_damaged_and_hostile_files_are_refused(tmp_path, pairs, changes, told):
    path = tmp_path / "pairs.npz"
    save_pairs(path, pairs)
    rewritten(path, **changes)
    with pytest.raises(FileError, match=told):
        load_pairs(path)


def test_other_files_are_refused(tmp_path, pairs):
    path = tmp_path / "pairs.npz"
    with pytest.raises(FileError, match="no such"):
        load_pairs(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FileError, match="usable"):
        load_pairs(path)
    save_pairs(path, pairs)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FileError, match="usable"):
        load_pairs(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("header", "first", "second", "points", "groups"):
            archive.writestr(f"{name}.npy", bytes(10_000))
    with pytest.raises(FileError, match="is compressed"):
        load_pairs(path)
    with pytest.raises(FileError, match="written"):
        save_pairs(tmp_path / "gone" / "pairs.npz", pairs)
