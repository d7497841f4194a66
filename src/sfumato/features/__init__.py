# SPDX-License-Identifier: Apache-2.0
"""Clear features of pictures and faces: extracted here, or read from other programs. They stay on the device."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "FaceParams": "faces",
        "FaceReader": "faces",
        "FeatureSource": "sources",
        "LocalParams": "local",
        "extract": "local",
        "extract_many": "sources",
        "open_source": "sources",
        "read_embeddings": "embeddings",
        "read_hloc": "hloc",
        "save_embeddings": "embeddings",
        "write_hloc": "hloc",
    },
)
