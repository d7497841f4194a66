# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.inversion import patches


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    found = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in patches.shapes(8, 16).items()}
    return found | {"patch.deviation": np.full(9, 2, np.float32)}


def test_numpy_and_torch_agree(tensors):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    inputs, sigmas = rng.normal(0, 1, (5000, 8)).astype(np.float32), rng.uniform(1, 5, 5000).astype(np.float32)
    network = patches.build(8, 16)
    state = {
        f"{2 * k}.{part}": torch.from_numpy(tensors[f"patch.{k}.{part}"])
        for k in range(3)
        for part in ("weight", "bias")
    }
    network.load_state_dict(state)
    with torch.inference_mode():
        raw = network(torch.from_numpy(patches.scaled(tensors, inputs, sigmas))).numpy()
    wanted = raw[:, :-1] * np.exp(np.clip(raw[:, -1:] + tensors["patch.contrast"], -7, 0))
    found = patches.predict_patches(tensors, inputs, sigmas)
    np.testing.assert_allclose(found.reshape(5000, 576), wanted, atol=1e-4)
    for name, value in patches.tensors_of(network).items():
        np.testing.assert_array_equal(value, tensors[name])


def test_the_scale_of_inputs(tensors):
    row = tensors["patch.mean"][None, :-1]
    scaled = patches.scaled(tensors, row, np.exp(tensors["patch.mean"][-1:]))
    np.testing.assert_allclose(scaled, 0, atol=1e-6)


def test_no_rows(tensors):
    assert patches.predict_patches(tensors, np.empty((0, 8), np.float32), np.empty(0, np.float32)).shape == (0, 24, 24)
