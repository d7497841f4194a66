# SPDX-License-Identifier: Apache-2.0
"""What templates tell about gender, race and the like (section 4.2.2 and Figure 4 of the paper).

Faces are dealt to three sides that share none: decoys, the attacker, and the attacked. Reported is what each attack
gets right, beside the majority; leakage is the most that any of them gets. What is kept are tables of guesses and
truths, no face and nobody's label.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.evaluate import attributeguess as guess
from sfumato.evaluate.facedata import LabelledFaces
from sfumato.evaluate.facelifting import lift_faces
from sfumato.evaluate.tables import Table, group_by_seed, make_table
from sfumato.evaluate.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.evaluate.together import figure_by_figure, run_together
from sfumato.types.concealed import Subspaces
from sfumato.types.embeddings import Embeddings
from sfumato.types.recipe import KINDS, Recipe
from sfumato.types.record import Record, Value

ATTACKS = {
    "neighbours": "the commonest label of the K nearest clear faces",
    "templates": "a classifier of origins, trained on templates of the same recipe",
    "stripped": "the same after decoys, which are public, were taken away",
}
SCORES = {
    "majority": "majority",
    "10 neighbours": "neighbours",
    "relabelled": "neighbours relabelled",
    "trained on templates": "templates",
    "decoys taken away": "stripped",
    "leakage": "leakage",
}
"""Titles of columns, and the scores behind them."""

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeProtocol:
    """Recipes, attributes, and how many faces each side is dealt; a seed decides the deal and the liftings.

    With ``attacked_prefix`` the attacked are faces whose names begin with it, and all others go to decoys and attacker:
    "val/" for the split of FairFace.
    """

    recipes: tuple[str, ...] = (
        "raw", "random-2", "adversarial-2", "hybrid-2", "hybrid-labels-2", "adversarial-4", "hybrid-4",
    )  # fmt: skip
    attributes: tuple[str, ...] = ("gender", "race")
    seeds: tuple[int, ...] = (0,)
    decoys: int = 2000
    attacker: int = 5000
    attacked: int = 1000
    attacked_prefix: str = ""

    def __post_init__(self) -> None:
        for recipe in self.recipes:
            if Recipe.of(recipe).has_encoder:
                raise InputError(f"{recipe}: encoders are made for local features, not for faces")
        sizes = (self.decoys, self.attacker, self.attacked)
        if min(sizes) < 1 or not self.recipes or not self.attributes or not self.seeds:
            raise InputError(
                f"nothing to evaluate: name recipes, attributes and seeds, and deal faces to all, not {sizes}"
            )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Deal:
    """Rows of the faces: those of the ``decoys``, of the ``attacker``, and the ``attacked`` ones; none twice."""

    decoys: NDArray[np.int64]
    attacker: NDArray[np.int64]
    attacked: NDArray[np.int64]


def deal_faces(names: Sequence[str], protocol: AttributeProtocol, seed: int) -> Deal:
    """Deal faces at random, by their names if the protocol says so; raises InputError if there are too few."""
    prefix, count = protocol.attacked_prefix, len(names)
    drawn = np.random.default_rng([seed, count]).permutation(count)
    chosen = np.array([bool(prefix) and name.startswith(prefix) for name in names], bool)[drawn]
    before = protocol.decoys + protocol.attacker
    ours, theirs = (drawn[chosen], drawn[~chosen]) if prefix else (drawn[before:], drawn[:before])
    if len(ours) < protocol.attacked or len(theirs) < before:
        raise InputError(
            f"{protocol.decoys} faces wanted for decoys, {protocol.attacker} to attack with, {protocol.attacked} to "
            f"attack, but there are {count}{f', {len(ours)} of them {prefix!r:.80}' if prefix else ''}"
        )
    return Deal(theirs[: protocol.decoys], theirs[protocol.decoys : before], ours[: protocol.attacked])


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
    deal_faces(source.faces.names, protocol, 0)
    tasks = [
        _task(source, protocol, Recipe.of(recipe), attribute, seed)
        for attribute in dict.fromkeys(protocol.attributes)
        for recipe in dict.fromkeys(protocol.recipes)
        for seed in dict.fromkeys(protocol.seeds)
    ]
    return run_together(tasks, folder, progress=progress, overwrite=overwrite)


def _task(source: LabelledFaces, protocol: AttributeProtocol, recipe: Recipe, attribute: str, seed: int) -> Task:
    params: dict[str, Value] = {
        "recipe": str(recipe),
        "attribute": attribute,
        "decoy_count": protocol.decoys,
        "attacker": protocol.attacker,
        "attacked": protocol.attacked,
        "attacked_prefix": protocol.attacked_prefix,
        "neighbours": guess.NEIGHBOURS,
    }
    return Task(
        name="attributes",
        samples=[Sample(attribute, digest_data(source.faces.values, source.labels[attribute]))],
        predict=partial(_predict, source, protocol, recipe, attribute, seed),
        score=score_tables,
        summarise=figure_by_figure("faces"),
        params=params,
        seed=seed,
        version=VERSION,
    )


def _predict(
    source: LabelledFaces, protocol: AttributeProtocol, recipe: Recipe, attribute: str, seed: int, sample: Sample
) -> Prediction:
    """Conceal the attacked faces, attack them in every way, and return a table of guesses and truths for each."""
    deal, labels = deal_faces(source.faces.names, protocol, seed), source.labels[attribute]
    decoys = Decoys(source.faces.values[deal.decoys], labels=labels[deal.decoys])
    others, known = source.faces[deal.attacker], labels[deal.attacker]
    attacked, truth = source.faces[deal.attacked], labels[deal.attacked]
    templates = _lift(attacked, truth, recipe, decoys, 2 * seed)
    own = _lift(others, known, recipe, decoys, 2 * seed + 1)  # what the attacker trains on: other draws
    count = 0 if recipe.lifting is None else recipe.lifting.decoy_count
    guesses = {
        "neighbours": guess.neighbour_guesses(templates, others.values, known),
        "templates": guess.train_guess(guess.template_features(own), known).guess(guess.template_features(templates)),
        "stripped": guess.train_guess(guess.stripped_features(own, decoys, count), known).guess(
            guess.stripped_features(templates, decoys, count)
        ),
    }
    classes = int(labels.max()) + 1
    return {name: guess.confusion(guessed, truth, classes) for name, guessed in guesses.items()}


def _lift(faces: Embeddings, labels: NDArray[np.int64], recipe: Recipe, decoys: Decoys, seed: int) -> Subspaces:
    """Lift faces, with decoys of other labels if the recipe asks for them; equal photos have one label."""
    if recipe.lifting is None or KINDS[recipe.lifting.kind].decoys != "labels":
        return lift_faces(faces, recipe, decoys, seed=seed)
    _, first, same = np.unique(faces.values, axis=0, return_index=True, return_inverse=True)
    return lift_faces(faces, recipe, decoys, seed=seed, labels=labels[first[same.ravel()]])


def score_tables(sample: Sample, prediction: Prediction) -> Figures:
    """Return what every attack gets right, as it is and relabelled, the majority, and the most of all: leakage."""
    tables = {name: prediction[name] for name in ATTACKS}
    figures = {"majority": guess.majority(tables["neighbours"]), "faces": float(tables["neighbours"].sum())}
    for name, table in tables.items():
        figures |= {name: guess.accuracy(table), f"{name} relabelled": guess.relabelled_accuracy(table)}
    best = max(figures[name] for name in ("neighbours", "neighbours relabelled", "templates", "stripped"))
    return {**figures, "leakage": best}


def table_of(records: Iterable[Record]) -> Table:
    """Return one row an attribute and recipe: the majority, every attack, and the leakage."""
    return make_table(group_by_seed(records), ("attribute", "recipe"), SCORES)
