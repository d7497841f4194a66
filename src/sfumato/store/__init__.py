# SPDX-License-Identifier: Apache-2.0
"""Concealed features in archives and as frames on the wire, which cannot hold a clear descriptor.

See docs/reference/file_formats.md and docs/reference/wire.md.
"""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Archive": "archive",
        "ArchiveSummary": "archive",
        "ArchiveWriter": "writer",
        "ClaimedRows": "evidence",
        "Evidence": "evidence",
        "ImageHeader": "layout",
        "PublicPointsFile": "public_points",
        "decode_frame": "frames",
        "encode_frame": "frames",
        "load": "archive",
        "load_evidence": "evidence",
        "load_public": "public_points",
        "open_archive": "archive",
        "save": "writer",
        "save_evidence": "evidence",
    },
)
