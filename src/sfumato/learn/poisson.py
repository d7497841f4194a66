# SPDX-License-Identifier: Apache-2.0
"""The picture whose gradients are nearest to given ones: Poisson's equation with free borders, by a cosine transform.

Knows arrays only. Free (Neumann) borders say that nothing flows over the edge of a picture, so that the cosine
transform diagonalises the equation (Perez et al., Poisson Image Editing, 2003) and one solve is exact.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def solve_poisson(right: Floats, down: Floats, mean: float = 0.0) -> Floats:
    """Return the picture (H, W) of a given mean that minimises the squared distance to gradients.

    ``right`` (H, W) is what the pixel to the right has more, ``down`` the pixel below; their last column and row do
    not count.
    """
    from scipy.fft import dctn, idctn

    height, width = right.shape
    spectrum = dctn(divergence(right, down), type=2, workers=1)
    vertical = 2 * np.cos(np.pi * np.arange(height, dtype=np.float32) / height) - 2
    horizontal = 2 * np.cos(np.pi * np.arange(width, dtype=np.float32) / width) - 2
    eigenvalues = vertical[:, None] + horizontal[None, :]
    eigenvalues[0, 0] = 1
    spectrum /= eigenvalues
    spectrum[0, 0] = 0
    picture: Floats = idctn(spectrum, type=2, workers=1).astype(np.float32) + np.float32(mean)
    return picture


def divergence(right: Floats, down: Floats) -> Floats:
    """Return the divergence (H, W) of forward differences: their adjoint, negated."""
    flow: Floats = np.zeros(right.shape, np.float32)
    flow[:, :-1] += right[:, :-1]
    flow[:, 1:] -= right[:, :-1]
    flow[:-1] += down[:-1]
    flow[1:] -= down[:-1]
    return flow
