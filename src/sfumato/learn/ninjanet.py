# SPDX-License-Identifier: Apache-2.0
"""NinjaNet, the content-concealing encoder of NinjaDesc (its Figure 2), as a torch network to be trained.

Knows layers and rows of numbers; neither losses nor data. As its authors built it: Linear n-2n, ReLU, BatchNorm,
Linear 2n-n; N blocks of Linear n-2n, ReLU, 2n-2n, ReLU, 2n-n; dropout, Linear n-2n, ReLU, 2n-n; unit norm. What comes
out of training is an ``Encoder`` of plain layers, which runs without torch: in inference BatchNorm is a part of the
layer after it, and dropout is nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, need
from sfumato.learn.discriminant import Discriminant
from sfumato.learn.encoder import Encoder

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


def mirror(net: Any, rows: Any, found: Discriminant | None = None) -> None:
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
                if found is not None:
                    directions = torch.from_numpy(found.directions[:, :out].T.copy())
                    back = directions @ turn.T
                    layer.bias.copy_(-directions @ torch.from_numpy(found.mean))
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
    whose root mean square is above ``least``: distances change by no more than what was cut, and whoever is given the
    rest can not bring it back by amplifying it, which is all that a faint direction needs. Not in the paper.
    """
    torch: Any = need("torch", extra="learn")
    last = net[-2]
    net.eval()
    with torch.no_grad():
        seen = net(rows).double()
        sizes, axes = torch.linalg.eigh(seen.T @ seen / len(seen))
        kept = axes[:, sizes > least**2].flip(1).float()  # (n', k), the strongest first
        if kept.shape[1] == 0:
            kept = axes[:, -1:].float()
        short = torch.nn.Linear(last.in_features, kept.shape[1]).to(last.weight.device)
        short.weight.copy_(kept.T @ last.weight)
        short.bias.copy_(kept.T @ last.bias)
    net[-2] = short
    return int(kept.shape[1])


def export_encoder(net: Any, extractor_name: str, card: dict[str, Any]) -> Encoder:
    """Return what a network computes in inference as plain layers.

    BatchNorm, y = g (x - mean) / sqrt(variance + eps) + b, is folded into the layer after it, W y + c.
    """
    nn: Any = need("torch", extra="learn").nn
    found: list[tuple[Floats, Floats, bool]] = []
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
            found.append((weight.astype(np.float32), bias.astype(np.float32), False))
        elif isinstance(layer, nn.ReLU):
            found[-1] = (*found[-1][:2], True)
    return Encoder(layers=tuple(found), extractor_name=extractor_name, card=card)


def _numbers(tensor: Any) -> NDArray[np.float64]:
    values: NDArray[np.float64] = tensor.detach().cpu().double().numpy()
    return values


def _unit_norm(nn: Any) -> Any:
    class UnitNorm(nn.Module):  # type: ignore[misc]  # torch is imported when a network is made
        """Divides rows by their norm."""

        def forward(self, rows: Any) -> Any:
            return nn.functional.normalize(rows, dim=1, eps=1e-9)

    return UnitNorm()
