# SPDX-License-Identifier: Apache-2.0
"""Maps and poses from concealed features: COLMAP models, localization, and exchange with hloc."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Localization": "localization",
        "Localizations": "queries",
        "LocalizeParams": "localization",
        "Map": "maps",
        "MapErrors": "statistics",
        "MapOutcome": "mapping",
        "MapParams": "mappers",
        "MapStatistics": "statistics",
        "Model": "model",
        "NoPose": "queries",
        "VerifyParams": "verify",
        "build_map": "mapping",
        "compare_poses": "statistics",
        "compare_with_truth": "statistics",
        "draw_map": "maps",
        "export_colmap": "mapping",
        "export_hloc": "hloc",
        "load_map": "maps",
        "load_pycolmap": "colmap",
        "localize": "queries",
        "LandmarkMatches": "localization",
        "find_landmarks": "localization",
        "localize_query": "localization",
        "solve_pose": "localization",
        "map_keypoints": "mapping",
        "median_errors": "statistics",
        "pose_error": "cameras",
        "read_cameras": "cameras",
        "read_model": "model",
        "read_poses": "cameras",
        "recalls": "statistics",
        "save_landmarks": "maps",
        "write_cameras": "cameras",
        "write_poses": "cameras",
    },
)
