# SPDX-License-Identifier: Apache-2.0
"""The card of an encoder: what is flat, what figures mean, and that it can be written as JSON."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from sfumato.training.ninja.params import SMALL
from sfumato.training.ninja.state import NinjaFiles, card_of, is_flat, meaning


def test_flat_is_neither_falling_nor_rising():
    assert is_flat([1.0] * 100)
    assert not is_flat(list(np.linspace(2, 1, 100)))
    assert not is_flat(list(np.linspace(1, 2, 100)))
    assert not is_flat([1.0])  # nobody can say


def test_what_goes_with_an_encoder():
    decoder, unet = SimpleNamespace(name="decoder", limit=1.0), SimpleNamespace(name="unet", limit=0.25)
    state: Any = SimpleNamespace(
        losses={"utility utility": [2.0, 1.0], "joint reconstruction": [0.5] * 100},
        adversaries=[decoder, unet],
        settings={"first": {"extractor": "sift"}, "joint": {"privacy": 1.0}},
        notes={"stages": [{"steps": 1, "seconds": 0.5}] * 3},
        best={"score": [0.1], "step": 3},
        history=[],
    )
    scored = {"raw": {"fpr95": 0.2}, "encoded": {"fpr95": 0.1}}
    card = card_of(state, SMALL, NinjaFiles(data="d", command="c"), scored)
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert card["losses"] == {"utility utility": 1.0, "joint reconstruction": 0.5}
    assert card["flat"] == {"utility utility": False, "joint reconstruction": True}
    assert [one["stage"] for one in card["stages"]] == ["utility", "inverter", "joint"]
    assert (card["held out"], card["data"], card["command"]) == (scored, "d", "c")
    assert "paper" in card["differences"]
    assert "constant guess" in meaning(decoder)  # type: ignore[arg-type]
    assert "0.2500" in card["adversary losses"]["unet"]
