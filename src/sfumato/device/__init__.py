# SPDX-License-Identifier: Apache-2.0
"""The device that owns the photos: it conceals them, keeps their positions, releases some, and localizes itself.

The only package that holds clear features and writes archives of them.
"""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "CameraList": "cameras",
        "ConcealOutcome": "conceal",
        "ReleaseOutcome": "release",
        "ReleaseParams": "claims",
        "conceal_photos": "conceal",
        "draw_releases": "release",
        "holds_photos": "cameras",
        "infer_cameras": "cameras",
        "local_params_of": "localize",
        "localize_photos": "localize",
        "own_keypoints": "positions",
        "positions_path": "positions",
        "read_features": "conceal",
        "release_positions": "release",
        "write_clear_features": "conceal",
    },
)
