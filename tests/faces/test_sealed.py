# SPDX-License-Identifier: Apache-2.0
"""Galleries whose people have a key each, or one for all: what is accepted, what is refused, and what a kill leaves."""

import itertools
import multiprocessing
import os
import signal
import sqlite3
import warnings
from contextlib import closing

import numpy as np
import pytest

from sfumato.concealment.faces import conceal_embeddings, seal_embeddings
from sfumato.concealment.keys import PersonKey, key_for_gallery, new_key, person_key
from sfumato.concealment.seal import fingerprint, make_seal
from sfumato.errors import FileError, InputError, MasterProbeWarning, RecipeError
from sfumato.faces import gallery_file
from sfumato.faces.calibration import (
    CalibrateParams,
    calibrate,
    master_probe_accepted,
    measure_threshold,
    stranger_pairs,
)
from sfumato.faces.compare import (
    USUAL_THRESHOLDS,
    Threshold,
    distances,
    pair_distances,
    refuse_coin_throws,
    usual_threshold,
)
from sfumato.faces.decide import verify_probe
from sfumato.faces.enrollment import _Sealing, enroll, renew, revoke
from sfumato.faces.gallery import Gallery
from sfumato.faces.gallery_file import GalleryWriter, load_gallery
from sfumato.faces.probe import PersonKeys, identify, make_probe, verify
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import Bits, ConcealedTemplates
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

DIMS = 512
ARCFACE = {"extractor": "arcface"}


def face(person, photo=0, noise=0.02):
    """One photo of a person, of unit norm before the noise."""
    row = np.random.default_rng([5, person]).normal(size=DIMS)
    return row / np.linalg.norm(row) + noise * np.random.default_rng([6, person, photo]).normal(size=DIMS)


def named(people, photo=0):
    rows = [face(person, photo) for person in people]
    return Embeddings(np.array(rows), tuple(f"p{person}" for person in people), Extractor("arcface"))


def key_path(path, person):
    return person_key(load_gallery(path).id, person).path


def raise_error(*_args, **_settings):
    raise OSError("the power is gone")


@pytest.fixture
def path(tmp_path):
    """A gallery of three people, p0 to p2, with files of keys."""
    enroll(named(range(3)), tmp_path / "gallery.sqlite")
    return tmp_path / "gallery.sqlite"


# --- who is accepted


def test_the_person_is_accepted_and_others_are_not(path):
    gallery = load_gallery(path)
    assert str(gallery.recipe) == "sealed-2048:1"
    assert len(gallery_file.code_rows(gallery.templates)[0]) == 6 + 256
    for person in range(3):
        own = verify(face(person, 1), path, f"p{person}", **ARCFACE)
        assert own.accepted
        assert own.same_key
        other = verify(face(person + 10), path, f"p{person}", **ARCFACE)
        assert not other.accepted
        assert other.same_key
        assert own.distance < own.threshold.distance < other.distance


def test_another_key_is_rejected_whoever_the_face_is(path):
    decision = verify(face(0), path, "p0", key=new_key(), **ARCFACE)
    assert (decision.accepted, decision.same_key) == (False, False)
    assert abs(decision.distance - 0.5) < 0.06  # five standard deviations of 2,048 coin throws
    stolen = verify(face(0), path, "p0", key_of="p1", **ARCFACE)
    assert (stolen.accepted, stolen.same_key) == (False, False)


def test_bits_that_agree_under_another_name_of_a_key_are_rejected(path):
    gallery = load_gallery(path)
    template = gallery.template("p0")
    forged = type(template)(("x",), template.code, template.recipe, template.extractor, ("0" * 12,))
    decision = verify_probe(forged, gallery, "p0")
    assert (decision.distance, decision.accepted) == (0.0, False)


def test_templates_of_one_face_share_nothing_under_two_keys_or_in_two_galleries(tmp_path):
    token, shares = new_key(), []
    for name, key in (("a", token), ("b", token), ("c", new_key())):
        enroll(face(0), tmp_path / name, ids="p0", key=key, **ARCFACE)
    packed = [load_gallery(tmp_path / name).templates.code.packed[0] for name in "abc"]
    names = {load_gallery(tmp_path / name).templates.keys for name in "abc"}
    for one, other in itertools.combinations(packed, 2):
        shares.append(np.bitwise_count(one ^ other).sum() / 2048)
    assert len(names) == 3
    assert np.abs(np.array(shares) - 0.5).max() < 0.06


# --- keys


def test_keys_are_files_of_their_owner_and_nothing_of_them_is_in_the_gallery(path):
    content = b"".join(entry.read_bytes() for entry in path.parent.iterdir())
    keys = [key_path(path, f"p{person}") for person in range(3)]
    for person, key in enumerate(keys):
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.parent.stat().st_mode & 0o777 == 0o700
        secret, row = key.read_bytes(), face(person).astype(np.float32)
        derived = key_for_gallery(secret, load_gallery(path).id, f"p{person}")
        for hidden in (secret, derived):
            assert all(hidden[at : at + 8] not in content for at in range(0, 32, 8))
            assert hidden.hex()[:16].encode() not in content
        assert all(row[at : at + 2].tobytes() not in content for at in range(0, DIMS, 2))
    assert len({key.read_bytes() for key in keys}) == 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_repr_shows_a_key(path):
    key = new_key()
    keys = PersonKeys({"p0": key})
    sealing = _Sealing(named([0]), Recipe.of("sealed-2048"), PersonKeys(key), False, key)
    gallery = load_gallery(path)
    for value in (keys, PersonKeys(key), sealing, gallery, gallery.templates, make_probe(
        named([0]), gallery, person="p0", key=key_path(path, "p0")
    )):  # fmt: skip
        shown = repr(value)
        for secret in (key, key_path(path, "p0").read_bytes()):
            assert secret.hex() not in shown
            assert repr(secret)[2:-1] not in shown
            assert str(list(secret)) not in shown


def test_a_lost_key_says_what_to_do(path):
    key_path(path, "p0").unlink()
    with pytest.raises(FileError, match="--key-file") as problem:
        verify(face(0), path, "p0", **ARCFACE)
    assert str(person_key(load_gallery(path).id, "p0").path) in str(problem.value)
    with pytest.raises(InputError, match="--allow-different"):
        renew(face(0, 1), path, ids="p0", **ARCFACE)
    renew(face(0, 1), path, ids="p0", allow_different=True, **ARCFACE)
    assert verify(face(0, 2), path, "p0", **ARCFACE).accepted


@pytest.mark.parametrize("key", [b"", b"password", bytes(32), b"0123456789abcdef" * 2, {"other": new_key()}, {}])
def test_keys_that_can_not_be_used_leave_no_gallery(tmp_path, key):
    with pytest.raises(InputError, match="new_key"):
        enroll(face(0), tmp_path / "gallery.sqlite", ids="p0", key=key, **ARCFACE)
    assert not (tmp_path / "gallery.sqlite").exists()


def test_files_that_hold_no_key_leave_no_gallery(tmp_path):
    (tmp_path / "weak.key").write_text("correct horse battery staple")
    for place in (tmp_path / "weak.key", tmp_path):
        with pytest.raises(FileError):
            enroll(face(0), tmp_path / "gallery.sqlite", ids="p0", key=place, **ARCFACE)
    assert not (tmp_path / "gallery.sqlite").exists()


@pytest.mark.parametrize("recipe", ["sealed-16", "sealed-100000", "sealed-2048:1@0123456789ab"])
@pytest.mark.parametrize("more", [{}, {"shared_key": True, "secret": new_key()}], ids=["key each", "one key"])
def test_a_recipe_that_is_refused_leaves_no_gallery(tmp_path, face_keys, recipe, more):
    path, before = tmp_path / "gallery.sqlite", set(face_keys.iterdir())
    with pytest.raises(RecipeError, match="sealed"):
        enroll(named([0]), path, recipe=recipe, **more)
    with pytest.raises(FileError):
        load_gallery(path)
    assert set(face_keys.iterdir()) == before
    enroll(named([0]), path)
    assert verify(face(0, 1), path, "p0", **ARCFACE).accepted


@pytest.mark.parametrize("width", [1, 3, 15])
def test_embeddings_of_a_few_numbers_are_no_faces(tmp_path, width):
    with pytest.raises(InputError, match=f"{width} numbers"):
        enroll(np.ones((1, width)), tmp_path / "gallery.sqlite", ids="p0")
    assert not (tmp_path / "gallery.sqlite").exists()


def test_one_key_is_of_one_person(tmp_path):
    path, token, key = tmp_path / "gallery.sqlite", tmp_path / "token.key", new_key()
    for given in ({"key": token}, {"key": key}):
        with pytest.raises(InputError, match="2 people"):
            enroll(named([0, 1]), path, **given)


def test_one_token_seals_two_people_and_two_galleries_differently_and_serves_all_after_a_renewal(tmp_path):
    paths, token = [tmp_path / f"gallery{number}.sqlite" for number in range(2)], tmp_path / "token.key"
    for path in paths:
        for person in (0, 0.5):  # the same face under two ids
            enroll(face(0), path, ids=f"p{person}", key=token, **ARCFACE)
    codes = [row for path in paths for row in load_gallery(path).templates.code.packed]
    for one, other in itertools.combinations(codes, 2):
        assert 0.4 < np.bitwise_count(one ^ other).sum() / (8 * len(one)) < 0.6
    renew(face(0, 1), paths[0], ids="p0", key=token, **ARCFACE)
    for path in paths:
        for person in ("p0", "p0.5"):
            assert verify(face(0, 2), path, person, key=token, **ARCFACE).accepted


def test_a_late_finish_leaves_the_key_of_another_process(path, monkeypatch):
    """One process renews and is slow; another renews and finishes; then the first finishes."""
    usual, late = PersonKey.finish, []
    monkeypatch.setattr(PersonKey, "finish", lambda self, key: late.append((self, key)))
    renew(face(0, 1), path, ids="p0", **ARCFACE)
    monkeypatch.setattr(PersonKey, "finish", usual)
    renew(face(0, 2), path, ids="p0", **ARCFACE)
    assert verify(face(0, 3), path, "p0", **ARCFACE).accepted
    place, key = late[0]
    place.finish(key)  # it waits no more: the second renewal had put it in use first
    assert verify(face(0, 3), path, "p0", **ARCFACE).accepted


def test_a_key_that_waits_since_a_renewal_that_stopped_is_never_used(path, monkeypatch):
    place = person_key(load_gallery(path).id, "p0")
    known_to_a_thief = place.begin()
    renew(face(0, 1), path, ids="p0", **ARCFACE)
    assert place.path.read_bytes() != known_to_a_thief
    assert verify(face(0, 3), path, "p0", **ARCFACE).accepted


def test_a_token_that_was_renewed_in_one_gallery_serves_the_other_and_is_not_lost(tmp_path):
    paths, token = [tmp_path / f"gallery{number}.sqlite" for number in range(2)], tmp_path / "token.key"
    for path in paths:
        enroll(face(0), path, ids="p0", key=token, **ARCFACE)
    renew(face(0, 1), paths[0], ids="p0", key=token, **ARCFACE)
    with pytest.raises(FileError, match="another gallery"):
        renew(face(0, 2), paths[0], ids="p0", key=token, **ARCFACE)
    renew(face(0, 2), paths[1], ids="p0", key=token, **ARCFACE)
    (tmp_path / "token.key.old").unlink()
    for path in paths:
        assert verify(face(0, 3), path, "p0", key=token, **ARCFACE).accepted
    renew(face(0, 4), paths[0], ids="p0", key=token, **ARCFACE)
    assert verify(face(0, 3), paths[0], "p0", key=token, **ARCFACE).accepted


def test_keys_that_do_not_belong_to_a_gallery_are_refused(path, tmp_path):
    with pytest.raises(InputError, match="device key"):
        verify(face(0), path, "p0", secret=new_key(), **ARCFACE)
    shared, secret = tmp_path / "shared.sqlite", new_key()
    enroll(named([0]), shared, shared_key=True, secret=secret)
    for given in ({"key": new_key()}, {"key_of": "p1"}):
        with pytest.raises(InputError, match="one key"):
            verify(face(0), shared, "p0", secret=secret, **given, **ARCFACE)
    with pytest.raises(InputError, match="one key"):
        renew(named([0], 1), shared, secret=secret, key=new_key())


def test_a_file_that_was_named_is_not_overwritten(tmp_path):
    path, letter = tmp_path / "gallery.sqlite", tmp_path / "letter.bin"
    letter.write_bytes(content := os.urandom(500))
    letter.chmod(0o600)
    enroll(named([0]), path)
    with pytest.raises(InputError, match="letter"):
        renew(named([0], 1), path, key=letter, allow_different=True)
    revoke("p0", path)
    with pytest.raises(InputError, match="letter"):
        enroll(named([0]), path, key=letter)
    assert letter.read_bytes() == content


# --- renewing and revoking


def test_renewing_makes_a_new_key_and_the_old_template_is_worthless(path):
    old, key = load_gallery(path), key_path(path, "p1")
    before = key.read_bytes()
    assert renew(face(1, 1), path, ids="p1", **ARCFACE).keys == key
    new = load_gallery(path)
    assert key.read_bytes() != before
    assert os.listdir(key.parent).count("p1.key") == 1
    assert not PersonKey(key).next_path.exists()
    share = pair_distances(old.templates.code, new.templates.code, [1], [1])[0]
    assert abs(share - 0.5) < 0.06
    assert verify(face(1, 2), new, "p1", **ARCFACE).accepted
    decision = verify(face(1, 2), old, "p1", **ARCFACE)  # a copy that somebody kept
    assert (decision.accepted, decision.same_key) == (False, False)
    assert new.releases["p1"] == 2


def test_renewing_refuses_another_face_and_another_key(path, tmp_path):
    before = path.read_bytes(), key_path(path, "p0").read_bytes()
    with pytest.raises(InputError, match="--allow-different"):
        renew(face(9), path, ids="p0", **ARCFACE)
    assert (path.read_bytes(), key_path(path, "p0").read_bytes()) == before
    key_path(path, "p0").write_bytes(os.urandom(32))
    with pytest.raises(InputError, match="--allow-different"):
        renew(face(0, 1), path, ids="p0", **ARCFACE)
    assert path.read_bytes() == before[0]


@pytest.mark.parametrize("kind", ["bytes", "table", "file"])
def test_old_keys_from_elsewhere_tell_whether_it_is_the_same_person(tmp_path, kind):
    path, old, new = tmp_path / "gallery.sqlite", new_key(), new_key()
    keys = {"old": old, "new": new} if kind == "bytes" else {"old": {"p0": old}, "new": {"p0": new}}
    if kind == "file":
        keys = {name: tmp_path / f"{name}.key" for name in ("old", "new")}
    enroll(named([0]), path, key=keys["old"])
    with pytest.raises(InputError, match="old_key"):
        renew(named([0], 1), path, key=keys["new"])
    other = Embeddings(named([9]).values, ("p0",), Extractor("arcface"))
    with pytest.raises(InputError, match="--allow-different"):
        renew(other, path, key=keys["new"], old_key=keys["old"])
    with pytest.raises(InputError, match="--allow-different"):
        renew(named([0], 1), path, key=keys["new"], old_key=new_key())
    assert renew(named([0], 1), path, key=keys["new"], old_key=keys["old"]).compared
    assert verify(face(0, 2), path, "p0", key=keys["new"], **ARCFACE).accepted
    assert not verify(face(0, 2), path, "p0", key=keys["old"], **ARCFACE).same_key
    enroll(named([0]), tmp_path / "lifted", recipe="random-2")
    with pytest.raises(InputError, match="keys"):
        renew(named([0], 1), tmp_path / "lifted", old_key=new_key())


def test_a_link_to_a_token_stays_a_link(tmp_path):
    path, token, link = tmp_path / "gallery.sqlite", tmp_path / "token.key", tmp_path / "link.key"
    link.symlink_to(token)
    enroll(named([0]), path, key=link)
    before = token.read_bytes()
    renew(named([0], 1), path, key=link)
    assert link.is_symlink()
    assert token.read_bytes() != before
    assert (tmp_path / "link.key.old").read_bytes() == before
    for name in ("token.key", "link.key.old"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert verify(face(0, 2), path, "p0", key=link, **ARCFACE).accepted


def test_without_a_threshold_a_renewal_says_that_nothing_was_compared(tmp_path):
    path = tmp_path / "gallery.sqlite"
    enroll(face(0), path, ids="p0")
    assert not renew(face(0, 1), path, ids="p0").compared
    key_path(path, "p0").write_bytes(os.urandom(32))
    with pytest.raises(InputError, match="key"):
        renew(face(0, 1), path, ids="p0")
    calibrate(named(range(100, 160)).values, path, rate=0.01, people=[str(row) for row in range(60)])
    assert renew(face(0, 1), path, ids="p0", allow_different=True).compared
    assert renew(face(0, 2), path, ids="p0").compared


def test_revoking_deletes_the_template_and_the_key(path):
    old, key = load_gallery(path), key_path(path, "p0")
    before = key.read_bytes()
    PersonKey(key).begin()
    assert revoke("p0", path).people == 2
    assert [entry.name for entry in sorted(key.parent.iterdir())] == ["p1.key", "p2.key"]
    assert old.template("p0").code.packed.tobytes() not in path.read_bytes()
    with pytest.raises(InputError, match="revoked"):
        verify(face(0), path, "p0", **ARCFACE)
    enroll(named([0]), path)
    assert key.read_bytes() != before
    assert load_gallery(path).template("p0").keys != old.template("p0").keys


# --- kills


@pytest.mark.parametrize("step", ["add", "finish"])
def test_an_enrollment_that_stops_is_finished_by_the_next_one(tmp_path, monkeypatch, step):
    path = tmp_path / "gallery.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(GalleryWriter if step == "add" else PersonKey, step, raise_error)
        with pytest.raises(OSError, match="power"):
            enroll(named([0]), path)
    waiting = person_key(load_gallery(path).id, "p0").next_path
    key = waiting.read_bytes()
    if step == "add":
        enroll(named([0]), path)
        assert key_path(path, "p0").read_bytes() == key  # the leftover key is used
        assert not waiting.exists()
    assert verify(face(0, 1), path, "p0", **ARCFACE).accepted
    renew(face(0, 2), path, ids="p0", **ARCFACE)
    assert verify(face(0, 3), path, "p0", **ARCFACE).accepted


STOPS = {"begin": (PersonKey, "begin"), "replace": (GalleryWriter, "replace"), "finish": (PersonKey, "finish")}


@pytest.mark.parametrize("stops", list(itertools.product(STOPS, repeat=2)), ids="-".join)
def test_a_renewal_that_stops_twice_leaves_the_right_key(path, monkeypatch, stops):
    for photo, stop in enumerate(stops):
        holder, step = STOPS[stop]
        usual, before = getattr(holder, step), load_gallery(path).template("p0").keys

        def stop_here(self, *args, usual=usual, before=before, stop=stop):
            if stop == "finish" and load_gallery(path).template("p0").keys == before:
                return usual(self, *args)  # what the attempt before left
            raise OSError("the power is gone")

        with monkeypatch.context() as patch:
            patch.setattr(holder, step, stop_here)
            with pytest.raises(OSError, match="power"):
                renew(face(0, photo), path, ids="p0", **ARCFACE)
        assert (load_gallery(path).template("p0").keys != before) == (stop == "finish")
        decision = verify(face(0, 5), path, "p0", **ARCFACE)
        assert (decision.accepted, decision.same_key) == (True, True)
    renew(face(0, 6), path, ids="p0", **ARCFACE)
    assert verify(face(0, 7), path, "p0", **ARCFACE).accepted
    in_use, *waiting = PersonKey(key_path(path, "p0")).read_all()
    names = [
        fingerprint(load_gallery(path).recipe, key_for_gallery(in_use, load_gallery(path).id, "p0"), DIMS, odd=True)
    ]
    assert list(load_gallery(path).template("p0").keys) == names
    assert in_use not in waiting


def renew_and_die(path, keys, holder, step):
    """Renew in a process that is killed when it has done a step."""
    os.environ["SFUMATO_FACE_KEYS"] = str(keys)
    usual = getattr(holder, step)

    def die(self, *args):
        usual(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(holder, step, die)
    renew(face(0, 1), path, ids="p0", **ARCFACE)


@pytest.mark.parametrize("step", ["begin", "_put", "replace"])
def test_a_kill_leaves_the_right_key(path, face_keys, step):
    holder = PersonKey if step == "begin" else GalleryWriter
    worker = multiprocessing.get_context("spawn").Process(target=renew_and_die, args=(path, face_keys, holder, step))
    worker.start()
    worker.join(100)
    assert worker.exitcode == -signal.SIGKILL
    assert PersonKey(key_path(path, "p0")).next_path.exists()
    assert verify(face(0, 2), path, "p0", **ARCFACE).accepted
    renew(face(0, 3), path, ids="p0", **ARCFACE)
    assert verify(face(0, 4), path, "p0", **ARCFACE).accepted


def test_a_revocation_that_stops_before_the_key_is_gone_does_not_bring_it_back(path, monkeypatch):
    key = key_path(path, "p0")
    before = key.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(PersonKey, "remove", raise_error)
        with pytest.raises(OSError, match="power"):
            revoke("p0", path)
    enroll(named([0]), path)
    assert key.read_bytes() != before
    assert verify(face(0, 1), path, "p0", **ARCFACE).accepted


# --- one key for all


def test_a_gallery_with_one_key_is_searched_exactly(tmp_path):
    path, secret = tmp_path / "gallery.sqlite", new_key()
    faces = named(range(40))
    enroll(faces, path, shared_key=True, secret=secret)
    gallery = load_gallery(path)
    assert gallery.templates.keys == ()
    probe = conceal_embeddings(named([7], 1), gallery.recipe, secret=key_for_gallery(secret, gallery.id))
    different = np.bitwise_count(gallery.templates.code.packed ^ probe.code.packed).sum(axis=1) / 2048
    result = identify(face(7, 1), path, k=40, secret=secret, **ARCFACE)
    assert result.candidates[0].id == "p7"
    assert np.allclose([candidate.distance for candidate in result.candidates], np.sort(different), atol=1e-6)
    by_id = dict(zip(faces.names, different, strict=True))
    assert all(abs(by_id[one.id] - one.distance) < 1e-6 for one in result.candidates)
    assert np.allclose(distances(probe, gallery.templates)[0], different)
    assert [one.id for one in result.candidates if result.accepts(one)] == ["p7"]
    with pytest.raises(RecipeError):
        identify(face(7), path, secret=new_key(), **ARCFACE)
    with pytest.raises(RecipeError):
        verify(face(7), path, "p7", secret=new_key(), **ARCFACE)
    renew(face(7, 2), path, ids="p7", secret=secret, **ARCFACE)
    assert verify(face(7, 3), path, "p7", secret=secret, **ARCFACE).accepted


def test_keys_of_people_and_one_key_for_all_do_not_mix(path, tmp_path):
    with pytest.raises(InputError, match="--shared-key"):
        identify(face(0), path, **ARCFACE)
    with pytest.raises(InputError, match="shared"):
        enroll(named([5]), path, shared_key=True, secret=new_key())
    other, secret = tmp_path / "shared.sqlite", new_key()
    with pytest.raises(InputError, match="key"):
        enroll(named([0]), other, shared_key=True, secret=secret, key=new_key())
    assert not other.exists()
    enroll(named([0]), other, shared_key=True, secret=secret)
    with pytest.raises(InputError, match="key"):
        enroll(named([1]), other, secret=secret, key=new_key())  # it would not be used
    with pytest.raises(InputError, match="guessed"):
        enroll(named([1]), tmp_path / "weak.sqlite", shared_key=True, secret=b"password")
    assert len(load_gallery(other)) == 1


# --- thresholds


def test_other_strangers_are_accepted_at_the_rate_of_a_calibration():
    recipe = Recipe.of("sealed-2048:1")
    chosen = measure_threshold(named(range(100, 250)), recipe, None, CalibrateParams(rate=0.02))
    assert (chosen.comparison, chosen.people, chosen.impostor_pairs) == ("bits", 150, 150 * 149)
    assert chosen.measured_rate <= 0.02
    others = named(range(300, 400))
    sealed = seal_embeddings(others, recipe, [new_key()] * 100)  # a stranger who has the key
    rows = stranger_pairs(others.names, 10**6, np.random.default_rng(0))
    assert 0.005 < (pair_distances(sealed, sealed, *rows) <= chosen.distance).mean() < 0.06
    assert chosen.by_chance(2048) < 0.002  # of made-up faces; of ArcFace's:
    assert usual_threshold(recipe, "arcface").by_chance(2048) < 1e-12
    with pytest.raises(InputError, match="p-to-s"):
        measure_threshold(others, recipe, None, CalibrateParams(rate=0.02, comparison="p-to-s"))


def test_coin_throws_are_accepted_as_often_as_binomials_say():
    throws = np.random.default_rng(0).integers(0, 2, (20_000, 16)).mean(axis=1)
    facts = {"wanted_rate": 0.1, "measured_rate": 0.1, "impostor_pairs": 10, "people": 2}
    limit = Threshold(comparison="bits", distance=5 / 16, **facts)
    assert limit.by_chance(16) == pytest.approx((throws <= 5 / 16).mean(), abs=0.01)


def with_common_part(faces, size):
    """Faces of a network that is not centred: all have a part in common."""
    values = faces.values + size * np.eye(1, DIMS)
    return Embeddings(values, faces.names, faces.extractor)


def test_a_mean_that_is_accepted_as_many_people_is_told(path):
    """Measured in both directions: of centred faces it is accepted as a stranger is, of others as nearly everybody."""
    centred, recipe = named(range(100, 200)), Recipe.of("sealed-2048:1")
    people, shares = [str(row) for row in range(100)], []
    for size in (0.0, 1.0):
        faces = with_common_part(centred, size)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            limit = calibrate(faces, path, rate=0.01, people=people)
        shares.append(master_probe_accepted(faces, people, recipe, limit))
        assert [warning.category for warning in caught] == [MasterProbeWarning] * bool(size)
    assert shares[0] < 0.1
    assert shares[1] > 0.9


def test_a_crowd_of_people_who_are_alike_is_told(path):
    """One in five is of a crowd: faces of its people agree more than others', and their middle opens most of it."""
    faces, people = named(range(100, 300)), [str(row) for row in range(200)]
    crowd = np.arange(200)[:, None] % 5 == 0
    crowded = Embeddings(faces.values + crowd * np.eye(1, DIMS), faces.names, faces.extractor)
    with pytest.warns(MasterProbeWarning, match="tries"):
        limit = calibrate(crowded, path, rate=0.005, people=people)
    assert 0.1 < master_probe_accepted(crowded, people, Recipe.of("sealed-2048:1"), limit) < 0.25


def test_whoever_has_a_key_opens_nothing_without_a_face(path):
    """The nearest point to every face of a wave with a random phase is zero; of an odd one none is."""
    gallery = load_gallery(path)
    link, accepted = gallery.recipe.links[-1], []
    for person in range(3):
        key = key_for_gallery(key_path(path, f"p{person}").read_bytes(), gallery.id, f"p{person}")
        seal = make_seal(key, DIMS, link.dim, link.bandwidth, odd=True)
        assert seal.checksum[:12] == gallery.template(f"p{person}").keys[0]
        everybody = np.packbits(np.unpackbits(seal(named(range(100, 400)).values).packed, axis=1).mean(0) >= 0.5)
        for bits in (seal(np.zeros((1, DIMS))).packed, everybody[None], ~everybody[None]):
            names = (seal.checksum[:12],)
            probe = ConcealedTemplates(("x",), Bits(bits), gallery.recipe, gallery.templates.extractor, names)
            accepted.append(verify_probe(probe, gallery, f"p{person}").accepted)
    assert len(accepted) == 9
    assert not any(accepted)


@pytest.mark.parametrize("distance", [0.5, 0.6, 1.0, 1e308])
def test_a_threshold_for_bits_is_below_coin_throws(path, distance):
    facts = {"comparison": "bits", "wanted_rate": 0.1, "measured_rate": 0.1, "impostor_pairs": 10, "people": 2}
    with pytest.raises(InputError, match=r"0\.5"):
        Threshold(distance=distance, **facts)
    near = Threshold(distance=0.48, **facts)
    with pytest.raises(InputError, match="key"):
        refuse_coin_throws(near, Recipe.of("sealed-2048:1"))
    refuse_coin_throws(near, Recipe.of("sealed-4096:1"))
    with pytest.raises(InputError, match="key"), GalleryWriter(path) as writer, writer.turn():
        writer.set_threshold(near)


def test_a_calibration_that_would_accept_other_keys_is_refused(path):
    with pytest.raises(InputError, match="key"):
        calibrate(named(range(100, 160)), path, rate=0.4)
    assert load_gallery(path).thresholds == ()


def test_the_usual_threshold_is_for_seals_that_were_measured(path, tmp_path):
    recipe = Recipe.of("sealed-2048:1")
    usual = usual_threshold(recipe, "arcface@0123456789ab")
    assert (usual.distance, usual.measured_rate) == (USUAL_THRESHOLDS["arcface", 2048, 1.0].distance, 1e-3)
    assert usual_threshold(Recipe.of("sealed-2048:0.34"), "dlib-face") is not None
    for other in ("unknown", "facenet", "my-arcface"):
        assert usual_threshold(recipe, other) is None
    for other in ("sealed-256:1", "sealed-2048:1.4", "sealed-2048:0.6", "sealed-2048", "random-2"):
        assert usual_threshold(Recipe.of(other), "arcface") is None
    enroll(face(0), tmp_path / "small.sqlite", ids="p0", recipe="sealed-256", **ARCFACE)
    enroll(face(0), tmp_path / "unnamed.sqlite", ids="p0")
    for other, more in (("small", ARCFACE), ("unnamed", {})):
        with pytest.raises(InputError, match="calibrate"):
            verify(face(0), tmp_path / f"{other}.sqlite", "p0", **more)
    chosen = calibrate(named(range(100, 160)), path, rate=0.01)
    assert load_gallery(path).threshold("bits") == chosen != usual_threshold(recipe, "arcface")
    with pytest.raises(InputError, match="sealed"):
        verify(face(0), path, "p0", comparison="p-to-s", **ARCFACE)


def test_the_usual_threshold_of_dlib_is_at_its_clear_distance():
    angle = 2 * np.arcsin(0.39 / 2)
    rows = np.zeros((2, 128))
    rows[0, 0], rows[1, :2] = 1, (np.cos(angle), np.sin(angle))
    pair, shares = Embeddings(rows, ("a", "b")), []
    for _ in range(8):
        sealed = conceal_embeddings(pair, "sealed-2048:0.34", secret=new_key())
        shares.append(distances(sealed, sealed)[0, 1])
    assert np.mean(shares) == pytest.approx(USUAL_THRESHOLDS["dlib", 2048, 0.34].distance, abs=0.02)


# --- files


def edit(path, statement, values=()):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE templates SET dtype = '<f4' WHERE number = 2", "size"),
        ("UPDATE templates SET code = zeroblob(262) WHERE number = 2", "checksum"),
        ("UPDATE templates SET code = zeroblob(256) WHERE number = 2", "size"),
        ("UPDATE templates SET code = zeroblob(3000000) WHERE number = 2", "size"),
        ("UPDATE templates SET code = 'text' WHERE number = 2", "size"),
        ("UPDATE templates SET person = 'mallory' WHERE number = 2", "checksum"),
        ("DELETE FROM templates WHERE number = 2", "templates"),
        ("DELETE FROM releases WHERE person = 'p1'", "release"),
    ],
)
def test_a_sealed_gallery_that_was_changed_is_refused(path, statement, words):
    edit(path, statement)
    with pytest.raises(FileError, match=words):
        load_gallery(path)


def test_a_row_of_another_gallery_is_refused(path, tmp_path):
    """Even under the same name and key: the digest holds the id of the gallery."""
    enroll(named([1]), tmp_path / "other.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        row = other.execute("SELECT code, digest FROM templates").fetchone()
    edit(path, "UPDATE templates SET code = ?, digest = ? WHERE person = 'p1'", row)
    for people in (None, ["p1"]):
        with pytest.raises(FileError, match="checksum"):
            load_gallery(path, people)


def test_galleries_of_both_kinds_are_read_in_blocks(path, tmp_path, monkeypatch):
    whole = load_gallery(path)
    monkeypatch.setattr(gallery_file, "AT_ONCE", 2)
    again = load_gallery(path)
    assert np.array_equal(again.templates.code.packed, whole.templates.code.packed)
    assert (again.templates.keys, again.dimensions, again.id) == (whole.templates.keys, DIMS, whole.id)
    assert load_gallery(path, ["p2"]).templates.keys == whole.templates.keys[2:]
    enroll(named(range(3)), tmp_path / "lifted.sqlite", recipe="random-2")
    assert load_gallery(tmp_path / "lifted.sqlite").templates.keys == ()
    with pytest.raises(InputError, match="keys"):
        enroll(named([4]), tmp_path / "lifted.sqlite", key=new_key())


def test_a_template_under_the_old_key_does_not_replace_it(path):
    gallery = load_gallery(path)
    key = key_for_gallery(key_path(path, "p0").read_bytes(), gallery.id, "p0")
    with pytest.raises(InputError, match="key"), GalleryWriter(path) as writer, writer.turn():
        writer.replace(seal_embeddings(named([0], 1), gallery.recipe, [key]))


def test_what_a_server_says_does_not_decide_that_a_clear_probe_leaves(path, tmp_path, monkeypatch):
    """A server may hand out any gallery: one without keys must not get the embedding, nor make a device key."""
    monkeypatch.setenv("SFUMATO_KEY", str(tmp_path / "device.key"))
    lifted, shared = tmp_path / "lifted.sqlite", tmp_path / "shared.sqlite"
    enroll(named([0]), lifted, recipe="random-2", secret=new_key())
    enroll(named([0]), shared, shared_key=True, secret=new_key())
    for other in (lifted, shared):
        for more in ({}, {"comparison": "p-to-s"}, {"key": new_key()}, {"secret": new_key()}):
            with pytest.raises(InputError):
                make_probe(named([0]), load_gallery(other), person="p0", **more)
    with pytest.raises(InputError, match="p-to-s"):
        make_probe(named([0]), load_gallery(lifted))
    assert not (tmp_path / "device.key").exists()
    assert np.array_equal(make_probe(named([0]), load_gallery(lifted), "p-to-s"), named([0]).values)


def test_a_probe_of_another_form_than_the_gallery_is_refused(path, tmp_path):
    gallery = load_gallery(path)
    with pytest.raises(InputError, match="make_probe"):
        verify_probe(face(0)[None], gallery, "p0")
    enroll(named([0]), tmp_path / "lifted.sqlite", recipe="random-2")
    probe = make_probe(named([0]), gallery, person="p0")
    with pytest.raises(InputError, match="make_probe"):
        verify_probe(probe, load_gallery(tmp_path / "lifted.sqlite"), "p0")
    with pytest.raises(InputError, match="None"):
        verify_probe(probe, gallery, None)


def test_probes_of_another_width_or_network_are_refused(path):
    gallery = load_gallery(path)
    with pytest.raises(InputError, match="512"):
        make_probe(Embeddings(np.eye(1, 64), (), Extractor("arcface")), gallery, person="p0")
    with pytest.raises(InputError, match="dlib"):
        verify(face(0), path, "p0", extractor="dlib")
    with pytest.raises(InputError, match="person"):
        make_probe(named([0]), gallery)
    with pytest.raises(InputError, match="protects"):
        Gallery(conceal_embeddings(named([0]), "sealed-2048", evaluation_seed=1))


# --- two processes at once


def enroll_when_told(path, keys, person, ids, go, answers):
    os.environ["SFUMATO_FACE_KEYS"] = str(keys)
    go.wait()
    try:
        enroll(face(person), path, ids=ids, **ARCFACE)
        answers.put("done")
    except InputError as problem:
        answers.put(str(problem))


@pytest.mark.parametrize("ids", [("a", "b"), ("a", "a")])
def test_two_processes_enroll_at_once(tmp_path, face_keys, ids):
    path, spawn = tmp_path / "gallery.sqlite", multiprocessing.get_context("spawn")
    go, answers = spawn.Event(), spawn.Queue()
    workers = [
        spawn.Process(target=enroll_when_told, args=(path, face_keys, row, name, go, answers))
        for row, name in enumerate(ids)
    ]
    for worker in workers:
        worker.start()
    go.set()
    outcomes = sorted(answers.get(timeout=100) for _ in workers)
    for worker in workers:
        worker.join(100)
    assert [worker.exitcode for worker in workers] == [0, 0]
    gallery = load_gallery(path)
    assert sorted(gallery.templates.ids) == sorted(set(ids))
    if ids == ("a", "b"):
        assert outcomes == ["done", "done"]
    else:
        assert "done" in outcomes
        assert any("'a' is enrolled" in outcome for outcome in outcomes)
    accepted = [verify(face(row, 1), path, name, **ARCFACE).accepted for row, name in enumerate(ids)]
    assert sum(accepted) == len(set(ids))


@pytest.mark.parametrize("recipe", ["sealed-512", "sealed-2048:0.8"])
def test_another_recipe_than_the_gallery_s_is_refused_and_makes_no_key(path, recipe):
    with pytest.raises(InputError, match="another gallery"):
        enroll(named([8]), path, recipe=recipe)
    assert not key_path(path, "p8").parent.joinpath("p8.key.next").exists()
    enroll(named([8]), path, recipe="sealed-2048")
    assert len(load_gallery(path)) == 4


@pytest.mark.parametrize("key", [np.zeros(32), 7, "0f" * 32, "."], ids=["array", "number", "hexadecimal", "folder"])
def test_what_is_no_key_and_no_file_is_refused(path, key):
    with pytest.raises(InputError):
        enroll(named([8]), path, key=key)
    assert len(load_gallery(path)) == 3


def test_a_key_that_cannot_be_deleted_is_told_after_a_revocation(path):
    place = key_path(path, "p0")
    place.unlink()
    place.mkdir()
    with pytest.raises(FileError, match="p0"):
        revoke("p0", path)
    assert load_gallery(path).templates.ids == ("p1", "p2")
