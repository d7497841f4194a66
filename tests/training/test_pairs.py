# SPDX-License-Identifier: Apache-2.0

import cv2
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.samples import sample_image
from sfumato.training.pairs import DescriptorPairs, PairParams, draw_points, pairs_from_photos

SMALL = PairParams(views=2, local=LocalParams(max_features=200))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels[:, :, ::-1], (300, 220)))
    cv2.imwrite(str(folder / "wall.png"), np.full((60, 60), 128, np.uint8))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def pairs(photos):
    return pairs_from_photos(photos, SMALL)


def test_pairs_are_nearer_than_strangers(pairs):
    assert len(pairs) > 100
    own = np.linalg.norm(pairs.first - pairs.second, axis=1)
    other = np.linalg.norm(pairs.first - np.roll(pairs.second, 41, axis=0), axis=1)
    assert np.median(own) < 0.4 < 0.8 < np.median(other)
    assert (own < np.quantile(other, 0.05)).mean() > 0.9


def test_descriptors_are_those_of_the_product(photos, pairs):
    """Only what is kept is described, and it is what extract gives."""
    known = {row.tobytes() for row in extract(photos[0], SMALL.local).descriptors}
    assert all(row.tobytes() in known for row in pairs.first[pairs.groups == 0])
    assert not any(row.tobytes() in known for row in pairs.second[pairs.groups == 0])


def test_a_point_has_one_number_in_all_its_views(pairs):
    assert set(pairs.groups.tolist()) == {0, 1}  # the wall gives none
    names, counts = np.unique(pairs.points, return_counts=True)
    assert counts.max() == 2
    for name in names[counts == 2][:20]:
        rows = np.flatnonzero(pairs.points == name)
        assert np.array_equal(*pairs.first[rows])
        assert not np.array_equal(*pairs.second[rows])
    shared = set(pairs.points[pairs.groups == 0].tolist()) & set(pairs.points[pairs.groups == 1].tolist())
    assert not shared


def test_the_same_seed_gives_the_same_pairs_with_any_number_of_workers(photos, pairs):
    again = pairs_from_photos(photos, SMALL, workers=2)
    for name in ("first", "second", "points", "groups"):
        assert np.array_equal(getattr(again, name), getattr(pairs, name))
    other = pairs_from_photos(photos[:1], PairParams(views=2, local=SMALL.local, seed=1))
    assert len(other) != int((pairs.groups == 0).sum()) or not np.array_equal(other.second, pairs.second[: len(other)])


def test_progress_is_told_a_photo_at_a_time(photos):
    seen = []
    progress = lambda items: (seen.append(1) or item for item in items)  # noqa: E731
    pairs_from_photos(photos[:1], SMALL, progress=progress)
    assert len(seen) == 1


def test_a_limit_is_shared_out_and_keeps_points_whole(photos, pairs):
    some = pairs_from_photos(photos, PairParams(views=2, local=SMALL.local, most=90))
    assert 50 < len(some) <= 60  # of three photos one gives nothing
    assert (np.unique(some.groups, return_counts=True)[1] <= 30).all()
    points = np.array([3, 3, 3, 5, 6, 6, 9])
    kept = draw_points(points, 4, np.random.default_rng(0))
    assert len(kept) <= 4
    for name in np.unique(points[kept]):
        assert (points[kept] == name).sum() == (points == name).sum()
    assert draw_points(points, 0, np.random.default_rng(0)).tolist() == list(range(7))


def test_no_values_in_the_text_form(pairs):
    assert repr(pairs).startswith(f"DescriptorPairs({len(pairs)} of 128 numbers, sift, ")
    assert repr(pairs).endswith("clear)")
    assert len(pairs[:5]) == 5
    assert pairs[[0]].extractor == pairs.extractor


def test_a_photo_that_can_not_be_read_is_left_out(photos, tmp_path, caplog):
    (tmp_path / "broken.jpg").write_text("no picture")
    good = [path for path in photos if path.stem != "wall"][:1]
    pairs = pairs_from_photos([*good, tmp_path / "broken.jpg"], SMALL)
    assert np.array_equal(pairs.first, pairs_from_photos(good, SMALL).first)
    assert "broken.jpg is left out" in caplog.text


def test_what_is_wrong_is_told(photos, tmp_path):
    with pytest.raises(InputError, match="no point"):
        pairs_from_photos([path for path in photos if path.stem == "wall"], SMALL)
    with pytest.raises(InputError, match="no point"):
        pairs_from_photos([], SMALL)
    (tmp_path / "broken.jpg").write_text("no picture")
    with pytest.raises(InputError, match="no point"):
        pairs_from_photos([tmp_path / "broken.jpg"], SMALL)
    with pytest.raises(InputError, match="second"):
        DescriptorPairs(np.zeros((2, 3)), np.zeros((1, 3)), [0, 1], [0, 0])
    with pytest.raises(InputError, match="not finite"):
        DescriptorPairs(np.full((1, 3), np.nan), np.zeros((1, 3)), [0], [0])
    with pytest.raises(InputError, match="views"):
        PairParams(views=0)
