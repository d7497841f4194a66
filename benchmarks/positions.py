# SPDX-License-Identifier: Apache-2.0
"""Inverters for positions alone: pictures without sizes and angles of keypoints, as in sealed archives.

    python benchmarks/positions.py --json out.json               # needs the photos below SFUMATO_DATA, and torch

An attacker who has positions alone cuts and paints upright patches of one size. Three inverters learn that way: from
nothing but positions, from what a told alignment reads of the default recipe under keys of the attacker's own, and from
clear descriptors. "leakage" is on the usual scale, that of the bundled inverter with sizes and angles; beside it stands
what the bundled inverters get that have them.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from common import arguments, data_folder, finish, note, photo_descriptors, pinned_threads
from sealinverter import bundled_reader, similarity

from sfumato.attacks.knowledge import rows_of
from sfumato.attacks.seals.alignment import learn_with_oracle
from sfumato.concealment.seal import BANDWIDTH, make_seal
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_paths
from sfumato.inversion.load import load_keypoint_inverter, without_descriptors
from sfumato.inversion.patches import load_inverter
from sfumato.training import photos as patchdata
from sfumato.training.concealers import reader_of
from sfumato.training.inverter import InverterTrainParams, train_patch_inverter
from sfumato.types.clear import Features
from sfumato.types.recipe import Recipe

SIZE = 3.0
"""The size that every keypoint is taken for, in pixels: a usual one of SIFT."""


def positions_of(features: Features) -> Features:
    """Return features whose keypoints all have one size, and stand upright."""
    places = features.keypoints.copy()
    places[:, 2:] = SIZE, 0
    return Features(places, features.descriptors, features.extractor, features.image_size)


def train(photos: list[Path], concealer: Any, args: Any) -> Any:
    """Return a patch inverter that never saw a size or an angle."""
    steps: dict[str, Any] = {"patch_steps": args.steps, "refine_steps": args.refine_steps}
    if args.small:
        steps = {"patch_steps": 2, "refine_steps": 1, "hidden": 16}
    local = LocalParams(max_features=100 if args.small else 1000)
    params = InverterTrainParams(**steps, local=local, max_photos=200, refine_photos=80, seed=args.seed)
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch.object(patchdata, "extract", lambda image, chosen: positions_of(extract(image, chosen))),
    ):
        return train_patch_inverter(params, photos, Path(place) / "inverter.safetensors", concealer=concealer)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--photos", type=int, default=20, help="photos that are painted")
    parser.add_argument("--public", type=int, default=60_000, help="descriptors of other photos")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--refine-steps", type=int, default=400)
    args = parser.parse_args()
    args.bits, args.bandwidth = 512, BANDWIDTH
    folder = None if args.small else data_folder()
    if folder is None:
        args.small, args.public = True, 300
        attacked = others = list(sample_paths().values())[:2]
    else:
        attacked = [path for _, path in list_images(folder / "photos/bsds500/val")][: args.photos]
        others = [path for _, path in list_images(folder / "photos/bsds500/train")]
    rows = []
    with pinned_threads(1):
        local = LocalParams(max_features=100 if args.small else 1000)
        photos = [(extract(path, local), read_image(path).pixels) for path in attacked]
        flat = [(positions_of(features), pixels) for features, pixels in photos]
        clear = np.concatenate([features.descriptors for features, _ in photos])
        public = photo_descriptors(others, args.public, each=100 if args.small else 1000)
        seal = make_seal(b"benchmark key %d" % args.seed, clear.shape[1], args.bits, args.bandwidth)
        read = learn_with_oracle(rows_of(seal(clear)), clear, public, args.bandwidth)(rows_of(seal(clear)))
        usual = load_inverter()
        best, floor = similarity(usual, clear, photos), similarity(usual, None, photos)
        made = {
            "nothing": (without_descriptors, None, load_keypoint_inverter()),
            "told alignment": (reader_of(Recipe.of("default"), public), read, bundled_reader(args)),
            "clear descriptors": (None, clear, usual),
        }
        if args.small:
            made = {"nothing": made["nothing"]}
        for name, (concealer, guesses, framed) in made.items():
            shown = similarity(train(others, concealer, args), guesses, flat)
            with_frames = similarity(framed, guesses, photos)
            rows.append({"descriptors": name, "positions only": (shown - floor) / (best - floor),
                         "with sizes and angles": (with_frames - floor) / (best - floor)})  # fmt: skip
            note(str(rows[-1]))
    sizes = {"photos": len(photos), "public": len(public), "steps": args.steps, "refine steps": args.refine_steps,
             "bandwidth": args.bandwidth}  # fmt: skip
    finish("positions", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
