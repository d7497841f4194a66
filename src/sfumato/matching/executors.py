# SPDX-License-Identifier: Apache-2.0
"""Executors for many pairs: processes of this machine, or the machines of a dask cluster.

Both come as an Executor of ``concurrent.futures``. Knows nothing about matching.
"""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sfumato.errors import InputError, WorkerError, need

log = logging.getLogger(__name__)

PATIENCE = 20
"""Seconds to wait for a scheduler."""


@contextmanager
def local_processes(count: int) -> Iterator[Executor]:
    """Give processes of this machine, which end with this process whatever ends it."""
    from multiprocessing import get_context

    if count < 1:
        raise InputError(f"workers: expected 1 or more, got {count}")
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin)
    try:
        yield pool
    except BaseException:  # what is under way is not wanted any more; the pool has no public way to end it
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """Begin a worker: silent at Ctrl-C, which the parent answers, and gone when the parent is gone."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: Any) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files that prove to a cluster who is who: certificate authority, own certificate, own key."""

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None


@contextmanager
def dask_cluster(address: str, tls: TlsFiles | None = None) -> Iterator[tuple[Executor, int]]:
    """Give the workers of a dask scheduler, and how many cores they have now.

    Without ``tls`` dask's own configuration is used. Raises MissingDependency without the extra ``cluster``,
    WorkerError if no scheduler answers.
    """
    distributed = need("distributed", extra="cluster")
    security = None
    if tls is not None and tls != TlsFiles():
        if not address.startswith("tls://"):
            raise InputError(f"certificates need an address that begins with tls://, got {address!r:.200}")
        security = distributed.Security(
            tls_ca_file=tls.authority, tls_client_cert=tls.certificate, tls_client_key=tls.key, require_encryption=True
        )
    if not address.startswith("tls://") and not _is_local(address):
        warnings.warn(
            f"{address} is not encrypted: anyone who reaches the scheduler can run programs on its workers; see "
            f"'sfumato help match_and_search' on tls://",
            stacklevel=3,
        )
    try:
        client = distributed.Client(address, security=security, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as cause:
        raise WorkerError(
            f"no dask scheduler answers at {address} ({type(cause).__name__}: {cause}); start one with: dask scheduler"
        ) from cause
    try:
        cores = sum(client.ncores().values())
        if not cores:
            log.warning("the scheduler at %s has no workers yet: waiting for them", address)
        yield client.get_executor(retries=3, pure=False), cores
    finally:
        client.close()


def _is_local(address: str) -> bool:
    host = urlsplit(address if "//" in address else f"tcp://{address}").hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.") or address.startswith(("inproc:", "unix:"))
