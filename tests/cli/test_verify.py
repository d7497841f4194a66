# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.concealment.decoys import save_decoys
from sfumato.concealment.faces import build_face_decoys
from sfumato.faces.calibration import calibrate
from sfumato.faces.enrollment import enroll
from sfumato.features.embeddings import save_embeddings
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A gallery of two with both thresholds, its decoys, and newer photos; tests must not write to it."""
    folder, rng = tmp_path_factory.mktemp("faces"), np.random.default_rng(0)
    faces = rng.normal(size=(2, 64))
    decoys = build_face_decoys(Embeddings(rng.normal(size=(60, 64))))
    save_decoys(folder / "decoys.npz", decoys)
    enroll(Embeddings(faces, ("alice", "bob")), folder / "gallery.sqlite", decoys=decoys)
    strangers = Embeddings(rng.normal(size=(60, 64)), tuple(f"p{row}" for row in range(60)))
    for comparison in ("p-to-s", "s-to-s"):
        calibrate(strangers, folder / "gallery.sqlite", decoys=decoys, rate=0.01, comparison=comparison)
    save_embeddings(folder / "probes.npz", Embeddings(faces + 0.1 * rng.normal(size=(2, 64)), ("new-a", "new-b")))
    return folder


@pytest.fixture(autouse=True)
def face_keys(tmp_path, monkeypatch):
    """A folder for the keys of people, in place of the one of whoever runs the tests."""
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path / "face-keys"))
    return tmp_path / "face-keys"


def ask(folder, row, one, *more):
    return ("verify", folder / "probes.npz", "--row", row, "-g", folder / "gallery.sqlite", "--id", one, *more)


@pytest.mark.parametrize("more", [(), ("--distance", "s-to-s", "--decoys", "decoys.npz")])
def test_the_right_person_is_accepted_and_another_is_not(run_sfumato, folder, monkeypatch, more):
    monkeypatch.chdir(folder)
    done = run_sfumato(*ask(folder, "new-a", "alice", *more))
    assert done.stdout.startswith("accepted as alice: distance 0.")
    assert "of strangers" in done.stdout
    done = run_sfumato(*ask(folder, "new-a", "bob", "--json", *more), code=3)
    facts = json.loads(done.stdout)
    assert facts["accepted"] is False
    assert facts["distance"] > facts["threshold"]
    assert 0 < facts["false accept rate"] <= 0.01
    assert facts["comparison"] == ("s-to-s" if more else "p-to-s")


def test_what_can_not_be_decided_is_told(run_sfumato, folder, tmp_path):
    assert "'eve' is not enrolled" in run_sfumato(*ask(folder, "new-a", "eve"), code=1).stderr
    assert "did you mean 'alice'" in run_sfumato(*ask(folder, "new-a", "alise"), code=1).stderr
    assert "--decoys" in run_sfumato(*ask(folder, "new-a", "bob", "--distance", "s-to-s"), code=1).stderr
    assert "did you mean 's-to-s'" in run_sfumato(*ask(folder, "new-a", "bob", "--distance", "stos"), code=1).stderr
    assert "no face is called 'x'" in run_sfumato(*ask(folder, "x", "bob"), code=1).stderr
    enroll(Embeddings(np.eye(1, 64), ("bob",)), tmp_path / "gallery.sqlite", recipe="random-2")
    done = run_sfumato(
        "verify", folder / "probes.npz", "--row", "new-a", "-g", tmp_path / "gallery.sqlite", "--id", "bob", code=1
    )
    assert "p-to-s" in done.stderr
    assert "sfumato verify" in run_sfumato("verify", "--help").stdout


# --- sealed galleries


@pytest.fixture
def sealed(tmp_path, face_keys):
    """Two people of 512 numbers, sealed as ArcFace's, and newer photos of them."""
    rng = np.random.default_rng(1)
    faces = rng.normal(size=(2, 512))
    enroll(faces, tmp_path / "gallery.sqlite", ids=["alice", "bob"], extractor="arcface")
    newer = Embeddings(faces + 0.3 * rng.normal(size=(2, 512)), ("new-a", "new-b"), Extractor("arcface"))
    save_embeddings(tmp_path / "probes.npz", newer)
    return tmp_path


def test_a_sealed_probe_is_accepted_rejected_or_of_another_key(run_sfumato, sealed, face_keys):
    done = run_sfumato(*ask(sealed, "new-a", "alice"))
    assert done.stdout.startswith("accepted as alice: distance 0.")
    assert "(bits), which accepts 0.001 of strangers' faces under this key" in done.stdout
    assert run_sfumato(*ask(sealed, "new-b", "alice"), code=3).stdout.startswith("rejected as alice: distance 0.")
    facts = json.loads(run_sfumato(*ask(sealed, "new-a", "alice", "--json")).stdout)
    assert (facts["accepted"], facts["same key"], facts["comparison"]) == (True, True, "bits")
    assert facts["distance"] < facts["threshold"] < 0.5
    done = run_sfumato(*ask(sealed, "new-a", "alice", "--key-of", "bob"), code=3)
    assert "sealed under another key" in done.stdout
    facts = json.loads(run_sfumato(*ask(sealed, "new-a", "alice", "--key-of", "bob", "--json"), code=3).stdout)
    assert (facts["accepted"], facts["same key"]) == (False, False)
    (folder,) = face_keys.iterdir()
    key = (folder / "alice.key").rename(sealed / "token.key")
    assert run_sfumato(*ask(sealed, "new-a", "alice", "--key-file", key)).stdout.startswith("accepted")
    shown = run_sfumato(*ask(sealed, "new-a", "alice"), code=1).stderr
    assert "the key of 'alice' is not on this device" in shown
    assert "--key-file" in shown


def test_liftings_and_seals_are_not_compared_alike(run_sfumato, sealed):
    done = run_sfumato(*ask(sealed, "new-a", "alice", "--distance", "p-to-s"), code=1)
    assert "sealed: it cannot be compared by p-to-s" in done.stderr
