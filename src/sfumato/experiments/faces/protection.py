# SPDX-License-Identifier: Apache-2.0
"""Irreversibility, unlinkability, renewability and performance of templates, in the sense of ISO/IEC 24745, measured.

    irreversibility  nobody computes a face from templates that passes for the person elsewhere
    unlinkability    nobody who has two databases can tell that two templates are of one person
    renewability     a new template serves as well as the one it replaces, and the old one is of no use any more
    performance      the right people are accepted, and others are not

Affine subspaces are compared without any key: anyone who can verify can also link, and an old template of a face stays
a template of that face. Sealed templates are measured twice: under a key of each person, another one in each database,
and under one key for all. Performance is always that of impostors who have the key, with faces of their own; those who
send no face, but a probe that is near most faces, are measured beside them (``master_probe``).

Coin throws have a linkability above 0 too, because densities are counted in bins: as many of them are measured as well.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.auditing.runner import figure_by_figure, run_tasks
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import face_recipe
from sfumato.errors import InputError
from sfumato.experiments.faces.lifting import (
    FacePrior,
    bit_distances,
    face_prior,
    face_seal,
    invert_seals,
    lift_faces,
    need_decoys,
    row_distances,
)
from sfumato.experiments.faces.master_probe import master_figures, master_probes
from sfumato.experiments.faces.releases import (
    Albums,
    clear_threshold,
    collect_albums,
    meeting_points,
    stripped_points,
    unit_length,
)
from sfumato.experiments.faces.verification import (
    HIGH,
    LOW,
    accept_intervals,
    fold_accuracies,
    receiver_curve,
    resampled_curves,
    threshold_at,
    true_accepts_at,
)
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import Bits, Subspaces
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record

BINS = 20
SHIFTS = 10
"""Number of other people that each template is compared with."""

RENEWALS = 10
FOLDS = 5
RATE = 1e-3
"""False-accept rate of performance and of recovered faces."""
REVOKED_RATE = 1e-2

KEY_EACH, ONE_KEY = "one for each person", "one for all"
"""Keys of sealed templates. Raw and lifted ones have none."""

THROWS = 5
"""Times that coin throws are measured."""

SCORES = {
    "linkable": "linkable",
    "coin throws": "linkable coin throws",
    **{f"TAR at FAR {RATE:g}{end}": f"true accepts{end}" for end in ("", LOW, HIGH)},
    "accuracy, 10 renewals": "renewed accuracy",
    "lowest": "lowest renewed accuracy",
    "revoked accepted": "revoked accepted",
    "face from database": "recovered from database",
    "face from two": "recovered from two",
    "face with key": "recovered with key",
    "master probe with key": "master probe with the key",
    "from rows": "master probe without the key",
}
"""Titles of columns, and the scores behind them."""

VERSION = 5

Distances = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionProtocol:
    """Recipes and seeds; everyone with three photos takes part."""

    recipes: tuple[str, ...] = (
        "raw", "sealed-2048:1", "random-2", "hybrid-2", "adversarial-2", "hybrid-4", "adversarial-4",
    )  # fmt: skip
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not self.recipes or not self.seeds:
            raise InputError("nothing to evaluate: name at least one recipe and seed")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Comparisons:
    """Distances of P people in R renewals, and who passes for the person with a face computed from templates.

    Everyone has three photos. ``genuine`` (R, P) compares the first with the last as a verifier does, ``impostors`` (R,
    P, S) the first with the last of other people who have the key. ``mated`` and ``unmated`` are the same as someone
    sees them who has two databases. ``revoked`` (R, P) compares the first photo's template with that of the second
    photo, which replaced it. ``recovered`` (P,) are who passes, by what the attacker has. ``masters`` (P,) are the
    distances of master probes to the first template, by their names.
    """

    genuine: Distances
    impostors: Distances
    mated: Distances
    unmated: Distances
    revoked: Distances
    recovered: dict[str, NDArray[np.bool_]]
    masters: dict[str, Distances] = field(default_factory=dict)


def evaluate_protection(
    faces: Embeddings,
    folder: str | Path,
    protocol: ProtectionProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Measure every recipe and seed; return a record for each, also kept below ``folder``.

    ``decoys`` also are what attackers of seals know of faces.

    Raises InputError for fewer than two people with three photos, DecoyError for a recipe without its decoys, FileError
    if the folder cannot be written.
    """
    protocol = protocol or ProtectionProtocol()
    albums = collect_albums(faces, 3)
    recipes = [face_recipe(recipe, faces.extractor.name) for recipe in dict.fromkeys(protocol.recipes)]
    for recipe in recipes:
        need_decoys(recipe, decoys)
    sample = Sample("albums", digest_data(faces.values, albums.photos))
    tasks = [
        Task(
            name="protection",
            samples=[sample],
            predict=partial(_predict, albums, recipe, keys, decoys, seed),
            score=_score,
            summarise=figure_by_figure("people"),
            params={"recipe": str(recipe), "keys": keys, "decoys": None if decoys is None else decoys.checksum},
            seed=seed,
            version=VERSION,
        )
        for recipe in recipes
        for keys in ((KEY_EACH, ONE_KEY) if recipe.is_sealed else (None,))
        for seed in dict.fromkeys(protocol.seeds)
    ]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite)


def _predict(
    albums: Albums, recipe: Recipe, keys: str | None, decoys: Decoys | None, seed: int, sample: Sample
) -> Prediction:
    compared = compare_templates(albums, recipe, decoys, keys=keys, seed=seed)
    return {
        **{name: getattr(compared, name) for name in ("genuine", "impostors", "mated", "unmated", "revoked")},
        **{f"recovered {name}": passed for name, passed in compared.recovered.items()},
        **compared.masters,
        "bits": np.array(recipe.links[-1].dim if recipe.is_sealed else 0),
    }


def compare_templates(
    albums: Albums, recipe: Recipe, decoys: Decoys | None, *, keys: str | None, seed: int
) -> Comparisons:
    """Enrol the first photo of everyone, renew it with the second, probe with the last, and attack the templates."""
    if recipe.is_sealed:
        none = np.zeros((0, albums.faces.values.shape[1]), np.float32)
        public = none if decoys is None else decoys.descriptors
        return _compare_sealed(albums, recipe, public, one_key=keys == ONE_KEY, seed=seed)
    return _compare_lifted(albums, recipe, decoys, seed)


def _others(count: int) -> NDArray[np.int64]:
    """Return the rows (P, S) of the other people that each of P people is compared with."""
    return (np.arange(count)[:, None] + np.arange(1, min(SHIFTS, count - 1) + 1)) % count


def _passes(albums: Albums, guesses: NDArray[Any]) -> NDArray[np.bool_]:
    """Return who passes for the person, compared clear with the last photo at one false accept in a thousand."""
    later = albums.faces.values[albums.photos[:, -1]]
    passed: NDArray[np.bool_] = np.linalg.norm(unit_length(guesses) - later, axis=1) <= clear_threshold(albums)
    return passed


# --- liftings, and raw templates


def _compare_lifted(albums: Albums, recipe: Recipe, decoys: Decoys | None, seed: int) -> Comparisons:
    """Compare liftings; whoever links does what a verifier does. Raw templates cannot be renewed."""
    enrolled, newer, later = (albums.faces[albums.photos[:, place]] for place in (0, 1, -1))
    draws = RENEWALS if recipe.lifting is not None else 1
    own, others, revoked = list[Distances](), list[Distances](), list[Distances]()
    for number in range(draws):
        first = 3 * (RENEWALS * seed + number)
        old, new, probe = (
            lift_faces(photo, recipe, decoys, seed=first + place)
            for place, photo in enumerate((enrolled, newer, later))
        )
        own.append(_subspace_distances(old, probe, np.arange(len(old))[:, None])[:, 0])
        others.append(_subspace_distances(old, probe, _others(len(old))))
        revoked.append(_subspace_distances(old, new, np.arange(len(old))[:, None])[:, 0])
        if not number:
            pair = old, new
    count = recipe.lifting.decoy_count if recipe.lifting is not None else 0
    recovered = {
        "from database": _passes(albums, stripped_points(pair[:1], decoys, count)),
        "from two": _passes(albums, meeting_points(pair)),
    }
    genuine, impostors = np.array(own), np.array(others)
    return Comparisons(genuine, impostors, genuine, impostors, np.array(revoked), recovered)


def _subspace_distances(a: Subspaces, b: Subspaces, rows: NDArray[np.int64]) -> Distances:
    """Return the distances (P, S) of each subspace to others, of the given rows (P, S)."""
    one = np.repeat(np.arange(len(a)), rows.shape[1])
    return row_distances(a, one, b, rows.ravel()).reshape(rows.shape).astype(np.float32)


# --- seals


def _compare_sealed(
    albums: Albums, recipe: Recipe, public: NDArray[np.float32], *, one_key: bool, seed: int
) -> Comparisons:
    """Compare sealed templates. The databases that are linked have different keys, unless one key is for all."""
    make, prior = _seal_for_all if one_key else _seal_for_each, face_prior(public, public.shape[1])
    sets, guesses = [], None
    for number in range(RENEWALS):
        packed, inverted = make(albums, recipe, prior if not number else None, RENEWALS * seed + number)
        guesses = inverted if guesses is None else guesses
        sets.append(packed)
    own, strangers = np.array([one[:, :3] for one in sets]), np.array([one[:, 3:] for one in sets])
    next_own = np.roll(own, -1, axis=0)
    elsewhere = own if one_key else next_own  # (R, P, 3, bytes)
    rows = _others(len(albums.photos))
    seal = face_seal(recipe, len(prior.mean), seed=seed, owner="attacker")
    blind = [
        invert_seals(Bits(one[0, :, place]), seal.directions, seal.phases, prior)
        for one, place in ((own, 0), (next_own, 1))
    ]
    assert guesses is not None
    return Comparisons(
        genuine=bit_distances(own[:, :, 0], own[:, :, 2]),
        impostors=bit_distances(own[:, :, None, 0], strangers),
        mated=bit_distances(own[:, :, 0], elsewhere[:, :, 2]),
        unmated=bit_distances(own[:, :, None, 0], elsewhere[:, rows, 2]),
        revoked=bit_distances(own[:, :, 0], next_own[:, :, 1]),
        recovered={
            "from database": _passes(albums, blind[0]),
            "from two": _passes(albums, blind[0] + blind[1]),
            "with key": _passes(albums, guesses),
        },
        masters=master_probes(albums, recipe, public, one_key=one_key, seed=RENEWALS * seed),
    )


def _seal_for_all(
    albums: Albums, recipe: Recipe, prior: FacePrior | None, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """Return the bits (P, 3 + S, bytes) of everyone's photos and of others' last photos, under one key.

    With a prior also what the key makes of the first photo's bits: an embedding (P, n).
    """
    seal = face_seal(recipe, albums.faces.values.shape[1], seed=seed)
    packed = seal(albums.faces.values[albums.photos.ravel()]).packed.reshape(*albums.photos.shape, -1)
    both = np.concatenate([packed, packed[_others(len(packed)), 2]], axis=1)
    if prior is None:
        return both, None
    return both, invert_seals(Bits(packed[:, 0]), seal.directions, seal.phases, prior)


def _seal_for_each(
    albums: Albums, recipe: Recipe, prior: FacePrior | None, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """Return the same with a key for each person: others' photos are under that person's key, who lost it."""
    values, people = albums.faces.values, len(albums.photos)
    rows = np.concatenate([albums.photos, albums.photos[_others(people), 2]], axis=1)
    packed, guesses = [], []
    for person in range(people):
        seal = face_seal(recipe, values.shape[1], seed=seed, owner=f"person {person}")
        bits = seal(values[rows[person]])
        packed.append(bits.packed)
        if prior is not None:
            guesses.append(invert_seals(bits[:1], seal.directions, seal.phases, prior)[0])
    return np.array(packed), np.array(guesses) if guesses else None


# --- figures of all of them


def _score(sample: Sample, prediction: Prediction) -> Figures:
    """Return the figures of protection; ``linkable`` is 0 if templates of one person look like those of two."""
    genuine, impostors = prediction["genuine"], prediction["impostors"]
    distances, same, people = performance_pairs(prediction)
    curve = receiver_curve(distances, same)
    accuracies = renewal_accuracies(genuine, impostors)
    threshold = threshold_at(curve, REVOKED_RATE)
    figures = {
        "people": float(genuine.shape[1]),
        "linkable": linkability(prediction["mated"].ravel(), prediction["unmated"].ravel()),
        "renewed accuracy": float(accuracies.mean()),
        "lowest renewed accuracy": float(accuracies.min()),
        "spread of renewed accuracy": float(accuracies.std()),
        "revoked accepted": float((prediction["revoked"] <= threshold).mean()),
    }
    accepts = true_accepts_at(curve, RATE)
    if accepts is not None:
        low, high = accept_intervals(resampled_curves(distances, same, people), [RATE])[0]
        figures |= {"true accepts": accepts, f"true accepts{LOW}": float(low), f"true accepts{HIGH}": float(high)}
    recovered = {name: float(passed.mean()) for name, passed in prediction.items() if name.startswith("recovered ")}
    masters = master_figures(prediction, threshold_at(curve, RATE))
    return {**figures, **recovered, **masters, **_throw_figures(prediction)}


def _throw_figures(prediction: Prediction) -> Figures:
    """Return the mean linkability of as many coin throws as there are distances: what a measure says of nothing."""
    bits, rng = int(prediction["bits"]), np.random.default_rng(0)
    if not bits:
        return {}
    one, two = prediction["mated"].size, prediction["unmated"].size
    throws = [
        linkability(rng.binomial(bits, 0.5, one) / bits, rng.binomial(bits, 0.5, two) / bits) for _ in range(THROWS)
    ]
    return {"linkable coin throws": float(np.mean(throws))}


def performance_pairs(prediction: Prediction) -> tuple[Distances, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the distances (N,) of all renewals, which are genuine, and the two people of each pair (2, N)."""
    genuine, impostors = prediction["genuine"], prediction["impostors"]
    own = np.broadcast_to(np.arange(genuine.shape[1]), genuine.shape)
    others = np.broadcast_to(_others(genuine.shape[1]), impostors.shape)
    people = np.stack(
        [
            np.r_[own.ravel(), np.broadcast_to(own[:, :, None], impostors.shape).ravel()],
            np.r_[own.ravel(), others.ravel()],
        ]
    )
    distances = np.r_[genuine.ravel(), impostors.ravel()]
    return distances, np.arange(len(distances)) < genuine.size, people


def renewal_accuracies(genuine: Distances, impostors: Distances) -> NDArray[np.float64]:
    """Return the accuracy (R,) of each renewal, from distances (R, P) and (R, P, S): as many impostors as genuine.

    The threshold comes from the other folds, the people are split in the order they have.
    """
    people = genuine.shape[1]
    fold, same = np.tile(np.arange(people) * FOLDS // people, 2), np.arange(2 * people) < people
    return np.array(
        [
            fold_accuracies(np.r_[own, others[:, number % others.shape[1]]], same, fold).mean()
            for number, (own, others) in enumerate(zip(genuine, impostors, strict=True))
        ]
    )


def protection_table(records: Iterable[Record]) -> Table:
    """Return one row per recipe and kind of key; what no record has gets no column."""
    groups = group_by_seed(records)
    names = {score.name for group in groups for record in group.records for score in record.scores}
    return make_table(groups, ("recipe", "keys"), {title: name for title, name in SCORES.items() if name in names})


def linkability(mated: ArrayLike, others: ArrayLike, bins: int = BINS) -> float:
    """Return the global linkability D_sys of Gomez-Barrero et al. (2018), from 0 to 1.

    D_sys is the sum over scores of p(score | one person) D(score), of the densities in bins that hold equally many of
    both kinds together.

    Raises InputError where either side is empty.

    >>> linkability([0.0, 0.1], [5.0, 6.0], bins=2)
    1.0
    """
    own, other, _ = _densities(mated, others, bins)
    return float((own * _local_linkability(own, other)).sum())  # Gomez-Barrero et al. 2018: D_sys


def local_linkability(
    mated: ArrayLike, others: ArrayLike, bins: int = BINS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the local linkability D(score) (K,) of Gomez-Barrero et al. (2018), and the edges (K + 1,)."""
    own, other, cuts = _densities(mated, others, bins)
    every = np.r_[np.ravel(mated), np.ravel(others)]
    return _local_linkability(own, other), np.r_[every.min(), cuts, every.max()].astype(np.float64)


def _local_linkability(own: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return max(0, (R - 1) / (R + 1)) of the ratio R of densities: the local measure for equal priors.

    Gomez-Barrero et al. (2018): D = 2 R w / (1 + R w) - 1 where R w > 1, else 0; here w = 1.
    """
    both = own + other
    gain = np.where(both > 0, (own - other) / np.where(both > 0, both, 1), 0.0)
    return np.asarray(np.maximum(gain, 0.0))


def _densities(
    mated: ArrayLike, others: ArrayLike, bins: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the shares (K,) of both kinds in bins, and the cuts (K - 1,) between those."""
    near = frozen_array(mated, "mated", (None,), np.float64)
    far = frozen_array(others, "others", (None,), np.float64)
    if not near.size or not far.size:
        raise InputError("linkability needs distances of both kinds")
    weights = np.r_[np.full(len(near), 0.5 / len(near)), np.full(len(far), 0.5 / len(far))]
    values = np.r_[near, far]
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order])
    cuts = np.unique([values[order[np.searchsorted(share, part / bins - 1e-9)]] for part in range(1, bins)])
    return _shares(near, cuts), _shares(far, cuts), cuts


def _shares(values: NDArray[np.float64], cuts: NDArray[np.float64]) -> NDArray[np.float64]:
    counts = np.bincount(np.searchsorted(cuts, values, side="left"), minlength=len(cuts) + 1)
    return counts / len(values)
