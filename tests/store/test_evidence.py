# SPDX-License-Identifier: Apache-2.0
"""Evidence of a server as a file: what goes in comes out, and a hostile one is refused, whatever is wrong with it."""

import pickle  # noqa: TID251
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.store import ClaimedRows, Evidence, load_evidence, save_evidence
from sfumato.store.evidence import LARGEST_ROW, gather_evidence
from sfumato.types.concealed import Bits, RowTags

PAIRS = {("a.jpg", "b.jpg"): [[0, 3], [2, 1]], ("b.jpg", "x.jpg"): [[3, 9]], ("a.jpg", "x.jpg"): [[0, 9], [2, 4]]}
CLAIMS = {pair: np.array(rows, np.int64) for pair, rows in PAIRS.items()}


@pytest.fixture
def evidence(home: Any) -> Evidence:
    """Of two photos of a device, and of one that another device took."""
    images = {"a.jpg": home(1, 10), "b.jpg": home(2, 10), "x.jpg": home(3, 12)}
    return gather_evidence(iter(CLAIMS.items()), images, ("a.jpg", "b.jpg"))


@pytest.fixture
def path(tmp_path: Path, evidence: Evidence) -> Path:
    save_evidence(tmp_path / "evidence", evidence)
    return tmp_path / "evidence"


def test_evidence_shows_of_others_what_is_claimed_and_no_more(evidence: Evidence, home: Any):
    assert set(evidence.claims) == set(CLAIMS)
    assert set(evidence.others) == {"x.jpg"}
    shown, image = evidence.others["x.jpg"], home(3, 12)
    assert (shown.numbers.tolist(), shown.count) == ([4, 9], 12)
    assert shown.code.packed.tobytes() == image.code.packed[[4, 9]].tobytes()
    assert (shown.tags.photo, shown.tags.rows.tobytes()) == (image.tags.photo, image.tags.rows[[4, 9]].tobytes())


def test_evidence_has_pairs_of_a_device_and_of_the_partners_of_its_photos(home: Any):
    names = ("a", "x", "y", "z")
    images = {name: home(seed, 10) for seed, name in enumerate(names)}
    claims = {pair: np.array([[1, 2]]) for pair in (("a", "x"), ("a", "y"), ("x", "y"), ("x", "z"), ("y", "z"))}
    made = gather_evidence(iter(claims.items()), images, ("a",))
    assert set(made.claims) == {("a", "x"), ("a", "y"), ("x", "y")}
    assert set(made.others) == {"x", "y"}


def test_images_without_tags_are_no_evidence(home: Any, sealed: Any):
    images = {"a.jpg": home(1, 10), "b.jpg": home(2, 10), "x.jpg": sealed(3, 12)}
    assert not gather_evidence(iter(CLAIMS.items()), images, ("a.jpg", "b.jpg")).others


def test_a_file_comes_back_as_it_was(path: Path, evidence: Evidence):
    back = load_evidence(path)
    assert list(back.claims) == list(evidence.claims)
    for pair, rows in evidence.claims.items():
        np.testing.assert_array_equal(back.claims[pair], rows)
    (shown,), (known,) = back.others.values(), evidence.others.values()
    assert shown.numbers.tolist() == known.numbers.tolist()
    assert shown.tags.rows.tobytes() == known.tags.rows.tobytes()
    assert (shown.code.packed.tobytes(), shown.count) == (known.code.packed.tobytes(), known.count)
    assert repr(back) == "Evidence(3 pairs, rows of 1 other photos)"


def test_nothing_is_evidence_too(tmp_path: Path):
    save_evidence(tmp_path / "evidence", Evidence({}))
    back = load_evidence(tmp_path / "evidence")
    assert (dict(back.claims), dict(back.others)) == ({}, {})


def test_the_same_evidence_gives_the_same_bytes(path: Path, tmp_path: Path, evidence: Evidence):
    save_evidence(tmp_path / "again", evidence)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


# ---------------------------------------------------------------- hostile files


class Planted:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("planted"),)


def test_other_files_and_pickles_are_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "npz", pairs=np.array([Planted()], object))
    contents = b"", b"evidence", pickle.dumps(Planted()), (tmp_path / "npz.npz").read_bytes(), bytes(4096)
    for content in contents:
        (tmp_path / "evidence").write_bytes(content)
        with pytest.raises(FileError, match="evidence"):
            load_evidence(tmp_path / "evidence")
    with pytest.raises(FileError):
        load_evidence(tmp_path / "none")
    assert not (tmp_path / "planted").exists()


def test_a_truncated_file_is_refused(path: Path):
    content = path.read_bytes()
    for size in range(0, len(content), 37):
        path.write_bytes(content[:size])
        with pytest.raises(FileError):
            load_evidence(path)


def test_changed_bytes_are_refused_or_change_nothing(path: Path, tmp_path: Path):
    """Nothing: where the name of the digest changed, so that the file has none."""
    content, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(200):
        changed = bytearray(content)
        changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            save_evidence(tmp_path / "again", load_evidence(path))
        except FileError:
            refused += 1
        else:
            assert (tmp_path / "again").read_bytes() == content
    assert refused > 190


def test_another_kind_of_file_is_refused(tmp_path: Path, path: Path):
    arrays, facts = load_checkpoint(path)
    save_checkpoint(tmp_path / "other", arrays, {**facts, "kind": "decoys"})
    with pytest.raises(FileError, match="evidence"):
        load_evidence(tmp_path / "other")


def rows(*values: Any, kind: str = "<i8") -> np.ndarray:
    return np.array(values, kind)


HOSTILE: dict[str, dict[str, np.ndarray | None]] = {
    "no pairs": {"pairs": None},
    "no tags": {"tags": None},
    "pairs of one number": {"pairs": rows(1, 2, 3)},
    "pairs of four numbers": {"pairs": rows([0, 1, 2, 0], [1, 2, 1, 0], [0, 2, 2, 0])},
    "pairs of no image": {"pairs": rows([0, 7, 2], [1, 2, 1], [0, 2, 2])},
    "pairs of an image before the first": {"pairs": rows([0, -1, 2], [1, 2, 1], [0, 2, 2])},
    "pairs of one image": {"pairs": rows([0, 0, 2], [1, 2, 1], [0, 2, 2])},
    "a pair twice": {"pairs": rows([0, 1, 2], [0, 1, 1], [0, 2, 2])},
    "a pair in both directions": {"pairs": rows([0, 1, 2], [1, 0, 1], [0, 2, 2])},
    "more claims than there are": {"pairs": rows([0, 1, 2], [1, 2, 1], [0, 2, 3])},
    "fewer claims than there are": {"pairs": rows([0, 1, 2], [1, 2, 1], [0, 2, 1])},
    "sums that overflow": {"pairs": rows([0, 1, 2**62], [1, 2, 2**62], [0, 2, 2**62]), "claims": rows().reshape(0, 2)},
    "claims of three numbers": {"claims": np.zeros((5, 3), "<u4")},
    "claims of a row before the first": {"claims": np.full((5, 2), -1)},
    "claims of enormous rows": {"claims": np.full((5, 2), 2**63 - 1)},
    "claims that are no whole numbers": {"claims": np.full((5, 2), np.nan, "<f4")},
    "claims that overflow": {"claims": np.full((5, 2), 2**64 - 1, "<u8")},
    "a huge count": {"others": rows([2, 2, LARGEST_ROW + 1])},
    "an enormous count": {"others": rows([2, 2, 2**63 - 1])},
    "a negative count": {"others": rows([2, 2, -12])},
    "a count below its rows": {"others": rows([2, 2, 1])},
    "a row beyond the count": {"others": rows([2, 2, 9])},
    "no such image": {"others": rows([9, 2, 12])},
    "an image twice": {"others": rows([2, 1, 12], [2, 1, 12]), "photos": np.zeros((2, 16), np.uint8)},
    "more rows than there are": {"others": rows([2, 3, 12])},
    "rows that do not ascend": {"numbers": rows(9, 4)},
    "a row twice": {"numbers": rows(4, 4)},
    "fewer tags": {"tags": np.zeros((1, 8), np.uint8)},
    "wider tags": {"tags": np.zeros((2, 9), np.uint8)},
    "tags that are numbers": {"tags": np.zeros((2, 8), "<f4")},
    "fewer bits": {"bits": np.zeros((1, 8), np.uint8)},
    "no bits at all": {"bits": np.zeros((2, 0), np.uint8)},
    "bits that are numbers": {"bits": np.zeros((2, 8), "<f8")},
    "no photo": {"photos": np.zeros((0, 16), np.uint8)},
    "a shorter name of a photo": {"photos": np.zeros((1, 8), np.uint8)},
}


@pytest.mark.parametrize("change", sorted(HOSTILE))
def test_hostile_tables_with_a_right_digest_are_refused(path: Path, change: str):
    arrays, facts = load_checkpoint(path)
    changed = {name: array for name, array in (arrays | HOSTILE[change]).items() if array is not None}
    save_checkpoint(path, changed, facts)
    with pytest.raises(FileError, match="evidence"):
        load_evidence(path)


@pytest.mark.parametrize("names", [None, 3, "abc", {"a": 1}, ["a", "b"], ["a", "b", "a"], [["a"], None, 3.5]])
def test_hostile_names_are_refused_or_are_texts(path: Path, names: Any):
    arrays, facts = load_checkpoint(path)
    save_checkpoint(path, arrays, {**facts, "images": names})
    try:
        back = load_evidence(path)
    except FileError:
        return
    assert all(isinstance(name, str) for pair in back.claims for name in pair)


def test_rows_that_do_not_fit_each_other_are_refused():
    bits, tags = Bits(np.zeros((2, 8), np.uint8)), RowTags("0" * 32, np.zeros((2, 8), np.uint8))
    for numbers, count in (([1], 5), ([1, 1], 5), ([2, 1], 5), ([-1, 1], 5), ([1, 5], 5), ([0, 1], 1)):
        with pytest.raises(InputError, match="evidence"):
            ClaimedRows(np.array(numbers), bits, tags, count)
    known = ClaimedRows(np.array([1, 4]), bits, tags, 5)
    places, is_there = known.find(np.array([4, 0, 1, 9, -1]))
    assert is_there.tolist() == [True, False, True, False, False]
    assert places[is_there].tolist() == [1, 0]
