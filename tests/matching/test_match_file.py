# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.matching import match_file
from sfumato.matching.batch import match_pairs
from sfumato.matching.match_file import DIGEST, bits_of, group_name, load_matches, scores_of
from sfumato.matching.match_writer import MatchWriter
from sfumato.matching.pairs import exhaustive
from sfumato.types.scene import Matches

PAIR = ("db/0.jpg", "db/1.jpg")


@pytest.fixture(scope="module")
def all_pairs(archive_at, tmp_path_factory):
    """A folder with an archive, and the matches of all its images."""
    folder = tmp_path_factory.mktemp("all")
    with sfumato.load(archive_at(folder / "a.sfm")) as archive, MatchWriter(folder / "m.h5", archive) as writer:
        for pair, matches in match_pairs(archive, exhaustive(archive)):
            writer.add(pair, matches)
    return folder


@pytest.fixture
def archive_path(all_pairs):
    return all_pairs / "a.sfm"


@pytest.fixture
def written(all_pairs, tmp_path):
    return Path(shutil.copy(all_pairs / "m.h5", tmp_path / "matches.h5"))


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
    assert scores_of(np.array([0, 128, 512, 600], np.float32), 512).tolist() == [1, 0.75, 0, 0]
    assert bits_of(sfumato.Recipe.of("sealed-512@0123456789ab")) == 512
    assert bits_of(sfumato.Recipe.of("random-2")) is None


def test_scores_of_sealed_features_are_the_share_of_bits_that_agree(tmp_path):
    packed = np.random.default_rng(0).integers(0, 256, (9, 8), np.uint8)
    sealed = [
        sfumato.ConcealedFeatures(np.zeros((9, 4)), sfumato.Bits(bits), "sealed-64@0123456789ab")
        for bits in (packed, packed ^ np.uint8(1))
    ]
    sfumato.save(tmp_path / "s.sfm", dict(zip("ab", sealed, strict=True)))
    with sfumato.load(tmp_path / "s.sfm") as archive, MatchWriter(tmp_path / "m.h5", archive) as writer:
        writer.add(("a", "b"), Matches([[0, 0], [1, 5]], [8.0, 16.0]))
    with h5py.File(tmp_path / "m.h5") as file:
        assert file["a/b/matching_scores0"][:3].tolist() == [0.875, 0.75, 0]
        assert file["a/b/distances"][()].tolist() == [8, 16]


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


def rewrite(path, changes):
    """Change attributes of the file as somebody who can make digests would."""
    with h5py.File(path, "r+") as file:
        texts = {key: bytes(value).decode() for key, value in file.attrs.items() if key != DIGEST} | changes
        for key, value in {**texts, DIGEST: match_file._digest_texts(texts)}.items():
            file.attrs[key] = np.bytes_(value.encode())


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("format", "sfumato-archive", "kind"),
        ("version", "1", "version"),
        ("parameters", "{", "made with"),
        ("parameters", '{"mutual": true, "ration": 1}', "made with"),
        ("images", "[1, 2]", "made with"),
        ("images", '{"a/b": [1, "x"], "a-b": [1, "y"]}', "alike"),
        ("images", "[" * 100_000, "made with"),
        ("pairs", "many", "made with"),
    ],
)
def test_wrong_attributes_are_refused(written, key, value, word):
    rewrite(written, {key: value})
    with pytest.raises(FileError, match=word):
        load_matches(written)


@pytest.mark.parametrize("value", [None, np.bytes_(b"\xff"), np.bytes_(b"{}"), 3, "text"])
def test_attributes_without_their_digest(written, value):
    with h5py.File(written, "r+") as file:
        del file.attrs["parameters"]
        if value is not None:
            file.attrs["parameters"] = value
    with pytest.raises(FileError, match=r"matches\.h5"):
        load_matches(written)


def test_changed_numbers_are_refused(written):
    with h5py.File(written, "r+") as file:
        file["db-0.jpg/db-1.jpg/matches0"][0] += 1
        file["db-0.jpg/db-2.jpg/distances"][0] *= 2
        file["db-0.jpg/db-3.jpg/matching_scores0"][3] = 0.5
        del file["db-0.jpg/db-4.jpg"].attrs[DIGEST]
        file.move("db-1.jpg/db-2.jpg", "db-1.jpg/db-0.jpg")
    with load_matches(written) as file:
        for pair in [("0", "1"), ("0", "2"), ("0", "3"), ("0", "4")]:
            with pytest.raises(FileError, match="digest"):
                file[f"db/{pair[0]}.jpg", f"db/{pair[1]}.jpg"]
        with pytest.raises(KeyError):
            file["db/1.jpg", "db/2.jpg"]
        assert len(file["db/1.jpg", "db/3.jpg"])


def test_pairs_that_are_missing_or_of_unknown_images(written):
    content = written.read_bytes()
    with h5py.File(written, "r+") as file:
        del file["db-0.jpg/db-1.jpg"]
    with load_matches(written) as file, pytest.raises(FileError, match="14"):
        list(file)
    written.write_bytes(content)
    with h5py.File(written, "r+") as file:
        file.move("db-0.jpg/db-1.jpg", "db-0.jpg/stranger.jpg")
    with load_matches(written) as file, pytest.raises(FileError, match="stranger"):
        dict(file)


def test_rows_that_the_images_do_not_have(written):
    with h5py.File(written) as file:
        images = json.loads(bytes(file.attrs["images"]))
    images["db/1.jpg"][0] = 3
    rewrite(written, {"images": json.dumps(images)})
    with load_matches(written) as file:
        with pytest.raises(FileError, match="db-0"):
            file[PAIR]
        assert len(file["db/0.jpg", "db/3.jpg"])


def test_damaged_and_missing_files(written, tmp_path):
    content = written.read_bytes()
    for bad in (content[: len(content) // 2], b"hello", b""):
        written.write_bytes(bad)
        with pytest.raises(FileError, match=r"matches\.h5"):
            load_matches(written)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none.h5", tmp_path / "pipe"):
        with pytest.raises(FileError, match="match file"):
            load_matches(path)


@pytest.mark.parametrize("name", ["", ".", "a\0b", "\udcff.jpg"])
def test_names_that_no_match_file_holds(name):
    with pytest.raises(InputError, match="rename"):
        group_name(name)


# --- damage: it is told, or what was written is read


def read_all(path):
    with load_matches(path) as file:
        return {pair: (m.indices.tolist(), m.distances.tolist()) for pair, m in file.items()}


def fuzz(path, count, flipped, ours):
    """Read damaged copies of a file; return how many were refused, and how many gave something else than was there."""
    content, right, rng = path.read_bytes(), read_all(path), np.random.default_rng(7)
    refused = other = 0
    for _ in range(count):
        path.write_bytes(flipped(content, rng))
        try:
            other += read_all(path) != right
        except FileError:
            refused += 1
    assert refused > count // 10
    assert not (ours and other)
    return refused, other


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_damage_to_our_file_is_told(written, count, flipped):
    fuzz(written, count, flipped, ours=True)


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_damage_to_hlocs_file_ends_in_an_error_or_in_matches(tmp_path, count, flipped):
    fuzz(hloc_file(tmp_path / "m.h5"), count, flipped, ours=False)
