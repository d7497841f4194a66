# SPDX-License-Identifier: Apache-2.0
"""NinjaNet, the content-concealing encoder of NinjaDesc (its Figure 2), with its utility loss, as a torch network.

As its authors built it: Linear n-2n, ReLU, BatchNorm, Linear 2n-n; N blocks of Linear n-2n, ReLU, 2n-2n, ReLU, 2n-n;
dropout, Linear n-2n, ReLU, 2n-n; unit norm. A training exports an ``Encoder`` of plain layers, which runs without
torch: in inference BatchNorm is a part of the layer after it, and dropout does nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.encoder import Encoder
from sfumato.errors import InputError, need
from sfumato.training.pairs import DescriptorPairs

Floats = NDArray[np.float32]

DROPOUT = 0.1


def NinjaNet(blocks: int = 1, *, dim: int = 128, output_dim: int | None = None, dropout: float = DROPOUT) -> Any:
    """Return the torch network, (B, dim) to rows of unit norm (B, output_dim), with orthogonal weights and biases of 0.

    ``output_dim`` is ``dim`` in the paper. The weights are drawn from torch's generator.
    """
    nn: Any = need("torch", extra="learn").nn
    if blocks < 0 or dim < 1 or (output_dim is not None and output_dim < 1):
        raise InputError(f"a NinjaNet has blocks from 0 and dimensions from 1, got {blocks}, {dim}, {output_dim}")
    wide, out = 2 * dim, output_dim or dim
    layers = [nn.Linear(dim, wide), nn.ReLU(), nn.BatchNorm1d(wide), nn.Linear(wide, dim)]
    for _ in range(blocks):
        layers += [nn.Linear(dim, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, dim)]
    layers += [nn.Dropout(dropout), nn.Linear(dim, wide), nn.ReLU(), nn.Linear(wide, out), _unit_norm(nn)]
    net = nn.Sequential(*layers)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Discriminant:
    """``directions`` (n, n), one per column, the most discriminative first.

    Views of one point spread by 1 along each.
    """

    mean: Floats
    directions: Floats

    def __repr__(self) -> str:
        return f"Discriminant({self.directions.shape[0]} numbers)"


def mirror(net: Any, rows: Any, fisher: Discriminant | None = None) -> None:
    """Set the weights so that the network does nothing yet but turn and cut: the descriptors keep their distances.

    Each layer into 2n numbers is [U; -U] with U orthogonal, the one out of them [U', -U']: ReLU(x) - ReLU(-x) = x.
    BatchNorm is set to do nothing on rows like ``rows`` (B, n). The last layer turns by a random U, and keeps its first
    ``output_dim`` axes; with a discriminant it projects on the first directions of that instead. Not in the paper:
    there the weights are orthogonal, and training starts from random features.
    """
    torch: Any = need("torch", extra="learn")
    nn = torch.nn
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    turn: Any = None
    with torch.no_grad():
        for layer in linear:
            out, into = layer.weight.shape
            nn.init.zeros_(layer.bias)
            if out == into:  # 2n-2n, between the halves: they are passed on
                nn.init.eye_(layer.weight)
            elif out == 2 * into:
                turn = nn.init.orthogonal_(torch.empty(into, into))
                layer.weight.copy_(torch.cat([turn, -turn]))
            elif layer is not linear[-1]:
                layer.weight.copy_(torch.cat([turn.T, -turn.T], dim=1))
            else:
                back = nn.init.orthogonal_(torch.empty(into // 2, into // 2))
                if fisher is not None:
                    directions = torch.from_numpy(fisher.directions[:, :out].T.copy())
                    back = directions @ turn.T
                    layer.bias.copy_(-directions @ torch.from_numpy(fisher.mean))
                layer.weight.copy_(torch.cat([back, -back], dim=1)[:out])
        norm = next(layer for layer in net if isinstance(layer, nn.BatchNorm1d))
        inside = net[:2](rows)
        norm.running_mean.copy_(inside.mean(dim=0))
        norm.running_var.copy_(inside.var(dim=0))
        norm.bias.copy_(norm.running_mean)
        norm.weight.copy_((norm.running_var + norm.eps).sqrt())


def prune(net: Any, rows: Any, least: float) -> int:
    """Cut off the directions in which encoded ``rows`` (B, n) are fainter than ``least``; return how many are left.

    The last layer W z + c becomes P'W z + P'c, the columns of P being the principal axes (about 0) of what comes out
    whose root mean square is above ``least``: distances change by no more than what was cut, and anyone who has the
    rest cannot bring it back by amplifying it, which is all that a faint direction needs. Not in the paper.
    """
    torch: Any = need("torch", extra="learn")
    last = net[-2]
    net.eval()
    with torch.no_grad():
        encoded = net(rows).double()
        sizes, axes = torch.linalg.eigh(encoded.T @ encoded / len(encoded))
        strong = axes[:, sizes > least**2].flip(1).float()  # (n', k), the strongest first
        if strong.shape[1] == 0:
            strong = axes[:, -1:].float()
        short = torch.nn.Linear(last.in_features, strong.shape[1]).to(last.weight.device)
        short.weight.copy_(strong.T @ last.weight)
        short.bias.copy_(strong.T @ last.bias)
    net[-2] = short
    return int(strong.shape[1])


def export_encoder(net: Any, extractor_name: str, card: dict[str, Any]) -> Encoder:
    """Return the inference of a network as plain layers.

    BatchNorm, y = g (x - mean) / sqrt(variance + eps) + b, is folded into the layer after it, W y + c.
    """
    nn: Any = need("torch", extra="learn").nn
    layers: list[tuple[Floats, Floats, bool]] = []
    scale: Any = None
    shift: Any = None
    for layer in net:
        if isinstance(layer, nn.BatchNorm1d):
            mean, variance, weight, bias = (
                _numbers(part) for part in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
            )
            scale = weight / np.sqrt(variance + layer.eps)
            shift = bias - mean * scale
        elif isinstance(layer, nn.Linear):
            weight, bias = _numbers(layer.weight), _numbers(layer.bias)
            if scale is not None:
                weight, bias, scale = weight * scale, bias + weight @ shift, None
            layers.append((weight.astype(np.float32), bias.astype(np.float32), False))
        elif isinstance(layer, nn.ReLU):
            layers[-1] = (*layers[-1][:2], True)
    return Encoder(layers=tuple(layers), extractor_name=extractor_name, card=card)


def _numbers(tensor: Any) -> NDArray[np.float64]:
    values: NDArray[np.float64] = tensor.detach().cpu().double().numpy()
    return values


def _unit_norm(nn: Any) -> Any:
    class UnitNorm(nn.Module):  # type: ignore[misc]  # torch is imported when a network is made
        """Divides rows by their norm."""

        def forward(self, rows: Any) -> Any:
            return nn.functional.normalize(rows, dim=1, eps=1e-9)

    return UnitNorm()


# --- the whitening of what inverters see, so that no direction is too faint for them


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


# --- the linear discriminant of pairs of views (Fisher)
#
# A network that can be undone conceals nothing from anyone who undoes it: what an encoder is to hide must be left out.
# The discriminant orders the directions of a descriptor by how much points differ along them, compared with views of
# one point; a NinjaNet may begin as the projection on the first few.


RIDGE = 1e-4
"""Added to the spread within points, as a share of its mean: a direction in which nothing ever moves is no proof."""


def discriminant(pairs: DescriptorPairs) -> Discriminant:
    """Solve S_between v = s S_within v for pairs of views (Fisher): the directions by falling s."""
    eigh: Any = need("scipy.linalg", extra="learn").eigh
    first, second = pairs.first.astype(np.float64), pairs.second.astype(np.float64)
    mean = (first.mean(axis=0) + second.mean(axis=0)) / 2
    apart, middle = (first - second) / np.sqrt(2), (first + second) / 2 - mean
    within, between = apart.T @ apart / len(apart), middle.T @ middle / len(middle)
    damping = RIDGE * np.trace(within) / len(within) + 1e-12
    _, directions = eigh(between, within + damping * np.eye(len(within)))
    return Discriminant(mean.astype(np.float32), directions[:, ::-1].astype(np.float32))


# --- the utility loss (Eq. 2), which keeps encoded descriptors useful for matching
#
# It takes two tensors of rows of unit norm: the same row of both shows one point in two views. The losses are means
# over the batch, not sums: otherwise lambda would have no meaning.


MARGIN = 1.0
NEIGHBOURS = 8
LEAST = 1e-6
"""Added to squared distances: the square root has no gradient at 0."""


def utility_loss(first: Any, second: Any, points: Any, margin: float = MARGIN) -> Any:
    """Return triplet loss plus regularisation of views (B, n) and (B, n) of points (B,) (Eq. 2 of NinjaDesc)."""
    return triplet_loss(first, second, points, margin) + second_order_loss(first, second, points)


def triplet_loss(first: Any, second: Any, points: Any, margin: float = MARGIN) -> Any:
    """Return the mean over rows of max(0, margin + d(a, p) - d(hardest negative)) (HardNet, Eq. 3).

    The hardest negative of a row is the nearest view of another point in its row or its column of the matrix of
    distances between ``first`` and ``second``. Rows of the same number in ``points`` are no negatives of one another.
    A batch of one point has no negatives, and no loss.
    """
    torch: Any = need("torch", extra="learn")
    apart = distances(first, second)  # (B, B)
    same = points[:, None] == points[None, :]
    far = apart.masked_fill(same, float("inf"))
    negative = torch.minimum(far.min(dim=1).values, far.min(dim=0).values)
    has_negative = torch.isfinite(negative)
    loss = (margin + apart.diagonal() - negative.masked_fill(~has_negative, 0)).clamp_min(0)
    return (loss * has_negative).sum() / has_negative.sum().clamp_min(1)


def second_order_loss(first: Any, second: Any, points: Any, neighbours: int = NEIGHBOURS) -> Any:
    """Return the mean over rows of sqrt(sum_j (d(a_i, a_j) - d(p_i, p_j))^2) (SOSNet, Eq. 4 and 5).

    j runs over the points that are among the nearest ``neighbours`` of row i in one of the views.
    """
    torch: Any = need("torch", extra="learn")
    inside, beside = distances(first, first), distances(second, second)  # (B, B)
    same = points[:, None] == points[None, :]
    count = min(neighbours, len(first) - 1)
    if count < 1:
        return 0 * (first.sum() + second.sum())
    near = torch.zeros_like(same)
    for matrix in (inside, beside):
        ranked = matrix.detach().masked_fill(same, float("inf")).topk(count, dim=1, largest=False)
        near |= torch.zeros_like(same).scatter(1, ranked.indices, torch.isfinite(ranked.values))
    squares = ((inside - beside) ** 2 * near).sum(dim=1)
    return (squares + LEAST).sqrt().mean() - LEAST**0.5


def distances(first: Any, second: Any) -> Any:
    """Return Euclidean distances (A, B) of rows of unit norm (A, n) and (B, n)."""
    return ((2 - 2 * first @ second.T).clamp_min(0) + LEAST).sqrt()
