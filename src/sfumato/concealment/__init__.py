# SPDX-License-Identifier: Apache-2.0
"""Concealment: the one crossing from clear descriptors to what may leave the device."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BANDWIDTH": "seal",
        "Decoys": "decoys",
        "DecoysOutcome": "decoy_photos",
        "Encoder": "encoder",
        "FaceDecoysParams": "faces",
        "ResolvedRecipe": "resolve",
        "build_decoys": "decoy_clusters",
        "build_face_decoys": "faces",
        "build_photo_decoys": "decoy_photos",
        "bundled_decoys": "decoys",
        "conceal": "lifting",
        "conceal_embeddings": "faces",
        "conceal_parallel": "faces",
        "device_key": "keys",
        "draw_descriptors": "decoy_clusters",
        "encode": "encoder",
        "face_recipe": "faces",
        "key_for_place": "keys",
        "load_decoys": "decoys",
        "load_encoder": "encoder",
        "make_seal": "seal",
        "new_key": "keys",
        "order_rows": "rows",
        "person_key": "keys",
        "privacy_spent": "subset",
        "read_key": "keys",
        "save_decoys": "decoys",
        "save_encoder": "encoder",
        "seal_embeddings": "faces",
        "split_decoys": "faces",
    },
)
