# SPDX-License-Identifier: Apache-2.0
"""Map experiments: maps and poses from concealed features, against the truth."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "LocalizeProtocol": "localization",
        "MapProtocol": "mapping",
        "PosedScene": "scene",
        "evaluate_localization": "localization",
        "evaluate_map": "mapping",
        "localization_table": "localization",
        "map_table": "mapping",
    },
)
