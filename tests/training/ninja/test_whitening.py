# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np
import pytest

from sfumato.training.ninja.network import whiten, whitener

torch: Any = pytest.importorskip("torch")


def test_whitened_rows_are_white_and_nothing_faint_is_overlooked():
    seen = np.random.default_rng(0).normal(size=(4000, 8)) @ np.diag([1, 1, 1, 1, 1, 1, 0.1, 0.1]) + 3
    turned = (seen @ np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]).astype(np.float32)
    layer = whitener(8)
    assert torch.equal(layer(torch.from_numpy(turned)), torch.from_numpy(turned))
    whiten(layer, torch.from_numpy(turned))
    white = layer(torch.from_numpy(turned)).detach().numpy()
    spread = np.cov(white.T)
    assert np.abs(white.mean(axis=0)).max() < 1e-3
    assert np.linalg.eigvalsh(spread).min() > 0.8
    assert np.linalg.eigvalsh(spread).max() < 1.01
    whiten(layer, torch.ones(10, 8))  # nothing to see at all
    assert torch.isfinite(layer.weight).all()
