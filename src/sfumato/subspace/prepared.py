# SPDX-License-Identifier: Apache-2.0
"""A set of subspaces, and what it was turned into for comparing it: kept, so that the next comparison need not.

Knows arrays only. A frame holds what two sets must have in common: a point to measure from, and the axes to project on.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sfumato.subspace.kernels.panels import Panel

SAMPLE = 512
"""How many origins of a side the axes are computed from."""


def read_only(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a view that is read-only whatever the array was: compiled code knows the two as different types."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@dataclass(slots=True, repr=False, eq=False)
class Frame:
    """The mean (n,) of origins and the axes (n, n) along which they vary most, computed when first asked for.

    Any orthonormal axes give right results; these give tight bounds. ``plans`` remembers what paid.
    """

    mean: NDArray[np.float64]
    sample: NDArray[np.float32]
    plans: dict[Any, Any] = field(default_factory=dict)
    found: NDArray[np.float32] | None = None
    lock: Any = field(default_factory=threading.Lock)

    @staticmethod
    def of(*origins: NDArray[np.float32]) -> "Frame":
        """Return the frame of some sets of origins (N, n)."""
        sample = np.concatenate([origin[:: max(1, len(origin) // SAMPLE)] for origin in origins])
        return Frame(sample.mean(axis=0, dtype=np.float64), sample)

    def axes(self, head: int) -> NDArray[np.float32]:
        """Return the ``head`` axes of greatest variance, as columns (n, head)."""
        with self.lock:  # all panels of a frame must be on the same axes
            if self.found is None:
                centred = (self.sample - self.mean).astype(np.float32)
                vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64)).eigenvectors
                self.found = vectors[:, ::-1].astype(np.float32)
                self.sample = self.sample[:0]
            return np.ascontiguousarray(self.found[:, :head])


class PanelKey(NamedTuple):
    """What a panel was made for."""

    frame: Frame
    head: int | None
    pad_rows: int
    dual: bool


@dataclass(slots=True, repr=False, eq=False)
class Prepared:
    """One set of subspaces ready to be compared: ``origin`` (N, n), ``basis`` (N, m, n) float32 in canonical form."""

    origin: NDArray[np.float32]
    basis: NDArray[np.float32]
    frame: Frame | None = None
    made: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def dim(self) -> int:
        """The dimension m of each subspace."""
        return int(self.basis.shape[1])

    def sample(self, count: int) -> "Prepared":
        """Return about ``count`` of the subspaces, evenly spread, with what they were turned into whole."""
        if len(self) <= count:
            return self
        rows = np.linspace(0, len(self) - 1, count).astype(np.int64)
        chosen = Prepared(read_only(self.origin[rows]), read_only(self.basis[rows]), self.frame)
        for key, made in list(self.made.items()):  # others may be adding
            if isinstance(key, PanelKey) and key.head is None:
                chosen.made[key] = made.of(rows)
        return chosen

    def panel(
        self,
        frame: Frame,
        head: int | None,
        *,
        pad_rows: int = 1,
        dual: bool = False,
        run: Callable[..., Iterable[Any]] = map,
    ) -> "Panel":
        """Return the subspaces rounded in a frame, projected on its first ``head`` axes, or whole; ``run`` is a map."""
        from sfumato.subspace.kernels.panels import make_panel

        key = PanelKey(frame, head, pad_rows, dual)
        if key not in self.made:
            self.made[key] = make_panel(
                *(self.dual_form(frame) if dual else (self.origin, self.basis, frame.mean)),
                None if head is None or head >= len(frame.mean) else frame.axes(head),
                scale=self.scale(frame),
                round_to=16 if head is None else 2,
                pad_rows=pad_rows,
                dual=dual,
                run=run,
            )
        panel: Panel = self.made[key]
        return panel

    def largest(self) -> float:
        """Return the largest coordinate of an origin, whatever its sign."""
        if "largest" not in self.made:
            self.made["largest"] = float(np.abs(self.origin).max(initial=0.0))
        largest: float = self.made["largest"]
        return largest

    def squared_norms(self) -> NDArray[np.float64]:
        """Return the squared lengths (N,) of the origins."""
        if "squared norms" not in self.made:
            self.made["squared norms"] = np.einsum("ni,ni->n", self.origin, self.origin, dtype=np.float64)
        squared: NDArray[np.float64] = self.made["squared norms"]
        return squared

    def scale(self, frame: Frame) -> float:
        """Return the largest distance of an origin from the mean of a frame."""
        key = (frame, "scale")
        if key not in self.made:
            offset = self.origin - frame.mean
            self.made[key] = float(np.sqrt(np.einsum("ni,ni->n", offset, offset).max(initial=0.0))) * (1 + 1e-6) or 1.0
        scale: float = self.made[key]
        return scale

    def dual_form(self, frame: Frame) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
        """Return the dual form about the mean of a frame: origins, bases (N, n - m, n) of the complements, and 0."""
        from sfumato.subspace.reference import complement_basis

        offset = self.origin - frame.mean
        for _ in range(2):
            offset -= np.einsum("nm,nmi->ni", np.einsum("nmi,ni->nm", self.basis, offset), self.basis)
        if "complement" not in self.made:
            self.made["complement"] = complement_basis(self.basis)
        return offset.astype(np.float32), self.made["complement"], np.zeros_like(frame.mean)
