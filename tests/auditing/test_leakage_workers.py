# SPDX-License-Identifier: Apache-2.0
"""The leakage evaluation on several processes: the same results, whatever becomes of a worker."""

import os
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from sfumato.auditing import leakage
from sfumato.auditing.leakage import LeakageJob, LeakageProtocol, count_workers, evaluate_leakage, free_bytes
from sfumato.auditing.runner import Results
from sfumato.auditing.toolbox import Toolbox
from sfumato.concealment.decoys import Decoys, save_decoys
from sfumato.errors import InputError, WorkerError
from sfumato.features.local import LocalParams, extract
from sfumato.subspace.fast import limit_threads, thread_count


@pytest.fixture(scope="session")
def public_file(small_photos, tmp_path_factory):
    features = extract(small_photos["coffee.png"], max_features=400)
    path = tmp_path_factory.mktemp("public") / "public.npz"
    save_decoys(path, Decoys(features.descriptors, features.extractor, parts=1))
    return path


@pytest.fixture
def order(small_photos, public_file):
    attacks = ("nearest", "clusters", "density")
    protocol = LeakageProtocol(recipes=("raw", "random-2"), attacks=attacks, local=LocalParams(max_features=40))
    return LeakageJob(photos=tuple(small_photos.items()), protocol=protocol, toolbox=Toolbox(public=public_file))


@pytest.fixture
def in_this_process(monkeypatch):
    """Workers without processes."""
    monkeypatch.setattr(leakage, "local_processes", lambda count: ThreadPoolExecutor(1))
    monkeypatch.setattr("os.environ", dict(os.environ))
    yield
    limit_threads(10**6)
    leakage._plan_in_worker.cache_clear()


def kept(folder):
    """All that was kept, but for how long it took."""
    found = {}
    for path in sorted(Path(folder).rglob("*.npz")):
        with np.load(path) as members:
            found[path.name, path.parts[-3]] = [members[name].tobytes() for name in members.files if name != "seconds"]
    return found


def told(records):
    return [(record.params, record.scores, record.dropped, record.seed, record.data) for record in records]


@pytest.mark.slow
def test_the_same_on_any_number_of_workers(order, tmp_path):
    seen = []

    def progress(units):
        seen.append(len(units))
        yield from units

    works = order.plan()
    with threadpool_limits(1):  # as workers are: sums on several threads differ in their last bits
        alone = evaluate_leakage(works, tmp_path / "1", workers=1, progress=progress)
    shared = evaluate_leakage(works, tmp_path / "2", workers=2, progress=progress)
    assert told(shared) == told(alone)
    assert kept(tmp_path / "2") == kept(tmp_path / "1")
    assert len(kept(tmp_path / "1")) == 18
    assert seen == [18, 18]
    lines = [path.read_text().splitlines() for path in (tmp_path / "2").rglob("scores.jsonl")]
    assert [len(one) for one in lines] == [3] * 6


def test_a_worker_that_dies(order, tmp_path, in_this_process, monkeypatch):
    work, calls = leakage._measure_photo, []

    def dying(*arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise BrokenProcessPool("killed")
        return work(*arguments)

    monkeypatch.setattr(leakage, "_measure_photo", dying)
    works = order.plan()
    with pytest.raises(WorkerError, match="died"):
        evaluate_leakage(works, tmp_path, workers=2)
    done = len(kept(tmp_path))
    assert 0 < done < 18
    monkeypatch.setattr(leakage, "_measure_photo", work)
    predicted = []
    kind = type(works.tasks[0])
    predict = kind.predict
    monkeypatch.setattr(kind, "predict", lambda self, one: predicted.append(one) or predict(self, one))
    assert not any(record.dropped for record in evaluate_leakage(works, tmp_path, workers=2))
    assert len(predicted) == 18 - done
    assert all(set(works.samples) == set(Results(tmp_path, task.task()).scores()) for task in works.tasks)


def test_the_work_is_what_was_planned(order, in_this_process, tmp_path):
    digest = order.plan().tasks[0].task().settings_digest
    with pytest.raises(InputError, match="coffee"):
        leakage._measure_photo(order, str(tmp_path), 1, ("coffee.png", "0" * 32), (digest,))
    named = next((one.key, one.digest) for one in order.plan().samples)
    with pytest.raises(InputError, match="changed"):
        leakage._measure_photo(order, str(tmp_path), 1, named, ("0" * 16,))
    assert thread_count(None) == 1
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_how_many_workers(order, monkeypatch):
    works = order.plan()
    assert free_bytes() > 2**20
    assert count_workers(7, works) == 7
    with pytest.raises(InputError, match="1 or more"):
        count_workers(0, works)
    monkeypatch.setattr(leakage, "thread_count", lambda _: 16)
    monkeypatch.setattr(leakage, "free_bytes", lambda: 2**40)
    assert count_workers(None, works) == 3  # there are no more photos
    monkeypatch.setattr(leakage, "free_bytes", lambda: 1100 << 20)
    assert count_workers(None, works) == 2
    monkeypatch.setattr(leakage, "free_bytes", lambda: 0)
    assert count_workers(None, works) == 1
