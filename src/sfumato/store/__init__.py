# SPDX-License-Identifier: Apache-2.0
"""The archive of concealed features: a file that cannot hold a clear descriptor; see docs/format.md."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Archive": "archive",
        "ArchiveSummary": "archive",
        "ArchiveWriter": "writer",
        "ImageHeader": "layout",
        "PublicPointsFile": "public_points",
        "load": "archive",
        "load_public": "public_points",
        "open_archive": "archive",
        "save": "writer",
    },
)
