# SPDX-License-Identifier: Apache-2.0
"""Nearest-subspace search: indexes of many subspaces, asked for the nearest of points or subspaces."""

from sfumato.search.entries import METRICS
from sfumato.search.factory import KINDS, build, load
from sfumato.search.index import Index, SearchStats
from sfumato.search.shards import Shards

__all__ = ["KINDS", "METRICS", "Index", "SearchStats", "Shards", "build", "load"]
