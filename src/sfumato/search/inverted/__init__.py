# SPDX-License-Identifier: Apache-2.0
"""Inverted index of subspaces: lists of the cells that they pass near, codes before exact distances."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, {"InvertedIndex": "index", "InvertedParams": "index"})
