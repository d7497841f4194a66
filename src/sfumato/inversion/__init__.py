# SPDX-License-Identifier: Apache-2.0
"""Inversion: pictures and descriptors reconstructed from features, by trained networks."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Decoder": "descriptors",
        "ImageInverter": "images",
        "Inverter": "patches",
        "InverterHeader": "patches",
        "canonical_input": "canonical",
        "frame_of": "canonical",
        "invert": "load",
        "leakage": "metrics",
        "load_image_inverter": "images",
        "load_inverter": "patches",
        "load_keypoint_inverter": "load",
        "open_inverter": "load",
        "picture_scores": "metrics",
        "read_decoder": "descriptors",
        "score_inverter": "load",
        "without_descriptors": "load",
    },
)
