# SPDX-License-Identifier: Apache-2.0
"""The command that lets positions go, on photos of a made-up room."""

import json
import os
import shutil
import stat

import cv2
import numpy as np
import pytest

import sfumato


@pytest.fixture(scope="module")
def made(small_room, tmp_path_factory, run_sfumato):
    """A folder with a sealed archive of a room, its matches, and the key."""
    folder = tmp_path_factory.mktemp("release")
    (folder / "the.key").write_bytes(os.urandom(32))
    (folder / "the.key").chmod(0o600)
    shutil.copytree(small_room / "images", folder / "photos")
    few = ("--max-features", 500, "--extractor", "opencv", "--secret-file", folder / "the.key")
    run_sfumato("conceal", folder / "photos", "-o", folder / "private.sfm", *few)
    run_sfumato("match", folder / "private.sfm", "--exhaustive", "-o", folder / "matches.h5")
    return folder


@pytest.fixture
def release(made, tmp_path, run_sfumato):
    """Run the command on a copy of its own; return what it did, with what ``--json`` says."""
    for path in made.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)

    def run(*arguments, code=0):
        words = ("release", tmp_path / "private.sfm", "--matches", tmp_path / "matches.h5")
        return run_sfumato(*words, "--secret-file", tmp_path / "the.key", *arguments, code=code)

    return run


def shown_in(path):
    with sfumato.load(path) as images:
        return sum(int(images[name].is_shown.sum()) for name in images)


def test_it_says_how_much_left_and_the_same_again_is_nothing_new(release, tmp_path):
    done = release()
    assert "positions left" in done.stdout
    assert str(tmp_path / "private.sfm") in done.stdout
    facts = json.loads(release("--json").stdout)
    assert facts["new"] == 0
    assert facts["released"] == shown_in(tmp_path / "private.sfm") > 50
    assert facts["rows"] > facts["released"]
    assert facts["share"] == facts["released"] / facts["rows"]
    assert sum(facts["by photo"].values()) == facts["released"]
    assert not facts["kept back"]


def test_a_dry_run_lets_nothing_go_and_its_pictures_show_what_would(release, tmp_path, made):
    before = (tmp_path / "private.sfm").read_bytes()
    seen = ("--photos", made / "photos", "--pictures", tmp_path / "seen")
    facts = json.loads(release("--dry-run", "--json", *seen).stdout)
    assert facts["dry run"]
    assert (tmp_path / "private.sfm").read_bytes() == before
    assert "would leave" in release("--dry-run").stdout
    assert sorted(facts["pictures"]) == sorted(str(path) for path in (tmp_path / "seen").iterdir())
    assert facts["new"] > 50
    would = dots_in(tmp_path / "seen")
    assert would > 0
    assert json.loads(release("--json", *seen).stdout)["new"] == facts["new"]
    assert dots_in(tmp_path / "seen") == would
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "seen").iterdir()} == {0o600}


def dots_in(folder):
    """How much of the right half of pictures, which shows what a server sees, is not black."""
    return sum(int((cv2.imread(str(path))[:, -200:] > 128).sum()) for path in folder.iterdir())


def test_what_is_kept_back_is_named_and_ends_with_1(release, tmp_path):
    done = release("--limit", 0.01, code=1)
    for name in ("view-0000.png", "view-0001.png"):
        assert f"{name}: " in done.stderr
    assert "--limit" in done.stderr
    assert shown_in(tmp_path / "private.sfm") == 0


def test_masks_keep_at_home_what_lies_under_them(release, tmp_path, made):
    everything = json.loads(release("--dry-run", "--json").stdout)
    (tmp_path / "never").mkdir()
    height, width = cv2.imread(str(made / "photos" / "view-0000.png")).shape[:2]
    cv2.imwrite(str(tmp_path / "never" / "view-0000.png.png"), np.zeros((height, width), np.uint8))
    facts = json.loads(release("--never", tmp_path / "never", "--json").stdout)
    assert facts["by photo"]["view-0000.png"] == 0
    assert 0 < facts["released"] < everything["released"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--pictures", "seen"), "--photos"),
        (("--rule", "track"), "tracks"),
        (("--limit", "1.5"), "--limit"),
        (("--never", "none"), "--never"),
        (("--place", "hall"), "--place"),
        (("--photos", "none"), "none"),
    ],
)
def test_mistakes_are_told_and_nothing_leaves(release, tmp_path, arguments, word):
    assert word in release(*arguments, code=1).stderr
    assert shown_in(tmp_path / "private.sfm") == 0


def test_another_key_and_a_lost_file_of_positions_are_told(release, tmp_path, run_sfumato, made):
    words = ("release", tmp_path / "private.sfm", "--matches", tmp_path / "matches.h5")
    assert "--secret-file" in run_sfumato(*words, code=1).stderr
    (tmp_path / "private.sfm.positions").unlink()
    assert "--photos" in release(code=1).stderr
    assert json.loads(release("--photos", made / "photos", "--json").stdout)["new"] > 50


def test_rules_are_explained(run_sfumato):
    shown = " ".join(run_sfumato("release", "--help").stdout.replace("│", " ").split())
    for word in ("tracks", "circles", "pairs", "--never", "--dry-run", "--limit"):
        assert word in shown
