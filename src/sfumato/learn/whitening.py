# SPDX-License-Identifier: Apache-2.0
"""A layer that gives rows of numbers mean 0 and an even spread, set from rows, not learned.

What inverters see of an encoder goes through it: no direction is too faint for them. Knows rows, nothing of training.
"""

from typing import Any

from sfumato.errors import need

FAINTEST = 1e-3
"""Variances below this share of their mean count as this when rows are whitened."""


def whitener(dim: int) -> Any:
    """Return the layer that whitens rows (B, dim); it is not learned but set by ``whiten``."""
    nn: Any = need("torch", extra="learn").nn
    layer = nn.Linear(dim, dim)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    layer.requires_grad_(False)
    return layer


def whiten(layer: Any, rows: Any) -> None:
    """Set a whitening layer for rows like these (N, dim): mean 0, variance about 1 and uncorrelated, not turned.

    The matrix is C^(-1/2) of their covariance C, symmetric, so that it changes little when C does.
    """
    torch: Any = need("torch", extra="learn")
    with torch.no_grad():
        values = rows.double()
        mean = values.mean(dim=0)
        spread = (values - mean).T @ (values - mean) / len(values)
        sizes, axes = torch.linalg.eigh(spread)
        faint = FAINTEST * sizes.mean().clamp_min(1e-12)
        matrix = axes @ torch.diag((sizes.clamp_min(0) + faint).rsqrt()) @ axes.T
        layer.weight.copy_(matrix.float())
        layer.bias.copy_(-(matrix @ mean).float())
