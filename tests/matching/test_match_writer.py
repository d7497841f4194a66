# SPDX-License-Identifier: Apache-2.0
import itertools
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.files import atomic
from sfumato.matching import match_writer
from sfumato.matching.archive_images import ArchiveImages
from sfumato.matching.match_file import load_matches
from sfumato.matching.match_writer import MatchWriter, PairRecord
from sfumato.matching.mutual import MatchParams
from sfumato.types.scene import Matches

PAIRS = list(itertools.combinations([f"db/{i}.jpg" for i in range(6)], 2))
NOTHING = Matches(np.zeros((0, 2), int), np.zeros(0))


@pytest.fixture
def archive(archive_path):
    with sfumato.load(archive_path) as opened:
        yield opened


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.h5"


@pytest.fixture
def part(tmp_path):
    return tmp_path / "m.h5.part"


def fill(path, archive, pairs, params=None, then=lambda: None, **settings):
    """Match and write pairs that are not there yet; return how many that were."""
    params, images, count = params or MatchParams(), ArchiveImages(archive), 0
    with MatchWriter(path, archive, params, **settings) as writer:
        for pair in pairs:
            if pair not in writer.done:
                writer.add(pair, images.match(pair, params))
                count += 1
        then()
    return count


def stop_after(path, archive, pairs, params=None, **settings):
    """The same, interrupted after the last pair."""

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(path, archive, pairs, params, interrupt, **settings)


def beside(path):
    """The files of a match file and what is being made of it."""
    return sorted(name for name in os.listdir(path.parent) if name.startswith((path.name, ".")))


def content(path):
    with load_matches(path) as file:
        found = {pair: file[pair] for pair in file}
        return {pair: (m.indices.tolist(), m.distances.tolist()) for pair, m in found.items()}, file.provenance


def test_the_file_does_not_depend_on_the_order_or_on_interruptions(path, part, archive, tmp_path):
    assert fill(path, archive, PAIRS) == 15
    assert not part.exists()
    for number, order in enumerate((PAIRS[::-1], PAIRS[5:] + PAIRS[:5])):
        other = tmp_path / f"{number}.h5"
        stop_after(other, archive, order[:7])
        assert not other.exists()
        assert fill(other, archive, order) == 8
        assert other.read_bytes() == path.read_bytes()
    assert sorted(content(path)[0]) == PAIRS


def test_more_pairs_are_added_and_nothing_is_done_twice(path, archive):
    assert fill(path, archive, PAIRS[:6]) == 6
    assert fill(path, archive, [pair[::-1] for pair in PAIRS]) == 9
    before = path.read_bytes()
    assert fill(path, archive, PAIRS) == 0
    assert path.read_bytes() == before
    pairs, purpose = content(path)
    assert {frozenset(pair) for pair in pairs} == {frozenset(pair) for pair in PAIRS}
    assert len(pairs) == 15
    assert len(purpose.images) == 6


def test_interrupted_while_adding_to_a_file(path, part, archive):
    fill(path, archive, PAIRS[:5])
    before = path.read_bytes()
    stop_after(path, archive, PAIRS[:9])
    assert path.read_bytes() == before
    assert part.exists()
    assert fill(path, archive, PAIRS) == 6
    assert sorted(content(path)[0]) == PAIRS


def test_killed_between_the_file_and_the_end_of_the_state(path, part, archive, monkeypatch):
    monkeypatch.setattr(match_writer.sqlite, "remove", lambda path: None)
    fill(path, archive, PAIRS[:5])
    monkeypatch.undo()
    assert part.exists()
    assert fill(path, archive, PAIRS) == 10
    assert sorted(content(path)[0]) == PAIRS
    assert not part.exists()


def test_a_pair_added_twice_is_written_once(path, archive):
    with MatchWriter(path, archive) as writer:
        for pair in (PAIRS[0], PAIRS[0], PAIRS[0][::-1]):
            writer.add(pair, NOTHING)
    assert list(content(path)[0]) == [PAIRS[0]]


@pytest.mark.parametrize("changed", [{"mutual": False}, {"ratio": 0.8}, {"max_distance": 1.0}])
def test_other_parameters_are_refused(path, part, archive, changed):
    fill(path, archive, PAIRS[:3])
    with pytest.raises(FileError, match=f"started with {next(iter(changed))} .*--overwrite"):
        fill(path, archive, PAIRS, MatchParams(**changed))
    assert not part.exists()
    stop_after(path, archive, PAIRS[:4])
    path.unlink()
    with pytest.raises(FileError, match="--overwrite"):
        fill(path, archive, PAIRS, MatchParams(**changed))
    assert fill(path, archive, PAIRS[:4], MatchParams(threads=1)) == 3  # how fast does not matter
    assert fill(path, archive, PAIRS, MatchParams(**changed), overwrite=True) == 15


def test_other_features_are_refused_and_more_images_are_not(path, part, archive, tmp_path, archive_at):
    fill(path, archive, PAIRS[:3])
    with sfumato.load(archive_at(tmp_path / "b.sfm", seed=50)) as other:
        with pytest.raises(FileError, match="features: 4"):
            fill(path, other, PAIRS)
        stop_after(tmp_path / "n.h5", archive, PAIRS[:3])
        with pytest.raises(FileError, match="--overwrite"):
            fill(tmp_path / "n.h5", other, PAIRS)
    with sfumato.load(archive_at(tmp_path / "c.sfm", count=9)) as more:
        last = ("db/0.jpg", "db/7.jpg")
        assert fill(path, more, [PAIRS[0], last]) == 1
        assert sorted(content(path)[0]) == [*PAIRS[:3], last]


def test_overwrite_begins_anew_and_its_interruption_goes_on(path, part, archive):
    fill(path, archive, PAIRS[:3])
    before = path.read_bytes()
    stop_after(path, archive, PAIRS[5:9], params=MatchParams(ratio=0.9), overwrite=True)
    assert path.read_bytes() == before
    assert fill(path, archive, PAIRS[5:], MatchParams(ratio=0.9)) == 6  # without overwrite: it goes on
    assert sorted(content(path)[0]) == PAIRS[5:]


def test_names_that_are_spelt_alike_are_refused(path, part, image, tmp_path):
    names = ["a/b.jpg", "a-b.jpg", "c.jpg"]
    sfumato.save(tmp_path / "n.sfm", {name: image(i, 4) for i, name in enumerate(names)})
    with sfumato.load(tmp_path / "n.sfm") as archive:
        with pytest.raises(InputError, match=r"'a-b.jpg'"), MatchWriter(path, archive) as writer:
            writer.expect(archive)
        with MatchWriter(path, archive) as writer:
            writer.add(("a/b.jpg", "c.jpg"), NOTHING)
            with pytest.raises(InputError, match="alike"):
                writer.add(("c.jpg", "a-b.jpg"), NOTHING)
        with pytest.raises(InputError, match="alike"), MatchWriter(path, archive) as writer:
            writer.add(("c.jpg", "a-b.jpg"), NOTHING)
    assert list(content(path)[0]) == [("a/b.jpg", "c.jpg")]
    assert not part.exists()


@pytest.mark.parametrize("rows", [[[0, 29]], [[30, 0]], [[1, 2], [1, 3]]])
def test_matches_that_can_not_be(path, archive, rows):
    with MatchWriter(path, archive) as writer, pytest.raises(InputError, match=r"name (rows|a row)"):
        writer.add(PAIRS[0], Matches(rows, np.zeros(len(rows))))
    assert not path.exists()


def test_matches_in_any_order(path, archive):
    with MatchWriter(path, archive) as writer:
        writer.add(PAIRS[0], Matches([[7, 1], [2, 5]], [0.5, 0.25]))
    assert content(path)[0] == {PAIRS[0]: ([[2, 5], [7, 1]], [0.25, 0.5])}


def test_one_writer_at_a_time(path, archive):
    with MatchWriter(path, archive) as writer:
        with pytest.raises(FileError, match="another process"), MatchWriter(path, archive):
            pass
        writer.add(PAIRS[0], NOTHING)
    assert len(content(path)[0]) == 1
    with pytest.raises(FileError, match="with block"):
        writer.add(PAIRS[0], NOTHING)


def test_files_that_are_in_the_way(path, part, archive, tmp_path):
    with h5py.File(path, "w") as file:
        file.create_group("a.jpg/b.jpg")
    with pytest.raises(FileError, match="Sfumato"):
        fill(path, archive, PAIRS)
    path.write_bytes(b"junk")
    with pytest.raises(FileError, match="HDF5"):
        fill(path, archive, PAIRS)
    assert not part.exists()
    path.unlink()
    with pytest.raises(FileError, match="no folder"):
        fill(tmp_path / "none" / "m.h5", archive, PAIRS)
    with pytest.raises(FileError, match="not a"):
        fill(tmp_path, archive, PAIRS)
    part.write_text("my diary")
    for overwrite in (False, True):
        with pytest.raises(FileError, match="move"):
            fill(path, archive, PAIRS, overwrite=overwrite)
    assert part.read_text() == "my diary"
    part.unlink()
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="link"):
        fill(path, archive, PAIRS)
    assert not (tmp_path / "elsewhere").exists()


@contextmanager
def largest_file(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 2000])
def test_a_disk_that_is_full_at_the_end_loses_nothing(path, part, archive, monkeypatch, room):
    real = match_writer.new_hdf5

    @contextmanager
    def full(target):
        with largest_file(room), real(target) as file:
            yield file

    monkeypatch.setattr(match_writer, "new_hdf5", full)
    with pytest.raises(FileError, match="10 pairs"):
        fill(path, archive, PAIRS[:10])
    monkeypatch.undo()
    assert beside(path) == ["m.h5.part"]
    assert fill(path, archive, PAIRS[:11]) == 1
    assert len(content(path)[0]) == 11


def test_a_disk_that_is_full_while_pairs_are_kept(path, part, archive):
    stop_after(path, archive, PAIRS[:5])
    with pytest.raises(FileError, match=r"part.*full"), largest_file(100):
        fill(path, archive, PAIRS)
    assert fill(path, archive, PAIRS) == 10


def test_an_error_before_the_first_pair_leaves_nothing(path, part, archive):
    stop_after(path, archive, [])
    assert not path.exists()
    assert not part.exists()


def forge(part, archive, pair, rows, counts=None, purpose=None):
    """A state with one right pair and one that nobody matched: every digest in it is right."""
    headers = [archive.header(name) for name in (*pair, "db/2.jpg")]
    sums, real = [header.checksum for header in headers], [header.count for header in headers]
    parameters = {"mutual": True, "ratio": 0.95, "max_distance": None}
    records = [
        PairRecord(pair, counts or tuple(real[:2]), tuple(sums[:2]), Matches(rows, np.zeros(len(rows)))),
        PairRecord((pair[0], "db/2.jpg"), (real[0], real[2]), (sums[0], sums[2]), NOTHING),
    ]
    with match_writer.sqlite.open_writer(part, match_writer.UNFINISHED) as state:
        state.rows(
            "INSERT INTO purpose VALUES (?)", (purpose or json.dumps({"parameters": parameters, "overwrite": False}),)
        )
        for record in records:
            state.rows("INSERT INTO pair VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", record.row())


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([[30, 0]], None),
        ([[0, 29]], None),
        ([[1, 2], [1, 3]], None),
        ([[0, 0]], (2**32 - 1, 29)),
        ([[0, 0]], (29, 29)),
    ],
)
def test_a_forged_state_costs_its_pair_only(path, part, archive, tmp_path, caplog, rows, counts):
    forge(part, archive, PAIRS[0], rows, counts)
    assert fill(path, archive, PAIRS) == 14
    assert "1 pairs in it are not used" in caplog.text
    fill(tmp_path / "clean.h5", archive, PAIRS)
    found, clean = content(path)[0], content(tmp_path / "clean.h5")[0]
    assert found[PAIRS[0]] == clean[PAIRS[0]]
    assert sorted(found) == sorted(clean)


@pytest.mark.parametrize("purpose", ["[" * 200_000, "{}", "[]", '{"parameters": 3, "overwrite": false}'])
def test_a_purpose_that_is_none(path, part, archive, purpose):
    forge(part, archive, PAIRS[0], [[0, 0]], purpose=purpose)
    with pytest.raises(FileError, match="delete"):
        fill(path, archive, PAIRS)
    assert fill(path, archive, PAIRS, overwrite=True) == 15


def test_damaged_pairs_of_the_state_are_matched_again(path, part, archive, caplog, tmp_path):
    stop_after(path, archive, PAIRS[:5])
    with closing(sqlite3.connect(part)) as state:
        state.execute("UPDATE pair SET distances = zeroblob(length(distances)) WHERE rowid = 2")
        state.execute("UPDATE pair SET indices = x'00' WHERE rowid = 3")
        state.execute("UPDATE pair SET count0 = 1 WHERE rowid = 4")
        state.commit()
    assert fill(path, archive, PAIRS) == 13
    fill(tmp_path / "clean.h5", archive, PAIRS)
    assert path.read_bytes() == (tmp_path / "clean.h5").read_bytes()


def test_a_state_that_is_cut_off(path, part, archive):
    stop_after(path, archive, PAIRS[:5])
    whole = part.read_bytes()
    for size in (0, 50, len(whole) // 2):
        part.write_bytes(whole[:size])
        with pytest.raises(FileError, match="delete"):
            fill(path, archive, PAIRS)
    part.unlink()
    assert fill(path, archive, PAIRS) == 15


def test_pairs_are_kept_within_a_second_and_by_the_hundred(path, part, archive, monkeypatch):
    clock, commits = [0.0], []
    monkeypatch.setattr(match_writer.time, "monotonic", lambda: clock[0])
    real = MatchWriter._commit
    monkeypatch.setattr(MatchWriter, "_commit", lambda self: (commits.append(len(self._waiting)), real(self))[1])
    monkeypatch.setattr(match_writer, "COMMIT_PAIRS", 4)
    with MatchWriter(path, archive) as writer:
        for pair in PAIRS[:7]:
            writer.add(pair, NOTHING)
        clock[0] = 1.0
        writer.add(PAIRS[7], NOTHING)
        writer.add(PAIRS[8], NOTHING)
    assert commits == [1, 4, 3, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": 3}, "started with threads 3, not no threads:"),
        ({"ratio": 0.5, "threads": 3}, "started with ratio 0.5, threads 3, not ratio 0.95, no threads:"),
    ],
)
def test_parameters_of_another_version_are_named(path, part, archive, change, message):
    parameters = {"mutual": True, "ratio": 0.95, "max_distance": None, **change}
    forge(part, archive, PAIRS[0], [[0, 0]], purpose=json.dumps({"parameters": parameters, "overwrite": False}))
    with pytest.raises(FileError) as caught:
        fill(path, archive, PAIRS)
    assert message in str(caught.value)


@pytest.mark.parametrize("what", ["dataset", "empty group", "link", "short", "no distances", "turned"])
def test_a_damaged_pair_is_matched_again(path, archive, tmp_path, caplog, what):
    fill(path, archive, PAIRS)
    clean = content(path)[0]
    outer, inner = "db-0.jpg", "db-1.jpg"
    with h5py.File(path, "r+") as file:
        if what == "no distances":
            del file[outer][inner]["distances"]
        elif what == "short":
            del file[outer][inner]["matches0"]
            file[outer][inner]["matches0"] = np.zeros(3, np.int32)
        else:
            del file[outer][inner]
            outer, inner = (inner, outer) if what == "turned" else (outer, inner)
            if what == "dataset":
                file[outer][inner] = 5
            elif what == "link":
                file[outer][inner] = h5py.SoftLink("/db-0.jpg/db-2.jpg")
            else:
                file[outer].create_group(inner)
    assert fill(path, archive, PAIRS) == 1
    assert "is damaged in places" in caplog.text
    assert content(path)[0] == clean
    assert fill(path, archive, PAIRS) == 0


def test_one_that_is_cut_off_says_what_to_do(path, archive):
    fill(path, archive, PAIRS)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileError, match="--overwrite"):
        fill(path, archive, PAIRS)
    assert fill(path, archive, PAIRS, overwrite=True) == 15


@pytest.mark.parametrize("adds", [True, False])
def test_ctrl_c_while_the_file_is_written(path, part, archive, monkeypatch, adds):
    if adds:
        fill(path, archive, PAIRS[:3])
    before = path.read_bytes() if adds else None
    real, calls = match_writer.pair_arrays, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(match_writer, "pair_arrays", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(path, archive, PAIRS)
    monkeypatch.undo()
    assert (path.read_bytes() if path.exists() else None) == before
    assert beside(path) == (["m.h5", "m.h5.part"] if adds else ["m.h5.part"])
    assert fill(path, archive, PAIRS) == 0
    assert sorted(content(path)[0]) == PAIRS


# --- kill -9 at any moment


KILLED = """
import sys, time
import sfumato
from sfumato.matching import match_writer
from sfumato.matching.archive_images import ArchiveImages
match_writer.COMMIT_SECONDS = 0.0
with sfumato.load(sys.argv[1]) as archive, match_writer.MatchWriter(sys.argv[2], archive) as writer:
    images, names = ArchiveImages(archive), sorted(archive)
    for i, first in enumerate(names):
        for second in names[i + 1:]:
            if (first, second) not in writer.done:
                writer.add((first, second), images.match((first, second), writer.params))
                print("added", flush=True)
                time.sleep(0.01)
    print("writing", flush=True)
"""


def kill_once(path, archive_path, lines, delay):
    """Run until this many lines are printed, wait, kill; return how many pairs were added for certain."""
    command = [sys.executable, "-c", KILLED, str(archive_path), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    added = 0
    while added < lines and process.stdout.readline():
        added += 1
    time.sleep(delay)
    process.kill()
    rest = process.stdout.read().splitlines()
    process.stdout.close()
    assert process.wait() in (-signal.SIGKILL, 0)
    return added + len(rest) - ("writing" in rest or lines == 16)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(34))
def test_a_kill_loses_nothing_that_was_kept(path, archive, archive_path, tmp_path, monkeypatch, seed):
    monkeypatch.setattr(atomic, "YOUNG_SECONDS", -1.0)
    rng, certain = np.random.default_rng(seed), 0
    for lines in sorted(rng.choice(np.arange(1, 15), 2, replace=False)):
        certain += kill_once(path, archive_path, int(lines) - certain, rng.random() * 0.02)
    kill_once(path, archive_path, 15 - certain + 1, rng.random() * 0.2)  # while the match file is written
    assert fill(path, archive, PAIRS) <= 15 - certain
    fill(tmp_path / "clean.h5", archive, PAIRS)
    assert fill(path, archive, PAIRS) == 0
    assert path.read_bytes() == (tmp_path / "clean.h5").read_bytes()
    assert beside(path) == ["m.h5"]
