# SPDX-License-Identifier: Apache-2.0
"""Experiments: the papers' protocols, their data and figures, beside the road."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "make_room": "data.room",
        "read_posed_folder": "data.folders",
        "save_room": "data.room",
    },
)
