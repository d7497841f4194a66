# SPDX-License-Identifier: Apache-2.0
"""The ways of matching that are compared: those for clear descriptors, and ours."""

from collections.abc import Callable
from typing import Any

import numpy as np

import sfumato
from sfumato.subspace import Neighbours, prepare, search

KEEP = {"mutual": (1, 1), "ratio": (2, 2), "nearest": (2, 0)}
"""How many nearest a task needs, of the rows of one side and of the other."""


def faiss_search(a: np.ndarray, b: np.ndarray, task: str) -> np.ndarray:
    """Do with clear descriptors what a case does: add to a flat index, search, in both directions where needed."""
    import faiss

    def nearest(queries: np.ndarray, references: np.ndarray, k: int) -> np.ndarray:
        index = faiss.IndexFlatL2(references.shape[1])
        index.add(references)
        return index.search(queries, k)[1]

    k0, k1 = KEEP[task]
    forward = nearest(a, b, k0)
    if not k1:
        return forward
    return np.flatnonzero(nearest(b, a, k1)[forward[:, 0], 0] == np.arange(len(a)))


def binary_search(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Match packed bits with faiss: add to a flat index, search for two nearest, in both directions."""
    import faiss

    found = []
    for queries, references in ((a, b), (b, a)):
        index = faiss.IndexBinaryFlat(8 * references.shape[1])
        index.add(references)
        found.append(index.search(queries, 2)[1])
    return np.flatnonzero(found[1][found[0][:, 0], 0] == np.arange(len(a)))


def peers(a: np.ndarray, b: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return the ways in which people match clear descriptors of unit norm."""
    import cv2

    out = np.empty((len(a), len(b)), np.float32)

    def both_argmins() -> np.ndarray:
        product = a @ b.T
        return np.flatnonzero(product.argmax(axis=0)[product.argmax(axis=1)] == np.arange(len(a)))

    return {
        "faiss": lambda: faiss_search(a, b, "mutual"),
        "numpy product, both argmins": both_argmins,
        "cv2.BFMatcher crossCheck": lambda: cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(a, b),
        "the product alone": lambda: np.matmul(a, b.T, out=out),
    }


def ours(a: Any, b: Any, task: str, threads: int, device: str | None = None) -> Any:
    """Do what a user does."""
    if task == "nearest":
        return sfumato.nearest(a, b, k=2, threads=threads, device=device)
    if isinstance(a, sfumato.Bits):
        return sfumato.match(a, b, ratio=0.94, max_distance=211, threads=threads)
    return sfumato.match(a, b, ratio=0.8 if task == "ratio" else None, threads=threads, device=device)


def search_pair(a: Any, b: Any, task: str, threads: int, head: int | None = None) -> Neighbours:
    """Search as ``ours`` does, with the bound on ``head`` axes; n axes project nothing away."""
    sides = [side if hasattr(side, "basis") else sfumato.Subspaces(side, side[:, None][:, :0]) for side in (a, b)]
    prepared0, prepared1 = (prepare(side.origin, side.basis) for side in sides)
    return search(prepared0, prepared1, KEEP[task], threads=threads, head=head)
