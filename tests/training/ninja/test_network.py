# SPDX-License-Identifier: Apache-2.0
"""NinjaNet: its layers, orthogonal weights, and that numpy computes what torch does."""

from typing import Any

import numpy as np
import pytest

from sfumato.concealment.encoder import encode
from sfumato.errors import InputError
from sfumato.training.ninja.network import NinjaNet, export_encoder, mirror, prune

torch: Any = pytest.importorskip("torch")


def rows(count: int, n: int = 128, seed: int = 0) -> np.ndarray:
    found = np.abs(np.random.default_rng(seed).normal(size=(count, n)))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def test_it_is_built_as_by_its_authors():
    shapes = [tuple(layer.weight.shape) for layer in NinjaNet() if isinstance(layer, torch.nn.Linear)]
    assert shapes == [(256, 128), (128, 256), (256, 128), (256, 256), (128, 256), (256, 128), (128, 256)]
    kinds = [type(layer).__name__ for layer in NinjaNet(blocks=0)]
    assert kinds == ["Linear", "ReLU", "BatchNorm1d", "Linear", "Dropout", "Linear", "ReLU", "Linear", "UnitNorm"]
    assert len(NinjaNet(blocks=3)) == len(NinjaNet(blocks=0)) + 3 * 5
    assert next(layer for layer in NinjaNet() if isinstance(layer, torch.nn.Dropout)).p == 0.1


def test_the_weights_are_orthogonal():
    for layer in NinjaNet(blocks=2):
        if isinstance(layer, torch.nn.Linear):
            weight = layer.weight.detach().numpy()
            small = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            assert np.abs(small - np.eye(len(small))).max() < 1e-5
            assert not layer.bias.detach().numpy().any()


@pytest.mark.parametrize(("blocks", "output_dim"), [(0, None), (1, None), (2, 48)])
def test_numpy_computes_what_torch_does(blocks: int, output_dim: int | None):
    net = NinjaNet(blocks, output_dim=output_dim)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    net.train()
    for seed in range(5):  # so that BatchNorm has seen something
        net(torch.from_numpy(rows(64, seed=seed)))
    net.eval()
    clear = rows(300, seed=9)
    wanted = net(torch.from_numpy(clear)).detach().numpy()
    encoder = export_encoder(net, "sift", {"lambda": 1.0})
    assert np.abs(encode(encoder, clear) - wanted).max() < 1e-5
    assert np.abs(np.linalg.norm(wanted, axis=1) - 1).max() < 1e-5
    relu = [flag for _, _, flag in encoder.layers]
    assert relu == [True, False, *[True, True, False] * blocks, True, False]
    assert (encoder.input_dim, encoder.output_dim, encoder.extractor_name) == (128, output_dim or 128, "sift")
    assert encoder.card["lambda"] == 1.0


def test_what_batch_normalisation_learned_is_not_lost():
    net = NinjaNet(dim=8)
    norm = next(layer for layer in net if isinstance(layer, torch.nn.BatchNorm1d))
    before = encode(export_encoder(net, "sift", {}), rows(10, 8))
    norm.running_mean += 0.3
    norm.weight.data *= 2
    net.eval()
    after = encode(export_encoder(net, "sift", {}), rows(10, 8))
    assert np.abs(after - before).max() > 1e-2
    assert np.abs(after - net(torch.from_numpy(rows(10, 8))).detach().numpy()).max() < 1e-5


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_a_mirrored_network_keeps_distances(blocks: int):
    net = NinjaNet(blocks, dim=32)
    clear = rows(500, 32)
    before = encode(export_encoder(net, "sift", {}), clear)
    mirror(net, torch.from_numpy(clear))
    after = encode(export_encoder(net, "sift", {}), clear)
    assert np.abs(after @ after.T - clear @ clear.T).max() < 1e-4
    assert np.abs(before @ before.T - clear @ clear.T).max() > 0.05
    assert np.abs(after - clear).max() > 0.05  # it turned them


def test_faint_directions_are_cut_off_and_nothing_else():
    clear = rows(500, 32)
    net = NinjaNet(0, dim=32)
    mirror(net, torch.from_numpy(clear))
    net[-2].weight.data *= torch.cat([torch.ones(20), torch.full((12,), 1e-3)])[:, None]
    net.eval()
    before = net(torch.from_numpy(clear)).detach().numpy()
    assert prune(net, torch.from_numpy(clear), 0.01) == 20
    after = encode(export_encoder(net, "sift", {}), clear)
    assert after.shape == (500, 20)
    assert np.abs(after @ after.T - before @ before.T).max() < 1e-4
    assert prune(net, torch.from_numpy(clear), 0.5) == 1  # the strongest is left, however faint all are


def test_what_can_not_be_is_told():
    with pytest.raises(InputError, match="blocks"):
        NinjaNet(-1)
    with pytest.raises(InputError, match="dimensions from 1"):
        NinjaNet(output_dim=0)
