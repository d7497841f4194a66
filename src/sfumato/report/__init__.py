# SPDX-License-Identifier: Apache-2.0
"""Report: records and pictures as one page with verdicts. Reads records only."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "RecipeVerdict": "verdict",
        "make_page": "page",
        "verdicts_of": "verdict",
    },
)
