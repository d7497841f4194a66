# SPDX-License-Identifier: Apache-2.0
"""What a decoder learns from: the losses of both forms, and the points a search is shown while it learns.

Knows tensors of one batch. Random numbers come from the generator given, so that a training can be repeated.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import need
from sfumato.learn.decoder import Layout
from sfumato.learn.representation import as_subspaces

Floats = NDArray[np.float32]

NEAR = 0.2
"""Distance over which a guess ceases to count as found, for the confidence."""
CONFIDENCE_WEIGHT = 0.1
NEARBY, ANYWHERE = 0.4, 0.25
"""Shares of the points shown to a search that lie around the truth and anywhere; the others are where it led itself."""
OWN_ROUNDS = 5


def loss_of(
    modules: Any,
    layout: Layout,
    constants: dict[str, Floats],
    inputs: Floats,
    clear: Floats,
    rng: np.random.Generator,
) -> Any:
    """Return the loss of a batch of canonical inputs (B, C) of clear descriptors (B, n)."""
    torch: Any = need("torch", extra="learn")
    truth = torch.from_numpy(np.array(clear))
    if layout.form == "direct":
        guesses, sure = _run(modules, layout, constants, torch.from_numpy(np.array(inputs)))
        distances = (guesses - truth).norm(dim=1)
        loss = (1 - (guesses * truth).sum(dim=1)).mean() if layout.unit else (distances**2).mean()
    else:
        points = _shown(modules, layout, constants, inputs, clear, rng)
        guesses, sure = _run(modules, layout, constants, points)
        distances = (points - truth).norm(dim=1)  # how sure it may be of the point itself
        loss = ((guesses - truth) ** 2).sum(dim=1).mean()
    closeness = torch.exp(-((distances.detach() / NEAR) ** 2))
    return loss + CONFIDENCE_WEIGHT * torch.nn.functional.binary_cross_entropy_with_logits(sure, closeness)


def _shown(
    modules: Any, layout: Layout, constants: dict[str, Floats], inputs: Floats, clear: Floats, rng: np.random.Generator
) -> Any:
    """Return points (B, n) of unit norm in the subspaces: around the truth, anywhere, and where the search leads."""
    torch: Any = need("torch", extra="learn")
    origin, basis = (torch.from_numpy(np.ascontiguousarray(part)) for part in as_subspaces(inputs.copy(), layout.n_in))
    count, m = len(clear), layout.m
    true = torch.einsum("ni,nmi->nm", torch.from_numpy(np.array(clear)) - origin, basis)
    true = true / true.norm(dim=1, keepdim=True).clamp_min(1e-9)
    noise = torch.from_numpy(rng.normal(size=(count, m)).astype(np.float32))
    size = torch.from_numpy(np.exp(rng.uniform(np.log(0.02), np.log(3), (count, 1))).astype(np.float32))
    directions = true + size * noise
    first, second = int(NEARBY * count), int((NEARBY + ANYWHERE) * count)
    directions[first:] = noise[first:]
    own = slice(second, count)
    with torch.no_grad():
        for _ in range(int(rng.integers(1, OWN_ROUNDS + 1))):
            points = _on_sphere(origin[own], basis[own], directions[own])
            guesses, _sure = _run(modules, layout, constants, points)
            directions[own] = torch.einsum("ni,nmi->nm", guesses - origin[own], basis[own])
    return _on_sphere(origin, basis, directions)


def _on_sphere(origin: Any, basis: Any, directions: Any) -> Any:
    """As ``decoder.on_sphere``, for tensors and one direction each: (B, n)."""
    radius = (1 - (origin**2).sum(dim=1)).clamp_min(0).sqrt()
    unit = directions / directions.norm(dim=1, keepdim=True).clamp_min(1e-9)
    return origin + radius[:, None] * (unit[:, None] @ basis)[:, 0]


def _run(modules: Any, layout: Layout, constants: dict[str, Floats], x: Any) -> tuple[Any, Any]:
    """As ``decoder.run_layers``, for tensors: descriptors (B, n) and confidence before the logistic function (B,)."""
    torch: Any = need("torch", extra="learn")
    x = (x - torch.from_numpy(constants["mean"])) / torch.from_numpy(constants["deviation"])
    for number, layer in enumerate(modules):
        x = layer(x).relu() if number < layout.depth else layer(x)
    rows, sure = x[:, :-1], x[:, -1]
    if layout.positive:
        rows = torch.nn.functional.softplus(rows)
    return torch.nn.functional.normalize(rows, dim=1, eps=1e-9) if layout.unit else rows, sure
