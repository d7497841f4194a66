# SPDX-License-Identifier: Apache-2.0
"""Overlapping users of the one-thread limit leave the BLAS as they found it."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from sfumato.subspace.fast import one_blas_thread


def threads() -> set[int]:
    """The threads of numpy's BLAS; other libraries bring others, which nobody limits."""
    np.ones((2, 2)) @ np.ones((2, 2))
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return {library["num_threads"] for library in found if "numpy" in library["filepath"] or len(found) == 1}


def test_the_last_one_restores():
    with threadpool_limits(2, "blas"):
        before = threads()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert threads() == {1}
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == before


def test_an_error_restores_too():
    with threadpool_limits(2, "blas"):
        before = threads()
        with pytest.raises(ZeroDivisionError), one_blas_thread():
            raise ZeroDivisionError
        assert threads() == before
