# SPDX-License-Identifier: Apache-2.0
from concurrent.futures import ThreadPoolExecutor

import pytest

import sfumato
from sfumato.errors import FileError, InputError, WorkerError
from sfumato.matching.match_archive import check_device, match_to_file
from sfumato.matching.match_file import load_matches
from sfumato.matching.mutual import MatchParams
from sfumato.matching.pairs import exhaustive, listed


@pytest.fixture
def archive(archive_path):
    with sfumato.load(archive_path) as opened:
        yield opened


def test_pairs_become_a_file(archive, tmp_path):
    path, told = tmp_path / "m.h5", []

    def progress(items, total):
        told.append(total)
        return items

    outcome = match_to_file(archive, exhaustive(archive), path, progress=progress)
    assert (outcome.pairs, outcome.skipped, outcome.failed) == (15, 0, {})
    assert outcome.pairs_per_second > 0
    with load_matches(path) as file:
        assert len(file) == 15
        assert outcome.matches == sum(len(file[pair]) for pair in file) > 20
    with sfumato.load(archive.path) as again:
        outcome = match_to_file(again, exhaustive(again), path, progress=progress)
    assert (outcome.pairs, outcome.skipped, outcome.pairs_per_second) == (0, 15, 0)
    assert told == [15, 0]


def test_others_do_the_work(archive, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        match_to_file(archive, exhaustive(archive), tmp_path / "a.h5", MatchParams(ratio=0.9), pool, in_flight=3)
    match_to_file(archive, exhaustive(archive), tmp_path / "b.h5", MatchParams(ratio=0.9))
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_what_can_not_be_matched_is_named_and_tried_again(archive_path, tmp_path, spoil):
    whole = archive_path.read_bytes()
    spoil(archive_path, "db/1.jpg")
    path = tmp_path / "m.h5"
    with sfumato.load(archive_path) as archive:
        outcome = match_to_file(archive, exhaustive(archive), path)
    assert (outcome.pairs, len(outcome.failed)) == (10, 5)
    assert all("db/1.jpg" in pair and "db/1.jpg" in reason for pair, reason in outcome.failed.items())
    archive_path.write_bytes(whole)
    with sfumato.load(archive_path) as archive:
        outcome = match_to_file(archive, exhaustive(archive), path)
    assert (outcome.pairs, outcome.skipped) == (5, 10)


def test_mistakes(archive, tmp_path):
    with pytest.raises(InputError, match="nothing to match"):
        match_to_file(archive, listed([("db/0.jpg", "db/0.jpg")]), tmp_path / "m.h5")
    with pytest.raises(InputError, match="not in the archive"):
        match_to_file(archive, listed([("db/0.jpg", "x")]), tmp_path / "m.h5")
    with pytest.raises(FileError, match="no folder"):
        match_to_file(archive, exhaustive(archive), tmp_path / "none" / "m.h5")
    assert not list(tmp_path.glob("m.h5*"))


def test_a_device_that_is_not_there_is_told_once(archive, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.h5"
    match_to_file(archive, listed([("db/0.jpg", "db/1.jpg")]), path)
    before, nowhere = path.read_bytes(), MatchParams(device="cuda:99")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="'cuda:99'"):
            match_to_file(archive, exhaustive(archive), path, nowhere, overwrite=overwrite)
        with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="'cuda:99'"):
            match_to_file(archive, exhaustive(archive), path, nowhere, pool, overwrite=overwrite)
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.sfm.h5", "m.h5"]
    assert match_to_file(archive, exhaustive(archive), path, MatchParams(device="cpu")).pairs == 14


def test_workers_that_can_not_say_what_they_have():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(WorkerError, match="worker"):
        check_device("cpu", pool)
    check_device(None, pool)
