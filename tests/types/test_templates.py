# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.types.concealed import Bits, ConcealedTemplates, Subspaces


def planes(count: int) -> Subspaces:
    rng = np.random.default_rng(count)
    return Subspaces(rng.normal(size=(count, 8)), rng.normal(size=(count, 2, 8)))


def test_templates_are_selected_with_their_ids():
    made = ConcealedTemplates(("a", "b", "c"), planes(3), "random-2")
    assert made[[2, 1]].ids == ("c", "b")
    assert np.array_equal(made[[2]].code.origin[0], made.code.origin[2])
    assert str(made.recipe) == "random-2"


@pytest.mark.parametrize(
    ("ids", "recipe", "words"),
    [
        (("a", "a"), "random-2", "stands for two faces"),
        (("a",), "random-2", "2 rows have 1 ids"),
        (("a", ""), "random-2", "printable"),
        (("a", 3), "random-2", "printable"),
        (("a", "b"), "random-3", "dimension 3"),
    ],
)
def test_what_does_not_fit_is_refused(ids, recipe, words):
    with pytest.raises(InputError, match=words):
        ConcealedTemplates(ids, planes(2), recipe)


def test_the_repr_shows_shapes_only():
    shown = repr(ConcealedTemplates(("alice",), planes(1), "random-2"))
    assert shown == "ConcealedTemplates(Subspaces(1 of dimension 2 in R^8), 'random-2', unknown)"


NAMES = ("0123456789ab", "ba9876543210")


def test_sealed_templates_are_selected_with_the_names_of_their_keys():
    made = ConcealedTemplates(("a", "b"), Bits(np.eye(2, 64, dtype=np.uint8)), "sealed-512:1", keys=NAMES)
    assert made[[1]].keys == NAMES[1:]
    assert made[::-1].keys == NAMES[::-1]
    assert not any(name in repr(made) for name in NAMES)


@pytest.mark.parametrize(
    "keys", [(), NAMES[:1], (NAMES[0], ""), (NAMES[0], "0123456789AB"), (NAMES[0], "0123456789ab\n")]
)
def test_bits_without_the_names_of_their_keys_are_refused(keys):
    with pytest.raises(InputError, match="fingerprints"):
        ConcealedTemplates(("a", "b"), Bits(np.zeros((2, 64), np.uint8)), "sealed-512:1", keys=keys)


def test_names_of_keys_belong_to_bits_of_a_recipe_that_names_none():
    with pytest.raises(InputError, match="fingerprints"):
        ConcealedTemplates(("a", "b"), planes(2), "random-2", keys=NAMES)
    with pytest.raises(InputError, match="fingerprints"):
        ConcealedTemplates(("a", "b"), Bits(np.zeros((2, 64), np.uint8)), f"sealed-512:1@{NAMES[0]}", keys=NAMES)
