# SPDX-License-Identifier: Apache-2.0
"""Key recovery of a seal: the known features it takes, and what the key then reveals of unknown photos.

    python benchmarks/sealkey.py --json out.json                 # needs the photos and pairs below SFUMATO_DATA

First, from descriptors that are known exactly with their codes: a photo of the attacker's own that was sealed.
Then, of places: one photo of each was sealed, and the attacker has another photo of the same place. He knows no pair;
he lays the keypoints of his photo over those of the archive, by places, sizes and angles alone (a Hough vote over what
single keypoints propose, then homographies), and takes features that meet for pairs. "bits" is the share of bits of
unknown descriptors that the key found foretells, 0.5 for nothing; "within" and "leakage" are of the first photos of
bsds500/val, sealed under the same key: descriptors that were read, and pictures by the bundled inverter.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, photo_descriptors, pinned_threads
from sealinverter import similarity

from sfumato.attacks.knowledge import rows_of
from sfumato.attacks.seals.key import Waves, read_with_key, recover_key
from sfumato.concealment.seal import BANDWIDTH, make_seal
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_paths
from sfumato.inversion.patches import load_inverter
from sfumato.types.clear import Features

Floats = np.ndarray
PLACES = ("v_boat", "v_graf", "i_leuven", "v_churchill", "v_bikes")
LARGEST, PROPOSALS, FEWEST = 1500, 60, 150
"""Keypoints that vote, proposals that are looked at, and features that must meet for a place to be the same."""


def laid_over(one: Features, other: Features) -> tuple[Floats, Floats]:
    """Return which features of two photos meet if one is laid over the other; nothing where they are of two places."""
    best = (np.empty(0, int), np.empty(0, int))
    for start in _proposals(one.keypoints.astype(float), other.keypoints.astype(float)):
        found = _refined(start, one.keypoints.astype(float), other.keypoints.astype(float))
        best = max(best, found, key=lambda pair: len(pair[0]))
    return best if len(best[0]) >= FEWEST else (best[0][:0], best[1][:0])


def _proposals(one: Floats, other: Floats) -> list[Floats]:
    """Return the similarities (3, 3) that most pairs of single keypoints agree on."""
    first, second = (rows[np.argsort(-rows[:, 2])[:LARGEST]] for rows in (one, other))
    growth = np.log2(second[None, :, 2] / first[:, None, 2])
    turn = np.deg2rad(second[None, :, 3] - first[:, None, 3])
    factor = np.exp(1j * turn) * 2**growth
    here, there = (rows[:, 0] + 1j * rows[:, 1] for rows in (first, second))
    middle = here.mean()
    goes = factor * (middle - here[:, None]) + there[None]
    cells = np.stack([np.round(growth * 3), np.round(turn % (2 * np.pi) * 24 / (2 * np.pi)) % 24,
                      np.floor(goes.real / 24), np.floor(goes.imag / 24)], axis=2)  # fmt: skip
    plain = ((cells[..., 0] + 20) * 24 + cells[..., 1]) * 1e8 + (cells[..., 2] + 2000) * 1e4 + cells[..., 3] + 2000
    usable = np.abs(growth) < 2
    names, counts = np.unique(plain[usable], return_counts=True)
    found = []
    for name in names[np.argsort(-counts)[:PROPOSALS]]:
        votes = (plain == name) & usable
        scale, moved = factor[votes].mean(), goes[votes].mean()
        shift = moved - scale * middle
        found.append(np.array([[scale.real, -scale.imag, shift.real], [scale.imag, scale.real, shift.imag], [0, 0, 1]]))
    return found


def _refined(start: Floats, one: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Return what meets under a homography that is fitted to what meets, closer and closer."""
    import cv2

    for reach in (20, 12, 8, 5, 4):
        rows, partners = _meeting(start, one, other, reach)
        if len(rows) < 12:
            return rows[:0], partners[:0]
        fitted, _ = cv2.findHomography(one[rows, :2], other[partners, :2], cv2.RANSAC, max(3, reach / 2))
        if fitted is None:
            return rows[:0], partners[:0]
        start = fitted
    return _meeting(start, one, other, 3)


def _meeting(homography: Floats, one: Floats, other: Floats, reach: float) -> tuple[Floats, Floats]:
    """Return rows of two sets of keypoints that come to lie on one another, with like sizes and angles."""
    from scipy.spatial import cKDTree

    def moved(places: Floats) -> Floats:
        far = np.column_stack([places, np.ones(len(places))]) @ homography.T
        return far[:, :2] / far[:, 2:]

    at, angle = one[:, :2], np.deg2rad(one[:, 3])
    lies = moved(at)
    along = (moved(at + 0.01 * np.column_stack([np.cos(angle), np.sin(angle)])) - lies) / 0.01
    grown = one[:, 2] * np.linalg.norm(along, axis=1)
    reaches, near = cKDTree(other[:, :2]).query(lies, k=4, distance_upper_bound=reach)
    near = np.minimum(near, len(other) - 1)
    turned = np.deg2rad(other[near, 3]) - np.arctan2(along[:, 1], along[:, 0])[:, None]
    like = np.abs(np.log2(other[near, 2] / np.maximum(grown, 1e-9)[:, None])) < 0.4
    like &= np.isfinite(reaches) & (np.abs(np.angle(np.exp(1j * turned))) < 0.35)
    nearest = np.where(like, reaches, np.inf).argmin(axis=1)
    rows = np.flatnonzero(like.any(axis=1))
    return rows, near[rows, nearest[rows]]


def pairs_of_places(folder: Path, seal: Any, number: int) -> tuple[Floats, Floats, int]:
    """Return descriptors of the attacker's photos of places, codes of the archive that met them, and of how many."""
    known, codes, local = [], [], LocalParams(max_features=3000)
    for name in PLACES:
        sealed, own = (extract(folder / name / f"{which}.png", local) for which in (1, number))
        rows, partners = laid_over(sealed, own)
        note(f"{name}: {len(rows)} features meet")
        if len(rows):
            known.append(own.descriptors[partners])
            codes.append(rows_of(seal(sealed.descriptors[rows])))
    return np.concatenate(known), np.concatenate(codes), len(known)


def figures(waves: Waves, seal: Any, photos: Any, public: Floats) -> dict[str, float]:
    """Return what a key that was found is worth on photos that nobody knows."""
    clear = np.concatenate([features.descriptors for features, _ in photos])
    codes = rows_of(seal(clear))
    read, inverter = read_with_key(codes, waves, public), load_inverter()
    errors = np.linalg.norm(read - clear, axis=1)
    best, floor = similarity(inverter, clear, photos), similarity(inverter, None, photos)
    return {
        "bits": float((waves.codes(clear) == np.sign(codes)).mean()),
        "within 0.1": float((errors < 0.1).mean()), "within 0.3": float((errors < 0.3).mean()),
        "leakage": (similarity(inverter, read, photos) - floor) / (best - floor),
    }  # fmt: skip


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--known", type=int, nargs="*", default=[1000, 2000, 4000, 10_000])
    parser.add_argument("--photos", type=int, default=5, help="photos that are read and painted")
    parser.add_argument("--public", type=int, default=40_000, help="descriptors of other photos")
    parser.add_argument("--other", type=int, default=2, help="which other photo of each place the attacker has")
    parser.add_argument("--bits", type=int, default=512)
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH)
    args = parser.parse_args()
    folder = None if args.small else data_folder()
    if folder is None:
        args.known, args.bits, args.public = [600], 32, 700
        attacked, others = ([path] for path in list(sample_paths().values())[:2])
    else:
        attacked = [path for _, path in list_images(folder / "photos/bsds500/val")][: args.photos]
        others = [path for _, path in list_images(folder / "photos/bsds500/train")]
    local, rows = LocalParams(max_features=1000 if folder else 100), []
    with pinned_threads(1):
        photos = [(extract(path, local), read_image(path).pixels) for path in attacked]
        pool = photo_descriptors(others, args.public + max(args.known), each=1000)
        seal = make_seal(b"benchmark key %d" % args.seed, pool.shape[1], args.bits, args.bandwidth)
        public = pool[max(args.known) :] if len(pool) > 2 * max(args.known) else pool
        for count in args.known:
            known = pool[:count]
            waves = recover_key(known, rows_of(seal(known)), args.bandwidth, seed=args.seed)
            rows.append({"known": f"{len(known)} descriptors", **figures(waves, seal, photos, public)})
            note(str(rows[-1]))
        if folder is not None:
            known, codes, places = pairs_of_places(folder / "homography", seal, args.other)
            waves = recover_key(known, codes, args.bandwidth, seed=args.seed)
            name = f"{places} places, {len(known)} meet"
            rows.append({"known": name, **figures(waves, seal, photos, public)})
    sizes = {"photos": len(photos), "public": len(public), "bits": args.bits, "bandwidth": args.bandwidth}
    finish("sealkey", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
