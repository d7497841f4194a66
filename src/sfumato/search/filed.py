# SPDX-License-Identifier: Apache-2.0
"""Filed entries: the lists of cells and the codes of a run of rows of one dimension m. Knows arrays only."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.search.cells import lists_of
from sfumato.search.codes import COARSE, HEAD, Axes, code_bytes, encode
from sfumato.search.entries import Entries

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Filed:
    """Rows ``start`` and following of dimension ``dim``.

    ``offsets`` (K + 1,) int64 and ``members`` int32, counted from ``start``, ascending in each list; ``coarse`` and
    ``fine`` (N, bytes) int8: codes as ``codes.encode`` makes them.
    """

    start: int
    dim: int
    offsets: NDArray[np.int64]
    members: NDArray[np.int32]
    coarse: NDArray[np.int8]
    fine: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.fine)

    @staticmethod
    def of(start: int, cells: NDArray[np.int32], axes: Axes, origin: Floats, basis: Floats, count: int) -> "Filed":
        """Return subspaces with their cells (N, T), of ``count``, filed and encoded."""
        codes = (encode(axes, origin, basis, width) for width in (COARSE, HEAD))
        return Filed(start, basis.shape[1], *lists_of(cells, count), *codes)

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
        coarse, fine = np.concatenate([self.coarse, after.coarse]), np.concatenate([self.fine, after.fine])
        return Filed(self.start, self.dim, self.offsets + after.offsets, members[order], coarse, fine)

    def compiled(self) -> tuple[Any, ...]:
        """Return what the compiled scans take: offsets, members, coarse codes, fine codes, and m.

        Codes are bytes, the same as float32, and how many bytes an entry has.
        """
        flat = [(codes.reshape(-1), codes.reshape(-1).view(np.float32), codes.shape[1])
                for codes in (self.coarse, self.fine)]  # fmt: skip
        return self.offsets, self.members, *flat, self.dim

    @staticmethod
    def checked(
        start: int,
        offsets: NDArray[Any],
        members: NDArray[Any],
        coarse: NDArray[Any],
        fine: NDArray[Any],
        entries: Entries,
        count: int,
    ) -> "Filed":
        """Return a part from a file; FileError where a list points beyond the entries."""
        inside = [one for one in entries.segments if one.start <= start < one.stop]
        if not inside or fine.ndim != 2 or start + len(fine) > inside[0].stop:
            raise FileError("a list of entries begins or ends where there are none")
        m, kinds = inside[0].dim, [array.dtype.name for array in (offsets, members, coarse, fine)]
        shapes = [array.shape for array in (offsets, coarse, fine)]
        wanted = [(count + 1,), (len(fine), code_bytes(m, COARSE)), (len(fine), code_bytes(m))]
        if kinds != ["int64", "int32", "int8", "int8"] or shapes != wanted or members.ndim != 1:
            raise FileError("lists or codes of other shapes than they must have")
        if offsets[0] != 0 or offsets[-1] != len(members) or (offsets[1:] < offsets[:-1]).any():
            raise FileError("the lists do not follow each other")
        if members.size and not 0 <= members.min() <= members.max() < len(fine):
            raise FileError("a list points beyond the entries")
        return Filed(start, m, offsets, members, coarse, fine)
