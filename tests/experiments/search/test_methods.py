# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.search.methods import AFFINE, LINEAR, choose_methods
from sfumato.types.concealed import Subspaces
from sfumato.types.record import Record


def test_names_are_those_of_the_methods_and_fit_a_record():
    for known in (LINEAR, AFFINE):
        assert "exact" in known
        for name, method in known.items():
            assert method.name == name == method.described["method"]
            Record("t", (), params=method.described)
    assert LINEAR["projector flat"].described["points"] == "flat"


def test_the_paper_is_kept_as_it_was():
    printed = LINEAR["grassmann printed pi/8"].params
    assert (printed.rule, printed.key_length, printed.tables, printed.theta0) == ("printed", 3, 20, math.pi / 8)
    assert LINEAR["grassmann printed pi/6"].params.theta0 == math.pi / 6
    tree = LINEAR["projector kd-tree eps 10"].params
    assert (tree.method, tree.eps, tree.leaf, tree.candidates) == ("kdtree", 10.0, 1, 1)


@pytest.mark.parametrize("name", list(LINEAR))
def test_every_method_searches(name):
    entries = Subspaces(np.zeros((30, 8)), np.random.default_rng(0).normal(size=(30, 2, 8)))
    method = LINEAR[name] if LINEAR[name].is_exact else LINEAR[name].limited(7)
    _, _, stats = method.build(entries, "angle", seed=3).search_counted(entries, k=1)
    assert stats.evaluated <= 30 * 7 or method.is_exact


def test_the_seed_decides_what_is_drawn():
    entries = Subspaces(np.zeros((30, 8)), np.random.default_rng(0).normal(size=(30, 2, 8)))
    lines = [LINEAR["grassmann quantile"].build(entries, "angle", seed).hasher.lines for seed in (1, 1, 2)]
    assert np.array_equal(lines[0], lines[1])
    assert not np.array_equal(lines[0], lines[2])


def test_names_are_checked():
    assert [one.name for one in choose_methods(["exact", "exact"], LINEAR)] == ["exact"]
    with pytest.raises(InputError, match="mean 'projector flat'"):
        choose_methods(["projektor flat"], LINEAR)
    with pytest.raises(InputError, match="at least"):
        choose_methods([], LINEAR)
