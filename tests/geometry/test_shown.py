# SPDX-License-Identifier: Apache-2.0
"""Archives of which some positions left their device: maps and files of other programs have the rows with positions."""

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import InputError
from sfumato.geometry.colmap import ShownMatches
from sfumato.geometry.mapping import export_colmap
from sfumato.geometry.verify import agreeing_matches
from sfumato.matching import load_matches
from sfumato.matching.match_writer import MatchWriter
from sfumato.types.concealed import Bits, ConcealedFeatures
from sfumato.types.scene import Camera, Matches

SHOWN = {"a.jpg": [1, 4, 5], "b.jpg": [0, 2, 3, 7], "c.jpg": []}


def matches(*rows):
    return Matches(np.array(rows, np.int32).reshape(-1, 2), np.arange(len(rows), dtype=np.float32))


def masks(counts=8):
    return {name: np.isin(np.arange(counts), rows) for name, rows in SHOWN.items()}


def test_matches_of_rows_with_positions_are_numbered_as_these_are():
    shown = ShownMatches({("a.jpg", "b.jpg"): matches([1, 7], [2, 2], [4, 1], [5, 0], [4, 3])}, masks())
    assert len(shown) == 1
    assert list(shown) == [("a.jpg", "b.jpg")]
    found = shown["a.jpg", "b.jpg"]
    assert found.indices.tolist() == [[0, 3], [2, 0], [1, 2]]
    assert found.distances.tolist() == [0, 3, 4]


def test_an_image_without_positions_has_no_matches():
    shown = ShownMatches({("b.jpg", "c.jpg"): matches([0, 0], [2, 1])}, masks())
    assert len(shown["b.jpg", "c.jpg"]) == 0


def test_matches_of_rows_that_are_not_there_are_refused():
    for row in ([8, 0], [0, 8]):
        with pytest.raises(InputError, match=r"a\.jpg"):
            ShownMatches({("a.jpg", "b.jpg"): matches(row)}, masks())["a.jpg", "b.jpg"]


@pytest.fixture
def archive(tmp_path):
    """Three images of 8 features, of which some have positions."""
    rng, images = np.random.default_rng(0), {}
    for name, rows in SHOWN.items():
        keypoints = np.full((8, 4), np.nan, np.float32)
        keypoints[rows] = [[row * 10, row * 10 + 1, 1, 0] for row in rows] or np.zeros((0, 4))
        code = Bits(rng.integers(0, 256, (8, 64), np.uint8))
        images[name] = ConcealedFeatures(keypoints, code, "sealed-512@0123456789ab", image_size=(640, 480))
    sfumato.save(tmp_path / "p.sfm", images)
    with sfumato.load(tmp_path / "p.sfm") as opened:
        with MatchWriter(tmp_path / "m.h5", opened) as writer:
            writer.add(("a.jpg", "b.jpg"), matches([1, 7], [2, 2], [4, 1], [5, 0]))
            writer.add(("b.jpg", "c.jpg"), matches([0, 0]))
        yield opened


def test_hloc_gets_the_rows_with_positions_and_their_matches(archive, tmp_path):
    with load_matches(tmp_path / "m.h5") as file:
        outcome = sfumato.export_hloc(archive, file, tmp_path / "hloc", with_subspaces=True)
    assert outcome.matches == 2
    with h5py.File(tmp_path / "hloc" / "features.h5") as features:
        for name, rows in SHOWN.items():
            assert features[name]["keypoints"][:].tolist() == [[row * 10, row * 10 + 1] for row in rows]
            assert np.array_equal(features[name]["sealed_bits"][:], archive[name].code.packed[rows])
    with h5py.File(tmp_path / "hloc" / "matches.h5") as file:
        assert file["a.jpg/b.jpg/matches0"][:].tolist() == [3, -1, 0]
        assert file["b.jpg/c.jpg/matches0"][:].tolist() == [-1, -1, -1, -1]


def test_a_colmap_database_has_the_rows_with_positions(archive, tmp_path):
    import sqlite3

    cameras = dict.fromkeys(SHOWN, Camera("PINHOLE", 640, 480, (500, 500, 320, 240)))
    export_colmap(archive, tmp_path / "m.h5", tmp_path / "database.db", cameras)
    with sqlite3.connect(tmp_path / "database.db") as database:
        counts = dict(
            database.execute("SELECT name, rows FROM images JOIN keypoints ON images.image_id = keypoints.image_id")
        )
        assert counts == {name: len(rows) for name, rows in SHOWN.items()}
        assert sorted(rows for (rows,) in database.execute("SELECT rows FROM matches")) in ([2], [0, 2])


def test_an_archive_without_a_position_says_what_to_do(archive, tmp_path):
    home = {name: archive[name].without_positions() for name in archive}
    sfumato.save(tmp_path / "home.sfm", home)
    for export in (
        lambda: sfumato.export_hloc(tmp_path / "home.sfm", None, tmp_path / "out"),
        lambda: sfumato.build_map(tmp_path / "home.sfm", None, tmp_path / "model"),
        lambda: export_colmap(tmp_path / "home.sfm", None, tmp_path / "home.db"),
    ):
        with pytest.raises(InputError, match="sfumato release"):
            export()
    assert not (tmp_path / "home.db").exists()


# --- matches of two own photos agree with one geometry, or with none


@pytest.fixture(scope="module")
def pair():
    """Where two cameras see 300 points, and 300 places each that have nothing to do with one another."""
    rng = np.random.default_rng(0)
    points = rng.uniform((-3, -2, 4), (3, 2, 9), (300, 3))
    moved = points - (0.7, 0.1, -0.2)
    sides = [500 * one[:, :2] / one[:, 2:] + (320, 240) for one in (points, moved)]
    true = [side + rng.normal(0, 0.5, side.shape) for side in sides]
    return true, [rng.uniform((0, 0), (640, 480), (300, 2)) for _ in range(2)]


def test_true_matches_agree_and_most_false_ones_do_not(pair):
    true, false = pair
    agreeing = agreeing_matches(*(np.concatenate(sides) for sides in zip(true, false, strict=True)), 8.0)
    assert agreeing[:300].mean() > 0.97
    assert agreeing[300:].mean() < 0.1
    again = agreeing_matches(*(np.concatenate(sides) for sides in zip(true, false, strict=True)), 8.0)
    assert np.array_equal(agreeing, again)


def test_false_matches_agree_on_nothing(pair):
    rng = np.random.default_rng(1)
    for count in (15, 30, 100, 300):
        for _ in range(10):
            places = [rng.uniform((0, 0), (640, 480), (count, 2)) for _ in range(2)]
            assert not agreeing_matches(*places, 8.0).any()


def test_what_says_nothing_agrees_on_nothing(pair):
    (first, second), _ = pair
    spot = np.full((40, 2), 7.0)
    line = np.column_stack([np.arange(40.0), np.arange(40.0)])
    for places in (
        (first[:14], second[:14]),
        (first[:0], second[:0]),
        (spot, spot),
        (spot, second[:40]),
        (line, line[::-1]),
    ):
        assert not agreeing_matches(*places, 8.0).any()
