# SPDX-License-Identifier: Apache-2.0
"""The losses of decoders: torch and numpy agree, and a perfect guess costs nothing."""

import numpy as np
import pytest

from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.descriptors import Layout, on_sphere, run_layers
from sfumato.training import decoder
from sfumato.training.decoder import loss_of
from sfumato.types.concealed import Subspaces

torch = pytest.importorskip("torch")

N = 6


def layout(form: str, **changes: bool) -> Layout:
    return Layout(form=form, n_in=N, m=2, n_out=N, hidden=5, depth=1, **{"positive": False, "unit": True, **changes})


def setting(chosen: Layout):
    torch.manual_seed(0)
    entry = N if chosen.form == "search" else 3 * N
    modules = torch.nn.ModuleList([torch.nn.Linear(entry, 5), torch.nn.Linear(5, N + 1)])
    rng = np.random.default_rng(0)
    constants = {
        "mean": rng.normal(size=entry).astype(np.float32),
        "deviation": np.full(entry, 2, np.float32),
        "frame": np.eye(N, dtype=np.float32),
    }
    clear = rng.normal(size=(20, N)).astype(np.float32)
    clear /= np.linalg.norm(clear, axis=1, keepdims=True)
    inputs = canonical_input(Subspaces(clear, rng.normal(size=(20, 2, N))), constants["frame"])
    return modules, constants, inputs, clear


@pytest.mark.parametrize("form", ["direct", "search"])
def test_both_losses_are_finite_and_reach_every_weight(form: str):
    modules, constants, inputs, clear = setting(layout(form))
    loss = loss_of(modules, layout(form), constants, inputs, clear, np.random.default_rng(1))
    loss.backward()
    assert np.isfinite(loss.item())
    assert all(weights.grad.abs().sum() > 0 for weights in modules.parameters())


def test_the_same_generator_gives_the_same_loss():
    modules, constants, inputs, clear = setting(layout("search"))
    losses = [
        loss_of(modules, layout("search"), constants, inputs, clear, np.random.default_rng(seed)).item()
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_numpy_runs_what_torch_learned():
    chosen = layout("search", unit=False)
    modules, constants, inputs, _ = setting(chosen)
    x = inputs[:, :N]
    guesses, sure = decoder._run(modules, chosen, constants, torch.from_numpy(x.copy()))
    arrays = {f"{i}.{name}": value.numpy() for i, m in enumerate(modules) for name, value in m.state_dict().items()}
    raw = run_layers(arrays | constants, 1, x)
    assert np.allclose(raw[:, :-1], guesses.detach().numpy(), atol=1e-5)
    assert np.allclose(raw[:, -1], sure.detach().numpy(), atol=1e-5)


def test_the_points_shown_lie_in_the_subspace_and_some_near_the_truth():
    chosen = layout("search")
    modules, constants, inputs, clear = setting(chosen)
    shown = decoder._shown(modules, chosen, constants, inputs, clear, np.random.default_rng(1)).numpy()
    stacked = inputs.reshape(20, 3, N)
    offset = shown - stacked[:, 0]
    along = np.einsum("ni,nmi->nm", offset, stacked[:, 1:])
    assert np.abs(np.einsum("nm,nmi->ni", along, stacked[:, 1:]) - offset).max() < 1e-5
    assert np.abs(np.linalg.norm(shown, axis=1) - 1).max() < 1e-5
    distances = np.linalg.norm(shown - clear, axis=1)
    assert distances[:8].min() < 0.2
    directions = along[:, None].astype(np.float32)
    assert np.allclose(on_sphere(stacked[:, 0], stacked[:, 1:], directions)[:, 0], shown, atol=1e-5)
