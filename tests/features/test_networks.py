# SPDX-License-Identifier: Apache-2.0
import re
import sys
from dataclasses import replace
from urllib.error import URLError

import numpy as np
import pytest

from sfumato.errors import FileError, InputError, MissingDependency
from sfumato.features import networks
from sfumato.features.networks import NETWORKS, kind_of, load_network

torch = pytest.importorskip("torch")
feature = pytest.importorskip("kornia.feature")
save_file = pytest.importorskip("safetensors.torch").save_file


def state_of(kind, seed=0):
    """The tensors of a network that was never trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shapes = networks._build(kind).state_dict()
        return {
            name: tensor.clone() if name.endswith(("running_mean", "running_var", "eps", "num_batches_tracked"))
            else 0.1 * torch.randn(tensor.shape)
            for name, tensor in shapes.items()
        }  # fmt: skip


@pytest.fixture
def weights(tmp_path):
    """Write weights, by default of hardtfeat, and return their file."""

    def write(state=None, name="w.safetensors", kind="hardtfeat"):
        state = state_of(kind) if state is None else state
        if name.endswith(".safetensors"):
            save_file(state, tmp_path / name)
        else:
            torch.save(state, tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def patches():
    return torch.from_numpy(np.random.default_rng(0).random((7, 1, 32, 32), dtype=np.float32))


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_describes(kind, weights, patches):
    rows = load_network(kind, weights(kind=kind)).describe(patches)
    assert rows.shape == (7, 128)
    assert rows.dtype == np.float64
    assert (np.linalg.norm(rows, axis=1) > 0).all()
    assert np.abs(rows[0] - rows[1]).max() > 1e-6


@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if NETWORKS[kind].kornia])
def test_kornias_networks_are_as_kornia_runs_them(kind, weights, patches):
    state = state_of(kind)
    theirs = getattr(feature, NETWORKS[kind].kornia)(pretrained=False)
    theirs.load_state_dict(state)
    expected = theirs.eval()(patches).detach().numpy()
    assert np.abs(load_network(kind, weights(state)).describe(patches) - expected).max() < 1e-6


def test_hardtfeat_is_what_its_description_says(weights, patches):
    """conv 7x7, tanh, max-pool 2, conv 6x6, tanh, conv 8x8, tanh, of patches of zero mean and unit deviation."""
    state = state_of("hardtfeat")
    x = (patches - patches.mean((2, 3), keepdim=True)) / patches.std((2, 3), keepdim=True)
    conv = torch.nn.functional.conv2d
    x = torch.tanh(conv(x, state["features.0.weight"], state["features.0.bias"]))
    x = torch.nn.functional.max_pool2d(x, 2)
    x = torch.tanh(conv(x, state["features.3.weight"], state["features.3.bias"]))
    x = torch.tanh(conv(x, state["classifier.1.weight"], state["classifier.1.bias"]))
    assert x.shape == (7, 128, 1, 1)
    assert np.abs(load_network("hardtfeat", weights(state)).describe(patches) - x[..., 0, 0].numpy()).max() < 1e-4


def test_brightness_and_contrast_do_not_matter_and_a_flat_patch_says_nothing(weights, patches):
    network = load_network("hardtfeat", weights())
    assert np.abs(network.describe(patches) - network.describe(0.3 * patches + 0.2)).max() < 1e-4
    patches[2] = 0.5
    rows = network.describe(patches)
    assert (rows[2] == 0).all()
    assert (rows[[0, 1, 3, 4, 5, 6]] != 0).all()


def test_the_same_weights_are_the_same_in_any_file(weights):
    state = state_of("hardtfeat")
    found = {
        load_network("hardtfeat", weights(given, name)).checksum
        for given, name in (
            (state, "a.safetensors"), (state, "b.pth"), ({"epoch": 3, "state_dict": state}, "c.pth"),
            (dict(reversed(state.items())), "d.params"),
        )
    }  # fmt: skip
    assert len(found) == 1
    assert len(found.pop()) == 8
    state["features.0.bias"][0] += 1e-3
    assert load_network("hardtfeat", weights(state, "e.pth")).checksum != networks.checksum(state_of("hardtfeat"))


def test_a_file_that_changed_is_read_again(weights):
    first = load_network("hardtfeat", weights())
    assert load_network("hardtfeat", weights(name="w.safetensors").parent / "w.safetensors").checksum == first.checksum
    again = weights(state_of("hardtfeat", seed=1))
    assert load_network("hardtfeat", again).checksum != first.checksum
    assert load_network("hardtfeat", again) is load_network("hardtfeat", str(again))


def test_loading_leaves_torchs_random_numbers_alone(weights):
    path = weights(name="r.pth")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_network("hardtfeat", path)
    assert torch.equal(torch.rand(3), expected)


def test_half_precision_and_counters_of_old_files(weights, patches):
    state = state_of("hardnet")
    counters = {name for name in state if name.endswith("num_batches_tracked")}
    assert counters
    without = {name: tensor.half() for name, tensor in state.items() if name not in counters}
    rows = load_network("hardnet", weights(without, "old.pth")).describe(patches)
    expected = load_network("hardnet", weights(state)).describe(patches)
    assert np.abs(rows - expected).max() < 0.01


# ---------------------------------------------------------------- files that are none


def told(kind, path):
    with pytest.raises(FileError) as error:
        load_network(kind, path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_weights_of_another_network(weights):
    state = state_of("hardtfeat")
    state["features.0.weight"] = state["features.0.weight"][:, :, :5].contiguous()
    state["extra.weight"] = torch.zeros(2)
    state["features.3.bias"] = torch.full((64,), float("nan"))
    state["classifier.1.bias"] = torch.zeros(128, dtype=torch.int32)
    del state["features.0.bias"]
    message = told("hardtfeat", weights(state))
    for text in (
        "features.0.bias", "extra.weight",
        "features.0.weight has shape (32, 1, 5, 7) instead of",
        "features.3.bias", "classifier.1.bias",
    ):  # fmt: skip
        assert text in message
    assert re.search(
        r"features\.\d.* is too much|layers\.\d.* is missing.* and \d+ more", told("sosnet", weights(kind="hardnet"))
    )


@pytest.mark.parametrize("name", ["bad.safetensors", "bad.pth"])
@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x02", b"PK\x03\x04", b"\xff" * 64])
def test_files_of_something_else(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert "cannot be read" in told("hardtfeat", tmp_path / name)


@pytest.mark.parametrize("thing", [[1, 2], {}, {"a": 3}, {"state_dict": {"a": "b"}}])
def test_torch_files_without_tensors(weights, thing):
    assert "cannot be read" in told("hardtfeat", weights(thing, "bad.pth"))


def test_nothing_in_a_file_is_executed(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    torch.save({"features.0.bias": Hostile()}, tmp_path / "bad.pth")
    assert "cannot be read" in told("hardtfeat", tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()


def test_missing_and_enormous_files(tmp_path, monkeypatch, weights):
    assert "are not there" in told("hardtfeat", tmp_path / "none.pth")
    assert "expected a file" in told("hardtfeat", tmp_path)
    path = weights()
    monkeypatch.setattr(networks, "LARGEST_FILE", 1000)
    assert "at most" in told("hardtfeat", path)


def test_weights_that_make_no_numbers(weights, patches):
    state = state_of("hardnet")
    state["features.0.weight"].fill_(3e38)
    state["features.3.weight"].fill_(3e38)
    network = load_network("hardnet", weights(state))
    with pytest.raises(InputError, match="not finite"):
        network.describe(patches)


# ---------------------------------------------------------------- downloads and libraries


@pytest.fixture
def published(monkeypatch, tmp_path):
    """HardNet's published weights: a file of this machine, which is noted when it is opened."""
    torch.save({"state_dict": state_of("hardnet")}, tmp_path / "weights.pth")
    content = (tmp_path / "weights.pth").read_bytes()
    one = replace(NETWORKS["hardnet"].published, checksum=networks.git_checksum(content))
    monkeypatch.setitem(NETWORKS, "hardnet", replace(NETWORKS["hardnet"], published=one))
    monkeypatch.setattr(networks, "_loaded", {})
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    opened = []

    def open_address(address, timeout):
        opened.append(address)
        return (tmp_path / "weights.pth").open("rb")

    monkeypatch.setattr(networks, "urlopen", open_address)
    return opened


def test_published_weights_are_downloaded_once(published, patches, monkeypatch):
    network = load_network("hardnet")
    assert network.checksum == networks.checksum(state_of("hardnet"))
    assert network.describe(patches).shape == (7, 128)
    assert repr(network) == f"PatchNetwork(hardnet, {network.checksum})"
    monkeypatch.setattr(networks, "_loaded", {})
    assert load_network("hardnet").checksum == network.checksum
    assert published == [NETWORKS["hardnet"].published.address]


def test_weights_that_were_changed_are_never_used(published, tmp_path, monkeypatch):
    load_network("hardnet")
    (kept,) = (tmp_path / "hub" / "checkpoints").iterdir()
    for place in (kept, tmp_path / "weights.pth"):
        place.write_bytes(place.read_bytes()[:-1] + b"!")
    monkeypatch.setattr(networks, "_loaded", {})
    with pytest.raises(FileError, match="another file"):
        load_network("hardnet")


@pytest.mark.parametrize("problem", [URLError("no route"), TimeoutError("slow"), OSError("no space")])
def test_a_download_that_fails_says_which_file_to_give(published, monkeypatch, problem):
    def fail(address, timeout):
        raise problem

    monkeypatch.setattr(networks, "urlopen", fail)
    with pytest.raises(FileError, match=r"sosnet_32x32_liberty\.pth.*--weights"):
        load_network("sosnet")


def test_hardtfeat_needs_a_file():
    with pytest.raises(FileError, match="download"):
        load_network("hardtfeat")


def test_a_name_tells_its_kind():
    told = [kind_of(name) for name in ("hardnet-1f0c9a27", "hardtfeat", "rootsift", "super-point", "-")]
    assert told == ["hardnet", "hardtfeat", "rootsift", "super-point", "-"]


def test_an_unknown_kind():
    with pytest.raises(InputError, match="hardnet"):
        load_network("harnet")


@pytest.mark.parametrize("library", ["torch", "kornia.feature"])
def test_missing_libraries_are_named(monkeypatch, weights, library):
    path = weights(name="m.pth")
    monkeypatch.setattr(networks, "_loaded", {})
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=r"sfumato\[learn\]"):
        load_network("hardtfeat", path)
