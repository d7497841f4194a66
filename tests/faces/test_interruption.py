# SPDX-License-Identifier: Apache-2.0
"""Enrollments that are killed and tried again: one embedding has one lifting, whatever is left on the disk.

Run as a program this file does the killing, in a process of its own, and prints what it found as JSON.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.faces import enrollment
from sfumato.faces.enrollment import enroll
from sfumato.faces.gallery_file import DTYPE, code_rows, load_gallery
from sfumato.files.sqlite import Database

DIMS, SIZE = 64, 3 * 64 * 4
PEOPLE = 3000
"""More than SQLite keeps in memory: a part is written before the end of the transaction."""

RELEASES, TEMPLATES = "INSERT OR REPLACE INTO releases", "INSERT INTO templates"


def faces_of(photo):
    people = np.random.default_rng(1).normal(size=(PEOPLE, DIMS))
    return people + 0.1 * np.random.default_rng([2, photo]).normal(size=people.shape)


def attempt(gallery, photo, *, delay=None, statement=None, is_fresh=False):
    """Enroll everyone in a child; kill it after a time, or when it has run a statement; tell whether it lived."""
    child = os.fork()
    if child:
        if delay is not None:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1] == 0
    run = Database.many

    def run_and_die(self, query, values):
        run(self, query, values)
        if query.startswith(statement):
            os.kill(os.getpid(), signal.SIGKILL)

    if statement is not None:
        Database.many = run_and_die
    if is_fresh:
        enrollment.release_secret = lambda *_: os.urandom(32)
    try:
        ids = [f"p{row:04}" for row in range(PEOPLE)]
        enroll(faces_of(photo), gallery, ids=ids, recipe="random-2", allow_similar=True)
    except InputError:
        pass  # they are enrolled
    except BaseException as problem:
        sys.stderr.write(f"{problem}\n")
        os._exit(1)
    os._exit(0)


def templates_on_disk(folder):
    """Every template in any file of a folder, by its person, as bytes: whether a transaction holds it or not."""
    codes = defaultdict(set)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        place = data.find(DTYPE.encode())
        while place >= 0:
            person, code = data[place - 5 : place], data[place + 3 : place + 3 + SIZE]
            if re.fullmatch(rb"p\d{4}", person) and len(code) == SIZE:  # numbers may look like the letters of a type
                codes[person.decode("latin-1")].add(code)
            place = data.find(DTYPE.encode(), place + 1)
    return codes


def try_until_done(folder, kills, **settings):
    """Kill attempts, then let one finish; return what was on the disk at any time, and what is in the gallery."""
    folder.mkdir(mode=0o700)
    path, codes, unfinished = folder / "gallery.sqlite", defaultdict(set), 0
    for kill in [*kills, {}]:
        is_alive = attempt(path, **{"photo": 0, **settings, **kill})
        assert is_alive or kill
        lost = templates_on_disk(folder)
        unfinished += bool(lost) and not is_alive
        for person, texts in lost.items():
            codes[person] |= texts
        assert {oct(entry.stat().st_mode & 0o777) for entry in folder.iterdir()} <= {"0o600"}
    gallery = load_gallery(path)
    assert len(gallery) == PEOPLE
    written = dict(zip(gallery.templates.ids, code_rows(gallery.templates), strict=True))
    result = {
        "unfinished": unfinished,
        "several": sum(len(texts) > 1 for texts in codes.values()),
        "strange": sum(written[person] not in texts for person, texts in codes.items()),
        "people": len(codes),
        "releases": sorted(set(gallery.releases.values())),
        "files": sorted(entry.name for entry in folder.iterdir() if entry.suffix != ".part"),
    }
    shutil.rmtree(folder)
    return result


def random_kills(folder, trials):
    """Kill one to three attempts of each trial at random moments of the time that a run takes."""
    draw, start = np.random.default_rng(trials), time.perf_counter()
    try_until_done(folder / "all", [])
    longest = time.perf_counter() - start
    for trial in range(trials):
        kills = [{"delay": delay} for delay in draw.uniform(0, longest, draw.integers(1, 4))]
        yield try_until_done(folder / str(trial), kills)


HERE, THERE = {"statement": TEMPLATES}, {"statement": TEMPLATES, "photo": 1}
RUNS = {
    "same photo": {"kills": [{"statement": RELEASES}, HERE, HERE]},
    "fresh draws": {"kills": [HERE], "is_fresh": True},
    "other photo": {"kills": [THERE]},
    "first photo again": {"kills": [HERE, THERE]},
}

if __name__ == "__main__":
    place = Path(sys.argv[1])
    answer = {name: try_until_done(place / name, **run) for name, run in RUNS.items()}
    answer["random"] = list(random_kills(place, int(sys.argv[2])))
    sys.stdout.write(json.dumps(answer))
    sys.exit()


def kill_all(folder, trials):
    command = [sys.executable, __file__, str(folder), str(trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return kill_all(tmp_path_factory.mktemp("kills"), 1)


def check_random_kills(results):
    for result in results:
        assert (result["several"], result["strange"], result["people"]) == (0, 0, PEOPLE)
        assert (result["releases"], result["files"]) == ([1], ["gallery.sqlite"])  # and perhaps an empty .part


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_one_lifting_of_a_face(results):
    check_random_kills(results["random"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_kills_leave_one_lifting_of_a_face(tmp_path):
    check_random_kills(kill_all(tmp_path, 100)["random"])


def test_a_template_that_was_almost_written_is_written_again(results):
    result = results["same photo"]
    assert result["unfinished"] == 2  # kills left templates behind, in no transaction
    assert (result["several"], result["strange"], result["releases"]) == (0, 0, [1])


def test_draws_that_do_not_repeat_are_seen_on_the_disk_and_counted(results):
    """What the tests above would find if every attempt drew anew."""
    assert results["fresh draws"]["several"] > PEOPLE / 10
    assert results["fresh draws"]["releases"] == [2]


def test_another_photo_is_a_further_release_and_the_first_one_again_is_none(results):
    assert results["other photo"]["releases"] == [2]
    result = results["first photo again"]
    assert (result["releases"], result["strange"]) == ([2], 0)
