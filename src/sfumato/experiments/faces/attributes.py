# SPDX-License-Identifier: Apache-2.0
"""Attribute attacks on templates: gender, race and age (section 4.2.2 and Figure 4 of the paper).

Faces are split into decoys, those of the attacker, and the attacked ones. The attacker knows templates, the recipe,
faces of other people with their labels, and the public decoy database. Each attack's share of right guesses stands
beside the majority; leakage is that of the strongest attack. Files hold tables of guesses and truths, no face and
nobody's label.

Sealed templates are attacked twice. Without a key: everyone has a key of their own, and so does the attacker. With the
key: he has it, and all templates are under it; a key for each person that he has would give him as much of each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.runner import figure_by_figure, run_tasks
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import face_recipe
from sfumato.errors import InputError
from sfumato.experiments.data.face_benchmarks import LabelledFaces
from sfumato.experiments.faces.lifting import bit_signs, face_prior, face_seal, invert_seals, lift_faces
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import Bits, Subspaces
from sfumato.types.recipe import KINDS, Recipe
from sfumato.types.record import Record, Value

ATTACKS = {
    "neighbours": "the commonest label of the K nearest faces, clear or sealed by the attacker",
    "templates": "a classifier of origins or bits, trained on templates of the same recipe",
    "undone": "a classifier after decoys, which are public, were taken away, or the seal was inverted",
}
SCORES = {
    "majority": "majority",
    "10 neighbours": "neighbours",
    "relabelled": "neighbours relabelled",
    "trained on templates": "templates",
    "decoys or seal undone": "undone",
    "leakage": "leakage",
}
"""Titles of columns, and the scores behind them."""

NO_KEY, KEY = "without the key", "with the key"
"""Attackers of sealed templates."""
OWN_KEYS = 500
"""Templates under keys of their own that a classifier is trained on; each key takes a twentieth of a second."""

PRACTICE = 500
"""Faces of his own that an attacker seals and inverts, to see which classifier fits inverted ones."""

AGE_STARTS = (21, 41, 61)
"""First years of the groups of ages after the first: to 20, 21 to 40, 41 to 60, and above."""

VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeProtocol:
    """Recipes, attributes, and the number of faces of each side; a seed decides the split and the liftings.

    With ``attacked_prefix`` the attacked are faces whose names begin with it, and all others go to decoys and attacker:
    "val/" for the split of FairFace.
    """

    recipes: tuple[str, ...] = (
        "raw", "sealed-2048:1", "random-2", "adversarial-2", "hybrid-2", "hybrid-labels-2", "adversarial-4", "hybrid-4",
    )  # fmt: skip
    attributes: tuple[str, ...] = ("gender", "race", "age")
    seeds: tuple[int, ...] = (0,)
    decoys: int = 2000
    attacker: int = 5000
    attacked: int = 1000
    attacked_prefix: str = ""

    def __post_init__(self) -> None:
        for recipe in self.recipes:
            if Recipe.of(recipe).has_encoder and not Recipe.of(recipe).is_sealed:
                raise InputError(f"{recipe}: encoders are made for local features, not for faces")
        sizes = (self.decoys, self.attacker, self.attacked)
        if min(sizes) < 1 or not self.recipes or not self.attributes or not self.seeds:
            raise InputError(
                f"nothing to evaluate: name recipes, attributes and seeds, and numbers of faces above 0, got {sizes}"
            )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FaceSplit:
    """Rows of the faces: those of the ``decoys``, of the ``attacker``, and the ``attacked`` ones; none twice."""

    decoys: NDArray[np.int64]
    attacker: NDArray[np.int64]
    attacked: NDArray[np.int64]


def split_faces(names: Sequence[str], protocol: AttributeProtocol, seed: int) -> FaceSplit:
    """Split faces at random, by their names if the protocol says so; raises InputError if there are too few."""
    prefix, count = protocol.attacked_prefix, len(names)
    drawn = np.random.default_rng([seed, count]).permutation(count)
    has_prefix = np.array([bool(prefix) and name.startswith(prefix) for name in names], bool)[drawn]
    before = protocol.decoys + protocol.attacker
    ours, theirs = (drawn[has_prefix], drawn[~has_prefix]) if prefix else (drawn[before:], drawn[:before])
    if len(ours) < protocol.attacked or len(theirs) < before:
        own = f", {len(ours)} of them {prefix!r:.80}" if prefix else ""
        raise InputError(
            f"the protocol needs {protocol.decoys} faces for decoys, {protocol.attacker} to attack with and "
            f"{protocol.attacked} to attack, but there are {count}{own}"
        )
    return FaceSplit(theirs[: protocol.decoys], theirs[protocol.decoys : before], ours[: protocol.attacked])


def age_groups(years: Any) -> NDArray[np.int64]:
    """Return the group (N,) of each age in years: 0 to 20, 21 to 40, 41 to 60, above.

    >>> age_groups([3, 21, 60, 90]).tolist()
    [0, 1, 2, 3]
    """
    return np.asarray(np.digitize(frozen_array(years, "years", (None,), np.int64), AGE_STARTS), np.int64)


def evaluate_attributes(
    source: LabelledFaces,
    folder: str | Path,
    protocol: AttributeProtocol | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Attack every recipe, attribute and seed; return a record for each, also kept below ``folder``.

    Raises InputError for an attribute that is not known of the faces, or too few of them; FileError if the folder can
    not be written.
    """
    protocol = protocol or AttributeProtocol()
    missing = [name for name in protocol.attributes if name not in source.labels]
    if missing:
        raise InputError(f"there is no label {missing[0]!r:.80}, but {', '.join(source.labels) or 'none'}")
    wrong = [name for name in protocol.attributes if source.labels[name].min(initial=0) < 0]
    if wrong:
        raise InputError(f"{wrong[0]}: labels are numbers from 0 on")
    split_faces(source.faces.names, protocol, 0)  # refuses too few faces before anything is measured
    recipes = [face_recipe(recipe, source.faces.extractor.name) for recipe in dict.fromkeys(protocol.recipes)]
    tasks = [
        _task(source, protocol, (recipe, attacker, attribute), seed)
        for attribute in dict.fromkeys(protocol.attributes)
        for recipe in recipes
        for attacker in ((NO_KEY, KEY) if recipe.is_sealed else ("",))
        for seed in dict.fromkeys(protocol.seeds)
    ]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite)


Case = tuple[Recipe, str, str]
"""A recipe, the attacker of a sealed one, and an attribute."""


def _task(source: LabelledFaces, protocol: AttributeProtocol, case: Case, seed: int) -> Task:
    recipe, attacker, attribute = case
    params: dict[str, Value] = {
        "recipe": str(recipe),
        "attacker": attacker or None,
        "attribute": attribute,
        "decoy_count": protocol.decoys,
        "attacker_count": protocol.attacker,
        "attacked_count": protocol.attacked,
        "attacked_prefix": protocol.attacked_prefix,
        "neighbours": NEIGHBOURS,
    }
    return Task(
        name="attributes",
        samples=[Sample(attribute, digest_data(source.faces.values, source.labels[attribute]))],
        predict=partial(_predict, source, protocol, case, seed),
        score=score_tables,
        summarise=figure_by_figure("faces"),
        params=params,
        seed=seed,
        version=VERSION,
    )


def _predict(source: LabelledFaces, protocol: AttributeProtocol, case: Case, seed: int, sample: Sample) -> Prediction:
    """Conceal the attacked faces, attack them in every way, and return a table of guesses and truths for each."""
    recipe, attacker, attribute = case
    split, labels = split_faces(source.faces.names, protocol, seed), source.labels[attribute]
    decoys = Decoys(source.faces.values[split.decoys], labels=labels[split.decoys])
    others, known = source.faces[split.attacker], labels[split.attacker]
    attacked, truth = source.faces[split.attacked], labels[split.attacked]
    if recipe.is_sealed:
        sides = SealedSides(recipe, attacked.values, others.values, known, seed)
        guesses = sides.guesses_with_key() if attacker == KEY else sides.guesses_without_key()
    else:
        guesses = _lifted_guesses(attacked, truth, (others, known), recipe, decoys, seed)
    classes = int(labels.max()) + 1
    return {name: confusion(guess, truth, classes) for name, guess in guesses.items()}


def _lifted_guesses(
    attacked: Embeddings,
    truth: "Classes",
    attacker: "tuple[Embeddings, Classes]",
    recipe: Recipe,
    decoys: Decoys,
    seed: int,
) -> "dict[str, Classes]":
    """Return the guesses of every attack on lifted templates, from faces of the attacker with their labels."""
    others, known = attacker
    templates = _lift(attacked, truth, recipe, decoys, 2 * seed)
    own = _lift(others, known, recipe, decoys, 2 * seed + 1)  # templates that the attacker trains on: other draws
    count = 0 if recipe.lifting is None else recipe.lifting.decoy_count
    return {
        "neighbours": neighbour_guesses(templates, others.values, known),
        "templates": train_guess(template_features(own), known).guess(template_features(templates)),
        "undone": train_guess(stripped_features(own, decoys, count), known).guess(
            stripped_features(templates, decoys, count)
        ),
    }


def _lift(faces: Embeddings, labels: NDArray[np.int64], recipe: Recipe, decoys: Decoys, seed: int) -> Subspaces:
    """Lift faces, with decoys of other labels if the recipe asks for them; equal photos have one label."""
    if recipe.lifting is None or KINDS[recipe.lifting.kind].decoys != "labels":
        return lift_faces(faces, recipe, decoys, seed=seed)
    _, first, same = np.unique(faces.values, axis=0, return_index=True, return_inverse=True)
    return lift_faces(faces, recipe, decoys, seed=seed, labels=labels[first[same.ravel()]])


def score_tables(sample: Sample, prediction: Prediction) -> Figures:
    """Return the accuracy of every attack, as it is and relabelled, the majority, and the leakage: the highest."""
    tables = {name: prediction[name] for name in ATTACKS}
    figures = {"majority": majority(tables["neighbours"]), "faces": float(tables["neighbours"].sum())}
    for name, table in tables.items():
        figures |= {name: accuracy(table), f"{name} relabelled": relabelled_accuracy(table)}
    best = max(figures[name] for name in ("neighbours", "neighbours relabelled", "templates", "undone"))
    return {**figures, "leakage": best}


def attribute_table(records: Iterable[Record]) -> Table:
    """Return one row per attribute, recipe and attacker: the majority, every attack, and the leakage."""
    return make_table(group_by_seed(records), ("attribute", "recipe", "attacker"), SCORES)


# --- the attacks: neighbours, a trained classifier, removal of decoys


Floats = NDArray[np.float32]
Classes = NDArray[np.int64]

NEIGHBOURS = 10
"""K of section 4.2.2 of the paper."""

INSIDE = 3e-3
"""A decoy this near to a subspace lies in it: rounding is a thousandth of that, chance several hundred times."""

AT_ONCE = 256

RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
"""Penalties that are tried, as shares of the mean variance of a feature."""


def squared_distances_to(points: Floats, subspaces: Subspaces) -> Floats:
    """Return squared distances (N, P) of subspaces to points (P, n) in float32 (Eq. 1), not below 0."""
    length = np.einsum("pi,pi->p", points, points)
    squared: Floats = length[None] - 2 * subspaces.origin @ points.T
    squared += np.einsum("ni,ni->n", subspaces.origin, subspaces.origin)[:, None]
    for k in range(subspaces.dim):
        squared -= (subspaces.basis[:, k] @ points.T) ** 2
    return np.maximum(squared, 0, out=squared)


def neighbour_guesses(
    subspaces: Subspaces, points: Floats, labels: Classes, *, neighbours: int = NEIGHBOURS
) -> Classes:
    """Return the commonest label (N,) among the clear faces nearest to each subspace; of a tie, that of the nearest.

    Raises InputError if there are fewer faces than neighbours.
    """
    if len(points) < neighbours:
        raise InputError(f"{neighbours} neighbours need as many faces to compare with, got {len(points)}")
    guesses = np.empty(len(subspaces), np.int64)
    for start in range(0, len(subspaces), AT_ONCE):
        block = slice(start, start + AT_ONCE)
        guesses[block] = _votes(squared_distances_to(points, subspaces[block]), labels, neighbours)
    return guesses


def _votes(distances: Floats, labels: Classes, neighbours: int = NEIGHBOURS) -> Classes:
    """Return the commonest label (N,) of the faces at the least distances (N, P)."""
    near = np.argpartition(distances, neighbours - 1, axis=1)[:, :neighbours]
    ranked = np.take_along_axis(near, np.argsort(np.take_along_axis(distances, near, 1), axis=1), 1)
    votes = np.zeros((len(ranked), int(labels.max(initial=0)) + 1))
    for rank in range(neighbours):  # a vote less one rank's worth of a thousandth: the nearer settles ties
        votes[np.arange(len(ranked)), labels[ranked[:, rank]]] += 1 - 1e-3 * rank / neighbours
    guesses: Classes = votes.argmax(axis=1)
    return guesses


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SealedSides:
    """Faces that are sealed and attacked (N, n), faces of the attacker (M, n) with their ``labels``, and the seed."""

    recipe: Recipe
    attacked: Floats
    others: Floats
    labels: Classes
    seed: int

    @property
    def width(self) -> int:
        """Numbers of an embedding."""
        return int(self.others.shape[1])

    def guesses_with_key(self) -> dict[str, Classes]:
        """Return guesses of whoever has the key: he seals his faces himself, or inverts the templates."""
        seal = face_seal(self.recipe, self.width, seed=self.seed)
        return self._guesses(seal(self.attacked), seal(self.others), self.labels)

    def guesses_without_key(self) -> dict[str, Classes]:
        """Return guesses where every face is under a key of its own, and the attacker under one of his."""
        count = min(OWN_KEYS, len(self.others))
        taught = self._under_own_keys(self.others[:count], "other")
        return self._guesses(self._under_own_keys(self.attacked, "person"), taught, self.labels[:count])

    def _guesses(self, templates: Bits, taught: Bits, labels: Classes) -> dict[str, Classes]:
        """Return guesses from templates that the attacker made of his faces; without the key he inverts with his."""
        seal, prior = face_seal(self.recipe, self.width, seed=self.seed), face_prior(self.others, self.width)
        own, count = seal(self.others), min(PRACTICE, len(self.others) // 2)
        inverted, practice = (
            invert_seals(bits, seal.directions, seal.phases, prior) for bits in (templates, own[len(own) - count :])
        )
        return {
            "neighbours": _votes(-bit_signs(templates) @ bit_signs(own).T, self.labels),
            "templates": train_guess(bit_signs(taught), labels).guess(bit_signs(templates)),
            "undone": train_guess(self.others, self.labels, practice=practice).guess(inverted),
        }

    def _under_own_keys(self, values: Floats, side: str) -> Bits:
        """Return templates, each under another key."""
        return _keyed_bits(self.recipe, values.tobytes(), values.shape[1], side, self.seed)


@lru_cache(maxsize=16)  # the same for every attribute, and slow
def _keyed_bits(recipe: Recipe, rows: bytes, width: int, side: str, seed: int) -> Bits:
    values = np.frombuffer(rows, np.float32).reshape(-1, width)
    seals = (face_seal(recipe, width, seed=seed, owner=f"{side} {row}") for row in range(len(values)))
    return Bits(np.concatenate([seal(values[row : row + 1]).packed for row, seal in enumerate(seals)]))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LinearGuess:
    """A linear classifier of features: ``weights`` (d + 1, C), the last row a constant."""

    weights: NDArray[np.float64]

    def guess(self, features: NDArray[Any]) -> Classes:
        """Return the class (N,) of each row of features (N, d)."""
        guesses: Classes = (features @ self.weights[:-1] + self.weights[-1]).argmax(axis=1)
        return guesses


def train_guess(
    features: NDArray[Any], labels: Classes, held_out: float = 0.2, practice: NDArray[Any] | None = None
) -> LinearGuess:
    """Fit one-of-C targets by least squares, with the penalty that is best on the last ``held_out`` of the rows.

    ``practice`` are the last rows as the attacker is going to see those of others; they choose instead.

    Raises InputError without rows.
    """
    if len(features) < 2 or len(features) != len(labels):
        raise InputError(f"{len(features)} rows with {len(labels)} labels: nothing to learn from")
    edge = max(1, round(len(features) * (1 - held_out)) if practice is None else len(features) - len(practice))
    trial = features[edge:] if practice is None else practice[edge - len(features) :]
    scored = []
    for ridge in RIDGES:
        model = _fit(features[:edge], labels[:edge], ridge, int(labels.max()) + 1)
        right = (model.guess(trial) == labels[edge:]).mean() if edge < len(features) else 0.0
        scored.append((float(right), ridge))
    return _fit(features, labels, max(scored)[1], int(labels.max()) + 1)


def _fit(features: NDArray[Any], labels: Classes, ridge: float, count: int) -> LinearGuess:
    rows = features.astype(np.float64)
    centre, targets = rows.mean(axis=0), np.eye(count)[labels]
    share = targets.mean(axis=0)
    scatter = (rows - centre).T @ (rows - centre)
    scatter[np.diag_indices_from(scatter)] += ridge * np.trace(scatter) / len(scatter) + 1e-12
    weights = np.linalg.solve(scatter, (rows - centre).T @ (targets - share))
    return LinearGuess(np.vstack([weights, share - centre @ weights]))


def template_features(subspaces: Subspaces) -> Floats:
    """Return the plain features of a template (N, n): its origin, a function of the subspace alone.

    Faces and decoys are nearly orthogonal to each other, so that the point nearest to 0 is nearly their mean.
    """
    return subspaces.origin


def stripped_features(subspaces: Subspaces, decoys: Decoys | None, count: int) -> Floats:
    """Return, for each template, its unit point that is orthogonal to the decoys in it, and their labels (N, n + L).

    Decoys lie in the subspace exactly (section 3.2 of the paper): anyone with the database sees them. Other people's
    embeddings are nearly orthogonal to the face: the point of the subspace with no part along any of them is near it.
    Where decoys have labels the last L columns count those found, which reveals much if decoys were chosen by label.
    """
    if decoys is None or count == 0:
        return _unit(subspaces.origin)
    names = np.unique(decoys.labels) if decoys.labels is not None else np.zeros(0)
    features = np.zeros((len(subspaces), subspaces.ambient_dim + len(names)), np.float32)
    for start in range(0, len(subspaces), AT_ONCE):
        block = subspaces[start : start + AT_ONCE]
        entries, inside = nearest_decoys(block, decoys, count)
        points = orthogonal_points(block, decoys.descriptors[entries] * inside[:, :, None])
        features[start : start + AT_ONCE, : subspaces.ambient_dim] = points
        if decoys.labels is not None:
            matches = (decoys.labels[entries][:, :, None] == names) & inside[:, :, None]
            features[start : start + AT_ONCE, subspaces.ambient_dim :] = matches.sum(axis=1)
    return features


def nearest_decoys(subspaces: Subspaces, decoys: Decoys, count: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the ``count`` decoys (N, count) nearest to each subspace, and which of them lie in it."""
    squared = squared_distances_to(decoys.descriptors, subspaces)
    entries = np.argpartition(squared, count - 1, axis=1)[:, :count]
    return entries, exact_distances(decoys.descriptors[entries], subspaces) < INSIDE


def exact_distances(points: Floats, subspaces: Subspaces) -> NDArray[np.float64]:
    """Return the distances (N, k) of points (N, k, n) to their subspaces in float64: products lose the last digits."""
    offset = points.astype(np.float64) - subspaces.origin[:, None]
    basis = subspaces.basis.astype(np.float64)
    offset -= np.matmul(np.matmul(offset, basis.transpose(0, 2, 1)), basis)
    return np.asarray(np.linalg.norm(offset, axis=2))


def orthogonal_points(subspaces: Subspaces, others: Floats) -> Floats:
    """Return the point (N, n) of each subspace least along ``others`` (N, k, n), zeros left aside, at unit norm."""
    along = np.einsum("nki,nji->nkj", others, subspaces.basis)
    targets = -np.einsum("nki,ni->nk", others, subspaces.origin)
    inverse = np.linalg.pinv(along.astype(np.float64), rcond=1e-3)
    coefficients = np.einsum("njk,nk->nj", inverse, targets)
    return _unit(subspaces.origin + np.einsum("nj,nji->ni", coefficients, subspaces.basis))


def confusion(guesses: Classes, truth: Classes, count: int) -> NDArray[np.int64]:
    """Return how often (C, C) each guess, a row, met each truth, a column."""
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (guesses, truth), 1)
    return table


def accuracy(table: NDArray[np.int64]) -> float:
    """Return the share of guesses that are right."""
    return float(np.trace(table) / max(1, table.sum()))


def relabelled_accuracy(table: NDArray[np.int64]) -> float:
    """Return the share that is right when every guess is read as the truth it meets most often.

    A classifier that is nearly always wrong reveals as much as one that is nearly always right. The relabelling is the
    best on the faces attacked themselves, hence never below the majority, and a little more than an attacker has.

    >>> relabelled_accuracy(np.array([[1, 9], [8, 2]]))
    0.85
    """
    return float(table.max(axis=1).sum() / max(1, table.sum()))


def majority(table: NDArray[np.int64]) -> float:
    """Return the accuracy of always naming the commonest class."""
    return float(table.sum(axis=0).max() / max(1, table.sum()))


def _unit(rows: NDArray[Any]) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    result: Floats = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return result
