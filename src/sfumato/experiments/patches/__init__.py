# SPDX-License-Identifier: Apache-2.0
"""Patch experiments: verification, matching and retrieval of patches."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "PatchProtocol": "evaluate",
        "PatchSourceParams": "sources",
        "draw_bars": "evaluate",
        "evaluate_patches": "evaluate",
        "open_patches": "sources",
        "patch_table": "evaluate",
    },
)
