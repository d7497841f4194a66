# SPDX-License-Identifier: Apache-2.0
"""The parts of the sweep: cuts, what is promising, and what is left to be looked at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.subspace.kernels import sweep
from sfumato.subspace.kernels.byte_bounds import SCAN_WIDTH


@given(st.lists(st.floats(0, 10, width=32), max_size=12), st.integers(1, 3))
def test_the_least_upper_bounds_are_kept(values, keep):
    upper = np.full((3, keep), np.inf, np.float32)
    for value in values:
        sweep._note(upper, 1, np.float32(value))
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


@pytest.mark.parametrize("count", [1, 5, SCAN_WIDTH, SCAN_WIDTH + 1, 200])
@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_what_is_promising_and_what_is_left(count, wanted):
    rng, at, wanted = np.random.default_rng(count), 11, min(wanted, count)
    line = rng.integers(3, 255, size=at + count + SCAN_WIDTH).astype(np.uint8)
    line[at + count :] = 0  # of the next row: not to be counted
    here, room = line[at : at + count], sweep.scratch(300, 300, 9)
    level = sweep._promising(line, at, count, wanted, room)
    assert level == np.sort(here)[wanted - 1]
    seeds = sweep._collect(line, at, count, level, 0, room.seeds, room)
    assert room.seeds[:seeds].tolist() == np.flatnonzero(here <= level).tolist()
    rest = sweep._collect(line, at, count, 200, seeds, room.todo, room)
    assert room.todo[:rest].tolist() == np.flatnonzero((here <= 200) & (here > level)).tolist()


def test_every_compiled_function_is_kept_between_processes():
    from numba.core.caching import NullCache

    from sfumato.subspace.kernels import bounds, pairs, panels
    from sfumato.subspace.kernels import sweep as decide

    functions = [
        value
        for module in (sweep, bounds, decide, pairs, panels)
        for value in vars(module).values()
        if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__
    ]
    assert len(functions) > 10
    inlined = {"_cut", "_hand_on", "_put", "_note", "_ask_for"}  # into functions that are kept
    assert {function.__name__ for function in functions if isinstance(function._cache, NullCache)} <= inlined
