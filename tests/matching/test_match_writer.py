# SPDX-License-Identifier: Apache-2.0
import itertools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.matching import match_writer
from sfumato.matching.archive_images import ArchiveImages
from sfumato.matching.journal import Journal, PairRecord
from sfumato.matching.match_file import load_matches
from sfumato.matching.match_writer import MatchWriter
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


def test_killed_between_the_file_and_the_end_of_the_journal(path, part, archive, monkeypatch):
    monkeypatch.setattr(match_writer.Journal, "remove", lambda self: None)
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
    with sfumato.load(archive_at(tmp_path / "b.sfm.h5", seed=50)) as other:
        with pytest.raises(FileError, match="features: 4"):
            fill(path, other, PAIRS)
        stop_after(tmp_path / "n.h5", archive, PAIRS[:3])
        with pytest.raises(FileError, match="--overwrite"):
            fill(tmp_path / "n.h5", other, PAIRS)
    with sfumato.load(archive_at(tmp_path / "c.sfm.h5", count=9)) as more:
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
    sfumato.save(tmp_path / "n.sfm.h5", {name: image(i, 4) for i, name in enumerate(names)})
    with sfumato.load(tmp_path / "n.sfm.h5") as archive:
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
        with pytest.raises(FileError, match="another writer"), MatchWriter(path, archive):
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
    with pytest.raises(FileError, match="in the"):
        fill(path, archive, PAIRS)
    assert part.read_text() == "my diary"


def test_a_full_disk_is_told_before_it_happens(path, part, archive, monkeypatch):
    monkeypatch.setattr(match_writer.shutil, "disk_usage", lambda _: SimpleNamespace(free=2000))
    with pytest.raises(FileError, match="free"):
        fill(path, archive, PAIRS[:5])
    monkeypatch.undo()
    assert not path.exists()
    assert fill(path, archive, PAIRS) == 10


FULL = """
import resource, sys
import numpy as np
import sfumato
from sfumato.matching.match_writer import MatchWriter
from sfumato.types.scene import Matches
archive, path, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
nothing = Matches(np.zeros((0, 2), int), np.zeros(0))
with sfumato.load(archive) as opened, MatchWriter(path, opened) as writer:
    for i in range(5):
        for j in range(i):
            writer.add((f"db/{i}.jpg", f"db/{j}.jpg"), nothing)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
"""


@pytest.mark.parametrize("limit", [0, 100, 5000])
def test_a_disk_that_is_full_at_the_end_loses_nothing(path, part, archive, archive_path, limit):
    command = [sys.executable, "-c", FULL, str(archive_path), str(path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr  # an exception, not a crash inside libhdf5
    assert "FileError" in done.stderr
    assert "10 pairs are kept" in done.stderr
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["a.sfm.h5", "m.h5.part"]
    assert fill(path, archive, [("db/0.jpg", "db/1.jpg"), ("db/0.jpg", "db/5.jpg")]) == 1
    assert len(content(path)[0]) == 11


def test_an_error_before_the_first_pair_leaves_nothing(path, part, archive):
    stop_after(path, archive, [])
    assert not path.exists()
    assert not part.exists()


def test_images_damaged_since_keep_their_matches(path, archive, archive_path):
    stop_after(path, archive, PAIRS[:5])
    raw = bytearray(archive_path.read_bytes())
    raw[raw.index(archive.header("db/1.jpg").checksum.encode())] ^= 1
    archive_path.write_bytes(raw)
    with sfumato.load(archive_path) as damaged, MatchWriter(path, damaged) as writer:
        assert len(writer.done) == 5
    assert sorted(content(path)[0]) == PAIRS[:5]


def forge(part, archive, pair, rows, counts=None, purpose=None):
    """A journal with one whole pair and one that nobody wrote: every length and checksum in it is right."""
    headers = [archive.header(name) for name in pair]
    sums = tuple(header.checksum for header in headers)
    real = tuple(header.count for header in headers)
    parameters = {"mutual": True, "ratio": 0.95, "max_distance": None}
    journal = Journal(part)
    journal.begin(purpose or json.dumps({"parameters": parameters, "overwrite": False}))
    journal.append(PairRecord(pair, counts or real, sums, Matches(rows, np.zeros(len(rows)))))
    journal.append(PairRecord((pair[0], "db/2.jpg"), (30, 28), (sums[0], archive.header("db/2.jpg").checksum), NOTHING))
    journal.close()


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([[30, 0]], None),
        ([[0, 29]], None),
        ([[1, 2], [1, 3]], None),
        ([[0, 0]], (2**32 - 1, 29)),
        ([[0, 0]], (30, 2**32 - 1)),
        ([[0, 0]], (29, 29)),
    ],
)
def test_a_forged_journal_costs_its_pair_only(path, part, archive, tmp_path, caplog, rows, counts):
    forge(part, archive, PAIRS[0], rows, counts)
    assert fill(path, archive, PAIRS) == 14
    assert "matches that the images cannot have: 'db/0.jpg' 'db/1.jpg'" in caplog.text
    fill(tmp_path / "clean.h5", archive, PAIRS)
    found, clean = content(path)[0], content(tmp_path / "clean.h5")[0]
    assert found[PAIRS[0]] == clean[PAIRS[0]]
    assert sorted(found) == sorted(clean)
    assert path.stat().st_size < 10**6


def test_a_forged_number_of_a_damaged_image(path, part, archive, archive_path):
    forge(part, archive, PAIRS[0], [[0, 0]], (2**32 - 1, 29))
    raw = bytearray(archive_path.read_bytes())
    raw[raw.index(archive.header("db/0.jpg").checksum.encode())] ^= 1
    archive_path.write_bytes(raw)
    with sfumato.load(archive_path) as damaged, MatchWriter(path, damaged) as writer:
        assert PAIRS[0] not in writer.done
        assert len(writer.done) == 1


def test_a_purpose_without_a_bottom(path, part, archive):
    forge(part, archive, PAIRS[0], [[0, 0]], purpose="[" * 200_000)
    with pytest.raises(FileError, match="--overwrite"):
        fill(path, archive, PAIRS)
    assert fill(path, archive, PAIRS, overwrite=True) == 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": 3}, "started with threads 3, not no threads:"),
        ({"ratio": 0.5, "threads": 3}, "started with ratio 0.5, threads 3, not ratio 0.95, no threads:"),
    ],
)
def test_parameters_of_another_version_are_named(path, archive, change, message):
    fill(path, archive, PAIRS[:3])
    with h5py.File(path, "r+") as file:
        found = json.loads(bytes(file.attrs["parameters"]))
        file.attrs["parameters"] = np.bytes_(json.dumps({**found, **change}).encode())
    with pytest.raises(FileError, match=message):
        fill(path, archive, PAIRS)


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


@pytest.mark.parametrize("call", [1, 2, 5, 9])
@pytest.mark.parametrize("adds", [True, False])
def test_ctrl_c_while_the_file_is_written(path, part, archive, monkeypatch, call, adds):
    if adds:
        fill(path, archive, PAIRS[:3])
    before = path.read_bytes() if adds else None
    real, calls = os.pwrite, []

    def interrupted(fd, data, place):
        calls.append(place)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(fd, data, place)

    with pytest.raises(KeyboardInterrupt):
        fill(path, archive, PAIRS, then=lambda: monkeypatch.setattr(os, "pwrite", interrupted))
    monkeypatch.undo()
    assert len(calls) >= call
    assert (path.read_bytes() if path.exists() else None) == before
    assert part.exists()
    assert not path.with_name("m.h5.new.part").exists()
    assert fill(path, archive, PAIRS) == 0
    assert sorted(content(path)[0]) == PAIRS


def test_a_link_left_beside_it_leads_nowhere(path, archive, tmp_path):
    precious = tmp_path / "diary.txt"
    precious.write_text("dear diary")
    path.with_name("m.h5.new.part").symlink_to(precious)
    fill(path, archive, PAIRS)
    assert precious.read_text() == "dear diary"
    assert len(content(path)[0]) == 15
