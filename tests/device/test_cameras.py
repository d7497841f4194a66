# SPDX-License-Identifier: Apache-2.0
"""Cameras of photos: focal lengths go with an archive where the owner allows it, and nothing else of EXIF."""

import numpy as np
import pytest

import sfumato
from sfumato.device import conceal_photos
from sfumato.errors import ArchiveError, InputError

LINE = sfumato.Subspaces(np.eye(8)[:1], np.eye(8)[1:2, None])


def focal_lengths(path):
    with sfumato.load(path) as archive:
        lengths = [archive.header(name).focal_px for name in archive]
    return [None if length is None else round(length) for length in lengths]


def test_focal_lengths_go_with_an_archive_only_where_the_owner_allows(camera_photos, tmp_path):
    assert conceal_photos(camera_photos, tmp_path / "p.sfm").focal_lengths == 0
    assert focal_lengths(tmp_path / "p.sfm") == [None, None, None]
    outcome = conceal_photos(camera_photos, tmp_path / "q.sfm", with_cameras=True)
    assert (outcome.images, outcome.focal_lengths) == (3, 2)
    assert focal_lengths(tmp_path / "q.sfm") == [233, 292, None]
    assert b"Exif" not in (tmp_path / "q.sfm").read_bytes()


def test_an_archive_with_cameras_and_one_without_are_not_mixed(camera_photos, tmp_path):
    plain, full = tmp_path / "plain.sfm", tmp_path / "full.sfm"
    conceal_photos(camera_photos / "a.jpg", plain)
    conceal_photos(camera_photos / "a.jpg", full, with_cameras=True)
    before = plain.read_bytes(), full.read_bytes()
    for path, allowed in ((plain, True), (full, False)):
        for photos in (camera_photos, camera_photos / "b.jpg"):
            with pytest.raises(ArchiveError, match="cameras"):
                conceal_photos(photos, path, with_cameras=allowed)
    assert (plain.read_bytes(), full.read_bytes()) == before
    assert conceal_photos(camera_photos, full, with_cameras=True).focal_lengths == 2
    assert conceal_photos(camera_photos, full, with_cameras=True).focal_lengths == 2  # old ones are counted too
    assert focal_lengths(full) == [233, 292, None]


def test_a_run_that_met_photos_without_cameras_first_goes_on(camera_photos, tmp_path):
    conceal_photos(camera_photos / "c.jpg", tmp_path / "p.sfm", with_cameras=True)
    conceal_photos(camera_photos, tmp_path / "p.sfm", with_cameras=True)
    assert focal_lengths(tmp_path / "p.sfm") == [233, 292, None]


def test_features_of_other_programs_have_no_exif(hloc_file, tmp_path):
    with pytest.raises(InputError, match="with-cameras"):
        conceal_photos(hloc_file, tmp_path / "p.sfm", with_cameras=True)
    assert not (tmp_path / "p.sfm").exists()


def test_cameras_of_photos_and_of_archives(camera_photos, tmp_path):
    (camera_photos / "broken.jpg").write_text("no photo")
    found = sfumato.infer_cameras(camera_photos)
    assert (set(found.cameras), found.guessed, set(found.unreadable)) == (
        {"a.jpg", "b.jpg", "c.jpg"},
        ("c.jpg",),
        {"broken.jpg"},
    )
    assert [round(found.cameras[name].params[0]) for name in ("a.jpg", "b.jpg", "c.jpg")] == [233, 292, 360]
    assert {(camera.width, camera.height) for camera in found.cameras.values()} == {(300, 200)}
    for allowed, guessed in ((True, ("c.jpg",)), (False, ("a.jpg", "b.jpg", "c.jpg"))):
        path = tmp_path / f"{allowed}.sfm"
        conceal_photos(camera_photos, path, with_cameras=allowed)
        kept = sfumato.infer_cameras(path)
        assert (kept.guessed, dict(kept.unreadable)) == (guessed, {})
    sfumato.save(path, {"a.jpg": sfumato.ConcealedFeatures(np.zeros((1, 4)), LINE, "random-1")})
    assert set(sfumato.infer_cameras(path).unreadable) == {"a.jpg"}
    with pytest.raises(ArchiveError, match=r"none\.sfm"):
        sfumato.infer_cameras(tmp_path / "none.sfm")
