# SPDX-License-Identifier: Apache-2.0
"""Training of NinjaDesc encoders: utility first, then inverters, then both against each other."""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "NinjaTrainParams": "params",
        "PAPER": "params",
        "SMALL": "params",
        "differences": "params",
        "preset": "params",
        "train_ninja": "train",
    },
)
