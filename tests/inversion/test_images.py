# SPDX-License-Identifier: Apache-2.0
"""Networks that make pictures, loaded and run: any size, no features, damaged files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.files.tensors import save_checkpoint
from sfumato.inversion.images import KIND, LONGEST, ImageInverter, build_network, invert_image, load_image_inverter
from sfumato.training.loop import network_arrays

torch = pytest.importorskip("torch")

CONSTANTS = {"mean": np.zeros(5, np.float32), "deviation": np.ones(5, np.float32), "frame": np.eye(5, dtype=np.float32)}
FACTS: dict[str, Any] = {
    "kind": KIND,
    "params": {"architecture": "unet", "width": 0.0625},
    "recipe": "raw",
    "extractor": "sift",
    "input_dim": 5,
}


def written(path: Path, facts: dict[str, Any] | None = None, architecture: str = "unet") -> Path:
    torch.manual_seed(0)
    modules = build_network(architecture, 5, 0.0625)
    save_checkpoint(path, network_arrays(modules) | CONSTANTS, facts or FACTS)
    return path


@pytest.fixture(scope="module")
def inverter(tmp_path_factory: pytest.TempPathFactory) -> ImageInverter:
    return load_image_inverter(written(tmp_path_factory.mktemp("inverter") / "n.safetensors"))


def test_it_says_what_it_is(inverter: ImageInverter):
    assert (inverter.input_dim, inverter.extractor_name, inverter.recipe) == (5, "sift", "raw")
    assert "unet" in repr(inverter)


@pytest.mark.parametrize("size", [(50, 33), (1, 1), (2 * LONGEST, 40)])
def test_pictures_of_any_size(inverter: ImageInverter, size: tuple[int, int]):
    rng = np.random.default_rng(0)
    keypoints = rng.uniform(0, 1, (30, 4)) * [*size, 1, 1]
    seen = invert_image(inverter, keypoints, rng.normal(size=(30, 5)), size)
    assert seen.shape == (size[1], size[0], 3)
    assert seen.dtype == np.float32
    assert 0 <= seen.min() <= seen.max() <= 1


def test_features_show_where_they_lie(inverter: ImageInverter):
    size = (96, 64)
    one = np.array([[20.0, 30.0, 1, 0]])
    empty = invert_image(inverter, np.empty((0, 4)), np.empty((0, 5)), size)
    seen = invert_image(inverter, one, np.full((1, 5), 3.0), size)
    changed = np.abs(seen - empty).sum(axis=2)
    y, x = np.unravel_index(changed.argmax(), changed.shape)
    assert abs(x - 20) <= 24
    assert abs(y - 30) <= 24
    assert changed.max() > 0
    outside = invert_image(inverter, np.array([[200.0, 30, 1, 0]]), np.full((1, 5), 3.0), size)
    assert np.array_equal(outside, empty)


def test_wrong_inputs_are_told(inverter: ImageInverter):
    with pytest.raises(InputError, match="inputs"):
        invert_image(inverter, np.zeros((2, 4)), np.zeros((2, 6)), (10, 10))
    with pytest.raises(InputError, match="size"):
        invert_image(inverter, np.zeros((2, 4)), np.zeros((2, 5)), (0, 10))
    with pytest.raises(InputError, match="'unet'"):
        build_network("unett", 5, 1.0)


def test_other_files_are_told(tmp_path: Path):
    for facts in (
        {**FACTS, "params": {}},
        {**FACTS, "input_dim": "5"},
        {**FACTS, "params": {"architecture": "unet", "width": 1e9}},
        {key: value for key, value in FACTS.items() if key != "recipe"},
    ):
        with pytest.raises(FileError, match="incomplete"):
            load_image_inverter(written(tmp_path / "n.safetensors", facts))
    with pytest.raises(FileError, match="network"):
        load_image_inverter(written(tmp_path / "n.safetensors", FACTS, "uresnet"))
    with pytest.raises(FileError, match="expected image"):
        load_image_inverter(written(tmp_path / "n.safetensors", {**FACTS, "kind": "decoder"}))
    data = written(tmp_path / "n.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[:-100])
    with pytest.raises(FileError, match="damaged"):
        load_image_inverter(tmp_path / "cut.safetensors")


# --- cells


def test_cells_painted_in_numpy_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="needs the extra 'learn'")
    from sfumato.inversion import images, networks

    torch.manual_seed(0)
    modules = images.build_network("cells", 3, 0.25).eval()
    for value in modules.buffers():
        if value.dtype == torch.float32:
            value.uniform_(0.5, 1.5)
    arrays = {name: value.numpy() for name, value in modules.state_dict().items()}
    assert {name: value.shape for name, value in arrays.items() if value.ndim} == images.cell_shapes(3, 0.25)
    rng = np.random.default_rng(1)
    size = (2 * networks.CELLS_MULTIPLE, networks.CELLS_MULTIPLE)
    keypoints = np.column_stack([rng.uniform(0, 60, 50), rng.uniform(0, 30, 50), np.ones(50), np.zeros(50)])
    keypoints[7] = keypoints[8]  # both count
    placed = images.place(keypoints, size, every=True)
    vectors = rng.normal(size=(len(placed), 3)).astype(np.float32)
    with torch.inference_mode():
        expected = images.run_network(modules, "cells", torch.from_numpy(vectors), [placed])[0].permute(1, 2, 0)
    painted = images._paint_cells(arrays, vectors, placed)
    assert painted.shape == (size[1], size[0], 3)
    np.testing.assert_allclose(painted, expected.numpy(), atol=2e-6)
