# SPDX-License-Identifier: Apache-2.0
import json

import cv2
import numpy as np
import pytest

from sfumato.faces.galleryfile import load_gallery
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


@pytest.fixture
def staff(tmp_path):
    return write_people(tmp_path / "staff.csv", range(3))


def test_people_are_enrolled_renewed_and_revoked(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.h5"
    done = run_sfumato("enroll", staff, "--gallery", gallery, alone=False)
    assert done.stdout.strip() == f"3 people enrolled with random-2: {gallery} holds 3 concealed templates"
    assert "hides gender and race badly" in done.stderr
    done = run_sfumato("enroll", staff, "-g", gallery, "--row", "p1", "--id", "alice", "--json", alone=False)
    assert json.loads(done.stdout) == {
        "enrolled": ["alice"], "people": 4, "recipe": "random-2", "gallery": str(gallery)
    }  # fmt: skip
    before = load_gallery(gallery).template("p1").subspaces.origin
    newer = write_people(tmp_path / "newer.csv", [1], seed=1)
    assert run_sfumato("renew", newer, "-g", gallery, alone=False).stdout.startswith("p1 renewed")
    assert not np.allclose(load_gallery(gallery).template("p1").subspaces.origin, before)
    assert run_sfumato("revoke", "p0", "p1", "p0", "-g", gallery, alone=False).stdout.startswith("2 people revoked")
    done = run_sfumato("enroll", newer, "-g", gallery, alone=False)
    assert "p1 was enrolled before" in done.stderr


def test_enrolling_again_is_refused(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.h5"
    run_sfumato("enroll", staff, "--gallery", gallery, alone=False)
    before = gallery.read_bytes()
    done = run_sfumato("enroll", staff, "--gallery", gallery, "--row", "p2", code=1)
    assert "error: 'p2' is enrolled: a second, independent template of the same face would reveal it" in done.stderr
    assert gallery.read_bytes() == before


def test_what_can_not_be_enrolled_is_told(run_sfumato, staff, tmp_path):
    gallery = tmp_path / "gallery.h5"
    for words, arguments in (
        ("holds 3 faces: say which", (staff, "--id", "alice")),
        ("is not there", (tmp_path / "gone.jpg",)),
        ("No such file", (tmp_path / "gone.npz",)),
        ("hybrid-2 needs decoys", (staff, "--recipe", "hybrid-2")),
        ("protects nobody", (staff, "--recipe", "raw")),
    ):
        assert words in run_sfumato("enroll", *arguments, "-g", gallery, code=1).stderr
    staff.write_text("a,1,0,0\na,0,1,0\n")
    assert "some faces have the same name" in run_sfumato("enroll", staff, "-g", gallery, code=1).stderr
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
    gallery = ("--gallery", tmp_path / "g.h5")
    assert "alice enrolled" in run_sfumato("enroll", tmp_path / "alice.png", *gallery, "--id", "alice").stdout
    told = run_sfumato("identify", tmp_path / "later.jpg", *gallery, "--json").stdout
    (found,) = json.loads(told)["candidates"]
    assert found["id"] == "alice"
    assert found["distance"] < 0.2
    assert "calibrate" in run_sfumato("verify", tmp_path / "later.jpg", *gallery, "--id", "alice", code=1).stderr
