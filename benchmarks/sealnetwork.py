# SPDX-License-Identifier: Apache-2.0
"""Network over all sealed features of a photo at once, trained under keys of the attacker's own.

    python benchmarks/sealnetwork.py --json out.json             # needs the photos below SFUMATO_DATA, and torch

A network on one code learns nothing, for a key turns codes at random. What a key cannot change are likenesses between
codes and where keypoints lie. So features look at one another here (attention, Vaswani et al. 2017), by likeness of
codes and by place in each other's frame; and at the crowd of all codes of the key, by how many are how near. Each step
draws a new key and another photo, and asks for the descriptors. The same network on codes of nothing, drawn by lot, is
what keypoints alone tell: the difference is what codes add. "explained" is the share of the spread of descriptors that
is guessed right; "leakage" is as everywhere, by an inverter trained on the network's own guesses.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, data_folder, finish, note, pinned_threads
from sealinverter import similarity
from torch import nn

from sfumato.attacks.seals.known_pairs import unlike_none
from sfumato.concealment.seal import BANDWIDTH
from sfumato.errors import SfumatoError
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_paths
from sfumato.inversion.patches import load_inverter
from sfumato.training.inverter import InverterTrainParams, train_patch_inverter
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Points
from sfumato.types.recipe import Recipe

Floats = np.ndarray
Photo = tuple[Floats, Floats, tuple[int, int]]
"""Keypoints (N, 4), descriptors (N, 128), and the size of the picture."""

NEAREST, PAIRWISE, BINS = 32, 10, np.linspace(0.08, 0.9, 20)
HEADS, WIDTH, LAYERS = 4, 96, 4


class Layer(nn.Module):
    """Features look at one another, by likeness of codes and by place; likenesses are mixed as they are, too."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.told, self.given = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.place = nn.Sequential(nn.Linear(PAIRWISE, 24), nn.GELU(), nn.Linear(24, HEADS))
        self.mixed = nn.Linear(2 * WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))

    def forward(self, seen: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """Return features (N, WIDTH) after one look, of pairs (N, N, PAIRWISE) of which the first is likeness."""
        rows = self.before(seen)
        asked, told, given = (part(rows).view(len(rows), HEADS, -1) for part in (self.asked, self.told, self.given))
        scores = torch.einsum("nhc,mhc->nmh", asked, told) / asked.shape[2] ** 0.5 + self.place(pairs)
        looked = torch.einsum("nmh,mhc->nhc", scores.softmax(dim=1), given).reshape(len(rows), WIDTH)
        likeness = pairs[:, :, 0] * (pairs[:, :, 0] > BINS[0])  # less is chance
        alike = likeness @ given.reshape(len(rows), WIDTH) / (1 + likeness.sum(dim=1, keepdim=True))
        seen = seen + self.mixed(torch.cat([looked, alike], dim=1))
        return seen + self.inner(self.after(seen))


class SetNetwork(nn.Module):
    """Descriptors (N, 128) from what no key changes: numbers of each feature, and of each two."""

    def __init__(self, singles: int, mean: Floats) -> None:
        super().__init__()
        self.begin = nn.Sequential(nn.Linear(singles, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.end = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, len(mean)))
        self.register_buffer("mean", torch.from_numpy(mean))

    def forward(self, singles: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        seen = self.begin(singles)
        for layer in self.layers:
            seen = layer(seen, pairs)
        return self.end(seen) * 0.1 + self.mean


def seal_anew(rng: np.random.Generator, width: int, args: Any) -> Any:
    """Return a seal under a key that was never used before."""
    directions = (rng.standard_normal((width, args.bits)) / args.bandwidth).astype(np.float32)
    phases = rng.uniform(0, 2 * np.pi, args.bits).astype(np.float32)
    return lambda rows: np.where(np.cos(rows @ directions + phases) < 0, -1, 1).astype(np.float32) / args.bits**0.5


def what_no_key_changes(keypoints: Floats, codes: Floats, crowd: Floats, size: Any) -> tuple[Any, Any]:
    """Return numbers of each feature (N, S) and of each two (N, N, PAIRWISE): likenesses of codes, and places."""
    width, height = size
    x, y, scale, angle = keypoints[:, 0], keypoints[:, 1], np.log(keypoints[:, 2]), np.deg2rad(keypoints[:, 3])
    within, among = codes @ codes.T, codes @ crowd.T
    counts = np.stack([(among > edge).mean(axis=1) for edge in BINS], axis=1)
    nearest = -np.partition(-among, NEAREST, axis=1)[:, :NEAREST]
    nearest.sort(axis=1)
    singles = np.concatenate([
        np.stack([x / width - 0.5, y / height - 0.5, scale - 1, np.sin(angle), np.cos(angle),
                  np.sin(2 * angle), np.cos(2 * angle)], axis=1),
        np.log1p(1e4 * counts) / 4, nearest,
    ], axis=1)  # fmt: skip
    dx, dy = x[None] - x[:, None], y[None] - y[:, None]
    far = np.hypot(dx, dy)
    away = np.log1p(far / np.exp(scale)[:, None])
    turned, between = np.arctan2(dy, dx) - angle[:, None], angle[None] - angle[:, None]
    close = np.exp(-away)
    pairs = np.stack([within, within > 0.15, away - 2, close, close * np.cos(turned), close * np.sin(turned),
                      np.cos(between), np.sin(between), scale[None] - scale[:, None], far < 0.5], axis=2)  # fmt: skip
    return torch.from_numpy(singles.astype(np.float32)), torch.from_numpy(pairs.astype(np.float32))


def guess(network: SetNetwork, photo: Photo, crowd: Floats, seal: Any, rng: Any, *, blind: bool) -> torch.Tensor:
    """Return descriptors (N, 128) of a photo's sealed features; ``blind`` sees codes of nothing in their place."""
    keypoints, rows, size = photo
    if blind:
        rows, crowd = (rng.standard_normal(part.shape).astype(np.float32) for part in (rows, crowd))
    guessed: torch.Tensor = network(*what_no_key_changes(keypoints, seal(rows), seal(crowd), size))
    return guessed


def train(photos: list[Photo], args: Any, *, blind: bool) -> SetNetwork:
    """Return a network trained on photos of others, each step under another key."""
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    rows = np.concatenate([rows for _, rows, _ in photos])
    network = SetNetwork(7 + len(BINS) + NEAREST, rows.mean(axis=0))
    steps = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-4)
    pace = torch.optim.lr_scheduler.OneCycleLR(steps, 1e-3, total_steps=args.steps)
    spread, late = float(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()), []
    for step in range(args.steps):
        keypoints, own, size = photos[rng.integers(len(photos))]
        some = rng.permutation(len(own))[: args.features]
        crowd = rows[rng.integers(len(rows), size=args.crowd)]
        seal, photo = seal_anew(rng, rows.shape[1], args), (keypoints[some], own[some], size)
        guessed = guess(network, photo, crowd, seal, rng, blind=blind)
        loss = ((guessed - torch.from_numpy(own[some])) ** 2).sum(dim=1).mean() / spread
        steps.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        steps.step()
        pace.step()
        late = [*late[-199:], loss.item()]
        if (step + 1) % 200 == 0:
            note(f"{'blind' if blind else 'seeing'}, step {step + 1}: {1 - np.mean(late):.4f} explained")
    return network.eval()


def read(
    network: SetNetwork, photos: list[Photo], crowd: Floats, args: Any, *, blind: bool, key: int = 1000
) -> list[Floats]:
    """Return guesses at the descriptors of photos, all under one key that the network never saw."""
    rng = np.random.default_rng(args.seed + key)
    seal = seal_anew(rng, crowd.shape[1], args)
    with torch.no_grad():
        return [guess(network, photo, crowd, seal, rng, blind=blind).numpy() for photo in photos]


def inverter_of(
    network: SetNetwork, known: list[tuple[Path, Features]], crowd: Floats, args: Any, *, blind: bool
) -> Any:
    """Return a patch inverter of what the network guesses: of photos as a whole, looked up feature by feature."""
    photos = [as_photo(features) for _, features in known]
    found = read(network, photos, crowd, args, blind=blind, key=2000)
    guesses = {
        row.tobytes(): one
        for photo, rows in zip(photos, found, strict=True)
        for row, one in zip(photo[1], unlike_none(rows, crowd), strict=True)
    }

    def conceal(features: Features) -> ConcealedFeatures:
        rows = np.stack([guesses[row.tobytes()] for row in features.descriptors])
        return ConcealedFeatures(features.keypoints, Points(rows), Recipe.of("raw"), features.extractor)

    steps: dict[str, Any] = {"patch_steps": args.inverter_steps, "refine_steps": 300}
    if args.small:
        steps = {"patch_steps": 3, "refine_steps": 1, "hidden": 16}
    local = LocalParams(max_features=args.features)
    params = InverterTrainParams(**steps, local=local, max_photos=len(known), refine_photos=60, seed=args.seed)
    with tempfile.TemporaryDirectory() as place:
        place_of = Path(place) / "inverter.safetensors"
        return train_patch_inverter(params, [path for path, _ in known], place_of, concealer=conceal)


def as_photo(features: Features) -> Photo:
    """Return what the attacker trains on, and is judged by."""
    assert features.image_size is not None
    return features.keypoints, features.descriptors, features.image_size


def load(paths: list[Path], count: int) -> list[tuple[Path, Features]]:
    """Return the features of photos that have some."""
    found = []
    for path in paths:
        try:
            features = extract(path, LocalParams(max_features=count))
        except SfumatoError as error:
            note(f"{path.name} is left out: {error}")
            continue
        if len(features) > NEAREST:
            found.append((path, features))
    return found


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--photos", type=int, default=20, help="photos that are attacked")
    parser.add_argument("--learned", type=int, default=600, help="photos of others to learn from")
    parser.add_argument("--features", type=int, default=300, help="features of each photo")
    parser.add_argument("--crowd", type=int, default=4000, help="other codes of the key that the attacker sees")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--inverter-steps", type=int, default=600)
    parser.add_argument("--bits", type=int, default=512)
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH)
    args = parser.parse_args()
    folder = None if args.small else data_folder()
    if folder is None:
        args.steps, args.features, args.crowd = 4, 80, 200
        attacked = others = list(sample_paths().values())[:2]
    else:
        attacked = [path for _, path in list_images(folder / "photos/bsds500/val")][: args.photos]
        others = [path for _, path in list_images(folder / "photos/bsds500/train")]
        others += [path for _, path in list_images(folder / "photos/imagenet-samples")][: args.learned - len(others)]
    rows = []
    with pinned_threads(1):
        torch.set_num_threads(1)
        learned = load(others, args.features)
        photos = [as_photo(features) for _, features in learned]
        known = load(attacked, args.features)
        judged = [as_photo(features) for _, features in known]
        pictures = [(features, read_image(path).pixels) for path, features in known]
        clear, everyone = (np.concatenate([rows for _, rows, _ in part]) for part in (judged, photos))
        crowd = clear[np.random.default_rng(args.seed).permutation(len(clear))[: args.crowd]]
        bundled, mean = load_inverter(), everyone.mean(axis=0)
        best, floor = similarity(bundled, clear, pictures), similarity(bundled, None, pictures)
        for blind in (False,) if args.small else (True, False):
            network = train(photos, args, blind=blind)
            guessed = np.concatenate(read(network, judged, crowd, args, blind=blind))
            explained = 1 - float(((guessed - clear) ** 2).sum() / ((mean - clear) ** 2).sum())
            inverter = inverter_of(network, learned[:200], everyone[: args.crowd], args, blind=blind)
            shown = similarity(inverter, unlike_none(guessed, everyone), pictures)
            rows.append({
                "network": "keypoints alone" if blind else "keypoints and codes", "explained": explained,
                "leakage": (shown - floor) / (best - floor), "floor ssim": floor, "clear ssim": best,
                "within 0.3": float(np.mean(np.linalg.norm(unlike_none(guessed, everyone) - clear, axis=1) < 0.3)),
            })  # fmt: skip
            note(str(rows[-1]))
    sizes = {"photos": len(judged), "codes": len(clear), "learned": len(photos), "crowd": len(crowd),
             "steps": args.steps, "bits": args.bits, "bandwidth": args.bandwidth}  # fmt: skip
    finish("sealnetwork", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
