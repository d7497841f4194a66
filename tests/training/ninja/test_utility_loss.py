# SPDX-License-Identifier: Apache-2.0
"""The utility loss against a slow one written out row by row."""

from typing import Any

import numpy as np
import pytest

from sfumato.training.ninja.network import LEAST, distances, second_order_loss, triplet_loss, utility_loss

torch: Any = pytest.importorskip("torch")


def views(count: int, n: int = 6, noise: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(count, n))
    second = first + noise * rng.normal(size=(count, n))
    return tuple(side / np.linalg.norm(side, axis=1, keepdims=True) for side in (first, second))


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(((a - b) ** 2).sum() + LEAST))


def slow_triplet(first: np.ndarray, second: np.ndarray, points: np.ndarray, margin: float = 1.0) -> float:
    found = []
    for i in range(len(first)):
        negatives = []
        for j in range(len(first)):
            if points[i] != points[j]:
                negatives += [apart(first[i], second[j]), apart(first[j], second[i])]
        if negatives:
            found.append(max(0.0, margin + apart(first[i], second[i]) - min(negatives)))
    return sum(found) / len(found) if found else 0.0


def slow_second_order(first: np.ndarray, second: np.ndarray, points: np.ndarray, k: int = 8) -> float:
    found = []
    for i in range(len(first)):
        near: set[int] = set()
        for side in (first, second):
            others = [j for j in range(len(side)) if points[j] != points[i]]
            near |= set(sorted(others, key=lambda j: apart(side[i], side[j]))[:k])
        squares = sum((apart(first[i], first[j]) - apart(second[i], second[j])) ** 2 for j in near)
        found.append(np.sqrt(squares + LEAST) - np.sqrt(LEAST))
    return float(np.mean(found))


@pytest.mark.parametrize(("count", "repeated"), [(20, False), (20, True), (5, False), (2, False)])
def test_as_written_out(count: int, repeated: bool):
    first, second = views(count)
    points = np.arange(count) // (3 if repeated else 1)
    tensors = torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy(points)
    assert float(triplet_loss(*tensors)) == pytest.approx(slow_triplet(first, second, points), abs=1e-9)
    assert float(second_order_loss(*tensors)) == pytest.approx(slow_second_order(first, second, points), abs=1e-9)
    both = slow_triplet(first, second, points) + slow_second_order(first, second, points)
    assert float(utility_loss(*tensors)) == pytest.approx(both, abs=1e-9)


def test_they_are_means_not_sums():
    first, second = (np.tile(side, (1, 1)) for side in views(40))
    points = torch.arange(40)
    one = float(triplet_loss(torch.from_numpy(first), torch.from_numpy(second), points))
    assert 0 < one < 3
    easy = np.eye(40)
    assert float(triplet_loss(torch.from_numpy(easy), torch.from_numpy(easy), points)) == pytest.approx(0, abs=1e-9)


def test_views_that_agree_have_no_second_order_loss_and_noise_has():
    first, second = views(30)
    points = torch.arange(30)
    same = float(second_order_loss(torch.from_numpy(first), torch.from_numpy(first), points))
    turned = torch.from_numpy(first @ np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0])
    assert same == pytest.approx(0, abs=1e-9)
    assert float(second_order_loss(torch.from_numpy(first), turned, points)) == pytest.approx(0, abs=1e-4)
    assert float(second_order_loss(torch.from_numpy(first), torch.from_numpy(second), points)) > 0.1


@pytest.mark.parametrize("count", [1, 3])
def test_one_point_has_no_loss_and_a_gradient(count: int):
    side = torch.from_numpy(views(count)[0]).requires_grad_(True)
    loss = utility_loss(side, side, torch.zeros(count))
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-9)
    assert torch.isfinite(side.grad).all()


def test_gradients_are_finite_where_views_are_equal():
    side = torch.from_numpy(views(10)[0]).requires_grad_(True)
    utility_loss(side, side, torch.arange(10)).backward()
    assert torch.isfinite(side.grad).all()
    assert distances(side, side).diagonal().max() < 0.01
