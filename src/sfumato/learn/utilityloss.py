# SPDX-License-Identifier: Apache-2.0
"""What keeps encoded descriptors of use: the utility loss of NinjaDesc (its Eq. 2).

Knows two tensors of rows of unit norm, a row of one and the same row of the other being two views of one point. The
losses are means over the batch, not sums: the privacy parameter has no meaning without that.
"""

from typing import Any

from sfumato.errors import need

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
    held = torch.isfinite(negative)
    loss = (margin + apart.diagonal() - negative.masked_fill(~held, 0)).clamp_min(0)
    return (loss * held).sum() / held.sum().clamp_min(1)


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
