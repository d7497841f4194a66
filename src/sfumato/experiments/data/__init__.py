# SPDX-License-Identifier: Apache-2.0
"""Data of experiments: public benchmarks, folders with ground truth, generated scenes."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "FacePairs": "face_benchmarks",
        "PosedImages": "folders",
        "RoomParams": "room",
        "UnposedImages": "folders",
        "make_homography_folder": "generated",
        "make_room": "room",
        "make_room_folder": "generated",
        "open_face_pairs": "face_benchmarks",
        "open_scenes": "generated",
        "open_sequences": "generated",
        "read_colmap_model": "colmap_models",
        "read_face_pairs": "face_benchmarks",
        "read_homography_folder": "folders",
        "read_labelled_faces": "face_benchmarks",
        "read_posed_folder": "folders",
        "read_scene_folder": "folders",
        "save_room": "room",
    },
)
