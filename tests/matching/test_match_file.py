# SPDX-License-Identifier: Apache-2.0
import json

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.matching.batch import match_pairs
from sfumato.matching.match_file import group_name, load_matches, scores_of
from sfumato.matching.match_writer import MatchWriter
from sfumato.matching.pairs import exhaustive

PAIR = ("db/0.jpg", "db/1.jpg")


@pytest.fixture
def written(archive_path, tmp_path):
    path = tmp_path / "matches.h5"
    with sfumato.load(archive_path) as archive, MatchWriter(path, archive) as writer:
        for pair, matches in match_pairs(archive, exhaustive(archive)):
            writer.add(pair, matches)
    return path


def hloc_find_pair(file, name0, name1):
    """How hloc looks a pair up (hloc/utils/io.py), written anew."""
    for reverse, names in enumerate(((name0, name1), (name1, name0))):
        key = "/".join(name.replace("/", "-") for name in names)
        if key in file:
            return key, bool(reverse)
    raise ValueError((name0, name1))


def hloc_get_matches(path, name0, name1):
    """How hloc reads matches (hloc/utils/io.py), written anew."""
    with h5py.File(str(path), "r", libver="latest") as file:
        key, reverse = hloc_find_pair(file, name0, name1)
        matches, scores = file[key]["matches0"].__array__(), file[key]["matching_scores0"].__array__()
    rows = np.where(matches != -1)[0]
    found = np.stack([rows, matches[rows]], -1)
    return (np.flip(found, -1) if reverse else found), scores[rows]


def test_hloc_reads_what_is_written(written, archive_path):
    with sfumato.load(archive_path) as archive:
        by_hand = sfumato.match(archive[PAIR[0]], archive[PAIR[1]])
        counts = [len(archive[name]) for name in PAIR]
    matches, scores = hloc_get_matches(written, *PAIR)
    assert len(matches) > 5
    assert np.array_equal(matches, by_hand.indices)
    np.testing.assert_allclose(scores, 1 - by_hand.distances**2 / 4, atol=1e-3)
    turned, _ = hloc_get_matches(written, *PAIR[::-1])
    assert np.array_equal(turned, matches[:, ::-1])
    with h5py.File(written) as file:
        group = file["db-0.jpg/db-1.jpg"]
        assert group["matches0"].dtype == np.int32
        assert group["matches0"].shape == group["matching_scores0"].shape == (counts[0],)
        assert (np.asarray(group["matching_scores0"])[np.asarray(group["matches0"]) == -1] == 0).all()
        assert file["db-0.jpg/db-5.jpg/matches0"].shape == (counts[0],)  # against an image without features
        everything = []
        file.visititems(lambda name, item: everything.append(name) if isinstance(item, h5py.Dataset) else None)
    assert len({name.rsplit("/", 1)[0] for name in everything}) == 15


def test_the_file_as_a_mapping(written, archive_path):
    with sfumato.load(archive_path) as archive, load_matches(written) as file:
        assert sorted(file) == sorted(exhaustive(archive))
        assert len(file) == 15
        for pair in file:
            by_hand = sfumato.match(archive[pair[0]], archive[pair[1]])
            assert np.array_equal(file[pair].indices, by_hand.indices)
            assert np.array_equal(file[pair].distances, by_hand.distances)
            turned = file[pair[::-1]]
            assert sorted(map(tuple, turned.indices[:, ::-1].tolist())) == sorted(map(tuple, by_hand.indices.tolist()))
            assert (np.diff(turned.indices[:, 0]) > 0).all()
        assert PAIR[::-1] in file
        for other in (("db/0.jpg", "db/9.jpg"), ("db-0.jpg", "db-1.jpg"), ("db/0.jpg",), "db/0.jpg", None, (1, 2)):
            assert other not in file
        with pytest.raises(KeyError):
            file["db/0.jpg", "db/9.jpg"]
        assert file.provenance.parameters == {"mutual": True, "ratio": 0.95, "max_distance": None}
        assert file.provenance.recipes == ("random-2",)
        assert file.provenance.images["db/2.jpg"] == (28, archive.header("db/2.jpg").checksum)
    with pytest.raises(FileError, match="closed"):
        file[PAIR]


def test_scores_are_hlocs():
    assert scores_of(np.array([0, 1, 2, 9], np.float32)).tolist() == [1, 0.75, 0, 0]
    unit = np.array([[1.0, 0], [0.6, 0.8]])
    distance = np.linalg.norm(unit[0] - unit[1]).astype(np.float32)
    assert scores_of(distance[None])[0] == pytest.approx((unit[0] @ unit[1] + 1) / 2, abs=1e-3)


def hloc_file(path, matches=(1, -1, 0), scores=(0.75, 0, 1), dtype=np.int16):
    with h5py.File(path, "w", libver="latest") as file:
        group = file.create_group("q-1.jpg/db-2.jpg")
        group.create_dataset("matches0", data=np.array(matches, dtype))
        group.create_dataset("matching_scores0", data=np.array(scores, np.float16))
    return path


def test_hlocs_own_file(tmp_path):
    with load_matches(hloc_file(tmp_path / "m.h5")) as file:
        assert file.provenance is None
        assert list(file) == [("q-1.jpg", "db-2.jpg")]
        found = file["q/1.jpg", "db/2.jpg"]
        assert found.indices.tolist() == [[0, 1], [2, 0]]
        assert found.distances.tolist() == [1, 0]
        turned = file["db/2.jpg", "q/1.jpg"]
        assert turned.indices.tolist() == [[0, 2], [1, 0]]
        assert turned.distances.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matches": (1, -5, 0)}, "int16 overflows"),
        ({"scores": (np.nan, 0, 1)}, "a number for each"),
        ({"scores": (1,)}, "a number for each"),
        ({"dtype": np.float32}, "list of numbers"),
        ({"matches": ((1,), (2,)), "scores": (1, 1)}, "list of numbers"),
        ({"matches": (2**40, 1, 1), "dtype": np.int64}, "indices"),
    ],
)
def test_wrong_numbers_are_refused(tmp_path, change, message):
    with load_matches(hloc_file(tmp_path / "m.h5", **change)) as file, pytest.raises(FileError, match=message):
        file["q/1.jpg", "db/2.jpg"]


def plant(path, what):
    """Make one of the things a hostile file may hold in the place of a pair, a group or a dataset."""
    with h5py.File(path, "r+") as file:
        group = file["q-1.jpg/db-2.jpg"]
        if what == "soft link":
            group.move("matches0", "real")
            group["matches0"] = h5py.SoftLink("/q-1.jpg/db-2.jpg/real")
        elif what == "external link":
            del file["q-1.jpg/db-2.jpg"]
            file["q-1.jpg/db-2.jpg"] = h5py.ExternalLink("/etc/passwd", "/")
        elif what == "outer link":
            file.move("q-1.jpg", "real")
            file["q-1.jpg"] = h5py.SoftLink("/real")
        elif what == "missing":
            del group["matches0"]
        elif what == "bomb":
            del group["matches0"]
            group.create_dataset("matches0", shape=(2**40,), dtype=np.int32, chunks=(2**20,))
        elif what == "external data":
            del group["matches0"]
            group.create_dataset("matches0", shape=(3,), dtype=np.int32, external=[("/etc/passwd", 0, 12)])
        elif what == "virtual":
            del group["matches0"]
            layout = h5py.VirtualLayout((3,), np.int32)
            layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3,))
            group.create_virtual_dataset("matches0", layout)
        elif what == "dataset for a group":
            del file["q-1.jpg/db-2.jpg"]
            file["q-1.jpg/db-2.jpg"] = 5
        elif what == "text":
            del group["matches0"]
            group["matches0"] = np.array([b"a"] * 3)


@pytest.mark.parametrize(
    "what",
    ["soft link", "external link", "outer link", "missing", "bomb", "external data", "virtual", "dataset for a group",
     "text"],
)  # fmt: skip
def test_hostile_files_are_refused(tmp_path, what):
    path = hloc_file(tmp_path / "m.h5")
    plant(path, what)
    with load_matches(path) as file, pytest.raises((FileError, KeyError)) as caught:
        file["q/1.jpg", "db/2.jpg"]
    assert isinstance(caught.value, FileError)
    assert "m.h5" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", np.bytes_(b"sfumato-archive"), "another kind"),
        ("version", np.bytes_(b"2"), "another version"),
        ("version", 2, "not a text"),
        ("parameters", "variable length", "not a text"),
        ("parameters", np.bytes_(b"{"), "cannot be read"),
        ("parameters", np.bytes_(b'{"mutual": true, "ration": 1}'), "cannot be read"),
        ("images", np.bytes_(b"[1, 2]"), "cannot be read"),
        ("images", np.bytes_(b'{"a/b": [1, "x"], "a-b": [1, "y"]}'), "spelt alike"),
        ("images", None, "missing"),
        ("recipes", np.bytes_(b"\xff"), "damaged"),
    ],
)
def test_wrong_attributes_are_refused(written, key, value, message):
    with h5py.File(written, "r+") as file:
        del file.attrs[key]
        if value is not None:
            file.attrs[key] = value
    with pytest.raises(FileError, match=message):
        load_matches(written)


def test_rows_that_the_images_do_not_have(written):
    with h5py.File(written, "r+") as file:
        images = json.loads(bytes(file.attrs["images"]))
        file["db-0.jpg/db-1.jpg/matches0"][0] = images["db/1.jpg"][0]
        file["db-0.jpg/db-2.jpg/distances"][0] = np.nan
    with load_matches(written) as file:
        with pytest.raises(FileError, match="db-0"):
            file[PAIR]
        with pytest.raises(FileError, match="not finite"):
            file["db/0.jpg", "db/2.jpg"]
        assert len(file["db/0.jpg", "db/3.jpg"])


def test_damaged_and_missing_files(written, tmp_path):
    content = written.read_bytes()
    for bad in (content[: len(content) // 2], b"hello", b""):
        written.write_bytes(bad)
        with pytest.raises(FileError, match=r"matches\.h5"):
            load_matches(written)
    for path in (tmp_path, tmp_path / "none.h5"):
        with pytest.raises(FileError, match="match file"):
            load_matches(path)


@pytest.mark.parametrize("name", ["", ".", "a\0b", "\udcff.jpg"])
def test_names_that_no_match_file_holds(name):
    with pytest.raises(InputError, match="rename"):
        group_name(name)
