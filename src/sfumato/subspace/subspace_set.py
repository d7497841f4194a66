# SPDX-License-Identifier: Apache-2.0
"""Sets of subspaces with the panels made from them, which the next search uses again.

A frame is what two sets must have in common: a point to measure from, and the axes to project on.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.reference import complement

if TYPE_CHECKING:
    from sfumato.subspace.kernels.panels import Panel

Number = TypeVar("Number", bound=np.generic)

AT_ONCE_BYTES = 64 << 20
"""Memory for one part of ``complement_basis``."""

SAMPLE = 512
"""The axes are computed from this many origins of each side."""


def read_only(array: NDArray[Number]) -> NDArray[Number]:
    """Return a read-only view: to numba, writable and read-only arrays are different types, compiled separately."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@dataclass(slots=True, repr=False, eq=False)
class Frame:
    """The mean (n,) of origins and the axes (n, n) along which they vary most, computed on first use.

    Any orthonormal axes give right results; these give tight bounds. ``plans`` remembers which plan was fastest.
    """

    mean: NDArray[np.float64]
    sample: NDArray[np.float32]
    plans: dict[Any, Any] = field(default_factory=dict)
    all_axes: NDArray[np.float32] | None = None
    lock: Any = field(default_factory=threading.Lock)

    @staticmethod
    def of(*origins: NDArray[np.float32]) -> "Frame":
        """Return the frame of some sets of origins (N, n)."""
        sample = np.concatenate([origin[:: max(1, len(origin) // SAMPLE)] for origin in origins])
        return Frame(sample.mean(axis=0, dtype=np.float64), sample)

    def axes(self, head: int) -> NDArray[np.float32]:
        """Return the ``head`` axes of greatest variance, as columns (n, head)."""
        with self.lock:  # all panels of a frame must be on the same axes
            if self.all_axes is None:
                centred = (self.sample - self.mean).astype(np.float32)
                vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64)).eigenvectors
                self.all_axes = vectors[:, ::-1].astype(np.float32)
                self.sample = self.sample[:0]
            return np.ascontiguousarray(self.all_axes[:, :head])


class PanelKey(NamedTuple):
    """The cache key of a panel."""

    frame: Frame
    head: int | None
    pad_rows: int
    dual: bool


@dataclass(slots=True, repr=False, eq=False)
class SubspaceSet:
    """A set of subspaces ready for searches: ``origin`` (N, n), ``basis`` (N, m, n) float32 in canonical form."""

    origin: NDArray[np.float32]
    basis: NDArray[np.float32]
    frame: Frame | None = None
    cache: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def dim(self) -> int:
        """The dimension m of each subspace."""
        return int(self.basis.shape[1])

    @property
    def ambient_dim(self) -> int:
        """The dimension n of the space they live in."""
        return int(self.origin.shape[1])

    def sample(self, count: int) -> "SubspaceSet":
        """Return about ``count`` of the subspaces, evenly spread, with their full panels."""
        if len(self) <= count:
            return self
        rows = np.linspace(0, len(self) - 1, count).astype(np.int64)
        sample = SubspaceSet(read_only(self.origin[rows]), read_only(self.basis[rows]), self.frame)
        for key, panel in list(self.cache.items()):  # other threads may be adding
            if isinstance(key, PanelKey) and key.head is None:
                sample.cache[key] = panel.of(rows)
        return sample

    def panel(
        self,
        frame: Frame,
        head: int | None,
        *,
        pad_rows: int = 1,
        dual: bool = False,
        run: Callable[..., Iterable[Any]] = map,
    ) -> "Panel":
        """Return the subspaces rounded in a frame, on its first ``head`` axes or in full; ``run`` is a map."""
        from sfumato.subspace.kernels.panels import make_panel

        key = PanelKey(frame, head, pad_rows, dual)
        if key not in self.cache:
            self.cache[key] = make_panel(
                *(self.dual_form(frame) if dual else (self.origin, self.basis, frame.mean)),
                None if head is None or head >= len(frame.mean) else frame.axes(head),
                scale=self.scale(frame),
                round_to=16 if head is None else 2,
                pad_rows=pad_rows,
                dual=dual,
                run=run,
            )
        panel: Panel = self.cache[key]
        return panel

    def largest(self) -> float:
        """Return the largest absolute coordinate of an origin."""
        if "largest" not in self.cache:
            self.cache["largest"] = float(np.abs(self.origin).max(initial=0.0))
        largest: float = self.cache["largest"]
        return largest

    def squared_norms(self) -> NDArray[np.float64]:
        """Return the squared lengths (N,) of the origins."""
        if "squared norms" not in self.cache:
            self.cache["squared norms"] = np.einsum("ni,ni->n", self.origin, self.origin, dtype=np.float64)
        squared: NDArray[np.float64] = self.cache["squared norms"]
        return squared

    def scale(self, frame: Frame) -> float:
        """Return the largest distance of an origin from the mean of a frame."""
        key = (frame, "scale")
        if key not in self.cache:
            offset = self.origin - frame.mean
            self.cache[key] = float(np.sqrt(np.einsum("ni,ni->n", offset, offset).max(initial=0.0))) * (1 + 1e-6) or 1.0
        scale: float = self.cache[key]
        return scale

    def dual_form(self, frame: Frame) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
        """Return the dual form about the mean of a frame: origins, bases (N, n - m, n) of the complements, and 0."""
        offset = self.origin - frame.mean
        for _ in range(2):
            offset -= np.einsum("nm,nmi->ni", np.einsum("nmi,ni->nm", self.basis, offset), self.basis)
        if "complement" not in self.cache:
            self.cache["complement"] = complement_basis(self.basis)
        return offset.astype(np.float32), self.cache["complement"], np.zeros_like(frame.mean)


def complement_basis(basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return orthonormal bases (N, n - m, n) of the complements of orthonormal bases (N, m, n).

    The parts of n - m fixed directions outside the subspace span its complement. A subspace to which they happen to be
    nearly parallel is left to ``reference.complement``, the definition.
    """
    count, m, n = basis.shape
    result = np.empty((count, n - m, n), np.float32)
    if m == n or count == 0:
        return result
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n))).Q[: n - m]
    at_once = max(1, AT_ONCE_BYTES // (8 * n * n))
    for start in range(0, count, at_once):
        rows = basis[start : start + at_once].astype(np.float64)
        outside = np.broadcast_to(directions, (len(rows), n - m, n))
        for _ in range(2):
            outside = outside - (outside @ rows.transpose(0, 2, 1)) @ rows
        factors = np.linalg.qr(outside.transpose(0, 2, 1))
        weak = np.abs(np.einsum("nkk->nk", factors.R)).min(axis=1) < 1e-6
        bases = factors.Q.transpose(0, 2, 1)
        if weak.any():
            bases = bases.copy()
            bases[weak] = complement(rows[weak])
        result[start : start + at_once] = bases
    return result
