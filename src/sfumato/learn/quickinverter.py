# SPDX-License-Identifier: Apache-2.0
"""An inverter that is always at its best: linear in fixed features of encoded rows, solved for, not learned.

A network that learns against an encoder runs after it, and an encoder that outruns it looks private to it and to nobody
else. What least squares finds is the best of its kind for the encoder as it is now; the joint stage lets an encoder
gain only what this inverter, too, can not recover. Knows rows of numbers.
"""

from typing import Any

from sfumato.errors import need

FEATURES = 256
"""Rectified random directions beside the rows themselves."""
RIDGE = 1e-3


def quick_inverter(dim: int, outputs: int) -> Any:
    """Return modules for rows (B, dim): random ``features`` that stay, and ``last``, which ``fit`` sets."""
    nn: Any = need("torch", extra="learn").nn
    modules = nn.ModuleDict({"features": nn.Linear(dim, FEATURES), "last": nn.Linear(dim + FEATURES, outputs)})
    nn.init.normal_(modules["features"].weight, std=dim**-0.5)
    nn.init.normal_(modules["features"].bias)
    return modules.requires_grad_(False)


def run_quick(modules: Any, rows: Any) -> Any:
    """Return what is guessed from rows (B, dim), of about mean 0 and variance 1: (B, outputs)."""
    return modules["last"](_features(modules, rows))


def fit(modules: Any, rows: Any, wanted: Any) -> None:
    """Set the last layer to the least squares solution for rows (N, dim) and what they should give (N, outputs)."""
    torch: Any = need("torch", extra="learn")
    with torch.no_grad():
        seen = _features(modules, rows).double()
        means = seen.mean(dim=0), wanted.double().mean(dim=0)
        centred, aims = seen - means[0], wanted.double() - means[1]
        spread = centred.T @ centred / len(rows)
        eye = torch.eye(len(spread), dtype=spread.dtype, device=spread.device)
        damping = RIDGE * spread.diagonal().mean() + 1e-9  # also where all rows are the same
        weight = torch.linalg.solve(spread + damping * eye, centred.T @ aims / len(rows))
        modules["last"].weight.copy_(weight.T.float())
        modules["last"].bias.copy_((means[1] - means[0] @ weight).float())


def _features(modules: Any, rows: Any) -> Any:
    torch: Any = need("torch", extra="learn")
    return torch.cat([rows, modules["features"](rows).relu()], dim=1)
