# SPDX-License-Identifier: Apache-2.0
"""Local features of many pictures: parallel, in order, with memory for a few.

Threads do: OpenCV works without holding Python back. OpenCV's own number of threads belongs to the process
and is not touched.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from operator import length_hint
from pathlib import Path

from sfumato.errors import InputError, SfumatoError
from sfumato.features.local import LocalParams, chosen, extract, prepare
from sfumato.features.results import Counted, Progress, Result, identity
from sfumato.images.read import read_image
from sfumato.types.clear import Features

PIXELS_AT_ONCE = 24_000_000
"""SIFT needs about 240 bytes a pixel, 3 GB for a photo of 12 megapixels: so many may be worked on together."""


def extract_many(
    items: Iterable[tuple[str, str | os.PathLike[str]]],
    params: LocalParams | None = None,
    *,
    workers: int | None = None,
    progress: Progress = identity,
) -> Iterator[Result]:
    """Extract the features of images given as (name, path), by default on every core there is, in their
    order.

    An image that can not be read comes as its error in place of its features. Any other error ends the work.
    ``progress`` wraps what is yielded, and can ask its length.

    Raises InputError for settings that are not valid, and what ``extract`` raises for networks and their weights.
    """
    params = chosen(params, {})
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers must be a whole number of 1 or more, got {workers!r:.80}")
    prepare(params)  # what is wrong with a network is no matter of a single image
    results = Counted(_extract_in_order(items, params, workers), length_hint(items, -1))
    return iter(progress(results))


class _Worker:
    """Extracts one image at a time in any thread, within the memory there is, until told to stop."""

    def __init__(self, params: LocalParams) -> None:
        self.params = params
        self.stopped = False
        self._pixels = 0
        self._changed = threading.Condition()

    def __call__(self, path: Path) -> Features | SfumatoError:
        try:
            if self.stopped:
                return SfumatoError("stopped")
            image = read_image(path)
            with self._room_for(image.size[0] * image.size[1]):
                return SfumatoError("stopped") if self.stopped else extract(image, self.params)
        except SfumatoError as problem:
            return problem

    @contextmanager
    def _room_for(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for so many pixels; a picture too large for any room has it alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._pixels == 0 or self._pixels + pixels <= PIXELS_AT_ONCE)
            self._pixels += pixels
        try:
            yield
        finally:
            with self._changed:
                self._pixels -= pixels
                self._changed.notify_all()


def _extract_in_order(
    items: Iterable[tuple[str, str | os.PathLike[str]]], params: LocalParams, workers: int
) -> Iterator[Result]:
    """Keep one more image under way than there are workers, and yield the oldest."""
    worker = _Worker(params)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="extract")
    under_way: deque[tuple[str, Future[Features | SfumatoError]]] = deque()
    try:
        for name, path in items:
            under_way.append((name, pool.submit(worker, Path(path))))
            if len(under_way) > workers:
                name, future = under_way.popleft()
                yield name, future.result()
        while under_way:
            name, future = under_way.popleft()
            yield name, future.result()
    finally:  # also when interrupted or given up: nothing new is begun, what has begun is waited for
        worker.stopped = True
        pool.shutdown(wait=True, cancel_futures=True)
