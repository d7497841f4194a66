# SPDX-License-Identifier: Apache-2.0
"""Calibration of a gallery: the threshold, measured on faces of other people.

Runs where clear embeddings may be seen. The faces should be of people who are neither enrolled nor among the decoys.

The rate of a threshold is that of impostors with faces of their own. Where embeddings have a common part their mean is
near all of them, where people are alike the middle of a crowd is near many: an impostor with a key sends such a point,
which is no face. This is measured too, and told.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys, as_decoys
from sfumato.concealment.faces import conceal_embeddings, split_decoys
from sfumato.concealment.keys import new_key
from sfumato.concealment.seal import without_key
from sfumato.errors import FileError, InputError, MasterProbeWarning
from sfumato.faces.compare import (
    BITS,
    POINT,
    SUBSPACE,
    Threshold,
    checked_comparison,
    choose_threshold,
    pair_distances,
    refuse_coin_throws,
)
from sfumato.faces.enrollment import refuse_decoys
from sfumato.faces.gallery_file import GalleryWriter
from sfumato.faces.probe import (
    FaceInput,
    gallery_decoys,
    need_decoys,
    read_faces,
    refuse_other_network,
    values_by_name,
)
from sfumato.features.faces import FaceParams
from sfumato.types.clear import Embeddings, people_of
from sfumato.types.progress import Progress, identity
from sfumato.types.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateParams:
    """``rate``: share of strangers that may be accepted. ``pairs``: number of pairs compared, drawn with ``seed``."""

    rate: float = 1e-3
    comparison: str | None = None
    pairs: int = 200_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.comparison is not None:
            checked_comparison(self.comparison)
        if self.pairs < 1 or self.seed < 0:
            raise InputError(f"pairs must be positive, seed not negative: got {self.pairs}, {self.seed}")


DEFAULTS = CalibrateParams()

KEYS = 4
"""Keys under which sealed strangers are compared: a threshold is for all keys, not for one."""
MANY_TIMES, MOST = 20, 0.5
"""A probe that is accepted this many times as often as strangers, or as more than half of the people, is told. Of
ArcFace and the adults of LFW the best one is accepted up to ten times as often (benchmarks/faceseals.py)."""
CROWD, MOST_CROWDED = 0.01, 2000
"""Share of pairs of faces that count as alike, and the number of faces among which a crowd is looked for."""


def calibrate(
    faces: FaceInput,
    gallery: str | os.PathLike[str],
    *,
    rate: float = DEFAULTS.rate,
    comparison: str | None = DEFAULTS.comparison,
    decoys: Decoys | str | os.PathLike[str] | None = None,
    people: Mapping[str, str] | Sequence[str] | None = None,
    labels: Mapping[str, str] | ArrayLike | None = None,
    pairs: int = DEFAULTS.pairs,
    seed: int = DEFAULTS.seed,
    params: FaceParams | None = None,
    extractor: str | None = None,
    progress: Progress = identity,
) -> Threshold:
    """Choose the distance up to which a probe is accepted, and store it in a gallery's file.

    ``faces``, pictures or embeddings of many people who are not enrolled, are concealed as the gallery's are, and
    different people compared; nothing of them is kept. ``rate`` is the share of strangers that may be accepted: 0.001
    needs 10,000 pairs of different people. A MasterProbeWarning says that one probe which is no face is accepted as
    many of them: then whoever has the key of a person may need no face. ``people`` names the person on each face, as a
    list or by the face's name; by default it is the name without a number at its end, as LFW has them. ``comparison``,
    ``decoys``, ``labels``, ``params`` and ``extractor`` are those of ``verify``; ``pairs`` limits the pairs, drawn with
    ``seed``.

    Raises InputError where there are too few pairs to measure the rate, DecoyError for a face among the decoys,
    FileError for a file that cannot be read or written.

    >>> import numpy as np, tempfile, sfumato
    >>> strangers = np.random.default_rng(0).normal(size=(80, 64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gallery = f"{folder}/gallery.sqlite"
    ...     _ = sfumato.enroll(np.eye(1, 64), gallery, ids="alice", key=sfumato.new_key())
    ...     calibrate(strangers, gallery, rate=0.01, people=[str(i) for i in range(80)]).impostor_pairs
    6320
    """
    settings = CalibrateParams(rate=rate, comparison=comparison, pairs=pairs, seed=seed)
    embeddings = read_faces(faces, params, extractor=extractor, progress=progress)
    if people is None and not isinstance(faces, str | os.PathLike | Embeddings):
        raise InputError(f"people: give a name for each of the {len(embeddings)} embeddings")
    decoys = as_decoys(decoys)
    with GalleryWriter(gallery) as writer:
        facts = writer.need_facts()
    refuse_other_network(embeddings, facts.extractor, facts.dimensions)
    gallery_decoys(facts.recipe, decoys)
    threshold = measure_threshold(embeddings, facts.recipe, decoys, settings, people=people, labels=labels)
    with GalleryWriter(gallery) as writer:
        if writer.need_facts().id != facts.id:
            raise FileError(f"{gallery}: the gallery was replaced meanwhile; calibrate again")
        with writer.turn():
            writer.set_threshold(threshold)
    return threshold


def measure_threshold(
    embeddings: Embeddings,
    recipe: Recipe,
    decoys: Decoys | None,
    params: CalibrateParams,
    *,
    people: Mapping[str, str] | Sequence[str] | None = None,
    labels: Mapping[str, str] | ArrayLike | None = None,
) -> Threshold:
    """Conceal faces as a gallery does, compare pairs of different people, and choose the threshold.

    Each face is lifted once, and for s-to-s a second time as a probe, with the other half of the decoys. Sealed faces
    are compared under the same key, each of a few in turn: what impostors get who have the key of the person.
    """
    comparison = params.comparison or (BITS if recipe.is_sealed else POINT)
    if recipe.is_sealed != (comparison == BITS):
        raise InputError(f"recipe {recipe} cannot be compared by {comparison}")
    need_decoys(recipe, decoys)
    refuse_decoys(embeddings, decoys)
    by_name = values_by_name(people, embeddings.names, "person")
    persons = people_of(embeddings.names) if people is None else tuple(str(person) for person in np.asarray(by_name))
    if len(persons) != len(embeddings):
        raise InputError(f"people: {len(embeddings)} faces have {len(persons)} names")
    if len(set(persons)) < 2:
        raise InputError(_one_person(embeddings.names, persons, by_name=people is None))
    labels = values_by_name(labels, embeddings.names, "label")
    rows0, rows1 = stranger_pairs(persons, params.pairs, np.random.default_rng(params.seed))
    if recipe.is_sealed:
        distances = _sealed_distances(embeddings, recipe, rows0, rows1)
        threshold = choose_threshold(distances, params.rate, comparison=BITS, people=len(set(persons)))
        refuse_coin_throws(threshold, recipe)
        share = master_probe_accepted(embeddings, persons, recipe, threshold)
        if share > min(MANY_TIMES * params.rate, MOST):
            warnings.warn(_no_face_is_needed(share, params.rate), MasterProbeWarning, stacklevel=3)
        return threshold
    halves = (None, None) if decoys is None else split_decoys(decoys)
    templates = conceal_embeddings(embeddings, recipe, halves[0], labels=labels)
    probes = (
        conceal_embeddings(embeddings, recipe, halves[1], labels=labels)
        if comparison == SUBSPACE
        else embeddings.values
    )
    distances = pair_distances(probes, templates.subspaces, rows0, rows1)
    return choose_threshold(distances, params.rate, comparison=comparison, people=len(set(persons)))


def _sealed_distances(
    embeddings: Embeddings, recipe: Recipe, rows0: NDArray[np.int64], rows1: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the shares of different bits of pairs, a few new keys for all in turn."""
    distances = np.empty(len(rows0))
    for turn in range(KEYS):
        templates = conceal_embeddings(embeddings, without_key(recipe), secret=new_key())
        distances[turn::KEYS] = pair_distances(templates, templates, rows0[turn::KEYS], rows1[turn::KEYS])
    return distances


def master_probe_accepted(
    embeddings: Embeddings, persons: Sequence[str], recipe: Recipe, threshold: Threshold
) -> float:
    """Return the share of people as whom one probe is accepted that is the face of none of them, under a few new keys.

    The mean and the middle of a crowd of one half of the people are compared with the faces of the other half, and the
    better one counts.
    """
    _, of_person = np.unique(np.array(persons, np.str_), return_inverse=True)
    halves = [np.flatnonzero(of_person % 2 == half) for half in (0, 1)]
    points = np.array([point for rows in halves for point in master_points(embeddings.values[rows])])
    probes = Embeddings(points, (), embeddings.extractor)
    accepted = np.zeros(2)
    for _ in range(KEYS):
        key = new_key()
        sealed, sent = (conceal_embeddings(side, without_key(recipe), secret=key) for side in (embeddings, probes))
        for half, rows in enumerate(halves):
            for kind in (0, 1):
                place = np.full(len(rows), 2 * (1 - half) + kind)
                accepted[kind] += (pair_distances(sent, sealed, place, rows) <= threshold.distance).sum()
    return float(accepted.max() / (KEYS * len(embeddings)))


def master_points(values: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean (n,) of faces (N, n), and the middle of those that are like the one which most are like.

    >>> import numpy as np
    >>> [point.round(1).tolist() for point in master_points(np.eye(3)[[0, 0, 1, 2]])]
    [[0.8, 0.4, 0.4], [1.0, 0.0, 0.0]]
    """
    faces = values[:MOST_CROWDED].astype(np.float64)
    cosines = faces @ faces.T
    limit = np.quantile(cosines[~np.eye(len(faces), dtype=bool)], 1 - CROWD) if len(faces) > 1 else 1.0
    alike = cosines >= limit
    middle = faces[alike[alike.sum(axis=1).argmax()]].mean(axis=0)
    mean, middle = (
        point / length if (length := float(np.linalg.norm(point))) > SMALLEST_MEAN else faces[0]
        for point in (values.mean(axis=0, dtype=np.float64), middle)
    )
    return mean, middle


SMALLEST_MEAN = 1e-6


def _no_face_is_needed(share: float, rate: float) -> str:
    return (
        f"one probe that is no face, made of faces of other people, is accepted as {share:.0%} of these people, where "
        f"a stranger's face is accepted as {rate:.2g} of them: whoever has somebody's key may need no more. Limit the "
        f"number of tries and take a smaller rate. If the mean of all embeddings is far from 0, subtract it from every "
        f"embedding, of templates and of probes, and enroll people in a new gallery"
    )


def _one_person(names: Sequence[str], persons: Sequence[str], *, by_name: bool) -> str:
    """Say why there are no two people to compare, and how names make people."""
    if not names:
        return "there is no face to calibrate with: give faces of many people"
    if not by_name:
        return (
            f"all {len(names)} faces are of {persons[0]!r:.80}: give faces of many people, or another table of people"
        )
    return (
        f"all {len(names)} faces would be of one person, {persons[0]!r:.80}: the person is the name without '_' or '-' "
        f"and a number at its end, so that {names[0]!r:.80} is of {persons[0]!r:.80}. Name the person on each face "
        f"with --people TABLE ('name,person'), or give the faces other names"
    )


def stranger_pairs(
    people: Sequence[str], pairs: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of pairs of different people: all, both ways, or about ``pairs`` drawn at random."""
    _, of_person = np.unique(np.array(people, np.str_), return_inverse=True)
    count = len(of_person)
    takes_all = count * count <= 2 * pairs
    rows0, rows1 = np.indices((count, count)).reshape(2, -1) if takes_all else rng.integers(0, count, (2, 2 * pairs))
    strangers = np.flatnonzero(of_person[rows0] != of_person[rows1])
    strangers = strangers if takes_all else strangers[:pairs]
    return rows0[strangers].astype(np.int64), rows1[strangers].astype(np.int64)
