# SPDX-License-Identifier: Apache-2.0
"""Private visual features: still matched, mapped and recognised, no longer turned back into the picture.

Public names are loaded when first used, so that ``import sfumato`` costs next to nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Camera": "types.scene",
    "ConcealedFeatures": "types.concealed",
    "Decoys": "concealment.decoys",
    "EvaluationOnlyWarning": "errors",
    "Extractor": "types.extractor",
    "Features": "types.clear",
    "Image": "types.clear",
    "Landmarks": "types.scene",
    "Matches": "types.scene",
    "Pose": "types.scene",
    "Recipe": "types.recipe",
    "Record": "types.record",
    "Score": "types.record",
    "SfumatoError": "errors",
    "Subspaces": "types.concealed",
    "VoidDistanceWarning": "errors",
    "WeakSecretWarning": "errors",
    "WideSealWarning": "errors",
    "build_decoys": "concealment.build_decoys",
    "conceal": "concealment.conceal",
    "encode": "concealment.encoder",
    "extract": "features.local",
    "key_for_place": "concealment.seal",
    "load": "store",
    "load_decoys": "concealment.decoy_file",
    "load_encoder": "concealment.encoder",
    "match": "matching.match",
    "match_pairs": "matching.many",
    "nearest": "matching.match",
    "save": "store",
    "save_decoys": "concealment.decoy_file",
    "squared_distances": "subspace.reference",
}

_PACKAGES = ("search",)
"""Packages that are reached through this one without being imported by name."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"sfumato.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    value = getattr(import_module(f"sfumato.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *_PACKAGES, "__version__"]
