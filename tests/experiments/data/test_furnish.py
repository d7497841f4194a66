# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest

from sfumato.experiments.data import room as module
from sfumato.experiments.data.room import OVERLAP, PHOTOS, Extent, furnish
from sfumato.images.samples import FILES


def corners(surface):
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    return surface.corner + square @ np.stack([surface.across, surface.down])


@pytest.fixture(scope="module")
def extent():
    return Extent()


@pytest.fixture(scope="module")
def surfaces(extent):
    return furnish(extent, np.random.default_rng(0))


def test_the_walls_close_the_room(extent, surfaces):
    """Any ray from the middle meets one of the first six surfaces."""
    half = np.array([extent.length / 2, extent.width / 2, extent.height / 2])
    found = [np.abs(np.cross(s.across, s.down)) / np.linalg.norm(np.cross(s.across, s.down)) for s in surfaces[:6]]
    assert sorted(int(np.argmax(normal)) for normal in found) == [0, 0, 1, 1, 2, 2]
    for surface, normal in zip(surfaces[:6], found, strict=True):
        axis = int(np.argmax(normal))
        spread = np.abs(corners(surface) - (0, 0, half[2]))
        for other in range(3):
            expected = half[other] if other == axis else half[other] + OVERLAP
            assert np.allclose(spread[:, other], expected)


def test_pictures_read_from_left_to_right_inside(surfaces, extent):
    """Seen from the middle of the room, across goes to the right and down goes down."""
    middle = np.array([0, 0, extent.height / 2])
    for surface in [*surfaces[:4], *surfaces[6:30]]:
        forward = corners(surface).mean(axis=0) - middle
        assert np.cross(forward, [0, 0, 1]) @ surface.across > 0
        assert surface.down[2] < 0


def test_everything_is_inside_and_nothing_hangs_over_the_next(extent, surfaces):
    half = np.array([extent.length / 2, extent.width / 2])
    for surface in surfaces[6:]:
        points = corners(surface)
        assert (np.abs(points[:, :2]) < half).all()
        assert (points[:, 2] > -1e-9).all()
        assert (points[:, 2] < extent.height).all()
    for wall in range(4):
        boxes = [(corners(s).min(axis=0), corners(s).max(axis=0)) for s in surfaces[6 + 6 * wall : 12 + 6 * wall]]
        for (low0, high0), (low1, high1) in itertools.combinations(boxes, 2):
            assert ((low0 > high1 + 1e-6) | (low1 > high0 + 1e-6)).any()


def test_boards_and_boxes_stand_on_the_floor_away_from_the_walls(surfaces):
    for surface in surfaces[30:]:
        assert (np.linalg.norm(corners(surface)[:, :2], axis=1) < 1.5).all()
    feet = [surface for surface in surfaces[30:] if surface.down[2] != 0]
    assert len(feet) == 10
    assert all(abs(corners(surface)[:, 2].min()) < 1e-9 for surface in feet)


def test_each_photo_hangs_once_before_any_is_mirrored(surfaces):
    hung = surfaces[6:30]
    texts = {surface.picture.tobytes() for surface in hung}
    assert len(texts) == len(hung)
    assert set(PHOTOS) < set(FILES)


def test_seeds_make_rooms():
    first, again, other = (furnish(Extent(), np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a.picture, b.picture) for a, b in zip(first, again, strict=True))
    assert all(np.array_equal(a.corner, b.corner) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[7].corner, other[7].corner)


def test_without_any_sample_there_is_a_room_still(monkeypatch):
    monkeypatch.setattr(module, "sample_names", list)
    surfaces = furnish(Extent(), np.random.default_rng(0))
    assert len(surfaces) == 42
    assert all(surface.picture.std() > 1 for surface in surfaces[:32])
