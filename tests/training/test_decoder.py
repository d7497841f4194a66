# SPDX-License-Identifier: Apache-2.0
"""The training of decoders: a few steps, interrupted and not, points of another length, and what it refuses."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.concealment.lifting import conceal
from sfumato.errors import EvaluationOnlyWarning, FileError, InputError, MissingDependency
from sfumato.files.tensors import load_checkpoint
from sfumato.images.samples import sample_image
from sfumato.inversion.descriptors import read_decoder
from sfumato.training import decoder as module
from sfumato.training.decoder import DecoderTrainParams, train_decoder
from sfumato.training.loop import part_of
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces

pytest.importorskip("torch")

SMALL: dict[str, Any] = {"hidden": 16, "depth": 1, "steps": 20, "batch": 32, "held_out": 50, "concealed_at_once": 64}


def rows(count: int = 400, n: int = 12, seed: int = 0) -> np.ndarray:
    found = np.abs(np.random.default_rng(seed).normal(size=(count, n)))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def seeded(features: Features) -> ConcealedFeatures:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        return conceal(features, "random-2", evaluation_seed=1)


def shortened(features: Features) -> ConcealedFeatures:
    """Points in half as many dimensions, as an encoder would release."""
    points = features.descriptors[:, ::2] + features.descriptors[:, 1::2]
    return ConcealedFeatures(features.keypoints, Subspaces(points, np.zeros((len(points), 0, points.shape[1]))), "raw")


def stopping_after(count: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def wrapped(items: Iterable[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number == count and isinstance(items, range):
                raise KeyboardInterrupt
            yield item

    return wrapped


@pytest.mark.parametrize("form", ["direct", "search"])
def test_twenty_steps(form: str, tmp_path: Path):
    path = tmp_path / "d.safetensors"
    result = train_decoder(DecoderTrainParams(**SMALL, form=form), rows(), path, concealer=seeded)
    assert result.steps == 20
    decoder = read_decoder(path)
    assert (decoder.layout.form, decoder.layout.m, decoder.layout.positive, decoder.layout.unit) == (
        form,
        2,
        True,
        True,
    )
    assert decoder.facts["recipe"] == "random-2"
    assert decoder.facts["result"]["scores"] == result.scores
    assert decoder(seeded(Features(np.zeros((5, 4)), rows(5))).code).shape == (5, 12)
    assert [one.name for one in tmp_path.iterdir()] == ["d.safetensors"]


def test_the_control_learns_the_identity(tmp_path: Path):
    settings = {**SMALL, "hidden": 64, "steps": 400, "rate": 0.01}
    result = train_decoder(DecoderTrainParams(**settings), rows(2000), tmp_path / "d", concealer=None)
    assert result.scores["within 0.3"] > 0.9
    assert result.last_loss < 0.2 * result.first_loss


def test_points_of_another_length_are_undone_as_far_as_they_go(tmp_path: Path):
    result = train_decoder(
        DecoderTrainParams(**{**SMALL, "steps": 300}), rows(2000), tmp_path / "d", concealer=shortened
    )
    decoder = read_decoder(tmp_path / "d")
    assert (decoder.layout.form, decoder.layout.n_in, decoder.layout.n_out, decoder.layout.m) == ("direct", 6, 12, 0)
    clear = rows(200, seed=9)
    mean = rows(2000).mean(axis=0)
    guess = np.linalg.norm(decoder(shortened(Features(np.zeros((200, 4)), clear)).code) - clear, axis=1)
    baseline = np.linalg.norm(mean / np.linalg.norm(mean) - clear, axis=1)
    share = float(guess.mean() / baseline.mean())
    assert share < 0.9
    assert result.scores["within 0.02"] < 0.2  # half of it was never released


def test_photos_will_do(tmp_path: Path):
    photos = [sample_image("coffee"), sample_image("chelsea")]
    train_decoder(DecoderTrainParams(**{**SMALL, "steps": 2}), photos, tmp_path / "d", concealer=seeded)
    assert read_decoder(tmp_path / "d").facts["extractor"] == "sift"


def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(tmp_path: Path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = DecoderTrainParams(**SMALL, save_minutes=0)
    first = train_decoder(settings, rows(), whole, concealer=seeded)
    with pytest.raises(KeyboardInterrupt):
        train_decoder(settings, rows(), parts, concealer=seeded, progress=stopping_after(350))
    assert load_checkpoint(part_of(parts))[1]["steps"] == 8
    again = train_decoder(settings, rows(), parts, concealer=seeded, resume=True)
    assert (again.steps, again.last_loss, again.scores) == (first.steps, first.last_loss, first.scores)
    arrays, others = load_checkpoint(whole)[0], load_checkpoint(parts)[0]
    assert all(np.array_equal(arrays[name], others[name]) for name in arrays)


def test_only_the_same_training_goes_on(tmp_path: Path):
    settings, path = {**SMALL, "save_minutes": 0}, tmp_path / "d"
    with pytest.raises(FileError, match="no such"):
        train_decoder(DecoderTrainParams(**settings), rows(), path, concealer=seeded, resume=True)
    with pytest.raises(KeyboardInterrupt):
        train_decoder(DecoderTrainParams(**settings), rows(), path, concealer=seeded, progress=stopping_after(200))
    with pytest.raises(FileError, match="other settings"):
        train_decoder(DecoderTrainParams(**settings, rate=0.1), rows(), path, concealer=seeded, resume=True)
    data = part_of(path).read_bytes()
    part_of(path).write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match="damaged"):
        train_decoder(DecoderTrainParams(**settings), rows(), path, concealer=seeded, resume=True)


def test_a_search_where_none_is_possible_is_told(tmp_path: Path):
    with pytest.raises(InputError, match="direct"):
        train_decoder(DecoderTrainParams(**SMALL, form="search"), rows(), tmp_path / "d", concealer=shortened)


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(name: str, *, extra: str) -> Any:
        raise MissingDependency(f"this needs {name}: pip install 'sfumato[{extra}]'")

    monkeypatch.setattr(module, "need", missing)
    with pytest.raises(MissingDependency, match=r"sfumato\[learn\]"):
        train_decoder(DecoderTrainParams(**SMALL), rows(), tmp_path / "d", concealer=seeded)
