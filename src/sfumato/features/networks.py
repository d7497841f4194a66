# SPDX-License-Identifier: Apache-2.0
"""Networks that describe patches, their weights, and the patches around keypoints.

Weights are identified by a checksum of their numbers, so that the same weights are the same in any file; the path of a
file is never recorded. A patch is the square of half side ``patch_scale * sigma`` around a keypoint, turned by its
angle and sampled to 32 x 32 from an image pyramid, by kornia; outside of the picture its border is repeated. Needs the
extra ``learn``.
"""

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need
from sfumato.files.atomic import read_bytes, write_file

PATCH_SIDE = 32
PATCHES_AT_ONCE = 256
"""HardNet needs about 400 kB per patch; larger batches are not faster."""
LARGEST_FILE = 2**28
PROBLEMS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Publication:
    """Weights that their authors published: a file of a GitHub ``repository`` at a ``commit``, with git's checksum."""

    repository: str
    commit: str
    path: str
    checksum: str

    @property
    def address(self) -> str:
        """Where it is downloaded from."""
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """A kind of network: kornia's class, or None for our own; and its published weights."""

    kornia: str | None
    published: Publication | None


NETWORKS = {
    "hardnet": NetworkKind("HardNet", Publication(
        "DagnyT/hardnet", "35bc1d79910c4477e61ca486a4712b3b7496d43e",
        "pretrained/train_liberty_with_aug/checkpoint_liberty_with_aug.pth", "c1b2a5f4e79a5f3e50ec9a1ac98a428965cef37b",
    )),
    "sosnet": NetworkKind("SOSNet", Publication(
        "yuruntian/SOSNet", "7ae3730e76eaaac9331df10d28fc2d4a5b1f7688",
        "sosnet-weights/sosnet_32x32_liberty.pth", "e1654f36def583bb942cccbe149b0162d57d3d2a",
    )),
    "hynet": NetworkKind("HyNet", Publication(
        "ducha-aiki/Key.Net-Pytorch", "74fe0a75998445bb47b74b642b764543b25dc90a",
        "model/HyNet/weights/HyNet_LIB.pth", "30e43b29b92162617e7b34f0c7cc6c454798943d",
    )),
    "tfeat": NetworkKind("TFeat", Publication(
        "vbalnt/tfeat", "9434ffaade966efee9ee89304f59b6c224d3b039",
        "pretrained-models/tfeat-liberty.params", "0f28ae87db5e2fc95ae691faf3aa9c2c631060b2",
    )),
    "hardtfeat": NetworkKind(None, None),
}  # fmt: skip
"""hardtfeat, TFeat's network trained with HardNet's loss, cannot be downloaded: it always needs a file."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PatchNetwork:
    """A network with its weights, ready to describe; ``checksum`` (8 hexadecimal digits) is that of the weights."""

    kind: str
    checksum: str
    module: Any

    def describe(self, patches: Any) -> NDArray[np.float64]:
        """Return the rows (N, 128), not yet of unit norm, of a tensor of patches (N, 1, 32, 32) with values 0 to 1.

        The row of a patch without contrast is 0.

        Raises InputError if the weights make numbers that are not finite.
        """
        torch: Any = need("torch", extra="learn")
        with torch.inference_mode():
            flat = patches.flatten(1)  # (N, 1024)
            deviation = flat.std(dim=1)
            if self.kind == "hardtfeat":
                standard = (flat - flat.mean(dim=1, keepdim=True)) / (deviation[:, None] + 1e-6)
                patches = standard.view_as(patches)
            tensor = self.module(patches).flatten(1).double() * (deviation > 0)[:, None]
        rows: NDArray[np.float64] = tensor.numpy()
        if not np.isfinite(rows).all():
            raise InputError(f"these weights of {self.kind} make numbers that are not finite: give another file")
        return rows

    def __repr__(self) -> str:
        return f"PatchNetwork({self.kind}, {self.checksum})"


_lock = threading.Lock()
_loaded: LRUCache[tuple[Any, ...], PatchNetwork] = LRUCache(8)


def load_network(kind: str, weights: str | os.PathLike[str] | None = None) -> PatchNetwork:
    """Return a network of NETWORKS with the weights of a file, or with the published ones, which are downloaded once.

    The file is safetensors if its name says so, else torch's; nothing in it is executed.

    Raises MissingDependency without torch and kornia, FileError if the weights are missing, damaged, or of another
    network.
    """
    if kind not in NETWORKS:
        raise InputError(f"no network is called {kind!r:.80}; there are {', '.join(NETWORKS)}")
    path = None if weights is None else Path(weights)
    key = (kind, None if path is None else _identity(path))
    with _lock:
        if key not in _loaded:
            _loaded[key] = _download(kind) if path is None else _load(kind, path)
        return _loaded[key]


def kind_of(extractor_name: str) -> str:
    """Return the descriptor in the name of an extractor: for a network without the checksum of its weights.

    >>> kind_of("hardnet-1f0c9a27"), kind_of("sift")
    ('hardnet', 'sift')
    """
    kind = extractor_name.rpartition("-")[0]
    return kind if kind in NETWORKS else extractor_name


def checksum(state: Mapping[str, Any]) -> str:
    """Return the checksum of named tensors: of names, shapes and numbers in float32, in the order of their names."""
    digest = hashlib.blake2b(digest_size=4)
    for name in sorted(state):
        if not _is_counter(name):
            values = np.ascontiguousarray(state[name].detach().float().numpy().astype("<f4"))
            digest.update(f"{name} {values.shape} ".encode() + values.tobytes())
    return digest.hexdigest()


def _identity(path: Path) -> tuple[Any, ...]:
    """Return what changes when a file is replaced; raise FileError if it cannot be read."""
    try:
        status = path.stat()
    except (OSError, ValueError) as cause:
        raise FileError(f"weights {path} are not there: check the path") from cause
    if not path.is_file() or status.st_size > LARGEST_FILE:
        raise FileError(f"weights {path}: expected a file of at most {LARGEST_FILE // 2**20} MB")
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def _build(kind: str) -> Any:
    """Return a network with random weights; torch's random state is left as it was."""
    torch: Any = need("torch", extra="learn")
    features: Any = need("kornia.feature", extra="learn")
    name = NETWORKS[kind].kornia
    with torch.random.fork_rng(devices=[]):
        module = getattr(features, name)(pretrained=False) if name else _hardtfeat(torch.nn)
    return module.eval().requires_grad_(False)


def _hardtfeat(nn: Any) -> Any:
    """Return TFeat's network as HardNet's authors train it, (N, 1, 32, 32) to (N, 128, 1, 1)."""
    parts: dict[str, Any] = {
        "features": nn.Sequential(
            nn.Conv2d(1, 32, 7), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 6), nn.Tanh()
        ),  # (N, 64, 8, 8)
        "classifier": nn.Sequential(nn.Dropout(0.1), nn.Conv2d(64, 128, 8), nn.Tanh()),
    }
    network = nn.Sequential()
    for name, part in parts.items():
        network.add_module(name, part)
    return network


def _download(kind: str) -> PatchNetwork:
    published = NETWORKS[kind].published
    if published is None:
        raise FileError(f"{kind} has no weights to download: give a file with weights=, on the command line --weights")
    _build(kind)  # raises for a missing library before anything is downloaded
    torch: Any = need("torch", extra="learn")
    name = published.path.rpartition("/")[2]
    place = Path(torch.hub.get_dir()) / "checkpoints" / f"{published.checksum[:8]}-{name}"
    try:
        if not place.is_file() or git_checksum(read_bytes(place, LARGEST_FILE)) != published.checksum:
            with urlopen(published.address, timeout=60) as answer:
                content = answer.read(LARGEST_FILE)
            if git_checksum(content) != published.checksum:
                raise FileError("another file is there now")
            write_file(place, content, with_folder=True)
    except OSError as cause:  # no network, no space, a server that is gone
        raise FileError(
            f"the weights of {kind} cannot be downloaded ({cause}): get {name} of github.com/{published.repository}, "
            f"and give the file with weights=, on the command line --weights"
        ) from cause
    return _load(kind, place)


def git_checksum(content: bytes) -> str:
    """Return git's checksum of a file, by which a repository names it.

    >>> git_checksum(b"")
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _load(kind: str, path: Path) -> PatchNetwork:
    module = _build(kind)
    state = _read_state(path)
    expected = module.state_dict()
    problems = _differences(state, expected)
    if problems:
        more = f"; and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
        raise FileError(
            f"weights {path} are not those of {kind}: {'; '.join(problems[:PROBLEMS_SHOWN])}{more}. Give another file, "
            f"or choose the descriptor it belongs to"
        )
    module.load_state_dict({name: state.get(name, expected[name]).to(expected[name].dtype) for name in expected})
    return PatchNetwork(kind, checksum(module.state_dict()), module)


def _read_state(path: Path) -> dict[str, Any]:
    """Return the tensors of a file by name; raise FileError if there are none."""
    torch: Any = need("torch", extra="learn")
    try:
        if path.suffix.lower() == ".safetensors":
            state: Any = need("safetensors.torch", extra="learn").load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as cause:  # torch and safetensors let through whatever their parsers meet
        raise FileError(
            f"weights {path} cannot be read: expected .safetensors, or a file of tensors that torch wrote"
        ) from cause
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]  # a checkpoint of a training
    tensors = isinstance(state, Mapping) and all(isinstance(value, torch.Tensor) for value in state.values())
    if not tensors or not state:
        raise FileError(f"weights {path} cannot be read: expected named tensors, as state_dict() gives them")
    return {str(name): value for name, value in state.items()}


def _differences(state: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return all differences between tensors and the weights that a network expects."""
    needed = {name for name in expected if not _is_counter(name)}
    problems = [f"{name} is missing" for name in sorted(needed - set(state))]
    problems += [
        f"{name:.80} does not belong there" for name in sorted(set(state) - set(expected)) if not _is_counter(name)
    ]
    for name in sorted(needed & set(state)):
        shape, right = tuple(state[name].shape), tuple(expected[name].shape)
        if shape != right:
            problems.append(f"{name} has shape {shape} instead of {right}")
        elif not state[name].is_floating_point():
            problems.append(f"{name} holds no fractions but {state[name].dtype}")
        elif not state[name].float().isfinite().all():
            problems.append(f"{name} has numbers that are not finite")
    return problems


def _is_counter(name: str) -> bool:
    """Tell whether a tensor only counts the batches of a training; old files lack it."""
    return name.endswith("num_batches_tracked")


# --- patches around keypoints

_one_at_a_time = threading.Lock()
"""torch uses every core already: threads that describe at the same time would only slow each other down."""


def describe_patches(
    grey: NDArray[np.uint8], keypoints: NDArray[np.float32], network: PatchNetwork, patch_scale: float
) -> NDArray[np.float64]:
    """Return the rows (N, 128), not yet of unit norm, of the patches around keypoints (N, 4) of a picture (H, W)."""
    rows = np.zeros((len(keypoints), 128))
    with _one_at_a_time:
        start = 0
        for patches in patch_batches(grey, keypoints, patch_scale):
            rows[start : start + len(patches)] = network.describe(patches)
            start += len(patches)
    return rows


def patch_batches(grey: NDArray[np.uint8], keypoints: NDArray[np.float32], patch_scale: float) -> Iterator[Any]:
    """Yield tensors (n, 1, 32, 32) float32, values 0 to 1, of the patches around keypoints, a few hundred at a time."""
    torch: Any = need("torch", extra="learn")
    feature: Any = need("kornia.feature", extra="learn")
    if len(keypoints) == 0:
        return
    picture = torch.from_numpy(np.array(grey, np.float32) / 255)[None, None]  # (1, 1, H, W)
    frames = _frames(torch, feature, keypoints, patch_scale)  # (1, N, 2, 3)
    for start in range(0, len(keypoints), PATCHES_AT_ONCE):
        batch = frames[:, start : start + PATCHES_AT_ONCE]
        with torch.inference_mode():
            yield feature.extract_patches_from_pyramid(picture, batch, PS=PATCH_SIDE)[0]


def _frames(torch: Any, feature: Any, keypoints: NDArray[np.float32], patch_scale: float) -> Any:
    """Return kornia's local affine frames (1, N, 2, 3) of keypoints.

    Its scale is half the side of a patch, its angle turns the other way than OpenCV's, and the centre of the first
    pixel is (0, 0), as here.
    """
    table = torch.from_numpy(np.array(keypoints, np.float32))  # (N, 4)
    half_side = patch_scale * table[:, 2]
    return feature.laf_from_center_scale_ori(
        table[None, :, :2], half_side.view(1, -1, 1, 1), -table[:, 3].view(1, -1, 1)
    )
