# SPDX-License-Identifier: Apache-2.0
"""Photos made ready: what cannot be used is named, large ones are reduced, the same photos give the same files."""

import os

import cv2
import numpy as np
import pytest

from sfumato.auditing.photos import PhotoParams, encode, prepare_photos, reduce_image, short_name
from sfumato.errors import ImageError
from sfumato.features.local import LocalParams
from sfumato.images.homography import warp_points
from sfumato.images.read import read_image
from sfumato.types.clear import Image

PARAMS = PhotoParams(side=120, local=LocalParams(max_features=60))


def test_broken_and_featureless_photos_are_named(small_photos, tmp_path):
    (tmp_path / "torn.jpg").write_bytes(b"\xff\xd8\xff no photo")
    cv2.imwrite(str(tmp_path / "dot.png"), np.zeros((5, 90), np.uint8))
    given = {**small_photos, "torn.jpg": tmp_path / "torn.jpg", "dot.png": tmp_path / "dot.png"}
    ready = prepare_photos(given, tmp_path / "out", PARAMS)
    assert list(ready.photos) == ["chelsea.png", "coffee.png"]
    assert ready.reduced == 2
    assert list(ready.left_out) == ["wall.png", "torn.jpg", "dot.png"]
    assert "no feature" in ready.left_out["wall.png"]
    assert "damaged" in ready.left_out["torn.jpg"]
    assert "pixels or more" in ready.left_out["dot.png"]
    assert not any(str(tmp_path) in why for why in ready.left_out.values())
    assert "left out" in repr(ready)


def test_no_usable_photo_is_an_error(small_photos, tmp_path):
    with pytest.raises(ImageError, match="audited"):
        prepare_photos({"wall.png": small_photos["wall.png"]}, tmp_path, PARAMS)
    with pytest.raises(ImageError, match="no photo"):
        prepare_photos({}, tmp_path, PARAMS)


def test_the_same_photos_give_the_same_files(small_photos, tmp_path, files_below):
    first = prepare_photos(small_photos, tmp_path / "a", PARAMS)
    before = files_below(tmp_path / "a")
    again = prepare_photos(small_photos, tmp_path / "a", PARAMS)
    assert files_below(tmp_path / "a") == before
    name = "coffee.png"
    np.testing.assert_array_equal(first.pairs[name].homographies[0], again.pairs[name].homographies[0])
    prepare_photos(small_photos, tmp_path / "b", PARAMS)
    assert files_below(tmp_path / "b") == before


def test_the_second_view_is_the_photo_through_its_homography(small_photos, tmp_path):
    pair = prepare_photos(small_photos, tmp_path, PARAMS).pairs["coffee.png"]
    first, second = (read_image(path).pixels.astype(float).mean(axis=2) for path in pair.paths)
    where = np.stack(np.meshgrid(np.arange(20, 100, 4), np.arange(20, 70, 4)), axis=-1).reshape(-1, 2)
    there = warp_points(pair.homographies[0], where).round().astype(int)
    inside = ((there >= 0) & (there < [second.shape[1], second.shape[0]])).all(axis=1)
    a = first[where[inside, 1], where[inside, 0]]
    b = second[there[inside, 1], there[inside, 0]]
    assert inside.sum() > 50
    assert np.corrcoef(a, b)[0, 1] > 0.8


def test_pictures_are_reduced_and_keep_their_shape():
    small = reduce_image(Image(np.zeros((300, 600, 3), np.uint8), "x"), 200)
    assert (small.size, small.name) == ((200, 100), "x")
    narrow = reduce_image(Image(np.zeros((1, 900), np.uint8)), 200)
    assert narrow.size == (200, 1)
    untouched = Image(np.zeros((20, 30), np.uint8))
    assert reduce_image(untouched, 200) is untouched


def test_names_that_no_table_holds_are_shortened():
    assert short_name("a/b.jpg") == "a/b.jpg"
    long = short_name("x" * 500 + ".jpg")
    assert len(long) < 140
    assert long != short_name("y" + "x" * 500 + ".jpg")
    assert short_name("a\x1b[31m.jpg").isprintable()


def test_a_picture_carries_its_pixels_and_nothing_else():
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[..., 0] = 200  # red
    back = cv2.imdecode(np.frombuffer(encode(".png", pixels), np.uint8), cv2.IMREAD_COLOR)
    assert back[0, 0].tolist() == [0, 0, 200]


def test_copies_of_photos_are_their_owners(small_photos, tmp_path):
    before = os.umask(0o022)
    try:
        prepare_photos({"coffee.png": small_photos["coffee.png"]}, tmp_path / "out", PARAMS)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o600}
