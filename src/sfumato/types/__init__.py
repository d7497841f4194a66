# SPDX-License-Identifier: Apache-2.0
"""Values: checked once when they are made, read-only afterwards."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Bits": "concealed",
        "Camera": "scene",
        "ConcealedFeatures": "concealed",
        "ConcealedTemplates": "concealed",
        "DEFAULT_RECIPE": "recipe",
        "Embeddings": "clear",
        "Extractor": "extractor",
        "Features": "clear",
        "Image": "clear",
        "Landmarks": "scene",
        "Link": "recipe",
        "Matches": "scene",
        "Points": "concealed",
        "Pose": "scene",
        "Progress": "progress",
        "Recipe": "recipe",
        "Record": "record",
        "RowTags": "concealed",
        "Score": "record",
        "StageProgress": "progress",
        "Subspaces": "concealed",
        "identity": "progress",
    },
)
