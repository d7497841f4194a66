# SPDX-License-Identifier: Apache-2.0
"""The network from what describes a keypoint to the patch around it: a small perceptron, in numpy and in torch.

Numpy runs it; torch is asked for only by ``build``, to train it. Both compute the same. It sees one row of numbers (a
descriptor of any kind, or the canonical form of a subspace) and the logarithm of sigma, and gives a patch of mean 0
and deviation about 1, and the logarithm of its contrast.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import need
from sfumato.learn.paint import PATCH_SIDE

Floats = NDArray[np.float32]

OUTPUTS = PATCH_SIDE**2 + 1
ROWS_AT_ONCE = 4096


def shapes(input_dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a network by name: three layers, and how inputs and contrast are scaled."""
    return {
        "patch.mean": (input_dim + 1,),
        "patch.deviation": (input_dim + 1,),
        "patch.contrast": (1,),
        "patch.0.weight": (hidden, input_dim + 1),
        "patch.0.bias": (hidden,),
        "patch.1.weight": (hidden, hidden),
        "patch.1.bias": (hidden,),
        "patch.2.weight": (OUTPUTS, hidden),
        "patch.2.bias": (OUTPUTS,),
    }


def predict_patches(tensors: Mapping[str, Floats], inputs: Floats, sigmas: Floats) -> Floats:
    """Return patches (N, 24, 24) in units of brightness, for inputs (N, d) and sigmas (N,) of keypoints."""
    found = np.empty((len(inputs), PATCH_SIDE, PATCH_SIDE), np.float32)
    for start in range(0, len(inputs), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        values = scaled(tensors, inputs[rows], sigmas[rows])
        for layer in range(3):
            values = values @ tensors[f"patch.{layer}.weight"].T + tensors[f"patch.{layer}.bias"]
            if layer < 2:
                np.maximum(values, 0, out=values)
        contrasts = np.exp(np.clip(values[:, -1] + tensors["patch.contrast"], -7, 0))
        found[rows] = (values[:, :-1] * contrasts[:, None]).reshape(-1, PATCH_SIDE, PATCH_SIDE)
    return found


def scaled(tensors: Mapping[str, Floats], inputs: Floats, sigmas: Floats) -> Floats:
    """Return inputs (N, d) with log sigma, (N, d + 1), each of about mean 0 and deviation 1 over the training data."""
    rows = np.concatenate([inputs, np.log(np.maximum(sigmas, 1e-3))[:, None]], axis=1)
    values: Floats = ((rows - tensors["patch.mean"]) / tensors["patch.deviation"]).astype(np.float32)
    return values


def build(input_dim: int, hidden: int) -> Any:
    """Return the torch network, (N, d + 1) scaled inputs to (N, 577); its parameters are named as in ``shapes``."""
    nn: Any = need("torch", extra="learn").nn
    return nn.Sequential(
        nn.Linear(input_dim + 1, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, OUTPUTS)
    )


def tensors_of(network: Any) -> dict[str, Floats]:
    """Return the parameters of a torch network by the names of ``shapes``."""
    found = {}
    for layer in range(3):
        for part in ("weight", "bias"):
            found[f"patch.{layer}.{part}"] = getattr(network[2 * layer], part).detach().cpu().numpy().copy()
    return found
