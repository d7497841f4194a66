# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from sfumato.evaluate.task import Sample, Task
from sfumato.types.record import Score


class Counting:
    """A task on numbers that counts how often each step is called."""

    def __init__(self) -> None:
        self.predicted: list[str] = []
        self.scored: list[str] = []
        self.broken: dict[str, Exception | BaseException] = {}

    def predict(self, sample: Sample):
        self.predicted.append(sample.key)
        if sample.key in self.broken:
            raise self.broken[sample.key]
        return {"doubled": np.array([2 * int(sample.digest)]), "names": np.array(["a", "b"])}

    def score(self, sample: Sample, prediction):
        self.scored.append(sample.key)
        return {"value": float(prediction["doubled"][0])}

    def task(self, samples="abc", **changes) -> Task:
        made = [Sample(key, str(ord(key))) if isinstance(key, str) else key for key in samples]
        given = {"params": {"factor": 2}, "seed": 5, **changes}
        return Task(name="doubling", samples=made, predict=self.predict, score=self.score, summarise=mean_of, **given)

    def calls(self) -> tuple[str, str]:
        """What was called since the last time this was asked."""
        told = "".join(self.predicted), "".join(self.scored)
        self.predicted, self.scored = [], []
        return told


def mean_of(figures):
    return [Score("mean", fmean(row["value"] for row in figures.values()), samples=len(figures))] if figures else []


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture(scope="session")
def small_sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generated sequences of two pairs each."""
    from sfumato.evaluate.generated import make_homography_folder

    folder = tmp_path_factory.mktemp("sequences")
    return make_homography_folder(folder / "made", np.random.default_rng(3), photos=("coffee",), others=2)


@pytest.fixture
def files_below() -> Callable[[Path], dict[str, bytes]]:
    def read(folder: Path) -> dict[str, bytes]:
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    return read


@pytest.fixture(scope="session")
def small_room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five posed pictures of a made-up room."""
    from sfumato.evaluate.generated import make_room_folder

    folder = tmp_path_factory.mktemp("room") / "made"
    return make_room_folder(folder, np.random.default_rng(0), views=5, width=480, height=360, step=8)
