# SPDX-License-Identifier: Apache-2.0
"""Attacks on sealed SIFT, over bits and bandwidths: alignment, oracle alignment, known pairs.

    python benchmarks/sealing.py --json out.json            # needs the photos below SFUMATO_DATA

"alignment" is the attack as it is shipped: public descriptors, all codes, no key. "told alignment" is an oracle: the
rotation that lays both clouds over one another best is worked out from the clear descriptors, so it bounds what this
family of attacks can get from this many codes. "known pairs" had this many descriptors sealed under the very key.
"leakage" is (similarity - floor) / (clear - floor) of pictures that the bundled inverter paints of the first photos.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads, sift_like

from sfumato.attacks.knowledge import KnownPairs, rows_of
from sfumato.attacks.seals.alignment import AlignmentParams, learn_alignment, learn_with_oracle
from sfumato.attacks.seals.attacks import mirror_orders
from sfumato.attacks.seals.known_pairs import read_codes
from sfumato.auditing.toolbox import bundled_inverter
from sfumato.concealment.seal import BANDWIDTH, make_seal
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images, read_image
from sfumato.inversion.metrics import picture_scores

SETTINGS = ((512, BANDWIDTH), (512, 0.29), (384, 0.29), (1024, 0.29), (512, 0.45))
PAIRS = (1_000, 10_000)
Floats = np.ndarray


def attacks(bits: int, bandwidth: float, clear: Floats, public: Floats, seed: int) -> Iterator[tuple[str, Floats]]:
    """Yield what each attacker takes the descriptors for."""
    seal = make_seal(b"benchmark key %d" % seed, clear.shape[1], bits, bandwidth)
    codes = rows_of(seal(clear))
    mirrored = [public[:8192][:, order] for order in mirror_orders()]
    yield "alignment", learn_alignment(codes, public, bandwidth, AlignmentParams(seed=seed), mirrored)(codes)
    yield "told alignment", learn_with_oracle(codes, clear, public, bandwidth)(codes)
    for count in PAIRS:
        known = public[:count]
        yield (
            f"known pairs {len(known)}",
            read_codes(codes, KnownPairs(descriptors=known, codes=rows_of(seal(known)))).descriptors,
        )


class Pictures:
    """Photos to paint, and the scale that leakage is measured on."""

    def __init__(self, photos: list[tuple[Any, Any]]) -> None:
        self._painter, self._photos = bundled_inverter(), photos
        self._clear = self.similarity(np.concatenate([f.descriptors for f, _ in photos])) if photos else 1.0
        self._floor = self.similarity(np.tile(self._painter.floor, (self.rows, 1))) if photos else 0.0

    @property
    def rows(self) -> int:
        """How many descriptors they have."""
        return sum(len(features) for features, _ in self._photos)

    def similarity(self, rows: Floats) -> float:
        """Return the mean similarity of what is painted from rows, photo after photo."""
        found, start = [], 0
        for features, pixels in self._photos:
            part = np.ascontiguousarray(rows[start : start + len(features)], np.float32)
            painted = self._painter.paint(features.keypoints, part, features.image_size)
            found.append(picture_scores(painted, pixels)["ssim"])
            start += len(features)
        return float(np.mean(found))

    def leakage(self, rows: Floats) -> float | None:
        """Return what rows show on the scale of keypoints alone (0) and clear descriptors (1)."""
        return (self.similarity(rows) - self._floor) / (self._clear - self._floor) if self._photos else None


def load(args: Any) -> tuple[Floats, Floats, Pictures]:
    """Return descriptors of held-out photos, public ones of others, and some photos to paint."""
    folder = data_folder()
    if args.small or folder is None:
        rng = np.random.default_rng(args.seed)
        return sift_like(600, rng), sift_like(1200, rng), Pictures([])
    local = LocalParams(max_features=1000)
    held = [path for _, path in list_images(folder / "photos" / "bsds500" / "val")][: args.photos]
    features = [extract(path, local) for path in held]
    painted = [(one, read_image(path).pixels) for one, path in list(zip(features, held, strict=True))[: args.painted]]
    others = [path for _, path in list_images(folder / "photos" / "bsds500" / "train")]
    public = np.concatenate([extract(path, LocalParams(max_features=400)).descriptors for path in others])
    order = np.random.default_rng(args.seed).permutation(len(public))[: args.public]
    return np.concatenate([one.descriptors for one in features]), public[order], Pictures(painted)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--photos", type=int, default=50, help="photos whose features are released under one key")
    parser.add_argument("--painted", type=int, default=6, help="number of them that are painted")
    parser.add_argument("--public", type=int, default=60_000, help="descriptors of other photos")
    args = parser.parse_args()
    rows = []
    with pinned_threads(1):
        note("reading photos")
        clear, public, pictures = load(args)
        for bits, bandwidth in SETTINGS[:1] if args.small else SETTINGS:
            for name, guesses in attacks(bits, bandwidth, clear, public, args.seed):
                note(f"{bits} bits, bandwidth {bandwidth}: {name}")
                distance = np.linalg.norm(guesses - clear, axis=1)
                rows.append({
                    "bits": bits, "bandwidth": bandwidth, "attack": name, "median": float(np.median(distance)),
                    "within 0.1": float((distance < 0.1).mean()), "within 0.3": float((distance < 0.3).mean()),
                    "leakage": pictures.leakage(guesses),
                })  # fmt: skip
    sizes = {"codes": len(clear), "public": len(public), "painted": pictures.rows}
    finish("sealing", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
