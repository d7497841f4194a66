# SPDX-License-Identifier: Apache-2.0
import json
import os
import resource

import numpy as np
import pytest

import sfumato
from sfumato.features.hloc import read_hloc


def test_clear_features_are_written_with_a_warning(run_sfumato, photos, tmp_path):
    path = tmp_path / "clear.h5"
    done = run_sfumato("extract", photos, "-o", path, "--max-features", 50)
    assert done.stdout.startswith("100 clear features of 3 images:")
    assert "warning: " in done.stderr
    assert "skipped broken.jpg" in done.stderr
    found = dict(read_hloc(path, extractor="sift"))
    assert sorted(found) == ["a.png", "deep/b.jpg", "grey.png"]
    expected = sfumato.extract(photos / "a.png", max_features=50)
    assert np.abs(found["a.png"].descriptors - expected.descriptors).max() < 1e-6
    again = run_sfumato("extract", photos, "-o", path, code=1)
    assert "--overwrite" in again.stderr
    facts = json.loads(run_sfumato("extract", photos, "-o", path, "--overwrite", "--json").stdout)
    assert facts["clear"] is True
    assert facts["images"] == 3


@pytest.mark.parametrize(("name", "told"), [("clear.sfm", ".sfm"), ("no/clear.h5", "clear.h5")])
def test_wrong_outputs_are_refused(run_sfumato, photos, tmp_path, name, told):
    assert told in run_sfumato("extract", photos, "-o", tmp_path / name, "--max-features", 9, code=1).stderr
    assert not list(tmp_path.iterdir())


def test_help_teaches(run_sfumato):
    assert "Example: sfumato extract" in " ".join(run_sfumato("extract", "--help").stdout.split())


def test_a_folder_without_a_readable_photo_gives_no_file(run_sfumato, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "text.jpg").write_text("no photo")
    done = run_sfumato("extract", tmp_path / "photos", "-o", tmp_path / "clear.h5", code=1)
    assert "text.jpg" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["photos"]


def test_clear_features_are_their_owners(run_sfumato, photos, tmp_path):
    path, before = tmp_path / "clear.h5", os.umask(0o022)
    try:
        run_sfumato("extract", photos, "-o", path, "--max-features", 5)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o640)
        run_sfumato("extract", photos, "-o", path, "--max-features", 5, "--overwrite")
        assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_a_full_disk_gives_one_line_and_leaves_nothing(run_sfumato, photos, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        done = run_sfumato("extract", photos, "-o", tmp_path / "clear.h5", "--max-features", 50, "--quiet", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("warning: ", "skipped "))]
    assert len(lines) == 1
    assert "clear.h5: cannot be written" in lines[0]
    assert not list(tmp_path.iterdir())
