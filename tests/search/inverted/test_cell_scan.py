# SPDX-License-Identifier: Apache-2.0
import numpy as np

from sfumato.search.inverted.kernels import fill_lists, nearest_cells, order_cells, sift_down


def test_the_heap_keeps_the_least():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(500).astype(np.float32)
    keys, rows = np.full(20, np.inf, np.float32), np.full(20, -1, np.int32)
    for row, value in enumerate(values):
        if value < keys[0]:
            sift_down(keys, rows, 0, 20, value, np.int32(row))
    assert keys[0] == keys.max()
    assert set(rows) == set(np.argsort(values)[:20])


def test_cells_by_their_distance_to_planes():
    rng = np.random.default_rng(1)
    stack, centres = rng.standard_normal((5, 3, 12)).astype(np.float32), rng.standard_normal((90, 12))
    stack[:, 1:] = np.linalg.qr(stack[:, 1:].transpose(0, 2, 1))[0].transpose(0, 2, 1)
    stack[:, 0] -= np.einsum("qk,qki->qi", np.einsum("qki,qi->qk", stack[:, 1:], stack[:, 0]), stack[:, 1:])
    apart = centres[None] - stack[:, None, 0]
    squared = (apart**2).sum(axis=2) - (np.einsum("qci,qki->qck", apart, stack[:, 1:]) ** 2).sum(axis=2)
    expected = np.argsort(squared, axis=1)[:, :7]

    centred, norms = centres.astype(np.float32), (centres**2).sum(axis=1).astype(np.float32)
    found = np.zeros((5, 7), np.int32)
    nearest_cells(stack.reshape(-1, 12) @ centred.T, norms, 3, 7, True, found)
    np.testing.assert_array_equal(found, expected)
    likely = np.tile(rng.permutation(90).astype(np.int32), (5, 1))
    order_cells(stack, centred, norms, likely, found)
    np.testing.assert_array_equal(found, expected)


def test_lists_hold_every_entry_under_its_cells():
    cells = np.array([[0, 2], [2, 1], [0, 1]], np.int32)
    members = np.full(6, -1, np.int32)
    fill_lists(cells, np.array([0, 2, 4]), members)
    assert members.tolist() == [0, 2, 1, 2, 0, 1]
