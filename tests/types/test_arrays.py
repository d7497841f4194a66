# SPDX-License-Identifier: Apache-2.0
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sfumato.errors import InputError
from sfumato.types.arrays import checked_size, frozen_array, whole_number


@given(arrays.arrays(np.float64, (3, 4), elements=st.floats(-1e6, 1e6)), st.sampled_from("CF"))
def test_the_result_is_read_only_contiguous_float32(values: np.ndarray, order: str):
    result = frozen_array(np.asarray(values, order=order), "x", (None, 4))
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    assert not result.flags.writeable
    np.testing.assert_array_equal(result, values.astype(np.float32))
    with pytest.raises(ValueError, match="read-only"):
        result[0, 0] = 1


@pytest.mark.parametrize("make", [lambda a: a, lambda a: a[:], lambda a: a[::1].view(), lambda a: a.reshape(2, 3)])
def test_the_caller_keeps_no_way_in(make):
    values = np.zeros((2, 3), np.float32)
    result = frozen_array(make(values), "x", (2, 3))
    values[:] = 7
    assert not result.any()
    assert values.flags.writeable, "the caller's own array must stay as it was"


def test_a_read_only_view_of_a_writable_array_is_copied():
    values = np.zeros((2, 3), np.float32)
    view = values[:]
    view.setflags(write=False)
    result = frozen_array(view, "x", (2, 3))
    values[:] = 7
    assert not result.any()


def test_a_view_of_writable_memory_is_copied():
    memory = mmap.mmap(-1, 24)
    result = frozen_array(np.frombuffer(memory, np.float32).reshape(2, 3), "x", (2, 3))
    memory[:4] = np.float32(7).tobytes()
    assert not result.any()


def test_what_is_frozen_already_is_not_copied():
    first = frozen_array(np.zeros((2, 3)), "x", (2, 3))
    assert np.shares_memory(frozen_array(first, "x", (2, 3)), first)
    raw = np.frombuffer(bytes(24), np.float32).reshape(2, 3)
    assert np.shares_memory(frozen_array(raw, "x", (2, 3)), raw)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.zeros(3), r"thing: expected shape \(any, 2\), got \(3,\)"),
        (np.zeros((3, 3)), r"thing: expected shape \(any, 2\), got \(3, 3\)"),
        (np.zeros((3, 2), complex), "thing: expected numbers .* got dtype complex128"),
        (np.array([["a", "b"]]), "thing: expected numbers .* got dtype <U1"),
        ([[1, 2], [3]], "thing: .* rows of different lengths"),
        (None, "thing: expected numbers .* got dtype object"),
        ([[0, 1], [np.nan, 1], [0, np.inf]], "thing: 2 of 3 rows are not finite .* first is row 1"),
        ([[0, 1], [0, 1e39]], "thing: 1 of 2 rows are not finite in float32 .*too large.* row 1"),
    ],
)
def test_refusals_name_the_array_and_what_was_expected(values, says: str):
    with pytest.raises(InputError, match=says):
        frozen_array(values, "thing", (None, 2))


def test_refusals_never_quote_values():
    with pytest.raises(InputError) as caught:
        frozen_array([[8.7654321, np.nan]], "thing", (None, 2))
    assert "8.76" not in str(caught.value)


@pytest.mark.parametrize("values", [[[0.0]], [[1.5]], [[np.nan]], [[True]], [[2**31]], [[-(2**31) - 1]]])
def test_integers_are_never_made_from_something_else(values):
    with pytest.raises(InputError, match="2147483647"):
        frozen_array(values, "ids", (None, 1), np.int32)


def test_integers_in_range_and_empty_arrays_pass():
    assert frozen_array(np.array([[2**31 - 1]], np.uint64), "ids", (None, 1), np.int32)[0, 0] == 2**31 - 1
    assert frozen_array(np.zeros((0, 2)), "ids", (None, 2), np.int32).dtype == np.int32


def test_checked_size():
    assert checked_size(None) is None
    assert checked_size((np.int64(640), 480)) == (640, 480)
    assert checked_size([1, 2**31 - 1]) == (1, 2**31 - 1)


@pytest.mark.parametrize(
    "size", [(0, 1), (-1, 5), (1, 2**31), (1,), (1, 2, 3), (1.0, 2), ("1", "2"), 5, "ab", (1, None)]
)
def test_checked_size_refuses(size):
    with pytest.raises(InputError, match="image_size"):
        checked_size(size)


def test_whole_numbers():
    assert whole_number(np.int64(5), "seed") == 5
    for wrong in (True, np.bool_(True), 1.5, "1", None):
        with pytest.raises(InputError, match="integer"):
            whole_number(wrong, "seed")
