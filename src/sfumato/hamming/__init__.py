# SPDX-License-Identifier: Apache-2.0
"""Exact nearest neighbours of packed bits, by the number of bits in which they differ."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BitSet": "search",
        "distances": "search",
        "search_bits": "search",
    },
)
