# SPDX-License-Identifier: Apache-2.0
"""Search experiments: indexes of faces, patches and descriptors, method by method."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "AFFINE": "methods",
        "DescriptorProtocol": "descriptors",
        "FaceSearchProtocol": "faces",
        "LINEAR": "methods",
        "Method": "methods",
        "RepatchProtocol": "repatching",
        "evaluate_descriptors": "descriptors",
        "evaluate_face_search": "faces",
        "evaluate_repatch": "repatching",
        "prepare_repatch": "repatching",
    },
)
