# SPDX-License-Identifier: Apache-2.0
"""Private visual features: still matched, mapped and recognised, no longer turned back into the picture.

Public names are loaded when first used, so that ``import sfumato`` costs next to nothing.
"""

from sfumato.lazy import lazy_names

__version__ = "0.1.0"

_HOMES = {
    "ATTACKS": "attacks.registry",
    "BandwidthWarning": "errors",
    "Bits": "types.concealed",
    "Camera": "types.scene",
    "ConcealedFeatures": "types.concealed",
    "Decoys": "concealment.decoys",
    "EvaluationOnlyWarning": "errors",
    "Extractor": "types.extractor",
    "Features": "types.clear",
    "Image": "types.clear",
    "Landmarks": "types.scene",
    "Matches": "types.scene",
    "NewKeyWarning": "errors",
    "Points": "types.concealed",
    "Pose": "types.scene",
    "Recipe": "types.recipe",
    "Record": "types.record",
    "Score": "types.record",
    "SfumatoError": "errors",
    "SfumatoWarning": "errors",
    "Subspaces": "types.concealed",
    "VoidDistanceWarning": "errors",
    "WeakSecretWarning": "errors",
    "WideSealWarning": "errors",
    "attack": "attacks.inputs",
    "audit": "auditing.run",
    "build_decoys": "concealment.decoy_clusters",
    "build_index": "codebooks",
    "build_map": "geometry.mapping",
    "build_photo_decoys": "concealment.decoy_photos",
    "calibrate": "faces.calibration",
    "codebook_for": "codebooks",
    "conceal": "concealment.lifting",
    "conceal_photos": "device",
    "device_key": "concealment.keys",
    "encode": "concealment.encoder",
    "enroll": "faces.enrollment",
    "export_colmap": "geometry.mapping",
    "export_hloc": "geometry.hloc",
    "extract": "features.local",
    "identify": "faces.probe",
    "infer_cameras": "device",
    "invert": "inversion.load",
    "key_for_place": "concealment.keys",
    "load": "store.archive",
    "load_decoys": "concealment.decoys",
    "load_encoder": "concealment.encoder",
    "localize": "geometry.queries",
    "localize_photos": "device",
    "match": "matching.mutual",
    "match_archive": "matching.batch",
    "match_pairs": "matching.batch",
    "nearest": "matching.mutual",
    "new_key": "concealment.keys",
    "renew": "faces.enrollment",
    "revoke": "faces.enrollment",
    "save": "store.writer",
    "save_decoys": "concealment.decoys",
    "squared_distances": "subspace.reference",
    "verify": "faces.probe",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES, packages=("search",))
