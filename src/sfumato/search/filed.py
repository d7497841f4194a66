# SPDX-License-Identifier: Apache-2.0
"""Filed entries: the lists of cells and the codes of a run of rows of one dimension m. Knows arrays only."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.search.cells import lists_of
from sfumato.search.codes import Axes, code_bytes, encode
from sfumato.search.entries import Entries

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Filed:
    """Rows ``start`` and following of dimension ``dim``.

    ``offsets`` (K + 1,) int64 and ``members`` int32, counted from ``start``, ascending in each list; ``codes``
    (N, bytes) int8 as in ``codes.encode``.
    """

    start: int
    dim: int
    offsets: NDArray[np.int64]
    members: NDArray[np.int32]
    codes: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.codes)

    @staticmethod
    def of(start: int, cells: NDArray[np.int32], axes: Axes, origin: Floats, basis: Floats, count: int) -> "Filed":
        """Return subspaces with their cells (N, T), of ``count``, filed and encoded."""
        return Filed(start, basis.shape[1], *lists_of(cells, count), encode(axes, origin, basis))

    def joins(self, after: "Filed") -> bool:
        """Tell whether another run follows and is large enough to be worth merging with this one."""
        follows = self.start + len(self) == after.start and self.dim == after.dim
        return follows and len(self) <= 2 * len(after)

    def joined(self, after: "Filed") -> "Filed":
        """Return this run and the one that follows as one."""
        cells = np.arange(len(self.offsets) - 1)
        owner = np.concatenate([np.repeat(cells, np.diff(part.offsets)) for part in (self, after)])
        members = np.concatenate([self.members, after.members + np.int32(len(self))])
        order = np.argsort(owner, kind="stable")
        codes = np.concatenate([self.codes, after.codes])
        return Filed(self.start, self.dim, self.offsets + after.offsets, members[order], codes)

    def compiled(self) -> tuple[Any, ...]:
        """Return what the compiled scan takes: offsets, members, codes and their float32 view, bytes of a code, m."""
        codes = self.codes.reshape(-1)
        return self.offsets, self.members, codes, codes.view(np.float32), self.codes.shape[1], self.dim

    @staticmethod
    def checked(
        start: int,
        offsets: NDArray[Any],
        members: NDArray[Any],
        codes: NDArray[Any],
        entries: Entries,
        count: int,
    ) -> "Filed":
        """Return a part from a file; FileError where a list points beyond the entries."""
        inside = [one for one in entries.segments if one.start <= start < one.stop]
        if not inside or codes.ndim != 2 or start + len(codes) > inside[0].stop:
            raise FileError("a list of entries begins or ends where there are none")
        kinds = [array.dtype.name for array in (offsets, members, codes)] == ["int64", "int32", "int8"]
        shapes = offsets.shape == (count + 1,) and codes.shape[1] == code_bytes(inside[0].dim) and members.ndim == 1
        if not kinds or not shapes:
            raise FileError("lists or codes of other shapes than they must have")
        if offsets[0] != 0 or offsets[-1] != len(members) or (offsets[1:] < offsets[:-1]).any():
            raise FileError("the lists do not follow each other")
        if members.size and not 0 <= members.min() <= members.max() < len(codes):
            raise FileError("a list points beyond the entries")
        return Filed(start, inside[0].dim, offsets, members, codes)
