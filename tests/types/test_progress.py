# SPDX-License-Identifier: Apache-2.0
from operator import length_hint

import numpy as np
import pytest

from sfumato.types.clear import Features
from sfumato.types.progress import SizedItems, identity

SOME = Features(np.zeros((1, 4)), np.ones((1, 8)))


def test_results_can_be_counted_before_they_are_there():
    results = SizedItems(iter([("a", SOME), ("b", SOME)]), 2)
    assert len(results) == 2
    assert identity(results) is results
    assert [name for name, _ in results] == ["a", "b"]


def test_nobody_knows_how_many():
    results = SizedItems(iter([("a", SOME)]), -1)
    with pytest.raises(TypeError):
        len(results)
    assert length_hint(results, 5) == 5
    assert results
    assert len(list(results)) == 1
