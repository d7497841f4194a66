# SPDX-License-Identifier: Apache-2.0
"""What an attacker gets out of concealed features: descriptors, and the picture (Table 1 of the paper's supplement).

Each photo is concealed under each recipe and attacked in every way the attacker's tools allow. What is recovered is
compared with the clear descriptors, painted by an inverter, and the picture compared with the photo.

*The floor*: the same inverter given the same keypoints and one constant descriptor. Structural similarity alone says
little, a flat grey picture has 0.3 of it; leakage is (similarity - floor) / (clear - floor), over the same photos.
"""

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sfumato.attacks.knowledge import MEANINGS
from sfumato.attacks.registry import NEVER_NEGATIVE
from sfumato.auditing.attack_task import SCORE_VERSION, VARIANTS, VERSION, Case, Intruder, Scale, needs_on
from sfumato.auditing.runner import Measured, Results, measure, note, run
from sfumato.auditing.subjects import POINTS, ClearFeatures, Subject, choose_decoys, choose_subjects
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Sample, Task, digest_data
from sfumato.auditing.toolbox import KEYPOINTS, Toolbox, Tools
from sfumato.auditing.two_stage import STAGED, StagedIntruder, staged_cases
from sfumato.concealment.resolve import resolve
from sfumato.errors import InputError, WorkerError, suggest
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.matching.executors import local_processes
from sfumato.subspace.fast import limit_threads, thread_count
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record

RECIPES = ("raw", "random-2", "sub-hybrid-2", "sub-hybrid-4")
SCALE = ("clear", "floor")
"""What leakage is measured on: the picture of the clear descriptors, and that of a mean one at each keypoint."""

UNCOUNTED = ("oracle", "known-pairs", "key-recovery")
"""Beginnings of the names of attacks that are shown and not counted: they know the answer, or had the key's holder seal
for them."""

DIRECT = "direct"
"""The attack by an inverter that was trained on what this very recipe releases."""

SHOWN = {"median distance": "median", "within 0.02": "within 0.02", "within 0.1": "within 0.1",
         "within 0.3": "within 0.3", "lifted within 0.1": "lifted within 0.1",
         "SSIM": "ssim", "PSNR": "psnr", "MAE": "mae", "SSIM colour": "ssim_rgb",
         "leakage": "leakage", "from": "leakage low", "to": "leakage high"}  # fmt: skip
"""Titles of the table, and the scores behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakageProtocol:
    """What is measured: every recipe with every attack and seed; no ``attacks`` means all that the tools allow."""

    recipes: tuple[str, ...] = RECIPES
    attacks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))

    def __post_init__(self) -> None:
        known = (*VARIANTS, DIRECT, *STAGED)
        unknown = [name for name in self.attacks if name not in known]
        if unknown:
            hint = suggest(unknown[0], known)
            told = ", ".join((*VARIANTS, DIRECT))
            raise InputError(f"attacks: {unknown[0]!r:.80} is none of {told}, nor two of them in stages{hint}")


def evaluate_leakage(
    works: "Works",
    folder: str | Path,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Attack every photo under every recipe; return one record for each recipe, attack and seed.

    What was measured before is not measured again, unless ``overwrite`` forgets it. Photos are worked through one at a
    time. What is kept of each are distances and the painted picture; no descriptor is written anywhere.

    Raises FileError if the folder cannot be written. A photo that cannot be measured is named in the records.
    """
    if overwrite:
        for work in works.made:
            Results(folder, work.task()).forget(works.samples)
    for sample, work in progress([(sample, work) for sample in works.samples for work in works.made]):
        measured = work.measure(folder, sample)
        if measured is not None:
            note(work.task(), folder, sample, measured)
    return works.summarise(folder)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Work:
    """One intruder and the photos it works on."""

    intruder: Intruder
    samples: Sequence[Sample]

    def measure(self, folder: str | Path, sample: Sample) -> Measured | None:
        """Attack one photo, and keep what that gave; return the scores, if they are new."""
        self.intruder.work_on(sample)
        return measure(self.task(), folder, sample)

    def task(self, scale: Scale | None = None) -> Task:
        """Return the task; with a scale its record also tells the leakage."""
        return Task(
            name="leakage",
            samples=self.samples,
            predict=self.intruder.predict,
            score=self.intruder.score,
            summarise=lambda figures: self.intruder.summarise(figures, scale or {}),
            params=self.intruder.params,
            seed=self.intruder.case.subject.seed,
            version=VERSION,
            score_version=SCORE_VERSION,
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Works:
    """All that is to be done, the scale first."""

    made: Sequence[Work]
    samples: Sequence[Sample]

    def summarise(self, folder: str | Path) -> list[Record]:
        """Score everything; leakage is on the scale of the inverter for clear descriptors of the same architecture."""
        scales: dict[str, Scale] = {}
        for work in self.made:
            case = work.intruder.case
            if case.attack in SCALE and case.painter.recipe == "raw":
                run(work.task(), folder)
                kept = Results(folder, work.task()).scores()
                similar = {one.key: kept[one][0]["ssim"] for one in self.samples if one in kept}
                scales[case.painter.scale] = {**scales.get(case.painter.scale, {}), case.attack: similar}
        return [run(work.task(scales.get(work.intruder.case.painter.scale)), folder) for work in self.made]


def plan_leakage(photos: Mapping[str, Path], protocol: LeakageProtocol, tools: Tools) -> Works:
    """Return all that the protocol asks for and the tools allow; ``photos`` are paths by name.

    Raises InputError where there is nothing to measure or a tool is missing, DecoyError where decoys do not fit.
    """
    if not photos:
        raise InputError("there is no photo to attack")
    extractor = extractor_of(protocol.local)
    subjects = choose_subjects(protocol.recipes, ("p-to-s",), protocol.seeds)
    given = replace(tools, decoys=choose_decoys(subjects, extractor, tools.decoys))
    given.check_public(extractor)
    samples = [Sample(name, digest_data(path)) for name, path in photos.items()]
    clear = ClearFeatures(lambda path: extract(path, protocol.local))
    cases = choose_cases(subjects, protocol.attacks, extractor.name, given)
    made = [
        (StagedIntruder if case.attack in STAGED else Intruder)(case, photos, clear, given, extractor) for case in cases
    ]
    return Works([Work(intruder, samples) for intruder in made], samples)


def choose_cases(subjects: Sequence[Subject], attacks: Sequence[str], kind: str, tools: Tools) -> list[Case]:
    """Return every attack on every subject that the tools allow, after the scale and what keypoints alone show.

    Raises InputError if nothing at hand inverts these descriptors, or an attack that was asked for needs a tool that is
    missing.
    """
    clear = [one for one in tools.painters_for(kind, "raw") if one.architecture != KEYPOINTS]
    blind = [one for one in tools.painters_for(kind, "raw") if one.architecture == KEYPOINTS]
    if tools.painter(kind, "raw") is None:
        raise InputError(
            f"no inverter for clear {kind} is at hand: train one with sfumato train inverter --descriptor {kind}, and "
            f"put it into the folder of models"
        )
    raw = Subject(Recipe.of("raw"), POINTS, None)
    cases = [Case(raw, attack, painter) for painter in clear for attack in SCALE]
    cases += [Case(raw, KEYPOINTS, painter) for painter in blind]
    for subject in subjects:
        if not subject.recipe.is_clear:
            cases += cases_of(subject, attacks, kind, tools)
    return cases


def cases_of(subject: Subject, attacks: Sequence[str], kind: str, tools: Tools) -> list[Case]:
    """Return the attacks on one subject: all that the tools allow, or those that were asked for."""
    recipe, painter = str(subject.recipe), tools.painter(kind, "raw")
    assert painter is not None
    known = tools.knowledge_about(kind, recipe)
    has_decoys = subject.recipe.lifting is not None and subject.recipe.lifting.decoy_count > 0
    direct, readers = tools.painters_for(kind, recipe), tools.painters_of_readings(kind, recipe)
    staged = staged_cases(subject, kind, tools)
    cases = [case for case in staged if not attacks or case.attack in attacks]
    unfit, foreign = unfit_for(subject.recipe, kind), set[str]()
    for name in attacks or (*(one for one in VARIANTS if VARIANTS[one][0] not in unfit), DIRECT):
        if name in STAGED:
            if not any(case.attack == name for case in staged):
                foreign.add(name)
            continue
        if name == DIRECT:
            if attacks and not direct:
                raise InputError(
                    f"the attack {DIRECT} needs an inverter for {recipe} of {kind} in the folder of models: "
                    f"sfumato train inverter --recipe {recipe} makes one"
                )
            cases += [Case(subject, which, one) for one in direct for which in (DIRECT, "floor")]
            continue
        needs = needs_on(name, subject.recipe)
        if needs is None:
            foreign.add(name)
            continue  # it cannot be made on what went through an encoder, or only there
        missing = [MEANINGS[need] for need in needs if need not in known]
        if missing == [MEANINGS["decoys"]] and not has_decoys:
            continue  # there are none to be known
        if missing and attacks:
            raise InputError(f"the attack {name} on {recipe} needs {' and '.join(missing)}")
        if not missing:
            cases += [Case(subject, name, one) for one in (painter, *readers)]
    cases += [Case(subject, "floor", one) for one in readers]
    if attacks and foreign == set(attacks):
        raise InputError(f"of the attacks that were asked for, {', '.join(attacks)}, none is for {recipe}")
    return cases


def counts(attack: str) -> bool:
    """Tell whether an attack takes part in the worst case: no scale, no oracle, no help of who has the key."""
    return attack not in SCALE and not attack.startswith(UNCOUNTED)


def unfit_for(recipe: Recipe, kind: str) -> set[str]:
    """Return the attacks that make no sense on what a recipe releases of a kind of descriptor, unless asked for."""
    unfit = {"bounded" if kind in NEVER_NEGATIVE else "vertex"}
    encoders = resolve(recipe).encoders
    if encoders and encoders[0].input_dim != encoders[-1].output_dim:
        unfit |= {"nearest-base", "oracle-base", "oracle-encoded"}
    return unfit


def leakage_table(records: Iterable[Record]) -> Table:
    """Return recovered distances, picture scores and leakage, one row for each recipe and attack."""
    groups = group_by_seed(records)
    used = {title: name for title, name in SHOWN.items() if any(group.values(name) for group in groups)}
    return make_table(groups, ("descriptor", "recipe", "attack", "inverter"), used)


# ----------------------------------------------------------------
# The leakage evaluation on several processes of this machine, with the same results as on one
# A worker is sent paths and settings, never arrays, and opens the attacker's tools itself. It is given one photo under
# one recipe at a time, so that what the attacks on it share is made once. It writes the predictions, each in a file of
# its own; scores, which share a file, come back and are written here. Knows how work is shared out, not what it is.


PLAIN_BYTES, COPIES = 500 << 20, 4
"""What a worker takes by itself, and how many times the descriptors it is given: as they are, and to search them."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All that is to be measured, as paths and settings: what a worker can be sent."""

    photos: tuple[tuple[str, Path], ...]
    protocol: LeakageProtocol
    toolbox: Toolbox

    def plan(self) -> Works:
        """Read the tools and return what there is to do; raises as ``plan_leakage`` does."""
        return plan_leakage(dict(self.photos), self.protocol, self.toolbox.open())


def count_workers(wanted: int | None, works: Works) -> int:
    """Return how many processes to use: so many, or by default one a core, a photo, and a share of the memory.

    Raises InputError for less than 1.
    """
    if wanted is not None:
        if wanted < 1:
            raise InputError(f"workers: expected 1 or more, got {wanted}")
        return wanted
    held = works.made[0].intruder.tools.held_bytes
    return max(1, min(thread_count(None), len(works.samples), free_bytes() // (PLAIN_BYTES + COPIES * held)))


def evaluate_on(
    workers: int,
    order: Order,
    works: Works,
    folder: str | Path,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Do what ``evaluate_leakage`` does with ``works``, the plan of ``order``, on so many processes; 1 is this one.

    Raises WorkerError if a worker dies; what was finished is kept.
    """
    if workers == 1:
        return evaluate_leakage(works, folder, progress=progress, overwrite=overwrite)
    by_digest = {work.task().settings_digest: work for work in works.made}
    for work in works.made:
        results = Results(folder, work.task())  # makes its folder: workers only add to it
        if overwrite:
            results.forget(works.samples)
    threads = max(1, thread_count(None) // workers)
    try:
        with local_processes(workers) as pool:
            tasks = {
                pool.submit(measure_photo, order, str(folder), threads, (sample.key, sample.digest), digests): sample
                for sample in works.samples
                for digests in _by_recipe(by_digest)
            }
            for _ in progress(_Units(tasks, by_digest, folder)):  # type: ignore[arg-type]
                pass
    except BrokenExecutor as cause:
        raise WorkerError(
            "leakage: a worker died; what was finished is kept, run it again, with fewer --workers if memory is short"
        ) from cause
    return works.summarise(folder)


class _Units:
    """Every photo under every attack, as they are finished; as many as there are, for whoever shows progress."""

    def __init__(self, tasks: Mapping[Future[Any], Sample], works: Mapping[str, Work], folder: str | Path) -> None:
        self._tasks, self._works, self._folder = tasks, works, folder

    def __len__(self) -> int:
        return len(self._works) * len(set(self._tasks.values()))

    def __iter__(self) -> Generator[tuple[Sample, Work], None, None]:
        for task in as_completed(self._tasks):
            sample = self._tasks[task]
            for digest, measured in task.result():
                if measured is not None:
                    note(self._works[digest].task(), self._folder, sample, measured)
                yield sample, self._works[digest]


def _by_recipe(works: Mapping[str, Work]) -> list[tuple[str, ...]]:
    """Return the digests of works, those on one recipe and seed together."""
    groups: dict[str, list[str]] = {}
    for digest, work in works.items():
        groups.setdefault(str(work.intruder.case.subject), []).append(digest)
    return [tuple(group) for group in groups.values()]


def free_bytes() -> int:
    """Return how much memory could be had now, as far as the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass  # not Linux
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 4 << 30


# ----------------------------------------------------------------
# what runs in a worker


def measure_photo(
    order: Order, folder: str, threads: int, named: tuple[str, str], digests: tuple[str, ...]
) -> list[tuple[str, Measured | None]]:
    """Attack one photo in the ways with these digests; return the new scores of each.

    Raises InputError if a file was changed since the work was planned.
    """
    works, sample = _opened(order, threads), Sample(*named)
    if sample not in works.samples or not all(digest in works.by_digest for digest in digests):
        raise InputError(f"{sample.key}: photos, decoys or models were changed while they were measured: run it again")
    return [(digest, works.by_digest[digest].measure(folder, sample)) for digest in digests]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Opened:
    samples: frozenset[Sample]
    by_digest: Mapping[str, Work]


@lru_cache(maxsize=1)
def _opened(order: Order, threads: int) -> _Opened:
    """Plan the work in this process, once, and keep it to its share of the cores."""
    from threadpoolctl import threadpool_limits

    limit_threads(threads)
    os.environ.update(dict.fromkeys(THREADS, str(threads)))  # for libraries that are loaded later
    threadpool_limits(threads)
    works = order.plan()
    return _Opened(frozenset(works.samples), {work.task().settings_digest: work for work in works.made})
