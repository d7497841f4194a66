# SPDX-License-Identifier: Apache-2.0
"""The learned decoder: it must undo what can be undone, and cannot know what was never released."""

import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from sfumato.attacks.encoded import load_decoder, recover_decoder
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.registry import ATTACKS, run_attack
from sfumato.attacks.run import score_recovery
from sfumato.concealment.lifting import conceal
from sfumato.errors import EvaluationOnlyWarning, FileError, InputError
from sfumato.features.local import extract
from sfumato.images.samples import sample_image
from sfumato.inversion.descriptors import Decoder, Layout, on_sphere
from sfumato.training.decoder import DecoderTrainParams, train_decoder
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor

N = 24


def positive_rows(number: int, seed: int) -> np.ndarray:
    """Sparse non-negative rows of unit norm near a few prototypes: easy to tell from what is not one."""
    rng = np.random.default_rng(seed)
    prototypes = np.maximum(np.random.default_rng(99).normal(-0.3, 1, (6, N)), 0)
    rows = np.maximum(prototypes[rng.integers(6, size=number)] + 0.1 * rng.normal(size=(number, N)) - 0.05, 0) + 1e-6
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def repeatable(recipe: str, seed: int = 0) -> Callable[[Features], ConcealedFeatures]:
    """A concealer that draws anew at every call, and the same in every run."""
    calls = count(seed)

    def concealed(features: Features) -> ConcealedFeatures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            return conceal(features, recipe, evaluation_seed=next(calls))

    return concealed


def hidden(rows: np.ndarray, recipe: str, name: str = "unknown") -> ConcealedFeatures:
    return repeatable(recipe, 1_000_000)(Features(np.zeros((len(rows), 4)), rows, Extractor(name)))


def by_chance(features: ConcealedFeatures, clear: np.ndarray) -> float:
    """The share within 0.1 of points taken at random where the subspaces cut the sphere."""
    directions = np.random.default_rng(0).normal(size=(len(clear), 50, 2)).astype(np.float32)
    points = on_sphere(features.code.origin, features.code.basis, directions)
    return float((np.linalg.norm(points - clear[:, None], axis=2) < 0.1).mean())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("decoder") / "d.safetensors"
    params = DecoderTrainParams(hidden=64, depth=2, steps=300, batch=128, rate=3e-3, held_out=200)
    train_decoder(params, positive_rows(4000, 0), path, concealer=repeatable("random-2"))
    return path


@pytest.mark.slow
def test_it_wins_where_clear_descriptors_are_few_and_alike(trained: Path):
    clear = positive_rows(200, 1)
    features = hidden(clear, "random-2")
    found = recover_decoder(features, Knowledge(decoder=load_decoder(trained)))
    scores = score_recovery(found, clear)
    assert scores["within 0.3"] > 0.9
    assert scores["within 0.1"] > by_chance(features, clear) + 0.3
    inside = np.linalg.norm(found.descriptors, axis=1)
    assert np.abs(inside - 1).max() < 1e-4
    assert found.confidence.mean() > 0.3


def test_it_loses_where_they_are_all_alike_to_it(trained: Path):
    """Directions drawn evenly from the sphere: no point of the circle is likelier than another."""
    clear = np.random.default_rng(2).normal(size=(200, N)).astype(np.float32)
    clear /= np.linalg.norm(clear, axis=1, keepdims=True)
    features = hidden(clear, "random-2")
    found = recover_decoder(features, Knowledge(decoder=load_decoder(trained)))
    assert score_recovery(found, clear)["within 0.1"] < by_chance(features, clear) + 0.1
    assert found.confidence.mean() < 0.2


def test_any_function_of_subspaces_is_a_decoder():
    clear = positive_rows(5, 3)
    found = recover_decoder(hidden(clear, "random-2"), Knowledge(decoder=lambda subspaces: clear))
    assert np.array_equal(found.descriptors, clear)
    assert (found.confidence == 1).all()


def test_guesses_that_are_no_numbers_are_replaced():
    clear = positive_rows(5, 3)
    broken = clear.copy()
    broken[2] = np.nan
    features = hidden(clear, "random-2")
    found = recover_decoder(features, Knowledge(decoder=lambda subspaces: broken))
    assert found.confidence.tolist() == [1, 1, 0, 1, 1]
    assert np.linalg.norm(found.descriptors[2]) == pytest.approx(1, abs=1e-5)


def test_features_it_was_not_made_for_are_refused(trained: Path, tmp_path: Path):
    decoder = load_decoder(trained)
    with pytest.raises(InputError, match="dimension 2"):
        recover_decoder(hidden(positive_rows(3, 0), "random-4"), Knowledge(decoder=decoder))
    with pytest.raises(InputError, match="a decoder"):
        recover_decoder(hidden(positive_rows(3, 0), "random-2"), Knowledge())
    with pytest.raises(FileError, match="no such"):
        load_decoder(tmp_path / "gone.safetensors")
    decoder.facts["extractor"] = "sift"
    with pytest.raises(InputError, match="sift"):
        recover_decoder(hidden(positive_rows(3, 0), "random-2", "hardnet"), Knowledge(decoder=decoder))
    with pytest.raises(InputError, match="returned"):
        recover_decoder(hidden(positive_rows(3, 0), "random-2"), Knowledge(decoder=lambda s: s.origin[:1]))


def test_no_features(trained: Path):
    nothing = ConcealedFeatures(np.empty((0, 4)), Subspaces(np.empty((0, N)), np.empty((0, 2, N))), "random-2")
    assert len(recover_decoder(nothing, Knowledge(decoder=load_decoder(trained)))) == 0


def test_real_sift_is_partly_undone(tmp_path: Path):
    pytest.importorskip("torch")
    rows = [extract(sample_image(name), max_features=1500).descriptors for name in ("coffee", "astronaut", "chelsea")]
    params = DecoderTrainParams(hidden=128, depth=2, steps=150, batch=128, rate=2e-3, held_out=200)
    path = tmp_path / "d.safetensors"
    train_decoder(params, np.concatenate(rows[:2]), path, concealer=repeatable("random-2"))
    clear = rows[2][:200]
    found = recover_decoder(hidden(clear, "random-2"), Knowledge(decoder=load_decoder(path)))
    alone = hidden(clear, "random-2").code.origin
    nearest = np.linalg.norm(alone / np.linalg.norm(alone, axis=1, keepdims=True) - clear, axis=1).mean()
    assert score_recovery(found, clear)["mean"] < 0.8 * nearest


def test_a_decoder_of_another_encoder_is_refused(sift, encoder):
    layout = Layout(form="direct", n_in=128, m=0, n_out=128, hidden=4, depth=1, positive=True, unit=True)
    arrays = {name: np.ones(shape, np.float32) for name, shape in layout.shapes().items()}
    hidden = conceal(sift, encoder.recipe)
    own = Decoder(layout, arrays, {"recipe": str(encoder.recipe), "extractor": "sift"})
    assert len(run_attack(ATTACKS["decoder"], hidden, Knowledge(decoder=own))) == len(sift)
    for recipe in ("ninja:x@0123456789ab", "raw"):
        other = Decoder(layout, arrays, {"recipe": recipe, "extractor": "sift"})
        with pytest.raises(InputError, match=recipe):
            run_attack(ATTACKS["decoder"], hidden, Knowledge(decoder=other))
