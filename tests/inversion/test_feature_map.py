# SPDX-License-Identifier: Apache-2.0
"""Sparse maps: each vector at its pixel, one a pixel, and a 1 x 1 convolution in disguise."""

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.inversion.images import place, scatter


def at(*places: tuple[float, float]) -> np.ndarray:
    return np.array([(x, y, 1, 0) for x, y in places], np.float32).reshape(-1, 4)


def test_places_are_rounded_and_those_outside_left_out():
    placed = place(at((0.4, 0.6), (3.4, 1.4), (3.6, 0), (-0.6, 0), (0, 2.6)), (4, 3))
    assert placed.rows.tolist() == [1, 0] or placed.rows.tolist() == [0, 1]
    assert dict(zip(placed.rows.tolist(), placed.pixels.tolist(), strict=True)) == {0: 4, 1: 7}


def test_the_strongest_of_one_pixel_stays():
    placed = place(at((2, 1), (2.2, 1.1), (1.9, 0.9), (0, 0)), (4, 3))
    assert sorted(placed.rows.tolist()) == [0, 3]


def test_a_window_elsewhere():
    placed = place(at((10, 20), (9, 20), (13, 22)), (4, 3), corner=(10, 20))
    assert dict(zip(placed.rows.tolist(), placed.pixels.tolist(), strict=True)) == {0: 0, 2: 11}


def test_nothing_and_no_pixels():
    assert len(place(at(), (4, 3))) == 0
    with pytest.raises(InputError, match="one pixel"):
        place(at(), (0, 3))


def test_vectors_before_the_map_are_a_1x1_convolution_after_it():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    placed = [place(at((1, 2), (3, 0)), (4, 3)), place(at(), (4, 3)), place(at((2, 1)), (4, 3))]
    vectors = torch.from_numpy(rng.normal(size=(3, 5)).astype(np.float32))
    linear = torch.nn.Linear(5, 2, bias=False)
    before = scatter(linear(vectors), placed)
    after = torch.nn.functional.conv2d(scatter(vectors, placed), linear.weight[:, :, None, None])
    assert before.shape == (3, 2, 3, 4)
    assert torch.allclose(before, after, atol=1e-6)
    first = int(placed[0].pixels[0])
    assert torch.equal(scatter(vectors, placed)[0, :, first // 4, first % 4], vectors[0])
    assert (scatter(vectors, placed) != 0).any(dim=1).sum() == 3


def test_gradients_reach_the_vectors():
    torch = pytest.importorskip("torch")
    vectors = torch.ones((1, 2), requires_grad=True)
    scatter(vectors, [place(at((1, 1)), (4, 3))]).sum().backward()
    assert vectors.grad.tolist() == [[1.0, 1.0]]
