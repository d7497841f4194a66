# SPDX-License-Identifier: Apache-2.0
import json

import cv2
import numpy as np
import pytest

from sfumato.concealment.keys import new_key
from sfumato.errors import NotEnrolledError
from sfumato.faces.compare import Threshold
from sfumato.faces.enrollment import revoke
from sfumato.faces.gallery_file import GalleryWriter, load_gallery
from sfumato.images.samples import sample_image

LIFTED = ("--recipe", "random-2")


def write_people(path, people, seed=0):
    """A table of people, each a direction and a little noise."""
    rng = np.random.default_rng([seed, 3])
    lines = []
    for person in people:
        row = np.random.default_rng([9, person]).normal(size=16) + 0.1 * rng.normal(size=16)
        lines.append(",".join([f"p{person}", *(f"{value:.6f}" for value in row)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def set_threshold(path):
    """Between photos of one person (0.15) and strangers: no draw decides."""
    facts = {"wanted_rate": 0.01, "measured_rate": 0.01, "impostor_pairs": 1000, "people": 40}
    with GalleryWriter(path) as writer, writer.turn():
        writer.set_threshold(Threshold(comparison="p-to-s", distance=0.4, **facts))


@pytest.fixture(autouse=True)
def face_keys(tmp_path, monkeypatch):
    """A folder for the keys of people, in place of the one of whoever runs the tests."""
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path / "face-keys"))
    return tmp_path / "face-keys"


@pytest.fixture
def staff(tmp_path):
    return write_people(tmp_path / "staff.csv", range(3))


def test_people_are_enrolled_renewed_and_revoked(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.sqlite"
    done = run_sfumato("enroll", staff, "--gallery", gallery, *LIFTED)
    assert done.stdout.strip() == f"3 people enrolled with random-2: {gallery} holds 3 concealed templates"
    twin = ("enroll", staff, "-g", gallery, "--row", "p1", "--id", "alice")
    assert "'alice' looks like 'p1'" in run_sfumato(*twin, code=1).stderr
    done = run_sfumato(*twin, "--allow-similar", "--json")
    assert json.loads(done.stdout) == {
        "enrolled": ["alice"], "people": 4, "recipe": "random-2", "gallery": str(gallery)
    }  # fmt: skip
    before = load_gallery(gallery).template("p1").code.origin
    newer = write_people(tmp_path / "newer.csv", [1], seed=1)
    assert run_sfumato("renew", newer, "-g", gallery).stdout.startswith("p1 renewed")
    assert not np.allclose(load_gallery(gallery).template("p1").code.origin, before)
    assert run_sfumato("revoke", "p0", "p1", "p0", "-g", gallery).stdout.startswith("2 people revoked")
    done = run_sfumato("enroll", newer, "-g", gallery)
    assert "p1 was enrolled before" in done.stderr


def test_enrolling_again_is_refused(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.sqlite"
    run_sfumato("enroll", staff, "--gallery", gallery, *LIFTED)
    before = gallery.read_bytes()
    done = run_sfumato("enroll", staff, "--gallery", gallery, "--row", "p2", code=1)
    assert "error: 'p2' is enrolled: a second, independent template of the same face would reveal it" in done.stderr
    assert gallery.read_bytes() == before


def test_what_nobody_checked_is_told_once(run_sfumato, staff, tmp_path):
    gallery, word = tmp_path / "gallery.sqlite", "no threshold for p-to-s"
    assert word not in run_sfumato("enroll", staff, "--row", "p0", "-g", gallery, *LIFTED).stderr  # nobody else yet
    done = run_sfumato("enroll", write_people(tmp_path / "more.csv", range(1, 6)), "-g", gallery)
    assert done.stderr.count(word) == 1
    assert "'sfumato calibrate'" in done.stderr
    newer = write_people(tmp_path / "newer.csv", [1], seed=1)
    assert word in run_sfumato("renew", newer, "-g", gallery).stderr
    set_threshold(gallery)
    assert run_sfumato("renew", newer, "-g", gallery).stderr == ""


def test_a_template_does_not_move_to_another_face(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.sqlite"
    run_sfumato("enroll", staff, "-g", gallery, *LIFTED)
    set_threshold(gallery)
    before = gallery.read_bytes()
    other = ("renew", write_people(tmp_path / "other.csv", [0], seed=1), "-g", gallery, "--id", "p1")
    assert "the new photo of 'p1' would be rejected" in run_sfumato(*other, code=1).stderr
    assert "'p1' looks like 'p0'" in run_sfumato(*other, "--allow-different", code=1).stderr
    assert gallery.read_bytes() == before
    run_sfumato(*other, "--allow-different", "--allow-similar")


def test_faces_among_the_decoys_are_refused(run_sfumato, tmp_path):
    team, gallery = write_people(tmp_path / "team.csv", range(30)), tmp_path / "gallery.sqlite"
    own = tmp_path / "own.npz"
    run_sfumato("decoys", "build", "--faces", team, "-o", own)
    assert "'p0' is among the decoys" in run_sfumato("enroll", team, "-g", gallery, "--decoys", own, code=1).stderr
    assert not gallery.exists()
    other = write_people(tmp_path / "other.csv", [50])
    run_sfumato("enroll", other, "-g", gallery, "--decoys", own)
    for command in ("calibrate", "renew"):
        call = (command, team, "-g", gallery, "--decoys", own)
        assert "'p0' is among the decoys" in run_sfumato(*call, code=1).stderr


def test_what_can_not_be_enrolled_is_told(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.sqlite"
    for words, arguments in (
        ("--row", (staff, "--id", "alice")),
        ("is not there", (tmp_path / "gone.jpg",)),
        ("such file", (tmp_path / "gone.npz",)),
        (
            "--decoys",
            (staff, "--recipe", "hybrid-2"),
        ),
        ("protects nobody", (staff, "--recipe", "raw")),
    ):
        assert words in run_sfumato("enroll", *arguments, "-g", gallery, code=1).stderr
    (tmp_path / "weak.key").write_text("password")
    weak = ("--secret-file", tmp_path / "weak.key")
    assert "guessed" in run_sfumato("enroll", staff, "-g", gallery, *weak, code=1).stderr
    staff.write_text("a,1,0,0\na,0,1,0\n")
    assert "same name" in run_sfumato("enroll", staff, "-g", gallery, code=1).stderr
    assert "no such gallery" in run_sfumato("revoke", "a", "-g", gallery, code=1).stderr
    assert not gallery.exists()


@pytest.mark.parametrize("command", ["enroll", "renew", "revoke"])
def test_help_teaches(run_sfumato, command):
    assert f"sfumato {command}" in run_sfumato(command, "--help").stdout


def test_a_picture_is_enrolled_and_verified(run_sfumato, tmp_path):
    pytest.importorskip("dlib", reason="needs dlib: pip install 'sfumato[face]'")
    pixels = sample_image("astronaut").pixels[:, :, ::-1]
    for name, picture in (("alice.png", pixels), ("later.jpg", cv2.convertScaleAbs(pixels, alpha=0.8))):
        assert cv2.imwrite(str(tmp_path / name), picture)
    gallery = ("--gallery", tmp_path / "g.sqlite")
    assert "alice enrolled" in run_sfumato("enroll", tmp_path / "alice.png", *gallery, "--id", "alice").stdout
    done = run_sfumato("verify", tmp_path / "later.jpg", *gallery, "--id", "alice")
    assert done.stdout.startswith("accepted as alice")
    assert "--shared-key" in run_sfumato("identify", tmp_path / "later.jpg", *gallery, code=1).stderr


# --- sealed galleries


def test_people_get_keys_and_new_ones(run_sfumato, staff, tmp_path, face_keys):
    gallery = tmp_path / "gallery.sqlite"
    done = run_sfumato("enroll", staff, "-g", gallery)
    folder = face_keys / load_gallery(gallery).id.hex()
    assert done.stdout.splitlines() == [
        f"3 people enrolled with sealed-2048:1: {gallery} holds 3 concealed templates",
        f"keys: {folder} (keep it; no server may have it)",
    ]
    assert done.stderr == ""
    assert sorted(entry.name for entry in folder.iterdir()) == ["p0.key", "p1.key", "p2.key"]
    before = (folder / "p1.key").read_bytes()
    newer = write_people(tmp_path / "newer.csv", [1], seed=1)
    done = run_sfumato("renew", newer, "-g", gallery)
    assert "no threshold for bits" in done.stderr
    assert done.stdout.endswith(f"key: {folder / 'p1.key'} (keep it; no server may have it)\n")
    assert (folder / "p1.key").read_bytes() != before
    done = run_sfumato("revoke", "p1", "-g", gallery, "--json")
    assert json.loads(done.stdout) == {
        "revoked": ["p1"], "people": 2, "recipe": "sealed-2048:1", "gallery": str(gallery)
    }  # fmt: skip
    assert not (folder / "p1.key").exists()
    done = run_sfumato("enroll", newer, "-g", gallery, "--json")
    assert json.loads(done.stdout)["keys"] == str(folder / "p1.key")
    assert done.stderr == ""
    shown = run_sfumato("enroll", newer, "-g", gallery, code=1).stderr
    assert "'p1' is enrolled: renew it (sfumato renew), which makes a new key" in shown


def test_a_key_is_a_file_that_was_named(run_sfumato, staff, tmp_path, face_keys):
    gallery, token = tmp_path / "gallery.sqlite", tmp_path / "token.key"
    done = run_sfumato("enroll", staff, "-g", gallery, "--row", "p0", "--key-file", token)
    assert f"key: {token} " in done.stdout
    assert token.stat().st_mode & 0o777 == 0o600
    assert not face_keys.exists()
    both = ("enroll", write_people(tmp_path / "more.csv", [4, 5]), "-g", gallery, "--key-file", tmp_path / "new.key")
    assert "one key cannot be that of 2 people" in run_sfumato(*both, code=1).stderr
    (tmp_path / "weak.key").write_text("password")
    weak = ("enroll", staff, "-g", tmp_path / "new.sqlite", "--row", "p0", "--key-file", tmp_path / "weak.key")
    assert "guessed" in run_sfumato(*weak, code=1).stderr
    assert not (tmp_path / "new.sqlite").exists()
    key = ("--key-file", tmp_path / "other.key")
    assert "no keys of people" in run_sfumato("enroll", staff, "-g", tmp_path / "l", *key, *LIFTED, code=1).stderr


def test_without_the_old_key_nothing_is_renewed_unless_it_is_allowed(run_sfumato, staff, tmp_path, face_keys):
    gallery, newer = tmp_path / "gallery.sqlite", write_people(tmp_path / "newer.csv", [0], seed=1)
    run_sfumato("enroll", staff, "-g", gallery)
    (face_keys / load_gallery(gallery).id.hex() / "p0.key").unlink()
    shown = run_sfumato("renew", newer, "-g", gallery, code=1).stderr
    assert "the key of 'p0' is not on this device" in shown
    assert "--allow-different" in shown
    assert "p0 renewed" in run_sfumato("renew", newer, "-g", gallery, "--allow-different").stdout


def test_a_key_that_others_may_read_is_told_once(run_sfumato, staff, tmp_path):
    gallery, token = tmp_path / "gallery.sqlite", tmp_path / "token.key"
    token.write_bytes(new_key())
    token.chmod(0o644)
    done = run_sfumato("enroll", staff, "-g", gallery, "--row", "p0", "--key-file", token)
    assert done.stderr.count("others may read") == 1
    empty = tmp_path / "empty.key"
    empty.touch()
    empty.chmod(0o666)
    assert run_sfumato("enroll", staff, "-g", gallery, "--row", "p1", "--key-file", empty).stderr == ""
    assert empty.stat().st_mode & 0o777 == 0o600


def test_the_old_key_may_be_in_another_file(run_sfumato, staff, tmp_path):
    gallery, newer = tmp_path / "gallery.sqlite", write_people(tmp_path / "newer.csv", [0], seed=1)
    old, new = ("--key-file", tmp_path / "old.key"), ("--key-file", tmp_path / "new.key")
    run_sfumato("enroll", staff, "-g", gallery, "--row", "p0", *old)
    assert "--old-key-file" in run_sfumato("renew", newer, "-g", gallery, *new, code=1).stderr
    done = run_sfumato("renew", newer, "-g", gallery, *new, "--old-key-file", tmp_path / "old.key")
    assert done.stdout.startswith("p0 renewed")


def test_near_names_are_for_whoever_may_read_the_gallery(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.sqlite"
    run_sfumato("enroll", staff, "-g", gallery)
    shown = run_sfumato("revoke", "p9", "-g", gallery, code=1).stderr
    assert "'p9' is not enrolled in this gallery (did you mean 'p" in shown
    with pytest.raises(NotEnrolledError) as problem:
        revoke("p9", gallery)
    assert "p0" not in str(problem.value)
