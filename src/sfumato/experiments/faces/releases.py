# SPDX-License-Identifier: Apache-2.0
"""Repeated releases of one face, and policies against what they reveal (the limitation in section 5 of the paper).

Several photos of a person are lifted and released one after the other. The attacker keeps them and guesses the point
where they nearly meet, or removes the decoys of a public database first; the guess is compared with yet another photo
of the person. A policy is what a device does at each release. Files hold distances, no embedding.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.runner import figure_by_figure, run_tasks
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.experiments.faces.attributes import nearest_decoys, stripped_features
from sfumato.experiments.faces.lifting import lift_faces, need_decoys
from sfumato.types.clear import Embeddings, people_of
from sfumato.types.concealed import Subspaces
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Value

PRIOR = 0.5
"""Noise of a photo over the spread of faces, per dimension: it draws a guess to 0 where releases say little."""


def meeting_points(releases: Sequence[Subspaces], prior: float = PRIOR) -> NDArray[np.float64]:
    """Return the point (N, n) with the least squared distances to all releases of a face, drawn a little to 0.

    Solves (sum_i (I - B_i' B_i) + t I) x = sum_i p_i through the eigenvectors of sum_i B_i' B_i, of which there are no
    more than all directions together; t is the ``prior``, 0 < t, which may be tiny for releases of one and the same
    embedding. Needs neither decoys nor recipe.
    """
    if not releases:
        return np.zeros((0, 0))
    count = len(releases)
    pulled = np.sum([release.origin.astype(np.float64) for release in releases], axis=0)
    stacked = np.concatenate([release.basis.astype(np.float64) for release in releases], axis=1)
    strength, axes = np.linalg.eigh(np.matmul(stacked, stacked.transpose(0, 2, 1)))
    solid = strength > 1e-9
    scale = np.where(solid, 1 / np.sqrt(np.where(solid, strength, 1)), 0)
    directions = np.einsum("nkj,nki,nj->nji", axes, stacked, scale)  # orthonormal, or 0
    gain = 1 / (count - strength + prior) - 1 / (count + prior)
    along = np.einsum("nji,ni->nj", directions, pulled)
    points: NDArray[np.float64] = pulled / (count + prior) + np.einsum("nj,nj,nji->ni", gain, along, directions)
    return points


def stripped_points(releases: Sequence[Subspaces], decoys: Decoys | None, count: int) -> NDArray[np.float64]:
    """Return the mean (N, n) of the points of releases once their public decoys are removed.

    A release without recognised decoys, such as one parallel to an earlier one, counts only if there is no other.
    """
    if not releases:
        return np.zeros((0, 0))
    people, n = releases[0].origin.shape
    total, weight = np.zeros((people, n)), np.zeros((people, 1))
    for release in releases:
        complete: Any = np.ones(len(release), bool)
        if decoys is not None and count:
            complete = nearest_decoys(release, decoys, count)[1].all(axis=1)
        share = np.where(complete, 1.0, 1e-6)[:, None]
        total += share * stripped_features(release, decoys, count)[:, :n]
        weight += share
    return total / weight


def unit_length(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows (N, n) scaled to length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float64)


POLICIES = {
    "independent": "every photo is lifted with draws of its own",
    "near-parallel": "every photo is lifted along the directions of the first, turned a little",
    "parallel": "every photo is lifted along the directions of the first",
    "remembered": "the first template is released again",
    "third party": "templates go to someone who reports the decision and keeps nothing",
}
TILT = 0.1
"""Turn of the directions of near-parallel subspaces: the length of a random vector added to a unit one."""

FALSE_ACCEPTS = 1e-3
VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseProtocol:
    """Recipes, policies and seeds; ``releases`` are the numbers of photos after which the attacker guesses."""

    recipes: tuple[str, ...] = ("random-2", "hybrid-2", "adversarial-2", "hybrid-4", "adversarial-4")
    policies: tuple[str, ...] = tuple(POLICIES)
    seeds: tuple[int, ...] = (0,)
    releases: tuple[int, ...] = (1, 2, 3, 5)

    def __post_init__(self) -> None:
        unknown = [name for name in self.policies if name not in POLICIES]
        if unknown:
            raise InputError(f"policy: {unknown[0]!r:.80} is none of {', '.join(POLICIES)}")
        if not self.recipes or not self.policies or not self.seeds or min(self.releases, default=0) < 1:
            raise InputError("nothing to evaluate: name recipes, policies, seeds, and numbers of releases above 0")
        for recipe in self.recipes:
            if Recipe.of(recipe).lifting is None:
                raise InputError(f"{recipe}: without a lifting the first release reveals the face")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Albums:
    """Photos of people: ``photos`` (P, R + 1) are rows of ``faces``; the last of each is never released."""

    faces: Embeddings
    photos: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Albums({self.photos.shape[0]} people, {self.photos.shape[1]} photos each)"


def collect_albums(faces: Embeddings, photos: int) -> Albums:
    """Return the first ``photos`` photos of everyone who has as many; raises InputError for fewer than two people."""
    rows: dict[str, list[int]] = {}
    for row, person in enumerate(people_of(faces.names)):
        rows.setdefault(person, []).append(row)
    albums = [own[:photos] for own in rows.values() if len(own) >= photos]
    if len(albums) < 2:
        raise InputError(f"{len(albums)} people have {photos} photos; at least two are needed, or fewer releases")
    return Albums(faces, np.array(albums, np.int64))


def evaluate_releases(
    faces: Embeddings,
    folder: str | Path,
    protocol: ReleaseProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Attack every recipe, policy and seed; return a record for each, also kept below ``folder``.

    Raises InputError for too few people with enough photos, DecoyError for a recipe without its decoys, FileError if
    the folder cannot be written.
    """
    protocol = protocol or ReleaseProtocol()
    albums = collect_albums(faces, max(protocol.releases) + 1)
    recipes = [Recipe.of(recipe) for recipe in dict.fromkeys(protocol.recipes)]
    for recipe in recipes:
        need_decoys(recipe, decoys)
    sample = Sample("albums", digest_data(faces.values, albums.photos))
    tasks = [
        _task(albums, sample, protocol, (recipe, policy, seed), decoys)
        for recipe in recipes
        for policy in dict.fromkeys(protocol.policies)
        for seed in dict.fromkeys(protocol.seeds)
    ]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite)


Case = tuple[Recipe, str, int]
"""A recipe, a policy and a seed."""


def _task(albums: Albums, sample: Sample, protocol: ReleaseProtocol, case: Case, decoys: Decoys | None) -> Task:
    recipe, policy, seed = case
    params: dict[str, Value] = {
        "recipe": str(recipe),
        "policy": policy,
        "releases": ",".join(map(str, protocol.releases)),
        "decoys": None if decoys is None else decoys.checksum,
    }
    return Task(
        name="releases",
        samples=[sample],
        predict=partial(_predict, albums, protocol.releases, case, decoys),
        score=score_guesses,
        summarise=figure_by_figure("people"),
        params=params,
        seed=seed,
        version=VERSION,
    )


def _predict(albums: Albums, releases: Sequence[int], case: Case, decoys: Decoys | None, sample: Sample) -> Prediction:
    """Release photos, guess after each number, and return distances to the released photos and to the unreleased one.

    Several photos count as their mean: what they have in common is the person.
    """
    recipe, policy, seed = case
    values = albums.faces.values
    first, unreleased = values[albums.photos[:, 0]], values[albums.photos[:, -1]]
    templates = release(albums, recipe, decoys, policy=policy, seed=seed)
    count = recipe.lifting.decoy_count if recipe.lifting is not None else 0
    prior = (values if decoys is None else decoys.descriptors).mean(axis=0)
    prediction: dict[str, NDArray[Any]] = {"threshold": np.array(clear_threshold(albums))}
    prediction["genuine"] = np.linalg.norm(first - unreleased, axis=1)
    for number in releases:
        own = templates[:number]
        photos = 1 if policy == "remembered" else number
        released = unit_length(values[albums.photos[:, :photos]].mean(axis=1))
        for name, guesses in (
            ("meeting", meeting_points(own)),
            ("stripped", stripped_points(own, decoys, count)),
        ):
            unit = unit_length(guesses if own else np.broadcast_to(prior, first.shape))
            prediction[f"{name} {number} released"] = np.linalg.norm(unit - released, axis=1)
            prediction[f"{name} {number} kept"] = np.linalg.norm(unit - unreleased, axis=1)
    return prediction


def release(albums: Albums, recipe: Recipe, decoys: Decoys | None, *, policy: str, seed: int) -> list[Subspaces]:
    """Return the templates of every person that an attacker sees, one set per release; none with a third party."""
    rows = albums.photos[:, :-1].T
    if policy == "third party":
        return []
    templates = [
        lift_faces(albums.faces[photos], recipe, decoys, seed=seed)
        for photos in rows[: None if policy == "independent" else 1]
    ]
    if policy == "independent":
        return templates
    if policy == "remembered":
        return templates * len(rows)
    tilt = TILT if policy == "near-parallel" else 0.0
    rng = np.random.default_rng([seed, 1])
    shape, n = templates[0].basis.shape, templates[0].ambient_dim
    for photos in rows[1:]:
        turned = templates[0].basis + tilt * rng.normal(size=shape) / np.sqrt(n)
        templates.append(Subspaces(albums.faces.values[photos], turned))
    return templates


def clear_threshold(albums: Albums) -> float:
    """Return the distance that one in a thousand pairs of clear photos of two people is below."""
    values = albums.faces.values[albums.photos[:, [0, -1]]]
    squared = 2 - 2 * values[:, 0] @ values[:, 1].T
    others = squared[~np.eye(len(squared), dtype=bool)]
    return float(np.sqrt(max(0.0, np.quantile(others, FALSE_ACCEPTS))))


def score_guesses(sample: Sample, prediction: Prediction) -> Figures:
    """Return, for each number of releases, the distance of guesses and the share that pass for the person."""
    threshold = float(prediction["threshold"])
    genuine = float((prediction["genuine"] <= threshold).mean())
    figures = {"genuine accepted": genuine, "people": float(len(prediction["genuine"]))}
    figures["genuine distance"] = float(np.median(prediction["genuine"]))
    for name, values in prediction.items():
        if not name.endswith((" released", " kept")):
            continue
        attack, number, which = name.split()
        if which == "released":
            figures[f"{attack} after {number}, distance"] = float(np.median(values))
        else:
            figures[f"{attack} after {number}, accepted"] = float((values <= threshold).mean())
    return figures


def release_table(records: Iterable[Record]) -> Table:
    """Return one row per recipe and policy: shares of guesses that pass for the person, and their distances."""
    groups = group_by_seed(records)
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    return make_table(groups, ("recipe", "policy"), {name: name for name in names})
