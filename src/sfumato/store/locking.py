# SPDX-License-Identifier: Apache-2.0
"""One writer at a time for a file that is read, changed and replaced: others wait for their turn.

The lock is a file beside it, which ends with the process that holds it. Knows paths, not what the files hold.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sfumato.errors import ArchiveError, FileError
from sfumato.store.part import open_locked

WAIT_SECONDS, PAUSE_SECONDS = 60.0, 0.02


@contextmanager
def locked(path: str | os.PathLike[str], wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Keep other writers of a file away; waits for one that is there, but not for ever.

    Raises FileError if another writer does not finish, or its folder can not be written.
    """
    target = Path(os.path.realpath(path))
    beside, until = target.with_name(f".{target.name}.lock"), time.monotonic() + wait
    while True:
        try:
            lock = open_locked(beside)
            break
        except ArchiveError as cause:
            if time.monotonic() > until:
                raise FileError(f"{target} is being changed by another process; try again when it is done") from cause
            time.sleep(PAUSE_SECONDS)
        except OSError as cause:
            raise FileError(f"{target}: can not be written: {cause.strerror or cause}; check its folder") from cause
    try:
        yield
    finally:
        with suppress(OSError):
            beside.unlink()  # who waits for it sees that it is gone, and begins anew
        os.close(lock)
