# SPDX-License-Identifier: Apache-2.0
"""Grassmannian hashing: the index, its hash rules, and the parameter calculator of the paper."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Chances": "theory",
        "GrassmannIndex": "index",
        "GrassmannParams": "index",
        "HashAdvice": "theory",
        "HashRule": "family",
        "advise": "theory",
        "chances": "theory",
    },
)
