# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

import sfumato
from sfumato.auditing import runner
from sfumato.auditing.runner import Results, Sample, code_version, load_records, measure, note, predict, run_task
from sfumato.errors import FileError, ImageError, InputError, MissingDependency, WorkerError
from sfumato.types.record import describe_machine

MEAN = 2 * (97 + 98 + 99) / 3


def test_a_record_says_all(counting, tmp_path):
    task = counting.task()
    record = run_task(task, tmp_path)
    assert [(score.name, score.value, score.samples) for score in record.scores] == [("mean", MEAN, 3)]
    assert (record.task, dict(record.params), record.seed) == ("doubling", {"factor": 2}, 5)
    assert (record.data, record.commit) == (task.data_digest, code_version())
    assert dict(record.machine) == describe_machine()
    assert record.seconds > 0
    assert record.dropped == ()
    assert load_records(tmp_path) == [record]


def test_nothing_is_done_twice(counting, tmp_path):
    first = run_task(counting.task(), tmp_path)
    assert counting.calls() == ("abc", "abc")
    assert run_task(counting.task(), tmp_path) == first
    assert counting.calls() == ("", "")


@pytest.mark.parametrize(
    ("change", "calls"),
    [({"seed": 6}, ("abc", "abc")), ({"params": {"factor": 3}}, ("abc", "abc")), ({"version": 2}, ("abc", "abc")),
     ({"score_version": 2}, ("", "abc")), ({"samples": "abcd"}, ("d", "d")), ({"samples": "ab"}, ("", "")),
     ({"samples": [Sample("a", "1"), Sample("b", "98"), Sample("c", "99")]}, ("a", "a"))],
)  # fmt: skip
def test_only_what_changed_is_done_again(counting, tmp_path, change, calls):
    run_task(counting.task(), tmp_path)
    counting.calls()
    run_task(counting.task(**change), tmp_path)
    assert counting.calls() == calls
    assert len(load_records(tmp_path)) == (1 if "score_version" in change else 2)
    run_task(counting.task(), tmp_path)
    assert counting.calls() == ("", "")


def test_overwriting_does_all_of_these_again(counting, tmp_path):
    run_task(counting.task("abcd"), tmp_path)
    counting.calls()
    run_task(counting.task("abc"), tmp_path, overwrite=True)
    assert counting.calls() == ("abc", "abc")
    run_task(counting.task("d"), tmp_path)
    assert counting.calls() == ("", "")


def test_scores_are_made_anew_from_predictions_alone(counting, tmp_path):
    first = run_task(counting.task(), tmp_path)
    counting.calls()
    next(tmp_path.rglob("scores.jsonl")).unlink()
    assert run_task(counting.task(), tmp_path).scores == first.scores
    assert counting.calls() == ("", "abc")


def test_scores_outlive_predictions(counting, tmp_path):
    run_task(counting.task(), tmp_path)
    counting.calls()
    shutil.rmtree(next(tmp_path.rglob("predictions")))
    run_task(counting.task(), tmp_path)
    assert counting.calls() == ("", "")


def test_a_failing_sample_is_named_and_tried_again(counting, tmp_path, caplog):
    caplog.set_level("INFO")
    counting.broken["b"] = ImageError("b.png: no picture")
    record = run_task(counting.task(), tmp_path)
    assert record.dropped == ("b: b.png: no picture",)
    assert record.scores[0].samples == 2
    assert "b is left out" in caplog.text
    counting.broken.clear()
    counting.calls()
    mended = run_task(counting.task(), tmp_path)
    assert counting.calls() == ("b", "b")
    assert (mended.dropped, mended.scores[0].value) == ((), MEAN)


def test_all_samples_may_fail(counting, tmp_path):
    counting.broken = dict.fromkeys("abc", InputError("no"))
    record = run_task(counting.task(), tmp_path)
    assert record.scores == ()
    assert len(record.dropped) == 3


def test_a_score_that_fails_or_is_no_number_is_named(counting, tmp_path):
    def score(sample, prediction):
        if sample.key == "a":
            raise InputError("cannot be scored")
        return {"value": float("nan") if sample.key == "b" else 1.0}

    counting.score = score
    record = run_task(counting.task(), tmp_path)
    assert record.dropped == ("a: cannot be scored", "b: value is not finite")
    assert record.scores[0].samples == 1


def test_a_missing_library_ends_the_run(counting, tmp_path):
    counting.broken["b"] = MissingDependency("pip install 'sfumato[learn]'")
    with pytest.raises(MissingDependency):
        run_task(counting.task(), tmp_path)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), RuntimeError("a fault of ours")])
def test_what_is_done_is_kept_when_stopped(counting, tmp_path, stop):
    counting.broken["c"] = stop
    with pytest.raises(type(stop)):
        run_task(counting.task(), tmp_path)
    assert load_records(tmp_path) == []
    counting.broken.clear()
    counting.calls()
    assert run_task(counting.task(), tmp_path).scores[0].value == MEAN
    assert counting.calls() == ("c", "abc")


KILLED = """
import os, signal, sys
import numpy as np
from sfumato.auditing.runner import Sample, Task, run_task
from sfumato.types.record import Score

def predict(sample):
    if sample.key == "2" and len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    print("predicted", sample.key, flush=True)
    return {"x": np.array(int(sample.key))}

task = Task(name="kill", samples=[Sample(str(i), "0") for i in range(4)], predict=predict,
            score=lambda sample, found: {"x": float(found["x"])},
            summarise=lambda figures: [Score("sum", sum(row["x"] for row in figures.values()))])
print(run_task(task, sys.argv[1]).scores[0].value)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_killed_run_goes_on(tmp_path):
    def start(*more):
        command = [sys.executable, "-c", KILLED, tmp_path, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert start("die").returncode == -signal.SIGKILL
    done = start()
    assert done.stdout.split() == ["predicted", "2", "predicted", "3", "6.0"], done.stderr


def test_damaged_predictions_are_made_anew_and_named(counting, tmp_path, caplog):
    predict(counting.task(), tmp_path)
    path = next(tmp_path.rglob("predictions/b--*.npz"))
    path.write_bytes(path.read_bytes()[:50])
    counting.calls()
    record = run_task(counting.task(), tmp_path)
    assert counting.calls() == ("b", "abc")
    assert (record.scores[0].value, record.dropped) == (MEAN, ())
    assert path.name in caplog.text


def test_a_damaged_prediction_of_a_sample_that_now_fails(counting, tmp_path):
    predict(counting.task(), tmp_path)
    next(tmp_path.rglob("predictions/b--*.npz")).write_bytes(b"")
    counting.broken["b"] = ImageError("gone")
    assert run_task(counting.task(), tmp_path).dropped == ("b: gone",)


def test_some_samples_can_be_predicted_first(counting, tmp_path):
    task = counting.task()
    assert predict(task, tmp_path, task.samples[1:2]) == {}
    assert counting.calls() == ("b", "")
    run_task(task, tmp_path)
    assert counting.calls() == ("ac", "abc")


def test_an_executor_does_the_same(counting, tmp_path):
    counting.broken["b"] = ImageError("no")
    alone = run_task(counting.task(), tmp_path / "alone")
    with ThreadPoolExecutor(2) as pool:
        together = run_task(counting.task(), tmp_path / "together", executor=pool)
    assert (together.scores, together.dropped) == (alone.scores, alone.dropped)


class DeadExecutor(Executor):
    def submit(self, work, /, *arguments, **_named):
        future: Future = Future()
        if arguments[1].key == "b":
            future.set_exception(BrokenProcessPool("died"))
        else:
            future.set_result(work(*arguments))
        return future


def test_a_dead_worker_is_told_and_the_rest_kept(counting, tmp_path):
    with pytest.raises(WorkerError, match="it again"):
        run_task(counting.task(), tmp_path, executor=DeadExecutor())
    counting.calls()
    assert run_task(counting.task(), tmp_path).scores[0].value == MEAN
    assert "b" in counting.calls()[0]


def test_progress_sees_every_sample_that_is_done(counting, tmp_path):
    seen = []

    def progress(items):
        for item in items:
            seen.append(item[0].key)
            yield item

    run_task(counting.task("ab"), tmp_path)
    run_task(counting.task("abcd"), tmp_path, progress=progress)
    assert seen == ["c", "d"]


def test_a_task_without_samples(counting, tmp_path):
    assert run_task(counting.task(""), tmp_path).scores == ()


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write everywhere")
def test_a_folder_that_can_not_be_written(counting, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FileError):
        run_task(counting.task(), tmp_path)


def test_the_record_keeps_the_code_that_made_it(counting, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "code_version", lambda: "old")
    assert run_task(counting.task(), tmp_path).commit == "old"
    monkeypatch.setattr(runner, "code_version", lambda: "new")
    assert run_task(counting.task(), tmp_path).commit == "old"
    assert run_task(counting.task("abcd"), tmp_path).commit == "new"
    assert run_task(counting.task(score_version=2), tmp_path).commit == "new"


def test_the_code_is_told_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    code_version.cache_clear()
    try:
        assert code_version() == f"sfumato {sfumato.__version__}"
    finally:
        code_version.cache_clear()


def test_a_repository_that_only_surrounds_us_is_not_ours(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    package = tmp_path / "sfumato" / "evaluate"
    package.mkdir(parents=True)
    (tmp_path / "sfumato" / "__init__.py").touch()
    monkeypatch.setattr(runner, "__file__", str(package / "runner.py"))
    code_version.cache_clear()
    try:
        assert code_version() == f"sfumato {sfumato.__version__}"
        identity = ["-c", "user.name=x", "-c", "user.email=x@y"]
        for command in (["add", "."], [*identity, "commit", "-q", "-m", "x"]):
            subprocess.run(["git", "-C", tmp_path, *command], check=True)
        code_version.cache_clear()
        clean = code_version()
        assert len(clean) == 40
        (tmp_path / "sfumato" / "__init__.py").write_text("changed")
        code_version.cache_clear()
        assert code_version() == f"{clean}-dirty"
    finally:
        code_version.cache_clear()


def test_a_worker_measures_and_whoever_collects_notes(counting, tmp_path):
    task = counting.task("abc")
    a, b, c = task.samples
    counting.broken["c"] = InputError("no good")
    measured = [measure(task, tmp_path, sample) for sample in (a, b, c)]
    assert [one and one[0] for one in measured] == [{"value": 194.0}, {"value": 196.0}, None]
    assert Results(tmp_path, task).scores() == {}
    note(task, tmp_path, a, measured[0])
    note(task, tmp_path, b, ("not scored", 1.0))
    note(task, tmp_path, b, ({"value": float("nan")}, 1.0))
    assert set(Results(tmp_path, task).scores()) == {a}
    assert counting.calls() == ("abc", "ab")
    assert measure(task, tmp_path, a) is None
    record = run_task(task, tmp_path)
    assert counting.calls() == ("c", "b")  # what was predicted is only scored
    assert record.dropped == ("c: no good",)
