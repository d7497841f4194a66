# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import build_face_decoys
from sfumato.errors import DecoyError, FileError, InputError
from sfumato.faces.calibration import CalibrateParams, calibrate_gallery
from sfumato.faces.enrollment import EnrollParams, RenewParams, enroll, renew, revoke
from sfumato.faces.gallery import are_parallel
from sfumato.faces.gallery_file import load_gallery
from sfumato.types.clear import Embeddings


def test_a_gallery_begins_with_its_first_people(photos, tmp_path):
    decoys = build_face_decoys(photos(range(500, 600)))
    for params, recipe in (
        (EnrollParams(), "random-2"),
        (EnrollParams(decoys=decoys), "hybrid-2"),
        (EnrollParams(recipe="sub-hybrid-4", decoys=decoys), "sub-hybrid-4"),
    ):
        path = tmp_path / f"{recipe}.h5"
        assert enroll(path, photos(range(2)), params).ids == ("p0_0", "p1_0")
        more = enroll(path, photos(range(2, 3)), EnrollParams(decoys=params.decoys))  # the gallery's own recipe
        assert str(load_gallery(path).recipe) == str(more.gallery.recipe) == recipe
        assert len(load_gallery(path)) == 3
    with pytest.raises(DecoyError, match="needs decoys"):
        enroll(tmp_path / "hybrid-2.h5", photos(range(3, 4)), EnrollParams())
    with pytest.raises(InputError, match="enroll"):
        enroll(tmp_path / "new.h5", photos(range(0)), EnrollParams())
    assert not (tmp_path / "new.h5").exists()


def test_enrolling_again_releases_nothing(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    enroll(path, photos(range(3)), EnrollParams())
    before = path.read_bytes()
    newer = Embeddings(photos(range(2, 4), seed=1).values, ("p2_0", "p3_0"), load_gallery(path).templates.extractor)
    with pytest.raises(InputError, match="'p2_0'"):
        enroll(path, newer, EnrollParams())
    assert path.read_bytes() == before  # not even the other one


def test_renewing_keeps_the_directions(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    old = enroll(path, photos(range(3)), EnrollParams()).gallery.template("p1_0")
    newer = photos(range(1, 2), seed=1)
    renew(path, newer)
    new = load_gallery(path).template("p1_0")
    assert are_parallel(old.subspaces.basis, new.subspaces.basis)
    assert not np.allclose(old.subspaces.origin, new.subspaces.origin, atol=1e-3)
    assert load_gallery(path).releases["p1_0"] == 1
    with pytest.raises(InputError, match="not enrolled"):
        renew(path, photos(range(7, 8)))
    with pytest.raises(FileError, match="renew"):
        renew(tmp_path / "gone.h5", newer)


def test_a_template_moves_only_to_the_same_face(photos, tmp_path, set_threshold):
    path = tmp_path / "gallery.h5"
    enroll(path, photos(range(3)), EnrollParams())
    kind = load_gallery(path).templates.extractor
    assert not renew(path, photos(range(1, 2), seed=1)).compared
    set_threshold(path)
    assert renew(path, photos(range(1, 2), seed=2)).compared
    before = path.read_bytes()
    taken, stranger = (Embeddings(photos(range(one, one + 1), seed=3).values, ("p1_0",), kind) for one in (0, 9))
    for wrong in (taken, stranger):
        with pytest.raises(InputError, match="'p1_0'"):
            renew(path, wrong)
    with pytest.raises(InputError, match="'p1_0'"):
        renew(path, taken, RenewParams(allow_different=True))
    assert path.read_bytes() == before
    renew(path, stranger, RenewParams(allow_different=True))
    renew(path, taken, RenewParams(allow_different=True, allow_similar=True))


def test_the_same_photo_is_recognised_without_a_threshold(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    assert enroll(path, photos(range(1)), EnrollParams()).compared  # there is nobody to compare with
    assert not enroll(path, photos(range(1, 3)), EnrollParams()).compared
    kind = load_gallery(path).templates.extractor
    again = Embeddings(photos(range(1)).values, ("mallory",), kind)
    with pytest.raises(InputError, match="'mallory'"):
        enroll(path, again, EnrollParams())
    with pytest.raises(InputError, match="'y'"):
        enroll(path, Embeddings(photos(range(7, 8)).values[[0, 0]], ("x", "y"), kind), EnrollParams())
    with pytest.raises(InputError, match="'p1_0'"):
        renew(path, Embeddings(again.values, ("p1_0",), kind))
    calibrate_gallery(path, photos(range(100, 150)), None, CalibrateParams(rate=0.01, comparison="s-to-s"))
    assert not enroll(path, photos(range(4, 5)), EnrollParams()).compared  # s-to-s judges no clear face
    assert enroll(path, again, EnrollParams(allow_similar=True)).compared


def test_faces_among_the_decoys_are_refused(photos, tmp_path):
    path, decoys = tmp_path / "gallery.h5", build_face_decoys(photos(range(500, 600)))
    enroll(path, photos(range(2)), EnrollParams(decoys=decoys))
    kind = load_gallery(path).templates.extractor
    with pytest.raises(DecoyError, match="'p599_0'"):
        enroll(path, photos(range(599, 601)), EnrollParams(decoys=build_face_decoys(photos(range(599, 601)))))
    with pytest.raises(DecoyError, match="'p1_0'"):
        renew(path, Embeddings(decoys.descriptors[:1], ("p1_0",), kind), RenewParams(decoys=decoys))
    with pytest.raises(DecoyError, match="among"):
        calibrate_gallery(path, photos(range(500, 600)), decoys, CalibrateParams(rate=0.01))
    with pytest.raises(InputError, match="not the ones the gallery was made with"):
        renew(path, photos(range(1)), RenewParams(decoys=build_face_decoys(photos(range(700, 740)))))


def test_a_new_template_after_a_revocation_is_counted(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    enroll(path, photos(range(3)), EnrollParams())
    assert revoke(path, ("p1_0",)).revoked == ("p1_0",)
    again = enroll(path, photos(range(1, 2)), EnrollParams())
    assert again.released_before == ("p1_0",)
    assert load_gallery(path).releases["p1_0"] == 2
    with pytest.raises(FileError, match="revoke"):
        revoke(tmp_path / "gone.h5", ("p1_0",))


def test_the_same_face_under_another_id_is_refused_where_there_is_a_threshold(photos, tmp_path, set_threshold):
    path = tmp_path / "gallery.h5"
    enroll(path, photos(range(3)), EnrollParams())
    set_threshold(path)
    kind = load_gallery(path).templates.extractor
    twin = Embeddings(photos(range(1, 2), seed=4).values, ("mallory",), kind)
    with pytest.raises(InputError, match="'mallory'"):
        enroll(path, twin, EnrollParams())
    both = Embeddings(photos(range(7, 8), photos=2).values, ("x", "y"), kind)
    with pytest.raises(InputError, match="'y'"):
        enroll(path, both, EnrollParams())
    assert len(load_gallery(path)) == 3
    enroll(path, photos(range(3, 5)), EnrollParams())  # others look like nobody
    enroll(path, twin, EnrollParams(allow_similar=True))
    assert len(load_gallery(path)) == 6
