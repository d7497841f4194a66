# SPDX-License-Identifier: Apache-2.0
"""Keep the BLAS to one thread while our own threads work, and give it back its threads when the last search is over.

Searches may overlap: limits that were set and restored one inside another by different threads would leave the process
with the wrong one.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_state: dict[str, Any] = {"users": 0, "limits": None, "libraries": None}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit the BLAS to one thread for as long as anyone asks for it.

    Libraries are looked up once, which takes as long as a small search: that of numpy, the only one called, is loaded
    by then.
    """
    from threadpoolctl import ThreadpoolController

    with _lock:
        if _state["libraries"] is None:
            _state["libraries"] = ThreadpoolController()
        if _state["users"] == 0:
            _state["limits"] = _state["libraries"].limit(limits=1, user_api="blas")
        _state["users"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            if _state["users"] == 0:
                _state["limits"].restore_original_limits()
                _state["limits"] = None
