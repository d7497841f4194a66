# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.faces.calibration import calibrate
from sfumato.faces.enrollment import enroll
from sfumato.types.clear import Embeddings


@pytest.fixture
def gallery(tmp_path):
    faces = Embeddings(np.random.default_rng(0).normal(size=(6, 64)), tuple("abcdef"))
    enroll(faces, tmp_path / "gallery.sqlite")
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
