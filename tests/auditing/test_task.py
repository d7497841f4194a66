# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.auditing.task import Sample, Task, digest_data, short_digest
from sfumato.errors import FileError, InputError


def nothing(*_arguments):
    return {}


def task(**changes) -> Task:
    given = {"name": "t", "samples": [Sample("a", "1")], "params": {"m": 2}, "seed": 0, "version": 1, **changes}
    return Task(predict=nothing, score=nothing, summarise=nothing, **given)


@pytest.mark.parametrize("change", [{"name": "u"}, {"params": {"m": 3}}, {"params": {}}, {"seed": 1}, {"version": 2}])
def test_whatever_decides_a_prediction_changes_the_settings(change):
    assert task(**change).settings_digest != task().settings_digest


def test_samples_and_the_version_of_the_score_do_not_change_the_settings():
    other = task(samples=[Sample("b", "1")], score_version=9)
    assert other.settings_digest == task().settings_digest
    assert other.data_digest != task().data_digest


def test_the_order_of_parameters_and_samples_does_not_matter():
    one = task(params={"a": 1, "b": 2}, samples=[Sample("a", "1"), Sample("b", "2")])
    two = task(params={"b": 2, "a": 1}, samples=[Sample("b", "2"), Sample("a", "1")])
    assert (one.settings_digest, one.data_digest) == (two.settings_digest, two.data_digest)


def test_file_names_are_safe_and_different():
    names = {Sample(key, digest).file_name for key in ("a/b", "a_b", "../a b", "é" * 150) for digest in "12"}
    assert len(names) == 8
    assert all(name.isascii() and "/" not in name and len(name) < 120 for name in names)


@pytest.mark.parametrize(
    "change",
    [{"name": "No Name"}, {"name": ""}, {"params": {"m": [1]}}, {"params": {"m": float("nan")}}, {"seed": "0"},
     {"samples": [Sample("a", "1"), Sample("a", "2")]}],
)  # fmt: skip
def test_wrong_tasks_are_refused(change):
    with pytest.raises(InputError):
        task(**change)


@pytest.mark.parametrize(("key", "digest"), [("", "1"), ("a", ""), ("a\n", "1"), (3, "1")])
def test_wrong_samples_are_refused(key, digest):
    with pytest.raises(InputError):
        Sample(key, digest)


def test_digests_tell_contents_apart(tmp_path):
    (tmp_path / "one").write_bytes(b"one")
    values = [
        digest_data(b"one"),
        digest_data(b"on", b"e"),
        digest_data(np.array([1, 2])),
        digest_data(np.array([[1, 2]])),
        digest_data(np.array([1.0, 2.0])),
        digest_data(),
    ]
    assert len(set(values)) == len(values)
    assert digest_data(tmp_path / "one") == digest_data(b"one")
    assert digest_data(np.array([1, 2])) == digest_data(np.array([1, 2], ">i8"))
    assert short_digest("a", "b") != short_digest("ab")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match="gone"):
        digest_data(tmp_path / "gone.png")


def test_the_text_form_tells_counts():
    assert repr(task()) == "Task('t', 1 samples)"
