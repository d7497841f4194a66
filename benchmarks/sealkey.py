# SPDX-License-Identifier: Apache-2.0
"""Key recovery of a seal: the known features it takes, and what the key then reveals of unknown photos.

    python benchmarks/sealkey.py --json out.json                 # needs the photos and pairs below SFUMATO_DATA

The attacker holds what a sealed archive holds: codes and positions. Cases:

- clear: the descriptors themselves, at positions; how strong the painter is.
- known: photos of the attacker's own were sealed. Row i of the archive is his feature i.
- alignment, told alignment: no pair is known.
- places, fountain: one photo of each place was sealed, and the attacker has another one. He lays the features of his
  photo over the positions of the archive (places/registration.py), and what meets, for pairs; then he sorts those out
  by their bits (places/pairs.py). --other names his photo of the five places; of the fountain it is the next one.

"registered" counts the photos that were laid over right, of all; "pairs" are what the key was fitted to, "true" the
share of them that are right. "bits" is the share of bits of unknown descriptors that the key foretells, 0.5 for
nothing; "within" and "leakage" are of the first photos of bsds500/val, sealed under the same key: descriptors that were
read, and pictures painted at positions by the inverter of --inverter, on the usual scale.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, photo_descriptors, pinned_threads
from places.pairs import Pairs, Proposals, bootstrap, merge, pairs_of
from places.scenes import Scene, fountain_scenes, is_true, place_scenes, sample_scenes
from sealinverter import similarity

from sfumato.attacks.knowledge import rows_of
from sfumato.attacks.seals.alignment import AlignmentParams, learn_alignment, learn_with_oracle
from sfumato.attacks.seals.attacks import mirror_orders
from sfumato.attacks.seals.key import Waves, read_with_key, recover_key
from sfumato.concealment.seal import BANDWIDTH, Seal, make_seal
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_paths
from sfumato.inversion.images import ImageInverter, invert_image, load_image_inverter
from sfumato.inversion.metrics import picture_scores
from sfumato.inversion.patches import load_inverter, network_folder
from sfumato.types.clear import Features

Floats = np.ndarray
CASES = ("clear", "known", "alignment", "places", "fountain")
COLUMNS = ("case", "registered", "pairs", "true", "bits", "within 0.1", "within 0.3", "leakage")


@dataclass(frozen=True, slots=True)
class Subject:
    """An unknown photo that was sealed: its features and pixels."""

    features: Features
    pixels: Floats


@dataclass(frozen=True, slots=True)
class Attack:
    """What all cases share: the seal, unknown photos, public descriptors, the painter, the arguments."""

    seal: Seal
    subjects: list[Subject]
    public: Floats
    painter: ImageInverter
    scale: tuple[float, float]
    args: Any

    def codes(self, rows: Floats) -> Floats:
        """Return what the owner's key makes of descriptors."""
        return rows_of(self.seal(rows))

    @property
    def clear(self) -> Floats:
        """Descriptors of all unknown photos."""
        return np.concatenate([one.features.descriptors for one in self.subjects])

    def figures(self, case: str, read: Floats) -> dict[str, float | None]:
        """Return how near the rows that were read of all unknown photos come, and what is painted of them."""
        if self.args.readings is not None:
            np.save(self.args.readings / f"{reading_name(case)}.npy", read)
        errors = np.linalg.norm(read - self.clear, axis=1)
        floor, best = self.scale
        leakage = (self._similarity(read) - floor) / (best - floor)
        shares = {f"within {limit}": float((errors < limit).mean()) for limit in (0.1, 0.3)}
        return {**shares, "leakage": leakage}

    def _similarity(self, read: Floats) -> float:
        found, start = [], 0
        for one in self.subjects:
            rows = np.ascontiguousarray(read[start : start + len(one.features)], np.float32)
            start += len(rows)
            picture = invert_image(self.painter, one.features.keypoints, rows, one.features.image_size)
            found.append(picture_scores(picture, one.pixels)["ssim"])
        return float(np.mean(found))

    def foretold(self, waves: Waves) -> float:
        """Return the share of bits of the unknown photos that a key foretells; of the first ones if it has fewer."""
        truth = np.sign(self.codes(self.clear))[:, : len(waves.phases)]
        return float((waves.codes(self.clear) == truth).mean())

    def key_figures(self, case: str, pairs: Pairs, *, reads: bool) -> dict[str, float | None]:
        """Return what the key is worth that pairs give; if nothing is read with it, a part of the key."""
        codes = pairs.codes if reads else pairs.codes[:, : self.args.quick_bits]
        waves = recover_key(pairs.descriptors, codes, self.args.bandwidth, seed=self.args.seed)
        if not reads:
            return {"bits": self.foretold(waves)}
        read = read_with_key(self.codes(self.clear), waves, self.public)
        return {"bits": self.foretold(waves), **self.figures(case, read)}


def reading_name(case: str) -> str:
    """Return the name of the file of what was read in a case."""
    return "".join(letter if letter.isalnum() else "-" for letter in case)


def repainted(attack: Attack, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows of an earlier run with what the painter of this one makes of the readings that were kept."""
    for row in rows:
        file = attack.args.readings / f"{reading_name(row['case'])}.npy"
        figures = attack.figures(row["case"], np.load(file)) if file.is_file() else {}
        yield dict.fromkeys(COLUMNS) | row | figures


def row_of(case: str, **figures: Any) -> dict[str, Any]:
    """Return a row of the table, said aloud."""
    row = dict.fromkeys(COLUMNS) | {"case": case} | figures
    note(str({name: value for name, value in row.items() if value is not None}))
    return row


def clear_rows(attack: Attack) -> Iterator[dict[str, Any]]:
    """Yield what clear descriptors show at their positions: how strong the painter is; nobody has them."""
    yield row_of("clear descriptors", **attack.figures("clear descriptors", attack.clear))


def known_rows(attack: Attack, photos: list[Path], local: LocalParams) -> Iterator[dict[str, Any]]:
    """Yield what a number of known features gives."""
    most, known, total = max(attack.args.known), list[Floats](), 0
    for path in photos:
        known.append(extract(path, local).descriptors)
        total += len(known[-1])
        if total >= most:
            break
    rows = np.concatenate(known)
    for count in attack.args.known:
        pairs, case = Pairs(rows[:count], attack.codes(rows[:count])), f"known features, {count}"
        worth = attack.key_figures(case, pairs, reads=not attack.args.quick or count == most)
        yield row_of(case, pairs=len(pairs), true=1.0, **worth)


def alignment_rows(attack: Attack, released: list[Features]) -> Iterator[dict[str, Any]]:
    """Yield what alignment reads, and what an oracle's best one does, from the codes of the photos released."""
    args, mirrored = attack.args, [attack.public[:8192][:, order] for order in mirror_orders()]
    tries = AlignmentParams(seed=args.seed, starts=2, hops=3) if args.small else AlignmentParams(seed=args.seed)
    clear = np.concatenate([features.descriptors for features in released])
    codes, count = attack.codes(clear), len(attack.clear)
    reading = learn_alignment(codes, attack.public, args.bandwidth, tries, mirrored)
    yield row_of("alignment", **attack.figures("alignment", reading(codes[:count])))
    reading = learn_with_oracle(codes, clear, attack.public, args.bandwidth)
    yield row_of("told alignment", **attack.figures("told alignment", reading(codes[:count])))


LEAST_TRUE = 0.2
"""Share of nearest pairs that are true if a photo was laid over right."""


def scene_rows(attack: Attack, case: str, scenes: list[Scene], *, reads: bool) -> Iterator[dict[str, Any]]:
    """Yield what other photos of places give: pairs by position alone, then those that bits agree with, and the key."""
    met, truths, count = list[Proposals](), list[Floats](), 0
    for scene in scenes:
        found, rightly = met_in(scene, attack)
        count += len(found) > 0 and bool(rightly[:, 0].mean() >= LEAST_TRUE)
        if found.is_registered:
            met.append(found)
            truths.append(rightly)
    registered, total = f"{count} of {len(scenes)}", sum(map(len, met))
    true = sum(int(rightly[:, 0].sum()) for rightly in truths) / max(1, total)
    yield row_of(f"{case}: nearest", registered=registered, pairs=total, true=true)
    waves, chosen = bootstrap(met, attack.args.bandwidth, attack.args.quick_bits, attack.args.seed)
    if waves is None or not any(len(rows) for rows, _ in chosen):
        return
    pairs, name = merge(met, chosen), f"{case}: by bits"
    right = np.concatenate([rightly[choice] for rightly, choice in zip(truths, chosen, strict=True)])
    worth = attack.key_figures(name, pairs, reads=True) if reads else {"bits": attack.foretold(waves)}
    yield row_of(name, registered=registered, pairs=len(pairs), true=float(right.mean()), **worth)


def met_in(scene: Scene, attack: Attack) -> tuple[Proposals, Floats]:
    """Return the partners that the attacker's features have in the archive, and which of them are true."""
    own, archive = scene.own(), scene.archive()
    places, codes = archive.keypoints[:, :2].astype(float), attack.codes(archive.descriptors)
    start = time.perf_counter()
    found = pairs_of(own, places, archive.image_size, codes, seed=attack.args.seed)
    rightly = is_true(scene, own, archive, found.rows[:, None], found.partners) & found.usable
    words = f"{rightly[:, 0].sum()} of the nearest true, {rightly.any(axis=1).sum()} of all" if len(found) else "none"
    note(f"{scene.name}: {found.stage}, {found.share:.2f} of windows, {len(found)} features have "
         f"a partner: {words}; {time.perf_counter() - start:.0f} s")  # fmt: skip
    return found, rightly


def bundled_painter(path: Path | None) -> ImageInverter:
    """Return the inverter for clear descriptors at positions: the given file, or the bundled one."""
    return load_image_inverter(path or network_folder() / "cells-sift.safetensors")


def prepare(args: Any, folder: Path | None, local: LocalParams) -> tuple[Attack, list[Features], list[Path]]:
    """Return what cases share, the photos released, and photos of the attacker's own."""
    if folder is None:
        attacked, others = ([path] for path in list(sample_paths().values())[:2])
    else:
        attacked = [path for _, path in list_images(folder / "photos/bsds500/val")][: args.released]
        others = [path for _, path in list_images(folder / "photos/bsds500/train")]
    secret = blake2b(b"benchmark key %d" % args.seed, digest_size=32).digest()
    photos = [extract(path, local) for path in attacked]
    pixels = [read_image(path).pixels for path in attacked[: args.photos]]
    subjects = [Subject(one, shown) for one, shown in zip(photos, pixels, strict=False)]
    public = photo_descriptors(others[::-1], args.public, each=1000)
    seal = make_seal(secret, public.shape[1], args.bits, args.bandwidth)
    clear = [(one, shown) for one, shown in zip(photos, pixels, strict=False)]
    usual, rows = load_inverter(), np.concatenate([one.descriptors for one, _ in clear])
    scale = similarity(usual, None, clear), similarity(usual, rows, clear)
    return Attack(seal, subjects, public, bundled_painter(args.inverter), scale, args), photos, others


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--known", type=int, nargs="*", default=[1000, 2000, 4000])
    parser.add_argument("--photos", type=int, default=3, help="photos that are read and painted")
    parser.add_argument("--released", type=int, default=20, help="photos whose codes alignment has")
    parser.add_argument("--public", type=int, default=40_000, help="descriptors of other photos")
    parser.add_argument("--other", type=int, nargs="*", default=[2, 3, 4, 5, 6], help="the attacker's photo of a place")
    parser.add_argument("--steps", type=int, default=10, help="photos of the fountain that are sealed, of 10")
    parser.add_argument("--bits", type=int, default=512)
    parser.add_argument("--quick-bits", type=int, default=64, help="bits of a key by which pairs are chosen")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH)
    parser.add_argument("--inverter", type=Path, help="image inverter of clear descriptors at positions")
    parser.add_argument(
        "--quick", action="store_true", help="read with the keys of two cases; of others recover few bits"
    )
    parser.add_argument("--readings", type=Path, help="folder in which to keep what was read, for --repaint")
    parser.add_argument("--repaint", type=Path, nargs="*", help="results of earlier runs, to be painted again")
    args = parser.parse_args()
    if args.readings is not None:
        args.readings.mkdir(parents=True, exist_ok=True)
    folder = None if args.small else data_folder()
    if folder is None:
        args.known, args.bits, args.public, args.released, args.photos = [300], 64, 700, 1, 1
        args.quick, args.quick_bits = True, 16
    local, rows = LocalParams(max_features=1000 if folder else 400), list[dict[str, Any]]()
    with pinned_threads(1):
        attack, released, others = prepare(args, folder, local)
        if args.repaint:
            args.cases = []
            rows += repainted(attack, [row for file in args.repaint for row in json.loads(file.read_text())["rows"]])
        if "clear" in args.cases:
            rows += clear_rows(attack)
        if "known" in args.cases:
            rows += known_rows(attack, others, local)
        if "alignment" in args.cases:
            rows += alignment_rows(attack, released)
        if folder is None:
            rows += scene_rows(attack, "a sample", sample_scenes(others[0]), reads=not args.quick)
        if folder is not None and "places" in args.cases:
            for other in args.other:
                scenes = place_scenes(folder / "homography", other)
                rows += scene_rows(attack, f"5 places, photo {other}", scenes, reads=not args.quick)
        if folder is not None and "fountain" in args.cases:
            scenes = fountain_scenes(folder / "posed/fountain-P11")
            rows += scene_rows(attack, "fountain, 1 photo", scenes[:1], reads=True)
            rows += scene_rows(attack, f"fountain, {args.steps} photos", scenes[: args.steps], reads=not args.quick)
    sizes = {"photos": args.photos, "released": args.released, "public": len(attack.public), "bits": args.bits,
             "bandwidth": args.bandwidth, "known features a photo": local.max_features,
             "quick": args.quick}  # fmt: skip
    finish("sealkey", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
