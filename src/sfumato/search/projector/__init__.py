# SPDX-License-Identifier: Apache-2.0
"""Projector embeddings: subspaces as points, searched by a point index (Basri, Hassner and Zelnik-Manor)."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ProjectorIndex": "index",
        "ProjectorParams": "index",
        "embed_affine": "embedding",
        "embed_affine_query": "embedding",
        "embed_centred": "embedding",
        "embed_centred_query": "embedding",
        "embed_linear": "embedding",
        "embed_linear_query": "embedding",
        "form_squared_length": "embedding",
    },
)
