# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.faces.enrollment import enroll
from sfumato.faces.gallery_file import load_gallery
from sfumato.types.clear import Embeddings


@pytest.fixture(autouse=True)
def face_keys(tmp_path, monkeypatch):
    """A folder for the keys of people, in place of the one of whoever runs the tests."""
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path / "face-keys"))
    return tmp_path / "face-keys"


@pytest.fixture
def gallery(tmp_path):
    enroll(Embeddings(np.eye(2, 16), ("a", "b")), tmp_path / "gallery.sqlite")
    rows = np.random.default_rng(0).normal(size=(60, 16))
    np.savez(tmp_path / "strangers.npz", embedding=rows, name=[f"p{row}" for row in range(60)])
    return tmp_path / "gallery.sqlite"


def test_a_threshold_is_chosen_and_stored(run_sfumato, gallery):
    strangers = gallery.with_name("strangers.npz")
    done = run_sfumato("calibrate", strangers, "-g", gallery, "--rate", "0.01", "--json")
    facts = json.loads(done.stdout)
    (stored,) = load_gallery(gallery).thresholds
    assert facts == {**stored.to_dict(), "gallery": str(gallery)}
    assert stored.impostor_pairs == 60 * 59
    assert stored.measured_rate <= 0.01
    done = run_sfumato("calibrate", strangers, "-g", gallery, "--rate", "0.1")
    assert done.stdout.startswith("threshold for bits: 0.")
    assert "of 3540 pairs of strangers (60 people) are accepted" in done.stdout
    assert len(load_gallery(gallery).thresholds) == 1


def test_people_come_from_a_table(run_sfumato, gallery):
    table = gallery.with_name("people.csv")
    table.write_text("".join(f"p{row},{row // 2}\n" for row in range(60)))
    strangers = gallery.with_name("strangers.npz")
    done = run_sfumato("calibrate", strangers, "-g", gallery, "--rate", "0.1", "--people", table, "--json")
    assert (json.loads(done.stdout)["people"], json.loads(done.stdout)["impostor_pairs"]) == (30, 60 * 58)


def test_how_names_make_people_is_told(run_sfumato, gallery):
    faces = gallery.with_name("one.npz")
    np.savez(faces, embedding=np.eye(3, 16), name=["s-1", "s-2", "s-3"])
    told = run_sfumato("calibrate", faces, "-g", gallery, code=1).stderr
    assert "all 3 faces would be of one person, 's'" in told
    assert "--people TABLE" in told
    table = gallery.with_name("people.csv")
    table.write_text("s-1,a\ns-2,a\ns-3,a\n")
    assert "another table of people" in run_sfumato("calibrate", faces, "-g", gallery, "--people", table, code=1).stderr


def test_too_few_faces_are_told(run_sfumato, gallery):
    done = run_sfumato("calibrate", gallery.with_name("strangers.npz"), "-g", gallery, code=1)
    assert "a false-accept rate of 0.001 needs 10000 pairs of different people to be measured" in done.stderr
    assert "sfumato calibrate" in run_sfumato("calibrate", "--help").stdout
