# SPDX-License-Identifier: Apache-2.0
"""The parts of the sweep: cuts, promising levels, lists of candidates."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sfumato.subspace.kernels import sweep
from sfumato.subspace.kernels.simd import SCAN_WIDTH


@given(st.floats(0, 1e6), st.floats(1e-12, 1e3))
def test_no_pair_within_the_limit_is_cut(limit, step):
    step = np.float32(step)
    cut = int(sweep._cut(limit, step))
    assert 0 <= cut <= sweep.LARGEST
    assert cut == sweep.LARGEST or (cut + 1) * float(step) > limit * (1 - 1e-7)
    assert sweep._cut(np.inf, step) == sweep.LARGEST


def test_promising_levels_and_lists():
    for count, keep in itertools.product([1, 5, SCAN_WIDTH, SCAN_WIDTH + 1, 200], [1, 2, 5]):
        check_level(count, min(keep, count))


def check_level(count, keep):
    rng, at = np.random.default_rng(count), 11
    line = rng.integers(3, 255, size=at + count + SCAN_WIDTH).astype(np.uint8)
    line[at + count :] = 0  # of the next row: not to be counted
    here, room = line[at : at + count], sweep.scratch(300, 300, 9)
    level = sweep._promising_level(line, at, count, keep, room)
    assert level == np.sort(here)[keep - 1]
    seeds = sweep._collect(line, at, count, level, 0, room.seeds, room)
    assert room.seeds[:seeds].tolist() == np.flatnonzero(here <= level).tolist()
    rest = sweep._collect(line, at, count, 200, seeds, room.todo, room)
    assert room.todo[:rest].tolist() == np.flatnonzero((here <= 200) & (here > level)).tolist()


def test_every_compiled_function_is_kept_between_processes():
    from numba.core.caching import NullCache

    from sfumato.subspace.kernels import bounds, exact, panels

    functions = [
        value
        for module in (sweep, bounds, exact, panels)
        for value in vars(module).values()
        if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__
    ]
    assert len(functions) > 10
    inlined = {"_cut", "_add_candidate", "_put", "keep_least", "_fetch_row"}  # into functions that are kept
    assert {function.__name__ for function in functions if isinstance(function._cache, NullCache)} <= inlined
