# SPDX-License-Identifier: Apache-2.0
"""Stronger attacks on seals: more codes of one key, and an inverter trained on the results of alignment.

    python benchmarks/sealinverter.py --released 100 --json out.json    # needs the photos below SFUMATO_DATA, and torch

``sfumato evaluate frontier`` attacks seals with the codes of the photos it paints. Here all photos of ``--released``
are sealed under one key, and the first ``--photos`` of them painted: as alignment reads them; as one reads them that is
told how the codes lie on other descriptors, an oracle that nobody has; and as somebody does who had 10,000 descriptors
sealed under the very key. The inverter learns from readings under keys of the attacker's own (training/concealers.py).
Both inverters are given sizes and angles of keypoints, as archives made with --frames have them: those of the default
do not.
"leakage" is (similarity - floor) / (clear - floor) of pictures, both by the bundled inverter for clear
descriptors as everywhere else; "own floor" is what an inverter paints of nothing, on the same scale: the part of its
leakage that keypoints alone give away. "explained" is the share of the spread of descriptors that was read right.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads

from sfumato.attacks.knowledge import KnownPairs, rows_of
from sfumato.attacks.seals.alignment import AlignmentParams, learn_alignment, learn_with_oracle
from sfumato.attacks.seals.attacks import mirror_orders
from sfumato.attacks.seals.known_pairs import read_codes
from sfumato.concealment.seal import BANDWIDTH, make_seal
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_paths
from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.metrics import picture_scores
from sfumato.inversion.patches import floor_input, invert_rows, load_inverter
from sfumato.training.concealers import reader_of
from sfumato.training.inverter import InverterTrainParams, train_patch_inverter
from sfumato.types.clear import Features
from sfumato.types.concealed import Points
from sfumato.types.recipe import Recipe

Floats = np.ndarray


def train(photos: list[Path], public: Floats, args: Any, place: Path) -> Any:
    """Return a patch inverter of what alignment gives."""
    steps: dict[str, Any] = {"patch_steps": args.steps, "refine_steps": 300, "local": LocalParams(max_features=1000)}
    if args.small:
        steps = {"patch_steps": 3, "refine_steps": 1, "hidden": 16, "local": LocalParams(max_features=100)}
    params = InverterTrainParams(**steps, max_photos=200, refine_photos=60, seed=args.seed)
    recipe = Recipe.of(f"sealed-{args.bits}:{args.bandwidth:g}")
    reader = reader_of(recipe, public, seed=args.seed)
    return train_patch_inverter(params, photos, place / "inverter.safetensors", concealer=reader)


def guesses_of(clear: Floats, painted: int, public: Floats, args: Any) -> Iterator[tuple[str, Floats]]:
    """Yield what alignment, a told one and known pairs take the first descriptors behind the codes of a key for."""
    seal = make_seal(b"benchmark key %d" % args.seed, clear.shape[1], args.bits, args.bandwidth)
    codes = rows_of(seal(clear))
    mirrored = [public[:8192][:, order] for order in mirror_orders()]
    tries = AlignmentParams(seed=args.seed, starts=2, hops=3) if args.small else AlignmentParams(seed=args.seed)
    yield "alignment", learn_alignment(codes, public, args.bandwidth, tries, mirrored)(codes[:painted])
    yield "told alignment", learn_with_oracle(codes, clear, public, args.bandwidth)(codes[:painted])
    known = KnownPairs(descriptors=public[:10_000], codes=rows_of(seal(public[:10_000])))
    yield "known pairs 10000", read_codes(codes[:painted], known).descriptors


def similarity(inverter: Any, rows: Floats | None, photos: list[tuple[Features, Floats]]) -> float:
    """Return the mean similarity of what an inverter paints of rows, or of nothing, photo after photo."""
    found, start = [], 0
    for features, pixels in photos:
        if rows is None:
            inputs = np.tile(floor_input(inverter), (len(features), 1))
        else:
            part = np.ascontiguousarray(rows[start : start + len(features)], np.float32)
            inputs = part if inverter.frame is None else canonical_input(Points(part), inverter.frame)
        painted = invert_rows(inverter, features.keypoints, inputs, features.image_size)
        found.append(picture_scores(painted, pixels)["ssim"])
        start += len(features)
    return float(np.mean(found))


def load(args: Any) -> tuple[list[tuple[Features, Floats]], Floats, list[Path], Floats]:
    """Return photos that are painted, all descriptors sealed with theirs, photos to learn from, public descriptors."""
    folder, rng = data_folder(), np.random.default_rng(args.seed)
    if args.small or folder is None:
        others = list(sample_paths().values())[:2]
        attacked = others[:1]
    else:
        attacked = [path for _, path in list_images(folder / "photos/bsds500/val")]
        attacked = (attacked + [path for _, path in list_images(folder / "photos/imagenet-samples")])[: args.released]
        others = [path for _, path in list_images(folder / "photos/bsds500/train")]
    local = LocalParams(max_features=200 if args.small else 1000)
    photos = [(extract(path, local), read_image(path).pixels) for path in attacked[: args.photos]]
    more = [extract(path, local).descriptors for path in attacked[args.photos :]]
    sealed = np.concatenate([*(features.descriptors for features, _ in photos), *more])
    public = np.concatenate([extract(path, LocalParams(max_features=400)).descriptors for path in others])
    return photos, sealed, others, public[rng.permutation(len(public))[: args.public]]


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--photos", type=int, default=20, help="photos that are painted")
    parser.add_argument("--released", type=int, default=20, help="photos whose features are released under one key")
    parser.add_argument("--public", type=int, default=60_000, help="descriptors of other photos")
    parser.add_argument("--bits", type=int, default=512)
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH)
    parser.add_argument("--steps", type=int, default=1500, help="steps of the patch network")
    args = parser.parse_args()
    if args.small:
        args.public, args.bits = 600, 64
    rows = []
    with pinned_threads(1), tempfile.TemporaryDirectory() as place:
        photos, sealed, others, public = load(args)
        clear = np.concatenate([features.descriptors for features, _ in photos])
        note("training the inverter")
        bundled, trained = load_inverter(), train(others, public, args, Path(place))
        spread = float(((clear - public.mean(axis=0)) ** 2).sum())
        best, floor = similarity(bundled, clear, photos), similarity(bundled, None, photos)

        def leakage(inverter: Any, guesses: Floats | None) -> float:
            return (similarity(inverter, guesses, photos) - floor) / (best - floor)

        painters = {"bundled": bundled, "trained on it": trained}
        own = {painter: leakage(inverter, None) for painter, inverter in painters.items()}
        for name, guesses in guesses_of(sealed, len(clear), public, args):
            explained = 1 - float(((guesses - clear) ** 2).sum()) / spread
            for painter, inverter in painters.items():
                shown = leakage(inverter, guesses)
                rows.append({
                    "attack": name, "inverter": painter, "leakage": shown, "explained": explained,
                    "own floor": own[painter], "floor ssim": floor, "clear ssim": best,
                })  # fmt: skip
                note(f"{name}, {painter}: leakage {shown:.3f}")
    recipe = f"sealed-{args.bits}" + ("" if args.bandwidth == BANDWIDTH else f":{args.bandwidth:g}")
    sizes = {"recipe": recipe, "photos": len(photos), "released": args.released, "codes": len(sealed),
             "public": len(public), "steps": args.steps, "bandwidth": args.bandwidth}  # fmt: skip
    finish("sealinverter", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
