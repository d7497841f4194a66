# SPDX-License-Identifier: Apache-2.0
"""What comes out when the features of many images are read: one by one, with errors among them, and countable."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sfumato.errors import SfumatoError
from sfumato.types.clear import Features

Result = tuple[str, Features | SfumatoError]
"""The name of an image, and its features or why there are none."""

Progress = Callable[[Iterable[Any]], Iterable[Any]]
"""Wraps an iterable and shows how far it is worked through."""


def identity(items: Iterable[Any]) -> Iterable[Any]:
    """Show no progress."""
    return items


def raised(results: Iterator[Result]) -> Iterator[tuple[str, Features]]:
    """Yield the features, and raise the first error instead of yielding it."""
    for name, found in results:
        if isinstance(found, SfumatoError):
            raise found
        yield name, found


class Counted:
    """Results and how many there will be, if anybody knows; -1 is nobody."""

    def __init__(self, results: Iterator[Result], count: int) -> None:
        self._results = results
        self._count = count

    def __iter__(self) -> Iterator[Result]:
        return self._results

    def __len__(self) -> int:
        if self._count < 0:
            raise TypeError("nobody knows how many there are")
        return self._count

    def __bool__(self) -> bool:
        return True
