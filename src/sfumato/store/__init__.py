# SPDX-License-Identifier: Apache-2.0
"""The archive of concealed features: an HDF5 file that cannot hold a clear descriptor. See
docs/format.md."""

from sfumato.store.archive import Archive, load
from sfumato.store.writer import ArchiveWriter, save

__all__ = ["Archive", "ArchiveWriter", "load", "save"]
