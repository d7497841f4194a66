# SPDX-License-Identifier: Apache-2.0
"""Nearest-subspace search: an index of 12,000 planes, compared with the exact scan, saved and loaded.

    python examples/nearest_subspace.py

Each plane hides one SIFT descriptor: 2,000 of the left picture of a stereo pair, and 10,000 of other people's photos
that come with the package. The queries are planes too, of the right picture. So a server finds where a feature was seen
before, and holds no descriptor of either side.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sfumato
from sfumato.images import sample_image

RECIPE = "random-2"
"""Planes through the descriptor in random directions: no two of them meet in a decoy that both drew."""
OURS, OTHERS, QUERIES = 2000, 10_000, 400

Ids = NDArray[np.int64]


def make_planes() -> tuple[sfumato.Subspaces, sfumato.Subspaces]:
    """Return the planes to search in, of which the first are the left picture's, and those of the right picture."""
    left, right = (
        sfumato.extract(sample_image(f"motorcycle-{side}"), max_features=count).descriptors
        for side, count in (("left", OURS), ("right", QUERIES))
    )
    others = sfumato.load_decoys().descriptors[:OTHERS]
    planes, queries = (sfumato.conceal(points, RECIPE) for points in (np.concatenate([left, others]), right))
    assert isinstance(planes, sfumato.Subspaces)  # a sealed recipe would have made Bits
    assert isinstance(queries, sfumato.Subspaces)
    return planes, queries


def timed(search: Callable[[Any], tuple[NDArray[np.float32], Ids]], queries: sfumato.Subspaces) -> tuple[Ids, float]:
    """Ask one query after another, as a service does; return the nearest of each, and milliseconds a query."""
    search(queries[:1])  # the first search compiles and prepares
    start = time.perf_counter()
    nearest = [search(queries[row])[1][0, 0] for row in range(len(queries))]
    return np.array(nearest), 1000 * (time.perf_counter() - start) / len(queries)


def main() -> int:
    """Search by index and exactly."""
    planes, queries = make_planes()
    exact = sfumato.search.build(planes, kind="exact")
    index = sfumato.search.build(planes)  # the default for subspaces: "inverted"
    index.uses_exact = False  # or the index leaves to the exact scan what that does faster: nothing to compare then

    right, exact_ms = timed(lambda query: exact.search(query, k=1), queries)
    nearest, index_ms = timed(lambda query: index.search(query, k=1), queries)
    recall = float((nearest == right).mean())
    looked_at = index.search_counted(queries, k=1)[2].evaluated / len(queries)
    print(f"exact scan: {exact_ms:.1f} ms a query, {len(planes)} planes compared")
    print(f"index:      {index_ms:.1f} ms a query, {looked_at:.0f} planes compared exactly, recall {recall:.2f}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planes.index"
        index.save(path)
        loaded = sfumato.search.load(path)  # mapped into memory, and checked
        loaded.uses_exact = False
        same = bool((loaded.search(queries, k=1)[1] == index.search(queries, k=1)[1]).all())
        print(f"saved and loaded: {path.stat().st_size / 1e6:.0f} MB, {'the same' if same else 'other'} answers")
        loaded.remove(np.arange(OURS))  # ids stay what they were; the place is free after the next build
        ours_left = int((loaded.search(queries, k=1)[1] < OURS).sum())

    before = int((nearest < OURS).sum())
    print(
        f"shown: the index finds {recall:.0%} of the nearest planes; {before} of {len(queries)} features have it in "
        f"the left picture, and {ours_left} after it was removed"
    )
    return 0 if same and ours_left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
