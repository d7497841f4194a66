# SPDX-License-Identifier: Apache-2.0
"""Map experiments: maps and poses from concealed features, against the truth and plain COLMAP."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "LocalizeProtocol": "localization",
        "MapProtocol": "mapping",
        "PhotoScene": "scene",
        "PlainMap": "plain_colmap",
        "evaluate_localization": "localization",
        "evaluate_map": "mapping",
        "localization_table": "localization",
        "map_plainly": "plain_colmap",
        "map_table": "mapping",
        "map_tables": "mapping",
    },
)
