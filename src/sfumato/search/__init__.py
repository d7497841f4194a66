# SPDX-License-Identifier: Apache-2.0
"""Nearest-subspace search: indexes of many subspaces, searched for the nearest of points or subspaces."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Index": "index",
        "IndexSummary": "archives",
        "KINDS": "factory",
        "METRICS": "entries",
        "SearchStats": "index",
        "Shards": "shards",
        "add_images": "archives",
        "build": "factory",
        "build_shards": "shards",
        "index_images": "archives",
        "load": "factory",
        "place_of": "archives",
        "remove_images": "archives",
        "search_images": "archives",
        "summarise": "archives",
        "votes": "archives",
    },
)
