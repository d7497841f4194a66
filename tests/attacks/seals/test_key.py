# SPDX-License-Identifier: Apache-2.0
"""The key of a seal out of known pairs: found where they are enough, and codes of that key read with it."""

import numpy as np
import pytest

from sfumato.attacks.knowledge import Knowledge, KnownPairs
from sfumato.attacks.knowledge import rows_of as code_rows
from sfumato.attacks.registry import ATTACKS, run_attack
from sfumato.attacks.seals.key import Waves, read_with_key, recover_key
from sfumato.concealment.lifting import conceal
from sfumato.concealment.seal import make_seal
from sfumato.errors import InputError
from sfumato.types.clear import Features

KEY, BITS, WIDE = b"a key that comes out of known pairs", 48, 0.45


@pytest.fixture(scope="module")
def rows():
    """Descriptors of unit norm near a surface of few dimensions, as natural ones are."""
    rng = np.random.default_rng(4)
    found = np.abs(rng.normal(size=(3300, 5)) @ rng.normal(size=(5, 12)) + 0.2 * rng.normal(size=(3300, 12)))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def seal():
    return make_seal(KEY, 12, BITS, WIDE)


@pytest.fixture(scope="module")
def waves(rows, seal):
    return recover_key(rows[300:], code_rows(seal(rows[300:])), WIDE)


def test_the_key_comes_out_of_known_pairs(rows, seal, waves):
    foretold = (waves.codes(rows[:300]) == np.sign(code_rows(seal(rows[:300])))).mean()
    assert foretold > 0.9
    true = seal.directions
    likeness = np.abs((waves.directions * true).sum(axis=1))
    likeness /= np.linalg.norm(waves.directions, axis=1) * np.linalg.norm(true, axis=1)
    assert np.median(likeness) > 0.9
    assert "48 bits of 12 numbers" in repr(waves)


def test_other_codes_are_read_with_it(rows, seal, waves):
    read = read_with_key(code_rows(seal(rows[:300])), waves, rows[300:])
    errors = np.linalg.norm(read - rows[:300], axis=1)
    guess = np.linalg.norm(rows[:300] - rows.mean(axis=0), axis=1)
    assert np.median(errors) < 0.4 * np.median(guess)
    assert read_with_key(np.empty((0, BITS), np.float32), waves, rows).shape == (0, 12)


def test_codes_of_another_key_tell_nothing(rows, waves):
    other = code_rows(make_seal(b"another key, of the same sizes", 12, BITS, WIDE)(rows[:300]))
    assert abs((waves.codes(rows[:300]) == np.sign(other)).mean() - 0.5) < 0.1


def test_true_waves_make_the_very_bits(rows, seal):
    true = Waves(*(np.asarray(part, np.float32) for part in (seal.directions, seal.phases)))
    assert (true.codes(rows) == np.sign(code_rows(seal(rows)))).mean() > 0.999


@pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
def test_as_an_attack_it_asks_for_pairs_and_is_refused_elsewhere(rows):
    recipe = f"sealed-{BITS}:{WIDE}"
    features = Features(np.ones((200, 4), np.float32), rows[:200])
    hidden = conceal(features, recipe, evaluation_seed=3, positions=True)
    known = rows[300:]
    told = Features(np.ones((len(known), 4), np.float32), known)
    codes = code_rows(conceal(told, recipe, evaluation_seed=3, positions=True).code)
    given = Knowledge(public=known, pairs=KnownPairs(descriptors=known, codes=codes))
    found = run_attack(ATTACKS["key-recovery"], hidden, given).descriptors
    assert np.median(np.linalg.norm(found - rows[:200], axis=1)) < 0.3
    few = Knowledge(public=known, pairs=KnownPairs(descriptors=known[:100], codes=codes[:100]))
    with pytest.raises(InputError, match="500"):
        run_attack(ATTACKS["key-recovery"], hidden, few)
    with pytest.raises(InputError):
        run_attack(ATTACKS["key-recovery"], conceal(features, "random-2", evaluation_seed=3), given)
