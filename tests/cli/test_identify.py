# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.concealment.keys import new_key
from sfumato.faces.calibration import calibrate
from sfumato.faces.enrollment import enroll
from sfumato.features.embeddings import save_embeddings
from sfumato.types.clear import Embeddings


@pytest.fixture(autouse=True)
def face_keys(tmp_path, monkeypatch):
    """A folder for the keys of people, in place of the one of whoever runs the tests."""
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path / "face-keys"))
    return tmp_path / "face-keys"


@pytest.fixture
def gallery(tmp_path):
    faces = Embeddings(np.random.default_rng(0).normal(size=(6, 64)), tuple("abcdef"))
    enroll(faces, tmp_path / "gallery.sqlite", recipe="random-2")
    np.savez(tmp_path / "probe.npz", embedding=faces.values[[3]] + 0.01)
    return tmp_path / "gallery.sqlite"


def test_the_nearest_are_named(run_sfumato, gallery):
    probe = gallery.with_name("probe.npz")
    lines = run_sfumato("identify", probe, "-g", gallery, "-k", 2).stdout.splitlines()
    assert lines[0].startswith("1. d: distance 0.")
    assert lines[-1] == "2 of 6 people (p-to-s)"
    everybody = run_sfumato("identify", probe, "-g", gallery, "-k", 2**31 - 1).stdout
    assert everybody.endswith("6 of 6 people (p-to-s)\n")
    strangers = Embeddings(np.random.default_rng(5).normal(size=(60, 64)), tuple(f"p{row}" for row in range(60)))
    calibrate(strangers, gallery, rate=0.01)
    facts = json.loads(run_sfumato("identify", probe, "-g", gallery, "--json").stdout)
    assert [one["accepted"] for one in facts["candidates"]] == [True, False, False, False, False]
    assert 0 < facts["expected by chance"] <= 0.06
    assert "accepted" in run_sfumato("identify", probe, "-g", gallery).stdout


def test_what_can_not_be_asked_is_told(run_sfumato, gallery):
    probe = gallery.with_name("probe.npz")
    assert "no such gallery" in run_sfumato("identify", probe, "-g", gallery.with_name("x.sqlite"), code=1).stderr
    assert "k: expected" in run_sfumato("identify", probe, "-g", gallery, "-k", 0, code=1).stderr
    assert "sfumato identify" in run_sfumato("identify", "--help").stdout


def test_a_gallery_with_one_key_is_searched_and_one_with_many_is_not(run_sfumato, gallery, tmp_path):
    probe, key = gallery.with_name("probe.npz"), tmp_path / "device.key"
    key.write_bytes(new_key())
    key.chmod(0o600)
    faces, shared, secret = gallery.with_name("faces.npz"), tmp_path / "shared.sqlite", ("--secret-file", key)
    save_embeddings(faces, Embeddings(np.random.default_rng(0).normal(size=(6, 64)), tuple("abcdef")))
    done = run_sfumato("enroll", faces, "-g", shared, "--shared-key", *secret, "--json")
    assert "keys" not in json.loads(done.stdout)  # no file was made
    lines = run_sfumato("identify", probe, "-g", shared, "-k", 2, *secret).stdout.splitlines()
    assert lines[0].startswith("1. d: distance 0.")
    assert lines[-1] == "2 of 6 people (bits)"
    facts = json.loads(run_sfumato("identify", probe, "-g", shared, "--json", *secret).stdout)
    assert (facts["candidates"][0]["id"], facts["comparison"], facts["threshold"]) == ("d", "bits", None)
    key.write_bytes(new_key())
    assert "error: " in run_sfumato("identify", probe, "-g", shared, *secret, code=1).stderr
    run_sfumato("enroll", faces, "-g", tmp_path / "own.sqlite")
    shown = run_sfumato("identify", probe, "-g", tmp_path / "own.sqlite", code=1).stderr
    assert "sealed under a key of each person" in shown
    assert "--shared-key" in shown
    late = ("enroll", probe, "-g", tmp_path / "own.sqlite", "--id", "x", "--shared-key")
    assert "a key for each person" in run_sfumato(*late, code=1).stderr
