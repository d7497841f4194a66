# SPDX-License-Identifier: Apache-2.0
"""Sealed faces: bits and bandwidth by measurement, what the key gives away, and how many known faces give the key.

    python benchmarks/faceseals.py --json out.json       # needs LFW and UTKFace embeddings below SFUMATO_DATA

The case "size" seals all LFW pairs under one key: the worst case, in which the impostor has the victim's device. The
accuracy is that of the threshold of the other folds; "TAR" are true accepts at one false accept in a hundred; all are
means over several keys. "threshold" is the share of bits that one stranger in a thousand of folds 0-2 is below, "true
accepts" and "strangers" who is accepted there, and "master probe" the share of people that the probe opens which opens
most: zero, means of public faces, the middle of a crowd of them, and each bit as most of them have it. The row "random
phases" has the waves that seals of local features have. The other columns are shares of faces that pass for the
person, compared clear with another photo at one false accept in a thousand, once they were computed from the bits of
one photo: "linear" by the sum of directions, "downhill" by projected gradient from there and from a smooth guess, with
the likely faces as a prior, "messages" by approximate message passing, the strongest; "no key" is that one with another
key. "another photo" is what the clear photo itself gets. Sizes are chosen on folds 0-2 and reported on folds 3-4.

The case "known" is a gallery under one key: the attacker enrolled this many faces that he knows, and reads the others
with them: "linear" by least squares from bits to faces, "messages" with the key that was fitted to them, which
foretells this share of the bits of other faces ("foretold", 0.5 for nothing). With 0 known faces he aligns the bits
with public faces ("linear"); "oracle" is the best alignment there is, which only the clear faces show. UTKFace is what
attackers know of faces.

The case "tries" is a thief who has the key of an account of folds 3-4, and this many faces of other people: the share
of accounts that are opened, at the threshold, by LFW faces of folds 0-2 ("strangers"), by UTKFace's ("public"), and by
those of UTKFace that open most of its other faces, chosen one after the other ("chosen").

The case "common part" gives all faces a vector in common, of this length, as of a network that is not centred: the
strangers' median cosine, true accepts at one false accept in a thousand, and the master probe, as they are ("true
accepts", "master probe") and once the mean of public faces was subtracted ("TAR", "mean subtracted").

The case "people" asks how far the master probe and the threshold depend on who the people are: LFW's, of folds 0-2 for
the thief and 3-4 attacked, and UTKFace's, of all ages, one half each. "people" names them, "strangers" and
"master probe" are at the threshold of one stranger in a thousand of the thief's half, "usual strangers" and "usual
master" at that of LFW's folds 0-2, and "clear" is the best master probe against clear embeddings, at their own.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads

from sfumato.attacks.knowledge import KnownPairs
from sfumato.attacks.seals.alignment import AlignmentParams, learn_alignment, learn_with_oracle
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
from sfumato.experiments.faces.master_probe import master_distances, probe_points
from sfumato.experiments.faces.releases import FALSE_ACCEPTS, unit_length
from sfumato.experiments.faces.verification import fold_accuracies, receiver_curve, true_accepts_at
from sfumato.faces.calibration import stranger_pairs
from sfumato.features.embeddings import read_embeddings
from sfumato.types.clear import Embeddings, people_of
from sfumato.types.concealed import Bits
from sfumato.types.recipe import Recipe

Floats = np.ndarray
COLUMNS = ("case", "waves", "bits", "bandwidth", "known", "folds", "accuracy", "TAR", "threshold", "true accepts",
           "strangers", "master probe", "another photo", "linear", "downhill", "messages", "no key", "foretold",
           "oracle", "tries", "public", "chosen", "common", "cosine", "mean subtracted",
           "people", "usual strangers", "usual master", "clear")  # fmt: skip
PARTS = {"0-2": (0, 1, 2), "3-4": (3, 4), "all": (0, 1, 2, 3, 4)}
RATE = 1e-2
CHOICE = (0, 1, 2)
"""Folds on which sizes and thresholds are chosen."""
TRIES = (1, 10, 100, 1000)
COMMON = (0.0, 0.5, 1.0, 2.0)
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


@dataclass(frozen=True, slots=True)
class Strangers:
    """Rows of the first photo of everybody in each part of the folds, and of pairs of different people in it."""

    first: dict[str, Floats]
    pairs: dict[str, tuple[Floats, Floats]]


def strangers_of(pairs: FacePairs, seed: int) -> Strangers:
    """Return the strangers of the parts; photos of a part are those of its pairs."""
    people, first, drawn = np.array(people_of(pairs.faces.names)), {}, {}
    for folds, numbers in PARTS.items():
        own = np.isin(pairs.fold, numbers)
        photos = np.union1d(pairs.left[own], pairs.right[own])
        first[folds] = photos[np.unique(people[photos], return_index=True)[1]]
        left, right = stranger_pairs(list(people[photos]), STRANGERS, np.random.default_rng(seed))
        drawn[folds] = photos[left], photos[right]
    return Strangers(first, drawn)


@dataclass(frozen=True, slots=True)
class Decided:
    """Who is accepted under one key at the threshold of folds 0-2: by part, the true accepts, strangers and masters."""

    threshold: float
    accepts: dict[str, tuple[float, float, float]]


def decide(pairs: FacePairs, seal: Seal, strangers: Strangers, public: Floats) -> Decided:
    """Return who is accepted under one key at the threshold of one stranger in a thousand of folds 0-2."""
    packed, points, accepts = seal(pairs.faces.values).packed, probe_points(public), {}
    far = {folds: bit_distances(packed[left], packed[right]) for folds, (left, right) in strangers.pairs.items()}
    chosen = np.sort(far["0-2"])
    threshold = float(chosen[int(FALSE_ACCEPTS * len(chosen))]) - 0.5 / (8 * packed.shape[1])
    for folds, numbers in PARTS.items():
        own = pairs.same & np.isin(pairs.fold, numbers)
        near = bit_distances(packed[pairs.left[own]], packed[pairs.right[own]])
        masters = master_distances(Bits(packed[strangers.first[folds]]), seal, points, public)
        opened = max(float((one <= threshold).mean()) for one in masters.values())
        accepts[folds] = float((near <= threshold).mean()), float((far[folds] <= threshold).mean()), opened
    return Decided(threshold, accepts)


def size_rows(
    pairs: FacePairs, attacked: Attacked, public: Floats, size: tuple[int, float, bool], args: Any
) -> list[Any]:
    """Return the rows of one size of seals: all folds, and the two parts of them."""
    bits, bandwidth, odd = size
    recipe, width = Recipe.of(f"sealed-{bits}:{bandwidth:g}"), public.shape[1]
    prior, strangers = face_prior(public, width), strangers_of(pairs, args.seed)
    seals = [face_seal(recipe, width, seed=args.seed + key, odd=odd) for key in range(args.keys)]
    distances, decisions = [], []
    for seal in seals:
        packed = seal(pairs.faces.values).packed
        distances.append(bit_distances(packed[pairs.left], packed[pairs.right]))
        decisions.append(decide(pairs, seal, strangers, public))
    sealed = seals[0](attacked.photos)
    stranger = face_seal(recipe, width, seed=args.seed, owner="attacker", odd=odd)
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
        accepts = np.mean([one.accepts[folds] for one in decisions], axis=0)
        row = {"case": "size", "waves": "odd" if odd else "random phases", "bits": bits, "bandwidth": bandwidth}
        row |= {name: float(attacked.passes(rows_)[own].mean()) for name, rows_ in guesses.items()}
        row |= {"folds": folds, "accuracy": float(np.mean([one for one, _ in figures])),
                "TAR": float(np.mean([tar for _, tar in figures])),
                "threshold": float(np.mean([one.threshold for one in decisions])), "true accepts": float(accepts[0]),
                "strangers": float(accepts[1]), "master probe": float(accepts[2])}  # fmt: skip
        rows.append(dict.fromkeys(COLUMNS) | row)
    note(str({name: value for name, value in rows[-1].items() if value is not None}))
    return rows


def verification(distances: Floats, same: Floats, fold: Floats) -> tuple[float, float]:
    """Return the accuracy of thresholds from other folds, and true accepts at one false accept in a hundred."""
    curve = receiver_curve(distances, same)
    accepts = true_accepts_at(curve, max(RATE, 1 / curve.impostors))
    return float(fold_accuracies(distances, same, fold).mean()), 0.0 if accepts is None else accepts


# --- a gallery under one key, and faces that the attacker enrolled in it


def fitted_key(rows: Floats, signs: Floats, bandwidth: float, rng: np.random.Generator) -> Waves:
    """Return directions that give known rows (K, n) their bits (K, B): least squares, then downhill.

    The slope of a bit over faces tells its direction: a square wave of angles of variance v has in the mean the slope
    4 / pi times the sum of exp(-k^2 v / 2) over odd k. The phases of odd waves are known.
    """
    way = linear_map(rows, signs, FIT_RIDGE * len(rows[0]) / len(rows))
    height = np.float32(4 / np.pi * np.exp(-0.5 * (np.arange(1, 40, 2) / bandwidth) ** 2).sum())
    directions = (way.matrix.T / height).astype(np.float32)
    phases, steps = np.full(len(directions), -np.pi / 2, np.float32), Adam(directions.shape)
    for number in range(FIT_STEPS):
        batch = rng.integers(len(rows), size=min(FIT_BATCH, len(rows)))
        turned = rows[batch] @ directions.T + phases
        wrong = 1 / (1 + np.exp(SHARPNESS * signs[batch] * np.cos(turned)))
        slope = (SHARPNESS * signs[batch] * np.sin(turned) * wrong).astype(np.float32) * (len(rows) / len(batch))
        rate = FIT_RATE * (1 - number / FIT_STEPS) + 0.002
        directions -= steps.step((slope.T @ rows[batch]).astype(np.float32) + bandwidth**2 * directions, rate)
    return Waves(directions, phases)


def known_row(attacked: Attacked, public: Floats, known: int, clear: Floats, args: Any) -> dict[str, Any]:
    """Return what known faces under the key of a gallery read of the others; none of them are what attackers know."""
    width, rng = public.shape[1], np.random.default_rng(args.seed)
    seal = face_seal(Recipe.of(f"sealed-{args.gallery_bits}:{args.gallery_bandwidth:g}"), width, seed=args.seed)
    sealed, gallery, prior = seal(attacked.photos), seal(clear), face_prior(public[known:], width)
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
        effort = {"starts": 2, "hops": 3} if args.small else {}
        params = AlignmentParams(seed=args.seed, odd=True, **effort)
        codes = bit_signs(gallery)
        guesses["linear"] = learn_alignment(codes, public, args.gallery_bandwidth, params)(bit_signs(sealed))
        best = learn_with_oracle(codes, clear, public, args.gallery_bandwidth, params)
        guesses["oracle"] = best(bit_signs(sealed))
    passed = {name: float(attacked.passes(rows).mean()) for name, rows in guesses.items()}
    row = {"case": "known", "waves": "odd", "bits": args.gallery_bits, "bandwidth": args.gallery_bandwidth,
           "known": known, "folds": "all", "foretold": foretold, **passed}  # fmt: skip
    note(str(row))
    return dict.fromkeys(COLUMNS) | row


# --- a thief with a key and faces of other people


def most_opened(faces: Floats, threshold: float, seal: Seal, count: int) -> Floats:
    """Return the rows of the first half of faces that open most of the second half, one after the other.

    Each is the one that opens most of those that are not open yet; once all are, the others follow as they come.
    """
    half = len(faces) // 2
    one, two = bit_signs(seal(faces[:half])), bit_signs(seal(faces[half:]))
    opens = (1 - one @ two.T / one.shape[1]) / 2 <= threshold
    rows, left = list[int](), np.ones(opens.shape[1], bool)
    while len(rows) < min(count, half):
        gains = opens[:, left].sum(axis=1)
        gains[rows] = -1
        rows.append(int(gains.argmax()))
        left &= ~opens[rows[-1]]
    return np.array(rows)


def try_rows(pairs: FacePairs, public: Floats, args: Any) -> list[dict[str, Any]]:
    """Return the shares of accounts that are opened within so many tries, with faces of three kinds."""
    strangers, width = strangers_of(pairs, args.seed), public.shape[1]
    recipe = Recipe.of(f"sealed-{args.gallery_bits}:{args.gallery_bandwidth:g}")
    accounts, others = (pairs.faces.values[strangers.first[folds]] for folds in ("3-4", "0-2"))
    most, opened = max(TRIES), []
    for key in range(args.keys):
        rng, seal = np.random.default_rng([args.seed, key]), face_seal(recipe, width, seed=args.seed + key)
        threshold = decide(pairs, seal, strangers, public).threshold
        own = face_seal(recipe, width, seed=args.seed + key, owner="attacker")
        chosen = public[most_opened(public, threshold, own, most)]
        sealed, shares = bit_signs(seal(accounts)), []
        for faces, shuffles in ((others, True), (public, True), (chosen, False)):
            far = (1 - sealed @ bit_signs(seal(faces)).T / sealed.shape[1]) / 2
            passes = rng.permuted(far <= threshold, axis=1) if shuffles else far <= threshold
            shares.append([float(passes[:, :tries].any(axis=1).mean()) for tries in TRIES])
        opened.append(shares)
    rows = []
    for tries, (strangers_, public_, chosen_) in zip(TRIES, np.mean(opened, axis=0).T, strict=True):
        row = {"case": "tries", "waves": "odd", "bits": args.gallery_bits, "bandwidth": args.gallery_bandwidth,
               "folds": "3-4", "tries": tries, "strangers": float(strangers_), "public": float(public_),
               "chosen": float(chosen_)}  # fmt: skip
        note(str(row))
        rows.append(dict.fromkeys(COLUMNS) | row)
    return rows


# --- a network that is not centred


def common_row(pairs: FacePairs, public: Floats, length: float, args: Any) -> dict[str, Any]:
    """Return what a part in common of all faces costs, and what is left of it once public faces' mean is subtracted."""
    width = public.shape[1]
    part = length * unit_length(np.random.default_rng(args.seed).normal(size=(1, width)))
    faces, others = (unit_length(rows + part).astype(np.float32) for rows in (pairs.faces.values, public))
    mean, strangers = others.mean(axis=0), strangers_of(pairs, args.seed)
    recipe = Recipe.of(f"sealed-{args.gallery_bits}:{args.gallery_bandwidth:g}")
    accepts = []
    for rows, known in ((faces, others), (faces - mean, others - mean)):
        rows, known = (unit_length(one).astype(np.float32) for one in (rows, known))
        moved = FacePairs(Embeddings(rows, pairs.faces.names), pairs.left, pairs.right, pairs.same, pairs.fold)
        figures = [decide(moved, face_seal(recipe, width, seed=args.seed + key), strangers, known).accepts["3-4"]
                   for key in range(args.keys)]  # fmt: skip
        accepts.append(np.mean(figures, axis=0))
    left, right = strangers.pairs["3-4"]
    row = {"case": "common part", "waves": "odd", "bits": args.gallery_bits, "bandwidth": args.gallery_bandwidth,
           "folds": "3-4", "common": length, "cosine": float(np.median((faces[left] * faces[right]).sum(axis=1))),
           "true accepts": float(accepts[0][0]), "strangers": float(accepts[0][1]),
           "master probe": float(accepts[0][2]), "TAR": float(accepts[1][0]),
           "mean subtracted": float(accepts[1][2])}  # fmt: skip
    note(str(row))
    return dict.fromkeys(COLUMNS) | row


# --- other people


def people_row(name: str, halves: tuple[Floats, Floats], usual: list[float], args: Any) -> dict[str, Any]:
    """Return what strangers and master probes open of one half of people (N, n), from the other (M, n)."""
    public, attacked = halves
    recipe = Recipe.of(f"sealed-{args.gallery_bits}:{args.gallery_bandwidth:g}")
    points, accepts = probe_points(public), []
    left, right = np.random.default_rng(args.seed).integers(0, len(attacked), (2, STRANGERS))
    left, right = left[left != right], right[left != right]
    for key in range(args.keys):
        seal = face_seal(recipe, public.shape[1], seed=args.seed + key)
        own, sealed = seal(public).packed, seal(attacked)
        one, two = np.random.default_rng([args.seed, key]).integers(0, len(public), (2, STRANGERS))
        limits = usual[key], float(np.quantile(bit_distances(own[one], own[two])[one != two], FALSE_ACCEPTS))
        far = bit_distances(sealed.packed[left], sealed.packed[right])
        masters = list(master_distances(sealed, seal, points, public).values())
        accepts.append([[float((far <= limit).mean()), max(float((each <= limit).mean()) for each in masters)]
                        for limit in limits])  # fmt: skip
    (usual_strangers, usual_master), (strangers, master) = np.mean(accepts, axis=0)
    one, two = np.random.default_rng(args.seed).integers(0, len(public), (2, STRANGERS))
    limit = np.quantile((public[one] * public[two]).sum(axis=1)[one != two], 1 - FALSE_ACCEPTS)
    directions = unit_length(np.array([point for name_, point in points.items() if name_ != "zero"]))
    clear = float((attacked @ directions.T >= limit).mean(axis=0).max())
    row = {"case": "people", "waves": "odd", "bits": args.gallery_bits, "bandwidth": args.gallery_bandwidth,
           "people": name, "strangers": float(strangers), "master probe": float(master), "clear": clear,
           "usual strangers": float(usual_strangers), "usual master": float(usual_master)}  # fmt: skip
    note(str(row))
    return dict.fromkeys(COLUMNS) | row


def people_rows(pairs: FacePairs, public: Floats, args: Any) -> list[dict[str, Any]]:
    """Return the rows of two sets of people."""
    strangers, values = strangers_of(pairs, args.seed), pairs.faces.values
    recipe = Recipe.of(f"sealed-{args.gallery_bits}:{args.gallery_bandwidth:g}")
    usual = [decide(pairs, face_seal(recipe, values.shape[1], seed=args.seed + key), strangers, public).threshold
             for key in range(args.keys)]  # fmt: skip
    half = len(public) // 2
    return [people_row("LFW", (values[strangers.first["0-2"]], values[strangers.first["3-4"]]), usual, args),
            people_row("UTKFace", (public[:half], public[half:]), usual, args)]  # fmt: skip


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
        sizes = [(bits, bandwidth, True) for bits in args.bits for bandwidth in args.bandwidth]
        sizes.append((args.gallery_bits, args.gallery_bandwidth, False))
        rows = [row for size in sizes for row in size_rows(pairs, attacked, public, size, args)]
        rows += try_rows(pairs, public, args)
        rows += [common_row(pairs, public, length, args) for length in COMMON]
        rows += people_rows(pairs, public, args)
        rows += [known_row(attacked, public, known, pairs.faces.values, args) for known in args.known]
    finish("faceseals", args, {"pairs": len(pairs), "attacked": len(attacked.photos), "public": len(public),
                               "keys": args.keys}, rows)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
