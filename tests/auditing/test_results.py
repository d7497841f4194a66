# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.auditing.runner import Results, load_records
from sfumato.auditing.task import Sample
from sfumato.errors import FileError, InputError
from sfumato.types.record import Record, Score

A, B = Sample("a", "1"), Sample("b", "2")


@pytest.fixture
def results(counting, tmp_path):
    return Results(tmp_path, counting.task([A, B]))


def test_predictions_come_back(results):
    arrays = {"indices": np.array([[1, 2]], np.int32), "names": np.array(["x"]), "none": np.zeros((0, 2), np.float32)}
    results.save_prediction(A, arrays, 1.5)
    found, seconds = results.load_prediction(A)
    assert seconds == 1.5
    assert {name: array.dtype for name, array in found.items()} == {n: a.dtype for n, a in arrays.items()}
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert not results.prediction_path(B).exists()


@pytest.mark.parametrize("value", [np.array([{}], object), np.array([1 + 1j]), [None]])
def test_only_plain_arrays_are_kept(results, value):
    with pytest.raises(InputError, match="prediction"):
        results.save_prediction(A, {"x": value}, 0.0)
    with pytest.raises(InputError, match="prediction"):
        results.save_prediction(A, {"seconds": np.zeros(1)}, 0.0)
    assert not list((results.folder / "predictions").iterdir())


def damaged(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 255
    return bytes(data)


@pytest.mark.parametrize(
    "spoil",
    [lambda path: b"", lambda path: b"no archive", lambda path: path.read_bytes()[:-40], damaged],
    ids=["empty", "text", "cut", "changed"],
)
def test_damaged_predictions_are_told(results, spoil):
    results.save_prediction(A, {"x": np.arange(1000)}, 0.0)
    path = results.prediction_path(A)
    path.write_bytes(spoil(path))
    with pytest.raises(FileError, match="damaged"):
        results.load_prediction(A)


def test_pickled_arrays_are_refused(results):
    np.savez(results.prediction_path(A), x=np.array([{}], object), seconds=np.array(0.0))
    with pytest.raises(FileError, match="damaged"):
        results.load_prediction(A)


def test_scores_come_back_and_the_last_line_counts(results):
    results.add_scores(A, {"x": 1}, 0.5)
    results.add_scores(B, {"x": 2.0}, 0.5)
    assert results.add_scores(A, {"x": np.float32(3)}, 0.25) == {"x": 3.0}
    assert results.scores() == {A: ({"x": 3.0}, 0.25), B: ({"x": 2.0}, 0.5)}


def test_scores_of_another_version_or_digest_are_not_these(results, counting, tmp_path):
    results.add_scores(A, {"x": 1}, 0.0)
    assert Results(tmp_path, counting.task([A, B], score_version=2)).scores() == {}
    assert Sample("a", "other") not in results.scores()


def test_a_torn_line_costs_one_sample(results):
    results.add_scores(A, {"x": 1}, 0.0)
    results.add_scores(B, {"x": 2}, 0.0)
    path = results.folder / "scores.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    assert list(results.scores()) == [A]
    results.add_scores(B, {"x": 2}, 0.0)
    assert list(results.scores()) == [A, B]


@pytest.mark.parametrize(
    "line", ["[]", "3", "null", '{"sample": 1}', "{" * 100_000, "\x00", '{"version": 1, "scores": []}']
)
def test_hostile_lines_are_left_out(results, line):
    (results.folder / "scores.jsonl").write_text(line + "\n")
    results.add_scores(A, {"x": 1}, 0.0)
    assert list(results.scores()) == [A]
    results.forget([A])
    assert results.scores() == {}


def test_scores_that_are_not_finite_are_refused(results):
    with pytest.raises(InputError, match="finite"):
        results.add_scores(A, {"x": 1.0, "y": float("nan")}, 0.0)
    assert results.scores() == {}


def test_forgetting_leaves_the_others(results):
    for sample in (A, B):
        results.save_prediction(sample, {"x": np.zeros(1)}, 0.0)
        results.add_scores(sample, {"x": 1}, 0.0)
    results.forget([A])
    assert [results.prediction_path(sample).exists() for sample in (A, B)] == [False, True]
    assert list(results.scores()) == [B]


def test_settings_are_written_for_people(results):
    told = json.loads((results.folder / "task.json").read_text())
    assert told == {"task": "doubling", "version": 1, "params": {"factor": 2}, "seed": 5}


def record(value):
    return Record(task="doubling", scores=(Score("x", value),))


def test_records_belong_to_their_samples(results, counting, tmp_path):
    assert results.record() is None
    results.save_record(record(1))
    other = Results(tmp_path, counting.task([A]))
    assert other.record() is None
    other.save_record(record(2))
    assert results.record() == record(1)
    assert {one.scores[0].value for one in load_records(tmp_path)} == {1, 2}


def test_a_damaged_record_is_named_or_made_anew(results, tmp_path):
    results.save_record(record(1))
    path = next(tmp_path.rglob("records/*.json"))
    path.write_text("{}")
    assert results.record() is None
    with pytest.raises(FileError, match=path.name):
        load_records(tmp_path)


def test_a_folder_without_records(tmp_path):
    assert load_records(tmp_path) == []
    with pytest.raises(FileError, match="no such"):
        load_records(tmp_path / "gone")


def test_a_file_in_the_way_is_told(counting, tmp_path):
    (tmp_path / "doubling").write_text("")
    with pytest.raises(FileError, match="made"):
        Results(tmp_path, counting.task())
