# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.types.concealed import ConcealedTemplates, Subspaces


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
