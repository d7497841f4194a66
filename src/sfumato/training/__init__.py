# SPDX-License-Identifier: Apache-2.0
"""Training: encoders, inverters and decoders, learned from public photos (extra ``learn``)."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "DecoderTrainParams": "decoder",
        "DescriptorPairs": "pairs",
        "ImageTrainParams": "image",
        "InverterTrainParams": "inverter",
        "PairParams": "pairs",
        "load_pairs": "pairs",
        "pairs_from_photos": "pairs",
        "pairs_from_tracks": "tracks",
        "read_pairs": "pairs",
        "save_pairs": "pairs",
        "train_compress": "compress",
        "train_decoder": "decoder",
        "train_image_inverter": "image",
        "train_patch_inverter": "inverter",
    },
)
