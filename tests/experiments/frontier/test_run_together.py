# SPDX-License-Identifier: Apache-2.0
from sfumato.auditing.runner import figure_by_figure, run_tasks
from sfumato.types.record import Score


def test_tasks_run_in_turn_and_are_found_again(counting, tmp_path):
    tasks = [counting.task("a", seed=seed) for seed in (0, 1)]
    seen = []
    records = run_tasks(tasks, tmp_path, progress=lambda some: seen.extend(some) or some)
    assert [record.seed for record in records] == [0, 1]
    assert seen == tasks
    assert counting.calls() == ("aa", "aa")
    assert run_tasks(tasks, tmp_path) == records
    assert counting.calls() == ("", "")
    run_tasks(tasks, tmp_path, overwrite=True)
    assert counting.calls() == ("aa", "aa")


def test_every_figure_is_a_score_but_the_number_of_samples():
    told = figure_by_figure("faces")({"one": {"right": 0.5, "faces": 7.0, "wrong": 0.25}})
    assert told == [Score("right", 0.5, samples=7), Score("wrong", 0.25, samples=7)]
    assert figure_by_figure("faces")({}) == []
