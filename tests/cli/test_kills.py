# SPDX-License-Identifier: Apache-2.0
"""Commands that are killed at random moments and typed again: nothing finished is lost, nothing is half there."""

import os
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

import sfumato
from sfumato.concealment.keys import key_for_gallery, person_key
from sfumato.concealment.seal import fingerprint
from sfumato.device.positions import open_positions
from sfumato.errors import FileError
from sfumato.faces.gallery_file import EMPTY, load_gallery

PHOTOS, PEOPLE = 8, 400
KILLS = 60


@pytest.fixture(autouse=True)
def face_keys(tmp_path_factory, monkeypatch):
    """A folder for the keys of people, in place of the one of whoever runs the tests."""
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path_factory.mktemp("face-keys")))


@pytest.fixture(scope="module")
def sources(tmp_path_factory, run_sfumato):
    """Photos, a key, an archive of the photos, its matches, and embeddings of people."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    scene = cv2.GaussianBlur(rng.integers(0, 255, (500, 700), np.uint8), (0, 0), 2)
    scene = cv2.normalize(scene, None, 0, 255, cv2.NORM_MINMAX)
    for i in range(PHOTOS):
        assert cv2.imwrite(str(folder / f"photos/{i:02}.png"), scene[10 * i : 10 * i + 360, 15 * i : 15 * i + 480])
    names, faces = [f"p{i}" for i in range(PEOPLE)], rng.normal(size=(PEOPLE, 128)).astype(np.float32)
    np.savez(folder / "people.npz", names=names, embeddings=faces)
    (folder / "key").write_bytes(rng.bytes(32))
    (folder / "key").chmod(0o600)
    run_sfumato(*conceal(folder, folder))
    run_sfumato(*match(folder, folder))
    return folder


def conceal(sources, folder):
    return "conceal", sources / "photos", "-o", folder / "a.sfm", "--secret-file", sources / "key"


def match(sources, folder):
    return "match", sources / "a.sfm", "--exhaustive", "-o", folder / "m.h5"


def enroll(sources, folder):
    return "enroll", sources / "people.npz", "-g", folder / "g.sqlite"


def check_archive(sources, path):
    """Every image is whole, and its positions are on the device; return how many there are."""
    with sfumato.load(sources / "a.sfm") as whole, sfumato.load(path) as archive:
        if len(archive) == 0:
            return 0.0
        with open_positions(path) as kept, open_positions(sources / "a.sfm") as every:
            for name in archive:
                photo = whole[name].tags.photo
                assert np.array_equal(archive[name].code.packed, whole[name].code.packed)
                assert archive[name].tags.photo == photo
                assert archive[name].tags.rows.tobytes() == whole[name].tags.rows.tobytes()
                assert np.array_equal(kept.read(name, photo), every.read(name, photo))
        return len(archive) / len(whole)


def check_matches(sources, path):
    """The file is there as a whole or not at all."""
    assert path.read_bytes() == (sources / "m.h5").read_bytes()
    return 1.0


def check_gallery(sources, path):
    """All are enrolled or none, nobody twice, and the key of everybody is here."""
    try:
        gallery = load_gallery(path)
    except FileError as problem:
        if EMPTY not in str(problem):
            raise
        return 0.0
    assert len(gallery) in (0, PEOPLE)
    assert set(gallery.releases.values()) <= {1}
    for person, name in zip(gallery.templates.ids, gallery.templates.keys, strict=True):
        keys = [key_for_gallery(key, gallery.id, person) for key in person_key(gallery.id, person).read_all()]
        assert name in [fingerprint(gallery.recipe, key, gallery.dimensions, odd=True) for key in keys]
    return len(gallery) / PEOPLE


def run_and_kill(arguments, seconds):
    """Start a command, kill it after a while; tell whether it was faster."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sfumato", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        errors = process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        errors = process.communicate()[1]
        if process.returncode < 0:
            return False
    assert process.returncode == 0, errors
    return True


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("command", "name", "check"),
    [(conceal, "a.sfm", check_archive), (match, "m.h5", check_matches), (enroll, "g.sqlite", check_gallery)],
    ids=["conceal", "match", "enroll"],
)
def test_a_command_killed_at_any_moment_can_be_typed_again(sources, tmp_path, command, name, check):
    rng, killed, trial, done = np.random.default_rng(1), 0, 0, 0.0
    (tmp_path / "whole").mkdir()
    started = time.perf_counter()
    assert run_and_kill(command(sources, tmp_path / "whole"), 300)
    usual = time.perf_counter() - started
    while killed < KILLS or done < 1:
        folder = tmp_path / str(trial)
        folder.mkdir(exist_ok=True)
        limit = rng.uniform(0.3, 1.1) * usual if killed < KILLS else 300  # the first third goes to imports
        is_finished = run_and_kill(command(sources, folder), limit)
        killed += not is_finished
        now = check(sources, folder / name) if (folder / name).exists() else 0.0
        assert now >= done
        done = now
        if is_finished:
            assert done == 1
            known = [name, f"{name}.positions"] if name == "a.sfm" else [name]
            assert sorted(entry for entry in os.listdir(folder) if not entry.startswith(".")) == known
        if done == 1 and killed < KILLS:
            trial, done = trial + 1, 0.0
