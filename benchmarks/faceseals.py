# SPDX-License-Identifier: Apache-2.0
"""Sealed faces: bits and bandwidth by measurement, what the key gives away, and how many known faces give the key.

    python benchmarks/faceseals.py --json out.json       # needs LFW and UTKFace embeddings below SFUMATO_DATA

The case "size" seals all LFW pairs under one key: the worst case, in which the impostor has the victim's device. The
accuracy is that of the threshold of the other folds; "TAR" are true accepts at one false accept in a hundred; both are
means over several keys. The other columns are shares of faces that pass for the person, compared clear with another
photo at one false accept in a thousand, once they were computed from the bits of one photo: "linear" by the sum of
directions, "downhill" by projected gradient from there and from a smooth guess, with the likely faces as a prior,
"messages" by approximate message passing, the strongest; "no key" is that one with another key. "another photo" is what
the clear photo itself gets. Sizes are chosen on folds 0-2 and reported on folds 3-4.

The case "known" is a gallery under one key: the attacker enrolled this many faces that he knows, and reads the others
with them: "linear" by least squares from bits to faces, "messages" with the key that was fitted to them, which
foretells this share of the bits of other faces ("foretold", 0.5 for nothing). With 0 known faces he aligns the bits
with public faces ("linear"). UTKFace is what attackers know of faces.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads

from sfumato.attacks.knowledge import KnownPairs
from sfumato.attacks.seals.alignment import AlignmentParams, learn_alignment
from sfumato.attacks.seals.key import Adam, Waves
from sfumato.attacks.seals.known_pairs import linear_map, read_codes
from sfumato.concealment.seal import Seal
from sfumato.experiments.data.face_benchmarks import FacePairs, read_face_pairs
from sfumato.experiments.faces.lifting import (
    FacePrior,
    bit_distances,
    bit_signs,
    face_prior,
    face_seal,
    invert_seals,
)
from sfumato.experiments.faces.releases import FALSE_ACCEPTS, unit_length
from sfumato.experiments.faces.verification import fold_accuracies, receiver_curve, true_accepts_at
from sfumato.faces.calibration import stranger_pairs
from sfumato.features.embeddings import read_embeddings
from sfumato.types.clear import Embeddings, people_of
from sfumato.types.concealed import Bits
from sfumato.types.recipe import Recipe

Floats = np.ndarray
COLUMNS = ("case", "bits", "bandwidth", "known", "folds", "accuracy", "TAR", "another photo", "linear", "downhill",
           "messages", "no key", "foretold")  # fmt: skip
PARTS = {"0-2": (0, 1, 2), "3-4": (3, 4), "all": (0, 1, 2, 3, 4)}
RATE = 1e-2
STRANGERS = 200_000
DOWNHILL_STEPS, DOWNHILL_RATE, SHARPNESS, PULL, SMOOTH = 150, 0.02, 4.0, 0.1, 0.03
FIT_STEPS, FIT_RATE, FIT_BATCH, FIT_RIDGE = 400, 0.05, 1024, 1.0
MOST_SMOOTH = 4000
"""Public faces that the smooth guess is learned from."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """Photos that are sealed and read (P, n), another photo of each person, the folds, and the clear threshold."""

    photos: Floats
    others: Floats
    folds: Floats
    threshold: float

    def passes(self, guesses: Floats) -> Floats:
        """Return which guesses (P, n) pass for the person."""
        passed: Floats = np.linalg.norm(unit_length(guesses) - self.others, axis=1) <= self.threshold
        return passed


def attacked_of(pairs: FacePairs, most: int) -> Attacked:
    """Return up to ``most`` genuine pairs of every two folds, and the threshold of one false accept in a thousand."""
    rng, rows = np.random.default_rng(0), list[int]()
    for folds in ((0, 1, 2), (3, 4)):
        own = np.flatnonzero(pairs.same & np.isin(pairs.fold, folds))
        rows += sorted(rng.permutation(own)[:most])
    values = pairs.faces.values
    left, right = stranger_pairs(people_of(pairs.faces.names), STRANGERS, rng)
    distances = np.linalg.norm(values[left] - values[right], axis=1)
    threshold = float(np.quantile(distances, FALSE_ACCEPTS))
    return Attacked(values[pairs.left[rows]], values[pairs.right[rows]], pairs.fold[rows], threshold)


# --- the attacks of whoever has the key


def linear_guess(signs: Floats, waves: Waves | Seal) -> Floats:
    """Return the sum of directions, each with the sign and the weight of its bit and phase, of unit norm."""
    return unit_length((signs * -np.sin(waves.phases)) @ waves.directions)


def downhill(begun: Floats, signs: Floats, seal: Seal, prior: FacePrior) -> tuple[Floats, Floats]:
    """Return unit rows that have the bits and are likely, as far as they are reached from here; and what is left."""
    rows, steps = np.asarray(begun, np.float32), Adam(begun.shape)
    pull = ((prior.axes / prior.variances) @ prior.axes.T).astype(np.float32)
    for number in range(DOWNHILL_STEPS):
        turned = rows @ seal.directions.T + seal.phases
        wrong = 1 / (1 + np.exp(SHARPNESS * signs * np.cos(turned)))
        slope = (SHARPNESS * signs * np.sin(turned) * wrong) @ seal.directions + 2 * PULL * ((rows - prior.mean) @ pull)
        rows = rows - steps.step(slope, DOWNHILL_RATE * (1 - number / DOWNHILL_STEPS) + 0.001)
        rows = unit_length(rows).astype(np.float32)
    turned, offset = rows @ seal.directions.T + seal.phases, rows - prior.mean
    loss = np.log1p(np.exp(-SHARPNESS * signs * np.cos(turned))).sum(axis=1) + PULL * ((offset @ pull) * offset).sum(1)
    return rows, loss


def best_downhill(signs: Floats, seal: Seal, prior: FacePrior, public: Floats) -> Floats:
    """Return the likelier of two ends (P, n): from the linear guess, and from least squares on public faces."""
    rows = public[:MOST_SMOOTH]
    smooth = linear_map(bit_signs(seal(rows)), rows, SMOOTH)(signs)
    (one, loss), (other, left) = (downhill(unit_length(start), signs, seal, prior)
                                  for start in (linear_guess(signs, seal), smooth))  # fmt: skip
    return np.where((loss <= left)[:, None], one, other)


def size_rows(pairs: FacePairs, attacked: Attacked, public: Floats, size: tuple[int, float], args: Any) -> list[Any]:
    """Return the rows of one size of seals: all folds, and the two parts of them."""
    bits, bandwidth = size
    recipe, width = Recipe.of(f"sealed-{bits}:{bandwidth:g}"), public.shape[1]
    prior, seals = (
        face_prior(public, width),
        [face_seal(recipe, width, seed=args.seed + key) for key in range(args.keys)],
    )
    distances = []
    for seal in seals:
        packed = seal(pairs.faces.values).packed
        distances.append(bit_distances(packed[pairs.left], packed[pairs.right]))
    sealed, stranger = seals[0](attacked.photos), face_seal(recipe, width, seed=args.seed, owner="attacker")
    guesses = {
        "another photo": attacked.photos,
        "linear": linear_guess(bit_signs(sealed), seals[0]),
        "downhill": best_downhill(bit_signs(sealed), seals[0], prior, public),
        "messages": invert_seals(sealed, seals[0].directions, seals[0].phases, prior),
        "no key": invert_seals(sealed, stranger.directions, stranger.phases, prior),
    }
    rows = []
    for folds, numbers in PARTS.items():
        part, own = np.isin(pairs.fold, numbers), np.isin(attacked.folds, numbers)
        figures = [verification(one[part], pairs.same[part], pairs.fold[part]) for one in distances]
        passed = {name: float(attacked.passes(rows_)[own].mean()) for name, rows_ in guesses.items()}
        row = {"case": "size", "bits": bits, "bandwidth": bandwidth, "folds": folds, **passed}
        rows.append(dict.fromkeys(COLUMNS) | row | {"accuracy": float(np.mean([one for one, _ in figures])),
                                                    "TAR": float(np.mean([tar for _, tar in figures]))})  # fmt: skip
    note(str({name: value for name, value in rows[-1].items() if value is not None}))
    return rows


def verification(distances: Floats, same: Floats, fold: Floats) -> tuple[float, float]:
    """Return the accuracy of thresholds from other folds, and true accepts at one false accept in a hundred."""
    curve = receiver_curve(distances, same)
    accepts = true_accepts_at(curve, max(RATE, 1 / curve.impostors))
    return float(fold_accuracies(distances, same, fold).mean()), 0.0 if accepts is None else accepts


# --- a gallery under one key, and faces that the attacker enrolled in it


def fitted_key(rows: Floats, signs: Floats, bandwidth: float, rng: np.random.Generator) -> Waves:
    """Return directions and phases that give known rows (K, n) their bits (K, B): least squares, then downhill.

    The mean of a bit over faces tells its phase, the slope its direction: cos(t + w) for angles of variance v has the
    mean exp(-v / 2) cos w and the slope -exp(-v / 2) sin w.
    """
    way = linear_map(rows, signs, FIT_RIDGE * len(rows[0]) / len(rows))
    slopes, height = way.matrix.T, np.float32(4 / np.pi * np.exp(-0.5 / bandwidth**2))
    level = way.descriptor_mean - slopes @ way.code_mean
    phases = np.arccos(np.clip(level / height, -0.95, 0.95)).astype(np.float32)
    directions = (-slopes / (height * np.sin(phases))[:, None]).astype(np.float32)
    steps, turns = Adam(directions.shape), Adam(phases.shape)
    for number in range(FIT_STEPS):
        batch = rng.integers(len(rows), size=min(FIT_BATCH, len(rows)))
        turned = rows[batch] @ directions.T + phases
        wrong = 1 / (1 + np.exp(SHARPNESS * signs[batch] * np.cos(turned)))
        slope = (SHARPNESS * signs[batch] * np.sin(turned) * wrong).astype(np.float32) * (len(rows) / len(batch))
        rate = FIT_RATE * (1 - number / FIT_STEPS) + 0.002
        directions -= steps.step((slope.T @ rows[batch]).astype(np.float32) + bandwidth**2 * directions, rate)
        phases -= turns.step(slope.sum(axis=0).astype(np.float32), rate)
    return Waves(directions, phases)


def known_row(attacked: Attacked, public: Floats, known: int, gallery: Bits, args: Any) -> dict[str, Any]:
    """Return what known faces under the key of a gallery read of the others; none of them are what attackers know."""
    width, rng = public.shape[1], np.random.default_rng(args.seed)
    seal = face_seal(Recipe.of(f"sealed-{args.gallery_bits}:{args.gallery_bandwidth:g}"), width, seed=args.seed)
    sealed, prior = seal(attacked.photos), face_prior(public[known:], width)
    guesses, foretold = {"another photo": attacked.photos}, None
    if known:
        signs = bit_signs(seal(public[:known]))
        pairs = KnownPairs(descriptors=public[:known], codes=signs)
        guesses["linear"] = read_codes(bit_signs(sealed), pairs).descriptors
        waves = fitted_key(public[:known], signs, args.gallery_bandwidth, rng)
        others = public[known:][:500]
        foretold = float((waves.codes(others) == bit_signs(seal(others))).mean())
        guesses["messages"] = invert_seals(sealed, waves.directions, waves.phases, prior, max(0.01, 2 * foretold - 1))
    else:
        tries = AlignmentParams(seed=args.seed, starts=2, hops=3) if args.small else AlignmentParams(seed=args.seed)
        way = learn_alignment(bit_signs(gallery), public, args.gallery_bandwidth, tries)
        guesses["linear"] = way(bit_signs(sealed))
    passed = {name: float(attacked.passes(rows).mean()) for name, rows in guesses.items()}
    row = {"case": "known", "bits": args.gallery_bits, "bandwidth": args.gallery_bandwidth, "known": known,
           "folds": "all", "foretold": foretold, **passed}  # fmt: skip
    note(str(row))
    return dict.fromkeys(COLUMNS) | row


# --- all of it


def made_up(people: int, photos: int, seed: int) -> tuple[Embeddings, Floats]:
    """Return embeddings of people who do not exist, and the person of each."""
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(people), photos)
    rows = rng.normal(size=(people, 32))[person] + 0.4 * rng.normal(size=(people * photos, 32))
    names = tuple(f"person{number}_{row:04d}" for row, number in enumerate(person))
    return Embeddings(rows, names), person


def load(args: Any) -> tuple[FacePairs, Floats]:
    """Return pairs of faces in five folds, and public faces of other people."""
    folder = data_folder()
    if args.small or folder is None:
        people = np.arange(100)
        faces, _ = made_up(100, 2, args.seed)
        left, right = np.tile(2 * people, 2), np.r_[2 * people + 1, (2 * people + 3) % 200]
        pairs = FacePairs(faces, left, right, np.arange(200) < 100, np.tile(people % 5, 2))
        return pairs, made_up(300, 1, args.seed + 1)[0].values
    public = read_embeddings(folder / "faces/utkface_arcface.npz").values
    order = np.random.default_rng(args.seed).permutation(len(public))
    return read_face_pairs(folder / "faces/lfw_arcface_folds_0-4.npz"), np.ascontiguousarray(public[order])


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--bits", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    parser.add_argument("--bandwidth", type=float, nargs="*", default=[0.4, 0.6, 0.8, 1.0, 1.4])
    parser.add_argument("--known", type=int, nargs="*", default=[0, 10, 30, 100, 300, 1000, 3000])
    parser.add_argument("--keys", type=int, default=3, help="keys whose accuracies are averaged")
    parser.add_argument("--attacked", type=int, default=300, help="genuine pairs read, of folds 0-2 and of folds 3-4")
    parser.add_argument("--gallery-bits", type=int, default=2048)
    parser.add_argument("--gallery-bandwidth", type=float, default=1.0)
    args = parser.parse_args()
    args.small |= data_folder() is None
    if args.small:
        args.bits, args.bandwidth, args.known, args.keys, args.attacked = [64], [1.0], [0, 100], 1, 20
        args.gallery_bits = 128
    with pinned_threads(1):
        pairs, public = load(args)
        attacked = attacked_of(pairs, args.attacked)
        sizes = [(bits, bandwidth) for bits in args.bits for bandwidth in args.bandwidth]
        rows = [row for size in sizes for row in size_rows(pairs, attacked, public, size, args)]
        shared = face_seal(Recipe.of(f"sealed-{args.gallery_bits}:{args.gallery_bandwidth:g}"), public.shape[1],
                           seed=args.seed)(pairs.faces.values)  # fmt: skip
        rows += [known_row(attacked, public, known, shared, args) for known in args.known]
    finish("faceseals", args, {"pairs": len(pairs), "attacked": len(attacked.photos), "public": len(public),
                               "keys": args.keys}, rows)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
