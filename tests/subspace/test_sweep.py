# SPDX-License-Identifier: Apache-2.0
"""The parts of the sweep that keep order: insertions, cuts, and what is left to be looked at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.subspace import sweep
from sfumato.subspace.bytescan import WIDTH


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), max_size=12),
    st.integers(1, 4),
    st.sampled_from([np.inf, 2.0, 0.0]),
    st.randoms(use_true_random=False),
)
def test_the_nearest_are_kept_in_order_of_value_and_number(values, keep, limit, shuffled):
    best, where = np.full((2, keep), limit), np.full((2, keep), -1, np.int64)
    numbered = list(enumerate(values))
    shuffled.shuffle(numbered)
    for number, value in numbered:
        sweep._insert(best, where, 1, value, number)
    wanted = sorted((value, number) for number, value in enumerate(values) if value <= limit)[:keep]
    assert list(zip(best[1], where[1], strict=True))[: len(wanted)] == wanted
    assert (best[1, len(wanted) :] == limit).all()
    assert (where[1, len(wanted) :] == -1).all()
    assert (where[0] == -1).all()


@given(st.lists(st.floats(0, 10, width=32), max_size=12), st.integers(0, 3))
def test_the_least_upper_bounds_are_kept(values, keep):
    upper = np.full((3, keep), np.inf, np.float32)
    for value in values:
        sweep._note_upper(upper, 1, np.float32(value))
    padded = sorted(np.float32(values).tolist()) + [np.inf] * keep
    assert upper[1].tolist() == padded[:keep]
    assert np.isinf(upper[[0, 2]]).all()


@given(st.floats(0, 1e6), st.floats(1e-12, 1e3))
def test_no_pair_within_the_limit_is_cut(limit, step):
    step = np.float32(step)
    cut = int(sweep._cut(limit, step))
    assert 0 <= cut <= sweep.LARGEST
    assert cut == sweep.LARGEST or (cut + 1) * float(step) > limit * (1 - 1e-7)
    assert sweep._cut(np.inf, step) == sweep.LARGEST


@pytest.mark.parametrize("count", [1, 5, WIDTH, WIDTH + 1, 200])
@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_what_is_promising_and_what_is_left(count, wanted):
    rng, at, wanted = np.random.default_rng(count), 11, min(wanted, count)
    line = rng.integers(3, 255, size=at + count + WIDTH).astype(np.uint8)
    line[at + count :] = 0  # of the next row: not to be counted
    here, room = line[at : at + count], sweep.scratch(300, 2, 2, 2, 2, 8)
    level = sweep._promising(line, at, count, wanted, room)
    assert level == np.sort(here)[wanted - 1]
    seeds = sweep._collect(line, at, count, level, room.seeds, 0, room.seeds, room)
    assert room.seeds[:seeds].tolist() == np.flatnonzero(here <= level).tolist()
    rest = sweep._collect(line, at, count, 200, room.seeds, seeds, room.todo, room)
    assert room.todo[:rest].tolist() == np.flatnonzero((here <= 200) & (here > level)).tolist()


def test_every_compiled_function_is_kept_between_processes():
    from numba.core.caching import NullCache

    from sfumato.subspace import bounds, pairs, panels

    functions = [
        value
        for module in (sweep, bounds, pairs, panels)
        for value in vars(module).values()
        if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__
    ]
    assert len(functions) > 10
    assert not [function.__name__ for function in functions if isinstance(function._cache, NullCache)]
