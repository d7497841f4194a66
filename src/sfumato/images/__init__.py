# SPDX-License-Identifier: Apache-2.0
"""Pictures: read from files, bundled with the package, and related by homographies."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "list_images": "read",
        "read_image": "read",
        "sample_image": "samples",
        "sample_paths": "samples",
    },
)
