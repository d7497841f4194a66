# SPDX-License-Identifier: Apache-2.0
"""Search methods that are compared with each other: those of the papers, and ours, by name."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest
from sfumato.search.grassmann.index import GrassmannParams
from sfumato.search.index import Index
from sfumato.search.projector.index import ProjectorParams
from sfumato.types.record import Value

SHARES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Efforts of kinds whose effort is a share of the entries."""
EXPONENTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
"""Efforts of inverted lists, which probe cells ** effort of them."""

TABLES = GrassmannParams(key_length=3, tables=20, probes=1)
"""K and S of the hashing paper's experiments, for every rule."""


@dataclass(frozen=True, slots=True)
class Method:
    """A kind of index with its parameters: ``params`` None for the kind's own. ``is_exact``: it has no effort.

    ``efforts``: those at which recall is weighed against speed. ``needs_points``: it gets public points like the hidden
    ones.
    """

    name: str
    kind: str
    params: Any = None
    is_exact: bool = False
    efforts: tuple[float, ...] = SHARES
    needs_points: bool = False

    def build(self, subspaces: Any, metric: str, seed: int = 0, points: NDArray[np.float32] | None = None) -> Index:
        """Return an index of subspaces that never leaves a batch to the exact scan; random choices from ``seed``."""
        from sfumato.search.factory import build

        params = replace(self.params, seed=seed) if hasattr(self.params, "seed") else self.params
        if self.needs_points and points is not None:
            params = {"points": points, "seed": seed}
        index = build(subspaces, self.kind, metric, params)
        index.uses_exact = False
        return index

    def limited(self, candidates: int) -> "Method":
        """Return the method with this many entries compared exactly per query."""
        return replace(self, params=replace(self.params, candidates=candidates))

    @property
    def described(self) -> dict[str, Value]:
        """The parameters of the method, for a record."""
        params = {} if self.params is None else asdict(self.params)
        renamed = {"points" if name == "method" else name: value for name, value in params.items() if name != "seed"}
        return {"method": self.name, "kind": self.kind, **renamed}


LINEAR: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("exact", "exact", is_exact=True),
        Method("grassmann printed pi/8", "grassmann", GrassmannParams.published(math.pi / 8)),
        Method("grassmann printed pi/6", "grassmann", GrassmannParams.published(math.pi / 6)),
        Method("grassmann quantised", "grassmann", replace(TABLES, rule="quantised")),
        Method("grassmann quantile", "grassmann", TABLES),
        Method("grassmann 100 tables", "grassmann", replace(TABLES, tables=100)),
        Method("projector kd-tree eps 10", "projector", ProjectorParams.published()),
        Method("projector kd-tree eps 0", "projector", ProjectorParams.published(eps=0.0)),
        Method("projector flat", "projector", ProjectorParams(method="flat", sketch=0)),
    )
}
"""For linear subspaces. "quantised" is the rule of the authors' program: 60 bins, with a random offset."""

AFFINE: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("exact", "exact", is_exact=True),
        Method("inverted", "inverted", efforts=EXPONENTS),
        Method("inverted on public points", "inverted", efforts=EXPONENTS, needs_points=True),
        Method("grassmann", "grassmann", GrassmannParams(tables=50, probes=8)),
        Method("grassmann printed pi/8", "grassmann", GrassmannParams.published(math.pi / 8)),
        Method("projector flat", "projector", ProjectorParams(method="flat")),
        Method("projector hnsw", "projector", ProjectorParams(method="hnsw")),
        Method("projector ivf", "projector", ProjectorParams(method="ivf")),
    )
}
"""For affine subspaces, such as lifted descriptors. Public points are the decoys, where there are some."""


def choose_methods(names: Iterable[str], known: Mapping[str, Method]) -> list[Method]:
    """Return methods by their names, each once; InputError with a suggestion for an unknown one, and for none."""
    unique = list(dict.fromkeys(names))
    for name in unique:
        if name not in known:
            raise InputError(f"no method is called {name!r:.80}{suggest(name, known)}; there are {', '.join(known)}")
    if not unique:
        raise InputError(f"name at least one method of {', '.join(known)}")
    return [known[name] for name in unique]
