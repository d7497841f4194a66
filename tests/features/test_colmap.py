# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sfumato.errors import SourceError
from sfumato.features.colmap import features_in_colmap, names_in_colmap
from sfumato.features.local import extract
from sfumato.images.samples import sample_image
from sfumato.types.clear import Features


def read_colmap(path, **options):
    """The features of every image by name; the first error is raised."""
    found = {}
    for name, features in features_in_colmap(path, names_in_colmap(path), **options):
        if isinstance(features, SourceError):
            raise features
        found[name] = features
    return found.items()


def only(path, **options):
    """Read a database of one image."""
    [(_, features)] = read_colmap(path, **options)
    return features


# ---------------------------------------------------------------- databases of COLMAP itself


def test_a_database_that_colmap_made(colmap_database):
    assert names_in_colmap(colmap_database) == ["astronaut.png", "sub/flat.png"]
    found = dict(read_colmap(colmap_database))
    photo, flat = found["astronaut.png"], found["sub/flat.png"]
    assert len(photo) > 1000
    assert photo.descriptors.shape == (len(photo), 128)
    assert np.abs(np.linalg.norm(photo.descriptors.astype(float), axis=1) - 1).max() < 1e-6
    assert photo.image_size == (512, 512)
    assert photo.extractor.name == "rootsift"
    assert (len(flat), flat.descriptors.shape, flat.image_size) == (0, (0, 128), (80, 60))


def test_colmap_and_opencv_see_the_same_keypoints(colmap_database):
    """Place, scale, angle and descriptor of the same keypoint agree; half a pixel or a wrong sign would not."""
    theirs = dict(read_colmap(colmap_database))["astronaut.png"]
    ours = extract(sample_image("astronaut"), descriptor="rootsift", contrast_threshold=0.02)
    apart = np.linalg.norm(theirs.keypoints[:, None, :2] - ours.keypoints[None, :, :2], axis=2)
    scale = np.abs(np.log(theirs.keypoints[:, None, 2] / ours.keypoints[None, :, 2]))
    turned = np.abs((theirs.keypoints[:, None, 3] - ours.keypoints[None, :, 3] + 180) % 360 - 180)
    rows, near = np.nonzero((apart < 1) & (scale < 0.1))
    assert len(rows) > 1000
    same = turned[rows, near] < 10
    assert same.mean() > 0.7, "keypoints with two orientations pair crosswise"
    rows, near = rows[same], near[same]
    offset = theirs.keypoints[rows, :2] - ours.keypoints[near, :2]
    assert np.abs(np.median(offset, axis=0)).max() < 0.02
    assert abs(np.median(theirs.keypoints[rows, 2] / ours.keypoints[near, 2]) - 1) < 0.01
    assert np.median(turned[rows, near]) < 3
    likeness = np.einsum("ni,ni->n", theirs.descriptors[rows], ours.descriptors[near])
    assert np.median(likeness) > 0.99
    plain = extract(sample_image("astronaut"), contrast_threshold=0.02)
    assert np.median(np.einsum("ni,ni->n", theirs.descriptors[rows], plain.descriptors[near])) < 0.97


def test_what_pycolmap_writes_comes_back(run_pycolmap, tmp_path):
    program = """
with pycolmap.Database.open(sys.argv[1]) as database:
    camera = database.write_camera(pycolmap.Camera(model="PINHOLE", width=320, height=200, params=[300, 300, 160, 100]))
    data = np.load(sys.argv[2])
    for name, points in (("two.png", data["two"]), ("six.png", data["six"])):
        image = database.write_image(pycolmap.Image(name=name, camera_id=camera))
        database.write_keypoints(image, points)
        kind = pycolmap.FeatureExtractorType.SIFT
        database.write_descriptors(image, pycolmap.FeatureDescriptors(type=kind, data=data["rows"]))
    database.write_image(pycolmap.Image(name="none.png", camera_id=camera))
"""
    rng = np.random.default_rng(0)
    two = rng.uniform(1, 100, (7, 2)).astype(np.float32)
    six = np.column_stack([two, np.tile([0, -3, 3, 0], (7, 1))]).astype(np.float32)  # sigma 3, turned by 90 degrees
    rows = rng.integers(0, 100, (7, 128), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", two=two, six=six, rows=rows)
    run_pycolmap(program, tmp_path / "database.db", tmp_path / "data.npz")
    found = dict(read_colmap(tmp_path / "database.db"))
    assert list(found) == ["none.png", "six.png", "two.png"]
    assert len(found["none.png"]) == 0
    for name, sigma, angle in (("two.png", 1, 0), ("six.png", 3, 90)):
        features = found[name]
        assert np.abs(features.keypoints[:, :2] - (two - 0.5)).max() < 1e-5
        assert np.abs(features.keypoints[:, 2] - sigma).max() < 1e-5
        assert np.abs(features.keypoints[:, 3] - angle).max() < 1e-4
        expected = rows / np.linalg.norm(rows, axis=1, keepdims=True, ord=2)
        assert np.abs(features.descriptors - expected).max() < 1e-6
        assert features.image_size == (320, 200)


def test_a_database_in_use_is_read_with_what_is_not_yet_in_it(write_colmap, colmap_image):
    """COLMAP keeps what is new in a file beside the database until it closes it."""
    path = write_colmap({"a.jpg": colmap_image()})
    with sqlite3.connect(path) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO images (name, camera_id) VALUES ('b.jpg', 7)")
        writer.commit()
        assert os.path.getsize(f"{path}-wal") > 0
        assert names_in_colmap(path) == ["a.jpg", "b.jpg"]
    writer.close()


def test_nothing_is_written_beside_a_database(colmap_database, tmp_path):
    path = tmp_path / "alone.db"
    shutil.copy(colmap_database, path)
    before = path.read_bytes()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert len(list(read_colmap(path))) == 2
        assert [entry.name for entry in tmp_path.iterdir()] == ["alone.db"]
    finally:
        tmp_path.chmod(0o755)
    assert path.read_bytes() == before


# ---------------------------------------------------------------- the older schema, written by hand


def test_the_older_schema(write_colmap, colmap_image):
    keypoints, descriptors = colmap_image()
    features = only(write_colmap({"db/a.jpg": (keypoints, descriptors)}))
    sigma = np.hypot(keypoints[:, 2], keypoints[:, 4])
    angle = np.rad2deg(np.arctan2(keypoints[:, 4], keypoints[:, 2])) % 360
    expected = np.column_stack([keypoints[:, :2] - 0.5, sigma, angle])
    assert np.abs(features.keypoints - expected).max() < 1e-3
    assert features.image_size == (640, 480)
    assert features.extractor.settings == {"source": "colmap"}


def test_sheared_keypoints_have_the_mean_scale(write_colmap):
    keypoints = np.float32([[10.5, 20.5, 3, 0, 4, 7]])  # columns (3, 4) and (0, 7)
    features = only(write_colmap({"a.jpg": (keypoints, np.ones((1, 128), np.uint8))}))
    assert np.abs(features.keypoints - [[10, 20, 6, np.rad2deg(np.arctan2(4, 3))]]).max() < 1e-4


def test_keypoints_of_four_columns(write_colmap):
    keypoints = np.float32([[1.5, 2.5, 3.0, -np.pi / 2]])
    features = only(write_colmap({"a.jpg": (keypoints, np.ones((1, 128), np.uint8))}))
    assert np.abs(features.keypoints - [[1, 2, 3, 270]]).max() < 1e-4


def test_the_user_may_say_it_is_sift(write_colmap, colmap_image):
    assert only(write_colmap({"a.jpg": colmap_image()}), extractor="sift").extractor.name == "sift"


@pytest.mark.parametrize("empty", [(None, None), (np.empty((0, 6), np.float32), np.empty((0, 128), np.uint8))])
def test_images_without_keypoints_are_empty(write_colmap, empty):
    features = only(write_colmap({"a.jpg": empty}))
    assert features.keypoints.shape == (0, 4)
    assert features.descriptors.shape == (0, 128)


def test_other_kinds_of_descriptors(tmp_path, write_colmap, colmap_image):
    """COLMAP 4 keeps learned descriptors as the bytes of float32, with a number for their kind."""
    path = write_colmap({"a.jpg": colmap_image(5)})
    rows = np.random.default_rng(0).normal(size=(5, 128)).astype(np.float32)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE descriptors ADD COLUMN type INTEGER NOT NULL DEFAULT 0")
        assert only(path).extractor.name == "rootsift"
        database.execute("UPDATE descriptors SET type = 1, cols = 512, data = ?", (rows.tobytes(),))
        database.commit()
        features = only(path)
        assert features.extractor.name == "aliked-n16rot"
        assert (features.descriptors == rows).all()
        database.execute("UPDATE descriptors SET type = 99")
        database.commit()
        with pytest.raises(SourceError, match="99"):
            only(path)
    database.close()


# ---------------------------------------------------------------- what is wrong


def zeroed(matrix, row):
    matrix = matrix.copy()
    matrix[row] = 0
    return matrix


def poisoned(matrix, value):
    matrix = matrix.copy()
    matrix[3, 0] = value
    return matrix


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda k, d: (k, None), "keypoints and no descriptors"),
        (lambda k, d: (k[:-1], d), "19 keypoints and 20 descriptors"),
        (lambda k, d: (None, d), "0 keypoints and 20 descriptors"),
        (lambda k, d: (k[:, :3], d), "3 columns"),
        (lambda k, d: (k[:, :5], d), "5 columns"),
        (lambda k, d: (k, d[:, :64]), "64 bytes each"),
        (lambda k, d: (k, zeroed(d, 4)), "1 of its 20 descriptors are all zero"),
        (lambda k, d: (poisoned(k, np.nan), d), "keypoints: 1 of 20 rows are not finite"),
        (lambda k, d: (poisoned(k, np.inf), d), "keypoints: 1 of 20 rows are not finite"),
        (lambda k, d: (np.float32([[1, 1, -3, 0]] * 20), d), "negative scale"),
        (lambda k, d: (np.float32([[1, 1, np.inf, np.inf, 1, 1]] * 20), d), "not finite"),
    ],
)
def test_a_wrong_image_is_named(write_colmap, colmap_image, change, says):
    path = write_colmap({"a.jpg": change(*colmap_image()), "b.jpg": colmap_image()})
    results = dict(features_in_colmap(path, names_in_colmap(path)))
    assert isinstance(results["b.jpg"], Features), "one broken image does not spoil the others"
    assert isinstance(results["a.jpg"], SourceError)
    with pytest.raises(SourceError, match=says) as caught:
        list(read_colmap(path))
    assert str(path) in str(caught.value)
    assert "image a.jpg" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE keypoints SET rows = rows + 1", "a matrix of 21 x 6 needs 504 bytes, there are 480"),
        ("UPDATE keypoints SET rows = 1000000000000, cols = 6", "needs"),
        ("UPDATE keypoints SET rows = -5", "not stored as COLMAP"),
        ("UPDATE keypoints SET cols = 0", "not stored as COLMAP"),
        ("UPDATE keypoints SET rows = 'many'", "not stored as COLMAP"),
        ("UPDATE keypoints SET data = 'text'", "not stored as COLMAP"),
        ("UPDATE descriptors SET data = NULL", "needs 2560 bytes, there are 0"),
        ("UPDATE cameras SET width = -3", "image_size"),
        ("UPDATE cameras SET width = 'wide'", "a.jpg"),
    ],
)
def test_a_wrong_entry_is_named(write_colmap, colmap_image, change, says):
    path = write_colmap({"a.jpg": colmap_image()})
    with sqlite3.connect(path) as database:
        database.execute(change)
    database.close()
    with pytest.raises(SourceError, match=says):
        list(read_colmap(path))


def test_an_image_without_a_camera_has_no_size(write_colmap, colmap_image):
    path = write_colmap({"a.jpg": colmap_image()})
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM cameras")
    database.close()
    assert only(path).image_size is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DROP TABLE descriptors", "not a COLMAP database: its table descriptors"),
        ("ALTER TABLE keypoints DROP COLUMN cols", "its table keypoints has no cols"),
        ("DELETE FROM images", "holds no images"),
        ("UPDATE images SET name = x'00ff'", "names must be texts"),
        ("UPDATE images SET name = ''", "names must be texts"),
    ],
)
def test_what_is_no_database_of_colmap_is_told(write_colmap, colmap_image, change, says):
    path = write_colmap({"a.jpg": colmap_image()})
    with sqlite3.connect(path) as database:
        database.execute(change)
    database.close()
    with pytest.raises(SourceError, match=says) as caught:
        read_colmap(path)
    assert str(path) in str(caught.value)


def test_a_view_that_never_ends_is_not_asked(write_colmap, colmap_image):
    path = write_colmap({"a.jpg": colmap_image()})
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE images")
        database.execute(
            "CREATE VIEW images AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT i AS image_id, 'x' || i AS name, 7 AS camera_id FROM n"
        )
    database.close()
    with pytest.raises(SourceError, match="not a COLMAP database"):
        names_in_colmap(path)


def test_files_that_are_no_database_are_named(tmp_path, write_colmap, colmap_image):
    with pytest.raises(SourceError, match=r"none\.db"):
        names_in_colmap(tmp_path / "none.db")
    with pytest.raises(SourceError, match="read"):
        names_in_colmap(tmp_path)
    for content in (b"", b"no database at all, only text", b"SQLite format 3\0"):
        (tmp_path / "text.db").write_bytes(content)
        with pytest.raises(SourceError, match="SQLite"):
            names_in_colmap(tmp_path / "text.db")
    path = write_colmap({f"{i}.jpg": colmap_image(50, i) for i in range(20)})
    data = path.read_bytes()
    for share in (0.05, 0.5, 0.99):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(SourceError, match="cut off"):
            read_colmap(path)


def test_odd_file_names_open(tmp_path, write_colmap, colmap_image):
    assert len(only(write_colmap({"a.jpg": colmap_image()}, "what? 100% #1 ü.db"))) == 20


def test_flipped_bytes_never_escape_as_another_error(write_colmap, colmap_image):
    """Damaged anywhere, the database gives a SourceError or features of valid shape; nothing else gets out."""
    path = write_colmap({f"{i}.jpg": colmap_image(2, i) for i in range(3)})
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    used = np.flatnonzero(np.frombuffer(data, np.uint8))  # most of a small database is empty
    refused = 0
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.choice(used, 4):
            broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            for _, found in features_in_colmap(path, names_in_colmap(path)):
                refused += isinstance(found, SourceError)
        except SourceError:
            refused += 1
    assert refused > 50


def test_what_is_dropped_half_read_may_be_closed_by_another_thread(write_colmap, colmap_image):
    path = write_colmap({"a.jpg": colmap_image(), "b.jpg": colmap_image()})
    reading = features_in_colmap(path, names_in_colmap(path))
    next(reading)
    with ThreadPoolExecutor(1) as another:
        another.submit(reading.close).result()
