# SPDX-License-Identifier: Apache-2.0
from concurrent.futures import ThreadPoolExecutor

import pytest

import sfumato
from sfumato.errors import FileError, InputError, WorkerError
from sfumato.matching.batch import check_device, match_archive
from sfumato.matching.match_file import load_matches
from sfumato.matching.mutual import MatchParams


@pytest.fixture
def archive(archive_path):
    with sfumato.load(archive_path) as opened:
        yield opened


def test_pairs_become_a_file(archive, tmp_path):
    path, totals = tmp_path / "m.h5", []

    def progress(stage, items, total):
        totals.append((stage, total))
        return items

    outcome = match_archive(archive, path, "exhaustive", progress=progress)
    assert (outcome.pairs, outcome.skipped, outcome.failed) == (15, 0, {})
    assert outcome.pairs_per_second > 0
    with load_matches(path) as file:
        assert len(file) == 15
        assert outcome.matches == sum(len(file[pair]) for pair in file) > 20
    with sfumato.load(archive.path) as again:
        outcome = match_archive(again, path, "exhaustive", progress=progress)
    assert (outcome.pairs, outcome.skipped, outcome.pairs_per_second) == (0, 15, 0)
    assert totals == [("matching", 15), ("matching", 0)]


def test_others_do_the_work(archive, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        match_archive(archive, tmp_path / "a.h5", "exhaustive", MatchParams(ratio=0.9), executor=pool, in_flight=3)
    match_archive(archive, tmp_path / "b.h5", "exhaustive", MatchParams(ratio=0.9))
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_what_can_not_be_matched_is_named_and_tried_again(archive_path, tmp_path, spoil):
    whole = archive_path.read_bytes()
    spoil(archive_path, "db/1.jpg")
    path = tmp_path / "m.h5"
    with sfumato.load(archive_path) as archive:
        outcome = match_archive(archive, path, "exhaustive")
    assert (outcome.pairs, len(outcome.failed)) == (10, 5)
    assert all("db/1.jpg" in pair and "db/1.jpg" in reason for pair, reason in outcome.failed.items())
    archive_path.write_bytes(whole)
    with sfumato.load(archive_path) as archive:
        outcome = match_archive(archive, path, "exhaustive")
    assert (outcome.pairs, outcome.skipped) == (5, 10)


def test_mistakes(archive, tmp_path):
    with pytest.raises(InputError, match="to match"):
        match_archive(archive, tmp_path / "m.h5", [("db/0.jpg", "db/0.jpg")])
    with pytest.raises(InputError, match="archive"):
        match_archive(archive, tmp_path / "m.h5", [("db/0.jpg", "x")])
    with pytest.raises(FileError, match="no folder"):
        match_archive(archive, tmp_path / "none" / "m.h5", "exhaustive")
    assert not list(tmp_path.glob("m.h5*"))


def test_a_device_that_is_not_there_is_told_once(archive, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.h5"
    match_archive(archive, path, [("db/0.jpg", "db/1.jpg")])
    before, nowhere = path.read_bytes(), MatchParams(device="cuda:99")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="'cuda:99'"):
            match_archive(archive, path, "exhaustive", nowhere, overwrite=overwrite)
        with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="'cuda:99'"):
            match_archive(archive, path, "exhaustive", nowhere, executor=pool, overwrite=overwrite)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
    assert match_archive(archive, path, "exhaustive", MatchParams(device="cpu")).pairs == 14


def test_workers_that_can_not_say_what_they_have():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(WorkerError, match="worker"):
        check_device("cpu", pool)
    check_device(None, pool)


def test_pairs_are_taken_in_every_form_and_processes_do_the_same(archive_path, tmp_path):
    (tmp_path / "pairs.txt").write_text("db/0.jpg db/1.jpg\n")
    for number, (pairs, count) in enumerate(
        [("sequential:2", 9), ("votes:20", 15), (tmp_path / "pairs.txt", 1), ([("db/0.jpg", "db/2.jpg")], 1)]
    ):
        outcome = match_archive(str(archive_path), tmp_path / f"{number}.h5", pairs)
        assert (outcome.pairs, len(outcome.choice.pairs)) == (count, count)
    match_archive(archive_path, tmp_path / "workers.h5", "sequential:2", workers=2)
    assert (tmp_path / "workers.h5").read_bytes() == (tmp_path / "0.h5").read_bytes()


def test_what_is_read_is_not_written(archive_path, tmp_path):
    before = archive_path.read_bytes()
    (tmp_path / "pairs.txt").write_text("db/0.jpg db/1.jpg\n")
    for output, pairs, inputs in (
        (archive_path, "exhaustive", {}),
        (tmp_path / "pairs.txt", tmp_path / "pairs.txt", {}),
        (tmp_path / "pairs.txt", "exhaustive", {"the codebook": tmp_path / "pairs.txt"}),
    ):
        with pytest.raises(FileError, match=output.name):
            match_archive(archive_path, output, pairs, inputs=inputs, overwrite=True)
    assert archive_path.read_bytes() == before
    for settings in ({"workers": 0}, {"workers": 2, "executor": ThreadPoolExecutor(1)}):
        with pytest.raises(InputError, match="workers"):
            match_archive(archive_path, tmp_path / "m.h5", **settings)
