# SPDX-License-Identifier: Apache-2.0
"""Progress of long loops: a callable that wraps what is worked through, and results whose number is known."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Progress = Callable[[Iterable[Any]], Iterable[Any]]
"""Wraps an iterable and shows how far it is worked through."""

StageProgress = Callable[[str, Iterable[Any], int], Iterable[Any]]
"""The same for work of several stages: the title of a stage, its items and their number."""

Item = TypeVar("Item")


def identity(items: Iterable[Any]) -> Iterable[Any]:
    """Show no progress."""
    return items


class SizedItems(Generic[Item]):
    """Items that come one by one, and how many there will be; a count of -1 stands for an unknown number."""

    def __init__(self, items: Iterator[Item], count: int) -> None:
        self._items = items
        self._count = count

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __len__(self) -> int:
        if self._count < 0:
            raise TypeError("the number of items is unknown")
        return self._count

    def __bool__(self) -> bool:
        return True
