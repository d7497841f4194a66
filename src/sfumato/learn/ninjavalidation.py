# SPDX-License-Identifier: Apache-2.0
"""How good the networks of a NinjaNet training are at some time, on material held out; the best is kept.

Knows the state of a training and its material; reports and remembers scores, never rows.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import need
from sfumato.learn.adversaries import as_tensor, held_out_loss
from sfumato.learn.ninjadata import NinjaMaterial, scores
from sfumato.learn.ninjaparams import STAGES, NinjaTrainParams
from sfumato.learn.ninjastate import State

Floats = NDArray[np.float32]
Report = Callable[[str], None]

VALIDATIONS = 20
ROWS_AT_ONCE = 8192

log = logging.getLogger(__name__)


def encode_rows(encoder: Any, rows: Floats) -> Any:
    """Return rows (N, n) as the encoder gives them in inference, a tensor (N, n') without gradient."""
    torch: Any = need("torch", extra="learn")
    encoder.eval()
    device = next(encoder.parameters())
    with torch.no_grad():
        parts = [as_tensor(rows[at : at + ROWS_AT_ONCE], device) for at in range(0, len(rows), ROWS_AT_ONCE)]
        return torch.cat([encoder(part) for part in parts])


def is_due(state: State) -> bool:
    """Tell whether a twentieth of the stage has gone since the last validation."""
    return int(state.pace.share * VALIDATIONS) > state.validated


def validate(state: State, params: NinjaTrainParams, material: NinjaMaterial, report: Report) -> None:
    """Score both networks on material held out, and keep the one in training if it was never better.

    An encoder is better if its FPR@95 is lower by a thousandth, or as low and more pairs are matched: pairs that a
    detector found are easy to tell from chance, and FPR@95 alone can not tell one encoder from another.
    """
    state.validated = int(state.pace.share * VALIDATIONS)
    found: dict[str, Any] = {"stage": STAGES[state.stage], "step": state.pace.steps}
    if state.stage != 1:
        found |= scores(lambda rows: encode_rows(state.encoder, rows).cpu().numpy(), material.held, params.seed)
    if state.stage != 0:
        recon = {
            one.name: held_out_loss(one, lambda rows: encode_rows(state.encoder, rows), params.seed)
            for one in state.adversaries
        }
        found["reconstruction"] = {name: round(value, 5) for name, value in recon.items()}
    state.history.append(
        {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}
    )
    if state.stage == 1:
        state.keep([sum(recon.values())], state.opponents)
    elif state.stage == 0 or state.pace.share >= params.select_after:
        state.keep([round(found["fpr95"], 3), -found["matched"]], state.encoder)
    left = state.pace.seconds * (1 / max(state.pace.share, 1e-6) - 1) / 60
    told = ", ".join(f"{name} {value}" for name, value in state.history[-1].items())
    report(f"{told}; {left:.1f} min of the stage left")
    log.info("%s", told)
