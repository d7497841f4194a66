# SPDX-License-Identifier: Apache-2.0
"""hloc is not installed here: what it does with our files is written down again, step for step, from its own source.

``utils/io.py``, ``utils/parsers.py``, ``triangulation.py``, ``match_features.py`` and ``extract_features.py`` of
hloc 1.5.
"""

import os
import re
import resource
import shutil
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.experiments.data import read_posed_folder
from sfumato.features.hloc import list_hloc, read_hloc
from sfumato.features.local import LocalParams
from sfumato.geometry.cameras import pose_error, read_cameras, read_poses, write_cameras, write_poses
from sfumato.geometry.colmap import load_pycolmap, write_database
from sfumato.geometry.hloc import export_hloc
from sfumato.geometry.mapping import map_keypoints
from sfumato.matching.match_file import load_matches, pair_arrays
from sfumato.matching.match_writer import MatchWriter
from sfumato.matching.mutual import MatchParams
from sfumato.matching.pairs import read_pairs
from sfumato.types.scene import Camera, Matches, Pose

NAMES = ("db/1.jpg", "db/deep/ü.jpg", "query 7.jpg", "z.jpg")
PAIRED = ("db/1.jpg", "db/deep/ü.jpg", "z.jpg")


# ---------------------------------------------------------------- what hloc does


class Hloc:
    """hloc's own reading, as its source has it."""

    @staticmethod
    def names_to_pair(name0, name1, separator="/"):
        return separator.join((name0.replace("/", "-"), name1.replace("/", "-")))

    @classmethod
    def names_to_pair_old(cls, name0, name1):
        return cls.names_to_pair(name0, name1, separator="_")

    @staticmethod
    def list_names(path):
        names = []
        with h5py.File(str(path), "r", libver="latest") as file:
            file.visititems(
                lambda _, found: names.append(found.parent.name.strip("/")) if isinstance(found, h5py.Dataset) else None
            )
        return list(set(names))

    @staticmethod
    def get_keypoints(path, name):
        with h5py.File(str(path), "r", libver="latest") as file:
            dataset = file[name]["keypoints"]
            return dataset.__array__(), dataset.attrs.get("uncertainty")

    @classmethod
    def find_pair(cls, file, name0, name1):
        for to_pair in (cls.names_to_pair, cls.names_to_pair_old):
            for reverse, pair in enumerate((to_pair(name0, name1), to_pair(name1, name0))):
                if pair in file:
                    return pair, bool(reverse)
        raise ValueError(f"Could not find pair {(name0, name1)}")

    @classmethod
    def get_matches(cls, path, name0, name1):
        with h5py.File(str(path), "r", libver="latest") as file:
            pair, reverse = cls.find_pair(file, name0, name1)
            matches = file[pair]["matches0"].__array__()
            scores = file[pair]["matching_scores0"].__array__()
        found = np.where(matches != -1)[0]
        matches = np.stack([found, matches[found]], -1)
        return (np.flip(matches, -1) if reverse else matches), scores[found]

    @staticmethod
    def parse_retrieval(path):
        retrieval = defaultdict(list)
        with open(path) as file:
            for line in file.read().rstrip("\n").split("\n"):
                if len(line) == 0:
                    continue
                query, reference = line.split()
                retrieval[query].append(reference)
        return dict(retrieval)

    @staticmethod
    def read_results(path):
        """As its evaluations read the poses it wrote: name, quaternion w x y z, translation; no comments."""
        found = {}
        with open(path) as file:
            for line in file.read().rstrip().split("\n"):
                words = line.split()
                found[words[0]] = np.split(np.array(words[1:], float), [4])
        return found

    @staticmethod
    def read_queries(path):
        """As ``parse_image_list`` reads names and intrinsics; lines with # are comments."""
        found = {}
        with open(path) as file:
            for line in file:
                line = line.strip("\n")
                if len(line) == 0 or line[0] == "#":
                    continue
                name, model, width, height, *params = line.split()
                found[name] = model, int(width), int(height), np.array(params, float)
        return found

    @staticmethod
    def load_for_matcher(path, name, side):
        """What a matcher of hloc is given of one image; tensors there, arrays here."""
        with h5py.File(path, "r") as file:
            group = file[name]
            data = {f"{key}{side}": value.__array__().astype(np.float32) for key, value in group.items()}
            data[f"image{side}"] = np.empty((1, *tuple(group["image_size"])[::-1]))
        return data

    @classmethod
    def import_into_colmap(cls, database, image_ids, features, pairs_path, matches_path):
        with load_pycolmap().Database.open(str(database)) as opened:
            for name, number in image_ids.items():
                keypoints, _ = cls.get_keypoints(features, name)
                keypoints += 0.5  # COLMAP origin
                opened.write_keypoints(number, keypoints)
            matched = set()
            with open(str(pairs_path)) as file:
                pairs = [line.split() for line in file.readlines()]
            for name0, name1 in pairs:
                id0, id1 = image_ids[name0], image_ids[name1]
                if len({(id0, id1), (id1, id0)} & matched) > 0:
                    continue
                opened.write_matches(id0, id1, cls.get_matches(matches_path, name0, name1)[0])
                matched |= {(id0, id1), (id1, id0)}

    @classmethod
    def write(cls, path, pairs, dtype=np.int16):
        """What hloc's matching writes: ``short`` rows and ``half`` scores."""
        with h5py.File(path, "a", libver="latest") as file:
            for (name0, name1), (rows, scores) in pairs.items():
                group = file.create_group(cls.names_to_pair(name0, name1))
                group.create_dataset("matches0", data=rows.astype(dtype))
                group.create_dataset("matching_scores0", data=scores.astype(np.float16))


# ---------------------------------------------------------------- material


def make_image(seed, count=40, size=(640, 480)):
    rng = np.random.default_rng(seed)
    points = np.random.default_rng(99).standard_normal((count, 16)) + 0.1 * rng.standard_normal((count, 16))
    keypoints = rng.uniform(0, 4000, (count, 4))
    subspaces = sfumato.Subspaces(points, rng.standard_normal((count, 2, 16)))
    return sfumato.ConcealedFeatures(keypoints, subspaces, "random-2", sfumato.Extractor("sift"), size)


@pytest.fixture
def private(tmp_path):
    """An archive with names that are awkward, images of different counts, one of them without features."""
    images = {name: make_image(row, 40 - 3 * row if row < 3 else 0) for row, name in enumerate(NAMES)}
    sfumato.save(tmp_path / "private.sfm", images)
    with sfumato.load(tmp_path / "private.sfm") as archive:
        yield archive


@pytest.fixture
def matched(private, tmp_path):
    with MatchWriter(tmp_path / "ours.h5", private, MatchParams()) as writer:
        writer.add(("db/1.jpg", "db/deep/ü.jpg"), sfumato.match(private["db/1.jpg"], private["db/deep/ü.jpg"]))
        writer.add(("z.jpg", "db/1.jpg"), Matches(np.zeros((0, 2), np.int32), np.zeros(0)))
    with load_matches(tmp_path / "ours.h5") as file:
        yield file


@pytest.fixture
def exported(private, matched, tmp_path):
    export_hloc(private, matched, tmp_path / "hloc")
    return tmp_path / "hloc"


# ---------------------------------------------------------------- features


def test_features_have_hlocs_names_shapes_and_types(private, exported):
    path = exported / "features.h5"
    assert sorted(Hloc.list_names(path)) == sorted(NAMES)
    for name in NAMES:
        with h5py.File(path, "r", libver="latest") as file:
            found = {key: (value.dtype.str, value.shape) for key, value in file[name].items()}
        count = len(private[name])
        assert found == {
            "keypoints": ("<f4", (count, 2)),
            **({"scales": ("<f4", (count,)), "oris": ("<f4", (count,))} if count else {}),
            "image_size": ("<i8", (2,)),
        }


def test_keypoints_are_bit_for_bit_ours_centre_of_the_first_pixel_at_zero(private, exported):
    for name in NAMES:
        keypoints, uncertainty = Hloc.get_keypoints(exported / "features.h5", name)
        assert keypoints.dtype == np.float32
        assert np.array_equal(keypoints, private[name].keypoints[:, :2])
        assert uncertainty == 1.0
        with h5py.File(exported / "features.h5") as file:
            if len(keypoints):
                assert np.array_equal(file[name]["scales"][()], private[name].keypoints[:, 2])
                assert np.array_equal(file[name]["oris"][()], private[name].keypoints[:, 3])
            assert file[name]["image_size"][()].tolist() == [640, 480], "width first"


def test_sizes_and_angles_that_were_not_kept_are_not_made_up(tmp_path):
    """A sealed archive has positions alone."""
    images = {"a.jpg": make_image(0).positions_only(), "b.jpg": make_image(1)}
    sfumato.save(tmp_path / "p.sfm", images)
    export_hloc(tmp_path / "p.sfm", None, tmp_path / "hloc")
    with h5py.File(tmp_path / "hloc" / "features.h5") as file:
        assert set(file["a.jpg"]) == {"keypoints", "image_size"}
        assert set(file["b.jpg"]) == {"keypoints", "image_size", "scales", "oris"}


def test_there_is_no_descriptor_of_any_kind_in_them(private, exported):
    raw = (exported / "features.h5").read_bytes() + (exported / "matches.h5").read_bytes()
    for name in PAIRED[:2]:
        for row in private[name].code.origin[:5]:
            assert row.tobytes()[:16] not in raw
    with h5py.File(exported / "features.h5") as file:
        assert not [key for key in Hloc.list_names(exported / "features.h5") if "descriptors" in file[key]]


def test_subspaces_ride_along_when_asked_for(private, tmp_path):
    export_hloc(private, None, tmp_path / "hloc", with_subspaces=True)
    assert [path.name for path in (tmp_path / "hloc").iterdir()] == ["features.h5"]
    data = Hloc.load_for_matcher(tmp_path / "hloc" / "features.h5", "db/1.jpg", "0")
    assert np.array_equal(data["subspace_origin0"], private["db/1.jpg"].code.origin)
    assert np.array_equal(data["subspace_basis0"], private["db/1.jpg"].code.basis)
    assert data["image0"].shape == (1, 480, 640)
    rebuilt = sfumato.Subspaces(data["subspace_origin0"], data["subspace_basis0"])
    assert len(sfumato.match(rebuilt, private["db/1.jpg"])) == len(private["db/1.jpg"])


def test_our_own_reader_of_hlocs_features_asks_for_descriptors(exported):
    with pytest.raises(FileError, match="descriptors"):
        list(read_hloc(exported / "features.h5", extractor="sift"))
    assert list_hloc(exported / "features.h5")[0] == sorted(NAMES)


# ---------------------------------------------------------------- matches and pairs


def test_matches_are_what_hloc_reads_in_either_order(private, matched, exported):
    ours = matched["db/1.jpg", "db/deep/ü.jpg"]
    path = exported / "matches.h5"
    found, scores = Hloc.get_matches(path, "db/1.jpg", "db/deep/ü.jpg")
    assert np.array_equal(found, ours.indices)
    assert (np.diff(found[:, 0]) > 0).all()
    assert scores.dtype == np.float16
    assert np.abs(scores - (1 - ours.distances.astype(float) ** 2 / 4).clip(0, 1)).max() < 1e-3
    swapped, _ = Hloc.get_matches(path, "db/deep/ü.jpg", "db/1.jpg")
    assert np.array_equal(swapped, ours.indices[:, ::-1])
    with h5py.File(path) as file:
        assert sorted(file) == ["db-1.jpg", "z.jpg"]
        group = file["db-1.jpg/db-deep-ü.jpg"]
        assert {key: value.dtype.str for key, value in group.items()} == {"matches0": "<i4", "matching_scores0": "<f2"}
        assert group["matches0"].shape == (40,)
        assert (group["matches0"][()] == -1).sum() == 40 - len(ours)
        assert file["z.jpg/db-1.jpg/matches0"].shape == (0,)


def test_pairs_are_hlocs_list(exported):
    text = (exported / "pairs.txt").read_bytes()
    assert text == "db/1.jpg db/deep/ü.jpg\nz.jpg db/1.jpg\n".encode()
    assert Hloc.parse_retrieval(exported / "pairs.txt") == {"db/1.jpg": ["db/deep/ü.jpg"], "z.jpg": ["db/1.jpg"]}
    assert sorted(read_pairs(exported / "pairs.txt", NAMES)) == [("db/1.jpg", "db/deep/ü.jpg"), ("z.jpg", "db/1.jpg")]


def test_what_hloc_writes_into_colmap_is_what_we_write(private, matched, exported, tmp_path):
    """Keypoints half a pixel further, the same matches: hloc's import and our own give one database."""
    pycolmap = load_pycolmap()
    cameras = dict.fromkeys(PAIRED, Camera("PINHOLE", 640, 480, (500, 500, 320, 240)))
    keypoints = {name: private[name].keypoints for name in PAIRED}
    ours = write_database(tmp_path / "ours.db", keypoints, cameras, {pair: matched[pair] for pair in matched})
    theirs = write_database(tmp_path / "theirs.db", {n: k[:0] for n, k in keypoints.items()}, cameras, {})
    with pycolmap.Database.open(str(tmp_path / "theirs.db")) as database:
        database.clear_keypoints()
    files = (exported / "features.h5", exported / "pairs.txt", exported / "matches.h5")
    Hloc.import_into_colmap(tmp_path / "theirs.db", theirs, *files)
    with (
        pycolmap.Database.open(str(tmp_path / "ours.db")) as first,
        pycolmap.Database.open(str(tmp_path / "theirs.db")) as second,
    ):
        for name in PAIRED:
            points = [np.asarray(db.read_keypoints(ids[name])) for db, ids in ((first, ours), (second, theirs))]
            if len(private[name]):
                assert np.array_equal(points[0][:, :2], points[1][:, :2])
                assert np.array_equal(points[1][:, :2], private[name].keypoints[:, :2] + np.float32(0.5))
        for name0, name1 in (("db/1.jpg", "db/deep/ü.jpg"),):
            rows = [
                np.asarray(db.read_matches(ids[name0], ids[name1])) for db, ids in ((first, ours), (second, theirs))
            ]
            assert np.array_equal(rows[0], rows[1])
            assert np.array_equal(rows[1], matched[name0, name1].indices)


def test_more_rows_than_16_bits_count():
    rows = np.arange(40_000)
    arrays = pair_arrays(Matches(np.stack([rows, rows[::-1]], axis=1), np.zeros(40_000)), 40_001, None)
    assert arrays["matches0"].dtype == np.int32
    assert arrays["matches0"].max() == 39_999
    assert arrays["matches0"][-1] == -1
    assert arrays["matching_scores0"][:-1].min() == 1


def test_many_keypoints_survive_the_whole_way(tmp_path):
    images = {}
    for seed, name in enumerate(("a.jpg", "b.jpg")):
        rng = np.random.default_rng(seed)
        subspaces = sfumato.Subspaces(rng.standard_normal((40_000, 3)), rng.standard_normal((40_000, 1, 3)))
        images[name] = sfumato.ConcealedFeatures(rng.random((40_000, 4)), subspaces, "random-1-forced")
    sfumato.save(tmp_path / "many.sfm", images)
    rows = np.random.default_rng(5).permutation(40_000)
    with sfumato.load(tmp_path / "many.sfm") as archive:
        with MatchWriter(tmp_path / "m.h5", archive) as writer:
            writer.add(("a.jpg", "b.jpg"), Matches(np.stack([np.arange(40_000), rows], axis=1), np.zeros(40_000)))
        with load_matches(tmp_path / "m.h5") as matches:
            outcome = export_hloc(archive, matches, tmp_path / "hloc")
    assert outcome.without_size == ["a.jpg", "b.jpg"]
    found, _ = Hloc.get_matches(tmp_path / "hloc" / "matches.h5", "a.jpg", "b.jpg")
    assert np.array_equal(found[:, 1], rows)


# ---------------------------------------------------------------- the other way


def test_matches_of_hloc_itself_go_through(private, tmp_path):
    """int16 and half precision, names spelt with -: the same matches come out, under the archive's names."""
    rows = np.full(40, -1)
    rows[[3, 5, 9]] = [7, 0, 30]
    Hloc.write(tmp_path / "theirs.h5", {("db/1.jpg", "db/deep/ü.jpg"): (rows, np.linspace(0.5, 1, 40))})
    with load_matches(tmp_path / "theirs.h5") as matches:
        assert matches.provenance is None
        outcome = export_hloc(private, matches, tmp_path / "hloc")
    assert (outcome.pairs, outcome.matches) == (1, 3)
    found, scores = Hloc.get_matches(tmp_path / "hloc" / "matches.h5", "db/1.jpg", "db/deep/ü.jpg")
    assert found.tolist() == [[3, 7], [5, 0], [9, 30]]
    assert np.abs(scores - np.linspace(0.5, 1, 40)[[3, 5, 9]]).max() < 2e-3
    assert Hloc.parse_retrieval(tmp_path / "hloc" / "pairs.txt") == {"db/1.jpg": ["db/deep/ü.jpg"]}


def test_rows_that_16_bits_spoilt_are_told(private, tmp_path):
    Hloc.write(tmp_path / "theirs.h5", {("db/1.jpg", "z.jpg"): (np.full(40, 40_000), np.ones(40))})
    with load_matches(tmp_path / "theirs.h5") as matches, pytest.raises(FileError, match="int16 overflows"):
        export_hloc(private, matches, tmp_path / "hloc")
    assert not list((tmp_path / "hloc").iterdir())


def test_matches_of_other_features_are_refused(private, tmp_path):
    rows = np.full(40, -1)
    rows[0] = 39
    Hloc.write(tmp_path / "theirs.h5", {("db/1.jpg", "db/deep/ü.jpg"): (rows, np.ones(40))})
    with load_matches(tmp_path / "theirs.h5") as matches, pytest.raises(InputError, match=r"db-deep-ü\.jpg"):
        export_hloc(private, matches, tmp_path / "hloc")
    sfumato.save(tmp_path / "other.sfm", {name: make_image(50, 40) for name in PAIRED})
    with sfumato.load(tmp_path / "other.sfm") as other:
        with MatchWriter(tmp_path / "m.h5", other) as writer:
            writer.add(("db/1.jpg", "z.jpg"), Matches(np.zeros((1, 2), np.int32), np.zeros(1)))
        with load_matches(tmp_path / "m.h5") as matches, pytest.raises(InputError, match="features"):
            export_hloc(private, matches, tmp_path / "hloc")
    Hloc.write(tmp_path / "strange.h5", {("db/1.jpg", "zoo.jpg"): (rows, np.ones(40))})
    with load_matches(tmp_path / "strange.h5") as matches, pytest.raises(InputError, match=r"not in .*'zoo\.jpg'"):
        export_hloc(private, matches, tmp_path / "hloc")


def test_poses_and_cameras_are_read_by_hloc_and_by_us(tmp_path):
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    poses = {"query/ü.jpg": Pose(turn, [1, 2, 3]), "b.jpg": Pose(np.eye(3), [0.1, 0, -1e-20])}
    write_poses(tmp_path / "poses.txt", poses)
    for name, (quaternion, translation) in Hloc.read_results(tmp_path / "poses.txt").items():
        x, y, z, w = load_pycolmap().Rotation3d(np.array(poses[name].rotation)).quat
        assert np.abs(quaternion - (w, x, y, z)).max() < 1e-12
        assert np.array_equal(translation, poses[name].translation)
    lines = ["query/ü.jpg 0.5 0.5 -0.5 0.5 1 2 3", "b.jpg 1.0 0.0 0.0 0.0 4.0 5.0 6.0"]
    (tmp_path / "theirs.txt").write_text("\n".join(lines), encoding="utf-8")
    theirs = read_poses(tmp_path / "theirs.txt")
    assert theirs["b.jpg"].translation.tolist() == [4, 5, 6]
    assert np.abs(theirs["query/ü.jpg"].rotation.T @ theirs["query/ü.jpg"].rotation - np.eye(3)).max() < 1e-12
    cameras = {"query/ü.jpg": Camera("SIMPLE_RADIAL", 640, 480, (500.25, 320.0, 240.0, -0.01))}
    write_cameras(tmp_path / "queries.txt", cameras)
    model, width, height, params = Hloc.read_queries(tmp_path / "queries.txt")["query/ü.jpg"]
    assert (model, width, height, params.tolist()) == ("SIMPLE_RADIAL", 640, 480, [500.25, 320.0, 240.0, -0.01])
    assert read_cameras(tmp_path / "queries.txt") == cameras


# ---------------------------------------------------------------- names and files


def exports(tmp_path, names, pair=None):
    sfumato.save(tmp_path / "named.sfm", {name: make_image(0, 5) for name in names})
    with sfumato.load(tmp_path / "named.sfm") as archive:
        if pair is None:
            return export_hloc(archive, None, tmp_path / "hloc")
        Hloc.write(tmp_path / "theirs.h5", {pair: (np.full(5, -1), np.ones(5))})
        with load_matches(tmp_path / "theirs.h5") as matches:
            return export_hloc(archive, matches, tmp_path / "hloc")


@pytest.mark.parametrize("name", ["a//b.jpg", "/a.jpg", "./a.jpg", "a/./b.jpg", "a/"])
def test_names_that_no_such_file_holds(tmp_path, name):
    with pytest.raises(InputError, match="time"):
        exports(tmp_path, [name])
    assert not (tmp_path / "hloc").exists()


def test_names_spelt_alike_are_told_where_it_matters(tmp_path):
    assert exports(tmp_path, ["a/b.jpg", "a-b.jpg", "c.jpg"]).images == 3
    (tmp_path / "hloc" / "features.h5").unlink()
    with pytest.raises(InputError, match="alike"):
        exports(tmp_path, ["a/b.jpg", "a-b.jpg", "c.jpg"], ("a/b.jpg", "c.jpg"))


@pytest.mark.parametrize("name", ["with space.jpg", "#1.jpg", "no\u00a0break.jpg"])
def test_names_that_no_list_of_pairs_holds(tmp_path, name):
    with pytest.raises(InputError, match="hold"):
        exports(tmp_path, [name, "b.jpg"], (name, "b.jpg"))
    assert not (tmp_path / "hloc").exists()


def test_an_image_in_the_place_of_anothers_data(tmp_path):
    with pytest.raises(InputError, match="a/keypoints"):
        exports(tmp_path, ["a", "a/keypoints"])
    assert not list((tmp_path / "hloc").iterdir())


def test_files_that_are_there_stay_unless_told(private, matched, exported):
    before = (exported / "features.h5").read_bytes()
    with pytest.raises(FileError, match=r"features\.h5.*exists"):
        export_hloc(private, matched, exported)
    assert (exported / "features.h5").read_bytes() == before
    export_hloc(private, matched, exported, overwrite=True, with_subspaces=True)
    assert len((exported / "features.h5").read_bytes()) > len(before)


def test_a_full_disk_leaves_nothing_half_written(private, matched, exported, tmp_path):
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(FileError, match="too large"):
            export_hloc(private, matched, exported, overwrite=True, with_subspaces=True)
        with pytest.raises(FileError, match="too large"):
            export_hloc(private, matched, tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before
    assert not list((tmp_path / "new").iterdir())


def test_nothing_is_written_under_a_name_that_can_be_foreseen(private, matched, tmp_path):
    """Links under the names of parts lead nowhere, and what replaces a private file is private."""
    folder, diary = tmp_path / "hloc", tmp_path / "diary.txt"
    folder.mkdir()
    diary.write_text("dear diary")
    for name in ("features.h5", "matches.h5", "pairs.txt"):
        for end in (f"{os.getpid()}.part", "part", "tmp"):
            (folder / f"{name}.{end}").symlink_to(diary)
    export_hloc(private, matched, folder)
    assert diary.read_text() == "dear diary"
    (folder / "features.h5").chmod(0o600)
    export_hloc(private, matched, folder, overwrite=True)
    assert (folder / "features.h5").stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- localization, on pictures of a room


@pytest.fixture(scope="module")
def room(small_room, tmp_path_factory):
    """A folder as docs/how_to/own_features.md has it: photos of a map and a query, sealed, matched and mapped."""
    folder = tmp_path_factory.mktemp("hloc-room")
    scene = read_posed_folder(small_room)
    named = {name: f"{'query' if number == 2 else 'db'}/{name}" for number, name in enumerate(scene.names)}
    for name, new in named.items():
        (folder / "photos" / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(scene.paths[name], folder / "photos" / new)
    cameras = {new: scene.cameras[name] for name, new in named.items()}
    poses = {new: scene.poses[name] for name, new in named.items()}
    local = LocalParams(extractor="opencv", max_features=1500)
    archive = folder / "private.sfm"
    sfumato.conceal_photos(folder / "photos", archive, secret=sha256(b"1").digest(), local=local, positions=True)
    sfumato.match_archive(archive, folder / "matches.h5")
    export_hloc(archive, folder / "matches.h5", folder / "hloc")
    write_cameras(folder / "queries.txt", {name: cameras[name] for name in cameras if name.startswith("query/")})
    with sfumato.load(archive) as images, load_matches(folder / "matches.h5") as matches:
        inside = {name: images[name].keypoints for name in images if name.startswith("db/")}
        pairs = {pair: matches[pair] for pair in matches if set(pair) <= set(inside)}
        known = {name: poses[name] for name in inside}
        map_keypoints(inside, {name: cameras[name] for name in inside}, pairs, folder / "model", poses=known)
    return folder, cameras, poses


def test_what_hloc_localizes_from_gives_the_pose(room):
    """``localize_sfm.py``, step for step: keypoints of the query half a pixel on, and the points its matches see."""
    pycolmap, (folder, cameras, poses) = load_pycolmap(), room
    model = pycolmap.Reconstruction(folder / "model")
    query = next(name for name in cameras if name.startswith("query/"))
    keypoints = Hloc.get_keypoints(folder / "hloc" / "features.h5", query)[0] + 0.5
    seen = set()
    for image in model.images.values():
        points = np.array([point.point3D_id if point.has_point3D() else -1 for point in image.points2D])
        matches, _ = Hloc.get_matches(folder / "hloc" / "matches.h5", query, image.name)
        seen |= {(int(row), int(points[other])) for row, other in matches if points[other] != -1}
    rows, numbers = zip(*sorted(seen), strict=True)
    camera = cameras[query]
    result = pycolmap.estimate_and_refine_absolute_pose(
        keypoints[list(rows)],
        np.array([model.points3D[number].xyz for number in numbers]),
        pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=camera.params),
        estimation_options={"ransac": {"max_error": 12}},
    )
    assert result["num_inliers"] > 50
    pose = result["cam_from_world"]
    found = Pose(pose.rotation.matrix(), pose.translation)
    position, rotation = pose_error(found, poses[query])
    assert position < 0.05
    assert rotation < 0.5


def test_hloc_itself_runs_what_the_document_shows(room, tmp_path, monkeypatch):
    pytest.importorskip("hloc", reason="hloc is not installed: it maps and localizes on our files")
    folder, _, _ = room
    shutil.copytree(folder, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    document = (Path(__file__).resolve().parents[2] / "docs" / "how_to" / "own_features.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", document, re.DOTALL):
        if "localize_sfm" in block:
            exec(block, {})  # noqa: S102 (our own document)
    for name in ("poses.txt", "poses-model.txt", "poses-known.txt"):
        assert len(Path(name).read_text().splitlines()) == 1
