# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import build_face_decoys
from sfumato.errors import DecoyError, FileError, InputError
from sfumato.faces.calibration import calibrate
from sfumato.faces.enrollment import enroll, renew, revoke
from sfumato.faces.gallery import are_parallel
from sfumato.faces.gallery_file import load_gallery
from sfumato.types.clear import Embeddings


def test_a_gallery_begins_with_its_first_people(photos, tmp_path):
    decoys = build_face_decoys(photos(range(500, 600)))
    for params, recipe in (
        ({}, "random-2"),
        ({"decoys": decoys}, "hybrid-2"),
        ({"recipe": "sub-hybrid-4", "decoys": decoys}, "sub-hybrid-4"),
    ):
        path = tmp_path / f"{recipe}.h5"
        assert enroll(photos(range(2)), path, **params).ids == ("p0_0", "p1_0")
        more = enroll(photos(range(2, 3)), path, decoys=params.get("decoys"))  # the gallery's own recipe
        assert str(load_gallery(path).recipe) == str(more.gallery.recipe) == recipe
        assert len(load_gallery(path)) == 3
    with pytest.raises(DecoyError, match="needs decoys"):
        enroll(photos(range(3, 4)), tmp_path / "hybrid-2.h5")
    with pytest.raises(InputError, match="enroll"):
        enroll(photos(range(0)), tmp_path / "new.h5")
    assert not (tmp_path / "new.h5").exists()


def test_enrolling_again_releases_nothing(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    enroll(photos(range(3)), path)
    before = path.read_bytes()
    newer = Embeddings(photos(range(2, 4), seed=1).values, ("p2_0", "p3_0"), load_gallery(path).templates.extractor)
    with pytest.raises(InputError, match="'p2_0'"):
        enroll(newer, path)
    assert path.read_bytes() == before  # not even the other one


def test_renewing_keeps_the_directions(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    old = enroll(photos(range(3)), path).gallery.template("p1_0")
    newer = photos(range(1, 2), seed=1)
    renew(newer, path)
    new = load_gallery(path).template("p1_0")
    assert are_parallel(old.subspaces.basis, new.subspaces.basis)
    assert not np.allclose(old.subspaces.origin, new.subspaces.origin, atol=1e-3)
    assert load_gallery(path).releases["p1_0"] == 1
    with pytest.raises(InputError, match="not enrolled"):
        renew(photos(range(7, 8)), path)
    with pytest.raises(FileError, match="renew"):
        renew(newer, tmp_path / "gone.h5")


def test_a_template_moves_only_to_the_same_face(photos, tmp_path, set_threshold):
    path = tmp_path / "gallery.h5"
    enroll(photos(range(3)), path)
    kind = load_gallery(path).templates.extractor
    assert not renew(photos(range(1, 2), seed=1), path).compared
    set_threshold(path)
    assert renew(photos(range(1, 2), seed=2), path).compared
    before = path.read_bytes()
    taken, stranger = (Embeddings(photos(range(one, one + 1), seed=3).values, ("p1_0",), kind) for one in (0, 9))
    for wrong in (taken, stranger):
        with pytest.raises(InputError, match="'p1_0'"):
            renew(wrong, path)
    with pytest.raises(InputError, match="'p1_0'"):
        renew(taken, path, allow_different=True)
    assert path.read_bytes() == before
    renew(stranger, path, allow_different=True)
    renew(taken, path, allow_different=True, allow_similar=True)


def test_the_same_photo_is_recognised_without_a_threshold(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    assert enroll(photos(range(1)), path).compared  # there is nobody to compare with
    assert not enroll(photos(range(1, 3)), path).compared
    kind = load_gallery(path).templates.extractor
    again = Embeddings(photos(range(1)).values, ("mallory",), kind)
    with pytest.raises(InputError, match="'mallory'"):
        enroll(again, path)
    with pytest.raises(InputError, match="'y'"):
        enroll(Embeddings(photos(range(7, 8)).values[[0, 0]], ("x", "y"), kind), path)
    with pytest.raises(InputError, match="'p1_0'"):
        renew(Embeddings(again.values, ("p1_0",), kind), path)
    calibrate(photos(range(100, 150)), path, rate=0.01, comparison="s-to-s")
    assert not enroll(photos(range(4, 5)), path).compared  # s-to-s judges no clear face
    assert enroll(again, path, allow_similar=True).compared


def test_faces_among_the_decoys_are_refused(photos, tmp_path):
    path, decoys = tmp_path / "gallery.h5", build_face_decoys(photos(range(500, 600)))
    enroll(photos(range(2)), path, decoys=decoys)
    kind = load_gallery(path).templates.extractor
    with pytest.raises(DecoyError, match="'p599_0'"):
        enroll(photos(range(599, 601)), path, decoys=build_face_decoys(photos(range(599, 601))))
    with pytest.raises(DecoyError, match="'p1_0'"):
        renew(Embeddings(decoys.descriptors[:1], ("p1_0",), kind), path, decoys=decoys)
    with pytest.raises(DecoyError, match="among"):
        calibrate(photos(range(500, 600)), path, decoys=decoys, rate=0.01)
    with pytest.raises(InputError, match="gallery"):
        renew(photos(range(1)), path, decoys=build_face_decoys(photos(range(700, 740))))


def test_a_new_template_after_a_revocation_is_counted(photos, tmp_path):
    path = tmp_path / "gallery.h5"
    enroll(photos(range(3)), path)
    assert revoke(("p1_0",), path).revoked == ("p1_0",)
    again = enroll(photos(range(1, 2)), path)
    assert again.released_before == ("p1_0",)
    assert load_gallery(path).releases["p1_0"] == 2
    with pytest.raises(FileError, match="revoke"):
        revoke(("p1_0",), tmp_path / "gone.h5")


def test_the_same_face_under_another_id_is_refused_where_there_is_a_threshold(photos, tmp_path, set_threshold):
    path = tmp_path / "gallery.h5"
    enroll(photos(range(3)), path)
    set_threshold(path)
    kind = load_gallery(path).templates.extractor
    twin = Embeddings(photos(range(1, 2), seed=4).values, ("mallory",), kind)
    with pytest.raises(InputError, match="'mallory'"):
        enroll(twin, path)
    both = Embeddings(photos(range(7, 8), photos=2).values, ("x", "y"), kind)
    with pytest.raises(InputError, match="'y'"):
        enroll(both, path)
    assert len(load_gallery(path)) == 3
    enroll(photos(range(3, 5)), path)  # others look like nobody
    enroll(twin, path, allow_similar=True)
    assert len(load_gallery(path)) == 6
