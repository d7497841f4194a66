# SPDX-License-Identifier: Apache-2.0
import json

import cv2
import numpy as np
import pytest

from sfumato.faces.compare import Threshold
from sfumato.faces.gallery_file import GalleryWriter, load_gallery
from sfumato.images.samples import sample_image


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


@pytest.fixture
def staff(tmp_path):
    return write_people(tmp_path / "staff.csv", range(3))


def test_people_are_enrolled_renewed_and_revoked(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.sqlite"
    done = run_sfumato("enroll", staff, "--gallery", gallery)
    assert done.stdout.strip() == f"3 people enrolled with random-2: {gallery} holds 3 concealed templates"
    assert "hides gender and race badly" in done.stderr
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
    run_sfumato("enroll", staff, "--gallery", gallery)
    before = gallery.read_bytes()
    done = run_sfumato("enroll", staff, "--gallery", gallery, "--row", "p2", code=1)
    assert "error: 'p2' is enrolled: a second, independent template of the same face would reveal it" in done.stderr
    assert gallery.read_bytes() == before


def test_what_nobody_checked_is_told_once(run_sfumato, staff, tmp_path):
    gallery, word = tmp_path / "gallery.sqlite", "no threshold for p-to-s"
    assert word not in run_sfumato("enroll", staff, "--row", "p0", "-g", gallery).stderr  # nobody else yet
    done = run_sfumato("enroll", write_people(tmp_path / "more.csv", range(1, 6)), "-g", gallery)
    assert done.stderr.count(word) == 1
    assert "'sfumato calibrate'" in done.stderr
    newer = write_people(tmp_path / "newer.csv", [1], seed=1)
    assert word in run_sfumato("renew", newer, "-g", gallery).stderr
    set_threshold(gallery)
    assert run_sfumato("renew", newer, "-g", gallery).stderr == ""


def test_a_template_does_not_move_to_another_face(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.sqlite"
    run_sfumato("enroll", staff, "-g", gallery)
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
    assert (
        "guessed" in run_sfumato("enroll", staff, "-g", gallery, "--secret-file", tmp_path / "weak.key", code=1).stderr
    )
    staff.write_text("a,1,0,0\na,0,1,0\n")
    assert "same name" in run_sfumato("enroll", staff, "-g", gallery, code=1).stderr
    assert "no such gallery" in run_sfumato("revoke", "a", "-g", gallery, code=1).stderr
    assert not gallery.exists()


@pytest.mark.parametrize("command", ["enroll", "renew", "revoke"])
def test_help_teaches(run_sfumato, command):
    assert f"sfumato {command}" in run_sfumato(command, "--help").stdout


def test_a_picture_is_enrolled_verified_and_identified(run_sfumato, tmp_path):
    pytest.importorskip("dlib", reason="needs dlib: pip install 'sfumato[face]'")
    pixels = sample_image("astronaut").pixels[:, :, ::-1]
    for name, picture in (("alice.png", pixels), ("later.jpg", cv2.convertScaleAbs(pixels, alpha=0.8))):
        assert cv2.imwrite(str(tmp_path / name), picture)
    gallery = ("--gallery", tmp_path / "g.sqlite")
    assert "alice enrolled" in run_sfumato("enroll", tmp_path / "alice.png", *gallery, "--id", "alice").stdout
    told = run_sfumato("identify", tmp_path / "later.jpg", *gallery, "--json").stdout
    (found,) = json.loads(told)["candidates"]
    assert found["id"] == "alice"
    assert found["distance"] < 0.2
    assert "calibrate" in run_sfumato("verify", tmp_path / "later.jpg", *gallery, "--id", "alice", code=1).stderr
