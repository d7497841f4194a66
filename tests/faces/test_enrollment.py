# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import build_face_decoys
from sfumato.concealment.keys import new_key
from sfumato.errors import DecoyError, FileError, InputError, NewKeyWarning
from sfumato.faces.calibration import calibrate
from sfumato.faces.enrollment import _Request, enroll, renew, revoke
from sfumato.faces.gallery import are_parallel
from sfumato.faces.gallery_file import GalleryWriter, load_gallery
from sfumato.types.clear import Embeddings


def test_a_gallery_begins_with_its_first_people(photos, tmp_path):
    decoys = build_face_decoys(photos(range(500, 600)))
    for params, recipe in (
        ({"recipe": "random-2"}, "random-2"),
        ({"decoys": decoys}, "hybrid-2"),
        ({"recipe": "sub-hybrid-4", "decoys": decoys}, "sub-hybrid-4"),
    ):
        path = tmp_path / f"{recipe}.sqlite"
        assert enroll(photos(range(2)), path, **params).ids == ("p0_0", "p1_0")
        more = enroll(photos(range(2, 3)), path, decoys=params.get("decoys"))  # the gallery's own recipe
        assert str(load_gallery(path).recipe) == str(more.recipe) == recipe
        assert len(load_gallery(path)) == more.people == 3
    with pytest.raises(DecoyError, match="needs decoys"):
        enroll(photos(range(3, 4)), tmp_path / "hybrid-2.sqlite")
    with pytest.raises(InputError, match="enroll"):
        enroll(photos(range(0)), tmp_path / "new.sqlite")
    assert not (tmp_path / "new.sqlite").exists()


def test_enrolling_again_releases_nothing(photos, tmp_path):
    path = tmp_path / "gallery.sqlite"
    enroll(photos(range(3)), path, recipe="random-2")
    before = path.read_bytes()
    newer = Embeddings(photos(range(2, 4), seed=1).values, ("p2_0", "p3_0"), load_gallery(path).templates.extractor)
    with pytest.raises(InputError, match="'p2_0'"):
        enroll(newer, path)
    assert path.read_bytes() == before  # not even the other one


def test_renewing_keeps_the_directions(photos, tmp_path):
    path = tmp_path / "gallery.sqlite"
    enroll(photos(range(3)), path, recipe="random-2")
    old = load_gallery(path).template("p1_0")
    newer = photos(range(1, 2), seed=1)
    renew(newer, path)
    new = load_gallery(path).template("p1_0")
    assert are_parallel(old.code.basis, new.code.basis)
    assert not np.allclose(old.code.origin, new.code.origin, atol=1e-3)
    assert load_gallery(path).releases["p1_0"] == 1
    with pytest.raises(InputError, match="not enrolled"):
        renew(photos(range(7, 8)), path)
    with pytest.raises(FileError, match="no such"):
        renew(newer, tmp_path / "gone.sqlite")


def test_a_template_moves_only_to_the_same_face(photos, tmp_path, set_threshold):
    path = tmp_path / "gallery.sqlite"
    enroll(photos(range(3)), path, recipe="random-2")
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
    path = tmp_path / "gallery.sqlite"
    assert enroll(photos(range(1)), path, recipe="random-2").compared  # there is nobody to compare with
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
    path, decoys = tmp_path / "gallery.sqlite", build_face_decoys(photos(range(500, 600)))
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
    path = tmp_path / "gallery.sqlite"
    enroll(photos(range(3)), path, recipe="random-2")
    assert revoke(("p1_0",), path).people == 2
    assert load_gallery(path).revoked == ("p1_0",)
    again = enroll(photos(range(1, 2)), path)
    assert again.released_before == ("p1_0",)
    assert load_gallery(path).releases["p1_0"] == 2
    with pytest.raises(FileError, match="no such"):
        revoke(("p1_0",), tmp_path / "gone.sqlite")


def test_the_same_face_under_another_id_is_refused_where_there_is_a_threshold(photos, tmp_path, set_threshold):
    path = tmp_path / "gallery.sqlite"
    enroll(photos(range(3)), path, recipe="random-2")
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


def test_one_embedding_has_one_template_in_a_gallery_under_a_key(photos, tmp_path):
    path, first, second, key = tmp_path / "gallery.sqlite", photos(range(1)), photos(range(1, 2)), new_key()

    def enroll_and_revoke(faces, person, secret=key):
        enroll(faces.values, path, ids=person, extractor="arcface", secret=secret, recipe="random-2")
        code = load_gallery(path).template(person).code
        revoke(person, path)
        return code.basis.tobytes()

    alice = enroll_and_revoke(first, "alice")
    assert enroll_and_revoke(first, "alicia") == alice  # whoever it is enrolled as
    assert enroll_and_revoke(first, "alice") != alice  # the second release of that id
    others = [enroll_and_revoke(second, "bob"), enroll_and_revoke(first, "carol", new_key())]
    copy = tmp_path / "other.sqlite"
    enroll(first.values, copy, ids="alice", secret=key, recipe="random-2")
    assert len({alice, *others, load_gallery(copy).template("alice").code.basis.tobytes()}) == 4
    assert dict(load_gallery(path).releases) == {"alice": 2, "alicia": 1, "bob": 1, "carol": 1}


def test_draws_need_a_key_that_nobody_guesses(photos, tmp_path, monkeypatch):
    path = tmp_path / "gallery.sqlite"
    for weak in (b"", b"password", bytes(32), "text"):
        with pytest.raises(InputError, match="secret"):
            enroll(photos(range(1)), path, secret=weak, recipe="random-2")
    assert not path.exists()
    monkeypatch.setenv("SFUMATO_KEY", str(tmp_path / "device.key"))
    with pytest.warns(NewKeyWarning):
        enroll(photos(range(1)), path, recipe="random-2")
    assert (tmp_path / "device.key").stat().st_size == 32


def test_an_attempt_that_fails_is_repeated_and_another_photo_counted(photos, tmp_path, monkeypatch):
    path, written = tmp_path / "gallery.sqlite", []
    one, other = photos(range(2)), photos(range(2), seed=1)

    def full(self, new, numbers=None):
        written.append((new.code.basis.tobytes(), numbers))
        raise FileError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(GalleryWriter, "add", full)
        for faces in (one, one, other, one):
            with pytest.raises(FileError):
                enroll(faces, path, recipe="random-2")
    assert written[0] == written[1] == written[3]
    assert written[2] != written[0]
    assert [numbers for _, numbers in written] == [(1, 1), (1, 1), (2, 2), (1, 1)]
    assert load_gallery(path).revoked == ("p0_0", "p1_0")
    mixed = Embeddings(np.stack([one.values[0], other.values[1]]), one.names, one.extractor)
    assert enroll(mixed, path).released_before == one.names
    basis = load_gallery(path).templates.code.basis
    assert (basis[0].tobytes(), basis[1].tobytes()) == (
        written[0][0][: basis[0].nbytes],
        written[2][0][basis[0].nbytes :],
    )
    assert set(load_gallery(path).releases.values()) == {2}


def test_every_draw_that_no_key_repeats_is_counted(photos, tmp_path, monkeypatch):
    """A recipe with a privacy guarantee draws from the operating system, each attempt anew."""
    path, decoys = tmp_path / "gallery.sqlite", build_face_decoys(photos(range(500, 600)))
    with monkeypatch.context() as patch:
        patch.setattr(GalleryWriter, "add", lambda *_: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                enroll(photos(range(1)), path, recipe="subset-4:eps=10", decoys=decoys)
    enroll(photos(range(1)), path, decoys=decoys)
    assert load_gallery(path).releases["p0_0"] == 3


def test_a_gallery_that_others_change_meanwhile_is_judged_again(photos, tmp_path, monkeypatch):
    """Both begin a new gallery; the second one sees the first before it writes."""
    path, draft, calls = tmp_path / "gallery.sqlite", _Request.draft, []

    def draft_and_wait(self, writer):
        result = draft(self, writer)
        calls.append(self.embeddings.names)
        if len(calls) == 1:
            enroll(photos(range(1)), path, recipe="random-2")
        return result

    monkeypatch.setattr(_Request, "draft", draft_and_wait)
    enroll(photos(range(1, 2)), path, recipe="random-2")
    assert calls == [("p1_0",), ("p0_0",), ("p1_0",)]
    assert load_gallery(path).templates.ids == ("p0_0", "p1_0")
