# SPDX-License-Identifier: Apache-2.0
"""The quick inverter: exact where the truth is linear, better than linear where it is not, and no more than chance."""

from typing import Any

import numpy as np
import pytest

from sfumato.training.ninja.adversaries import fit, quick_inverter, run_quick

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def unexplained(rows: Any, wanted: Any) -> float:
    """The share of the variance of new rows that is not recovered."""
    modules = quick_inverter(rows.shape[1], wanted.shape[1])
    half = len(rows) // 2
    fit(modules, rows[:half], wanted[:half])
    error = ((run_quick(modules, rows[half:]) - wanted[half:]) ** 2).sum()
    return float(error / ((wanted[half:] - wanted[half:].mean(dim=0)) ** 2).sum())


def test_what_is_linear_is_found():
    rows = torch.randn(4000, 8)
    assert unexplained(rows, rows @ torch.randn(8, 5) + 3) < 1e-3


def test_what_is_bent_is_found_too():
    rows = torch.randn(4000, 4)
    bent = rows.abs()
    straight = np.linalg.lstsq(np.c_[rows.numpy(), np.ones(4000)], bent.numpy(), rcond=None)[1].sum()
    assert straight > 0.9 * ((bent - bent.mean(dim=0)) ** 2).sum()  # nothing linear in it
    assert unexplained(rows, bent) < 0.3


def test_what_is_not_there_is_not_found():
    assert unexplained(torch.randn(4000, 8), torch.randn(4000, 5)) == pytest.approx(1, abs=0.2)
    assert np.isfinite(unexplained(torch.ones(100, 8), torch.randn(100, 5)))


def test_it_is_not_learned_but_passes_the_gradient_on():
    modules = quick_inverter(6, 3)
    rows = torch.randn(50, 6, requires_grad=True)
    fit(modules, rows, torch.randn(50, 3))
    run_quick(modules, rows).square().mean().backward()
    assert rows.grad.abs().max() > 0
    assert not any(part.requires_grad for part in modules.parameters())
