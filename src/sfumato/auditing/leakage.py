# SPDX-License-Identifier: Apache-2.0
"""Leakage evaluation: descriptors and pictures that attackers get out of concealed features (supplement, Table 1).

Each photo is concealed under each recipe and attacked in every way the attacker's tools allow. What is recovered is
compared with the clear descriptors, painted by an inverter, and the picture compared with the photo.

*The floor*: the same inverter given the same keypoints and one constant descriptor. Structural similarity alone says
little, a flat grey picture has 0.3 of it; leakage is (similarity - floor) / (clear - floor), over the same photos.

On several processes the results are the same as on one. A worker is sent paths and settings, never arrays, and opens
the attacker's tools itself. It attacks one photo under one recipe at a time, so that what the attacks on it share is
made once. It writes the predictions, each in a file of its own; scores, which share a file, are written here.
"""

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sfumato.attacks.knowledge import MEANINGS
from sfumato.attacks.registry import ATTACKS, AttackId, single_attacks, two_stage_attacks
from sfumato.auditing.attack_task import AttackData, AttackTask
from sfumato.auditing.releases import Shown
from sfumato.auditing.runner import Results, SampleScores, note, run_task
from sfumato.auditing.subjects import POINTS, ClearFeatures, Subject, choose_decoys, choose_subjects
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Sample, digest_data
from sfumato.auditing.toolbox import Toolbox, Tools
from sfumato.auditing.two_stage import two_stage_tasks
from sfumato.concealment.resolve import resolve
from sfumato.errors import InputError, WorkerError, suggest
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.matching.executors import local_processes
from sfumato.subspace.fast import limit_threads, thread_count
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record

RECIPES = ("raw", "random-2", "sub-hybrid-2", "sub-hybrid-4")

CLEAR, FLOOR, DIRECT = (AttackId(name) for name in ("clear", "floor", "direct"))
"""Pictures of the clear descriptors and of a mean one, the two ends of the scale; and by an inverter trained on what
the recipe releases."""

SHOWN = {"median distance": "median", "within 0.02": "within 0.02", "within 0.1": "within 0.1",
         "within 0.3": "within 0.3", "lifted within 0.1": "lifted within 0.1",
         "SSIM": "ssim", "PSNR": "psnr", "MAE": "mae", "SSIM colour": "ssim_rgb",
         "outlines": "outlines", "leakage": "leakage", "from": "leakage low", "to": "leakage high"}  # fmt: skip
"""Titles of the table, and the scores behind them."""

PLAIN_BYTES, COPIES = 500 << 20, 4
"""Memory of a worker by itself, and how many times the descriptors it is given: as they are, and to search them."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def measurable_attacks() -> dict[str, AttackId]:
    """Return by label the attacks that a protocol may name."""
    return {**single_attacks(), DIRECT.label: DIRECT, **two_stage_attacks()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakageProtocol:
    """Recipes, attacks by label and seeds to measure; no ``attacks`` means all that the tools allow."""

    recipes: tuple[str, ...] = RECIPES
    attacks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))

    def __post_init__(self) -> None:
        unknown = [name for name in self.attacks if name not in measurable_attacks()]
        if unknown:
            hint = suggest(unknown[0], measurable_attacks())
            names = ", ".join((*single_attacks(), DIRECT.label))
            raise InputError(f"attacks: {unknown[0]!r:.80} is none of {names}, nor a pair of stages{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakageJob:
    """Leakage evaluation as paths and settings, which a worker can be sent."""

    photos: tuple[tuple[str, Path], ...]
    protocol: LeakageProtocol
    toolbox: Toolbox
    released: Shown | None = field(default=None, hash=False, compare=False)

    def plan(self) -> "LeakagePlan":
        """Read the tools and return the tasks; raises as ``plan_leakage`` does."""
        plan = plan_leakage(dict(self.photos), self.protocol, self.toolbox.open(), self.released)
        return replace(plan, job=self)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LeakagePlan:
    """All attack tasks of an evaluation, the scale first, and the job they come from, if workers are to do them."""

    tasks: Sequence[AttackTask]
    samples: Sequence[Sample]
    job: LeakageJob | None = None

    def only(self, is_included: Callable[[AttackTask], bool]) -> "LeakagePlan":
        """Return the plan with some of the tasks."""
        return replace(self, tasks=[task for task in self.tasks if is_included(task)])

    def summarise(self, folder: str | Path) -> list[Record]:
        """Score everything; leakage is on the scale of the usual inverter of clear features."""
        scale: dict[str, Mapping[str, float]] = {}
        for task in self.tasks:
            if task.is_scale:
                run_task(task.task(), folder)
                scores = Results(folder, task.task()).scores()
                similarity = {sample.key: scores[sample][0]["ssim"] for sample in self.samples if sample in scores}
                scale[task.attack.name] = similarity
        return [run_task(task.task(scale), folder) for task in self.tasks]


def evaluate_leakage(
    plan: LeakagePlan,
    folder: str | Path,
    *,
    workers: int | None = 1,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Attack every photo under every recipe; return one record for each recipe, attack and seed.

    What was measured before is not measured again, unless ``overwrite`` forgets it. What is kept of each photo are
    distances and the painted picture; no descriptor is written anywhere. ``workers``: processes, None for one per core
    and photo as far as memory allows; more than one needs a plan that comes from a job.

    Raises FileError if the folder cannot be written, WorkerError if a worker dies; what was finished is kept. A photo
    that cannot be measured is named in the records.
    """
    for task in plan.tasks:
        results = Results(folder, task.task())  # makes its folder: workers only add to it
        if overwrite:
            results.forget(plan.samples)
    count = count_workers(workers, plan)
    if count > 1:
        _measure_on(count, plan, folder, progress)
    else:
        for sample, task in progress([(sample, task) for sample in plan.samples for task in plan.tasks]):
            scores = task.measure(folder, sample)
            if scores is not None:
                note(task.task(), folder, sample, scores)
    return plan.summarise(folder)


# --- the plan


def plan_leakage(
    photos: Mapping[str, Path], protocol: LeakageProtocol, tools: Tools, released: Shown | None = None
) -> LeakagePlan:
    """Return all tasks that the protocol asks for and the tools allow; ``photos`` are paths by name.

    ``released``: what the attacker has of the positions of sealed features; None for all of them, as archives hold them
    that were made with --positions.

    Raises InputError where there is nothing to measure or a tool is missing, DecoyError where decoys do not fit.
    """
    if not photos:
        raise InputError("there is no photo to attack")
    extractor = extractor_of(protocol.local)
    subjects = choose_subjects(protocol.recipes, ("p-to-s",), protocol.seeds, extractor.name)
    tools = replace(tools, decoys=choose_decoys(subjects, extractor, tools.decoys))
    tools.check_public(extractor)
    samples = [Sample(name, digest_data(path)) for name, path in photos.items()]
    clear = ClearFeatures(lambda path: extract(path, protocol.local))
    data = AttackData(photos, samples, clear, tools, extractor, released)
    return LeakagePlan(choose_tasks(subjects, protocol.attacks, data), samples)


def choose_tasks(subjects: Sequence[Subject], labels: Sequence[str], data: AttackData) -> list[AttackTask]:
    """Return every attack on every subject that the tools allow, after the two ends of the scale.

    What other inverters paint of clear features stands beside them: it says how strong they are.

    Raises InputError if no inverter fits these descriptors, or an attack by name needs a tool that is missing.
    """
    kind, tools, raw = data.extractor.name, data.tools, Subject(Recipe.of("raw"), POINTS, None)
    usual = tools.clear_inverter(kind, raw.recipe)
    others = [one for one in tools.inverters_for(kind, "raw") if one is not usual and not one.is_blind]
    tasks = [AttackTask(raw, end, usual, data) for end in (CLEAR, FLOOR)]
    tasks += [AttackTask(raw, CLEAR, one, data) for one in others]
    for subject in subjects:
        if not subject.recipe.is_clear:
            tasks += tasks_on(subject, labels, data)
    return tasks


def tasks_on(subject: Subject, labels: Sequence[str], data: AttackData) -> list[AttackTask]:
    """Return the attacks on one subject: all that fit and the tools allow, or those with these labels."""
    kind, tools, recipe = data.extractor.name, data.tools, subject.recipe
    inverter = tools.clear_inverter(kind, recipe)
    two_stage = two_stage_tasks(subject, data)
    tasks = [task for task in two_stage if not labels or task.attack.label in labels]
    readers, blind = tools.inverters_of_readings(kind, str(recipe)), tools.blind_inverters(kind, recipe)
    unfit = set(labels) & set(two_stage_attacks()) - {task.attack.label for task in two_stage}
    if not labels:
        tasks += [AttackTask(subject, AttackId(one.architecture), one, data) for one in blind]
    for label in labels or (*fitting_attacks(recipe, kind), DIRECT.label):
        if label in two_stage_attacks():
            continue
        if label == DIRECT.label:
            tasks += _direct_tasks(subject, data, is_required=bool(labels))
            continue
        attack = single_attacks()[label]
        if attack.knows_on(recipe) is None:
            unfit.add(label)
        elif _is_possible(attack, recipe, data, is_required=bool(labels)):
            tasks += [AttackTask(subject, attack, one, data) for one in (inverter, *readers)]
    if labels and unfit == set(labels):
        raise InputError(f"attacks: none of {', '.join(labels)} fits {recipe}")
    return tasks


def fitting_attacks(recipe: Recipe, kind: str) -> list[str]:
    """Return the labels of attacks in one stage that make sense on what a recipe releases of a kind of descriptor."""
    encoders = resolve(recipe).encoders
    same_dim = not recipe.is_sealed and (not encoders or encoders[0].input_dim == encoders[-1].output_dim)
    attacks = single_attacks().values()
    return [one.label for one in attacks if ATTACKS[one.name].fits(recipe, kind, same_dim=same_dim)]


def _is_possible(attack: AttackId, recipe: Recipe, data: AttackData, *, is_required: bool) -> bool:
    """Tell whether the tools allow an attack; raise InputError if they do not and it was named."""
    known = data.tools.known_fields(data.extractor.name, str(recipe))
    missing = [need for need in attack.knows_on(recipe) or () if need not in known]
    has_decoys = recipe.lifting is not None and recipe.lifting.decoy_count > 0
    if missing == ["decoys"] and not has_decoys:
        return False  # the recipe has none that could be known
    if missing and is_required:
        words = " and ".join(MEANINGS[need] for need in missing)
        raise InputError(f"the attack {attack.label} on {recipe} needs {words}")
    return not missing


def _direct_tasks(subject: Subject, data: AttackData, *, is_required: bool) -> list[AttackTask]:
    """Return direct inversion, with every inverter trained on what the recipe releases."""
    kind, recipe = data.extractor.name, str(subject.recipe)
    inverters = data.tools.inverters_for(kind, recipe)
    if is_required and not inverters:
        raise InputError(
            f"the attack {DIRECT.label} needs an inverter for {recipe} of {kind} in the folder of models: train one "
            f"with sfumato train inverter --recipe {recipe}"
        )
    return [AttackTask(subject, DIRECT, one, data) for one in inverters]


# --- records


def leakage_table(records: Iterable[Record]) -> Table:
    """Return recovered distances, picture scores and leakage, one row for each recipe and attack."""
    groups = group_by_seed(records)
    used = {title: name for title, name in SHOWN.items() if any(group.values(name) for group in groups)}
    return make_table(groups, ("descriptor", "recipe", "attack", "inverter"), used)


def with_facts(record: Record) -> Record:
    """Return a record of an attack with what the registry says about it, which older versions did not write."""
    if "attack" not in record.params or "counts" in record.params:
        return record
    return replace(record, params={**record.params, **AttackId.of(record.params).facts.params})


# --- several processes


def count_workers(workers: int | None, plan: LeakagePlan) -> int:
    """Return the number of processes: this many, or by default one per core, per photo, and per share of the memory.

    Raises InputError for less than 1.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers: expected 1 or more, got {workers}")
    if workers is not None or plan.job is None:
        return workers or 1
    size = plan.tasks[0].data.tools.size_bytes if plan.tasks else 0
    return max(1, min(thread_count(None), len(plan.samples), free_bytes() // (PLAIN_BYTES + COPIES * size)))


def _measure_on(
    workers: int, plan: LeakagePlan, folder: str | Path, progress: Callable[[Sequence[Any]], Iterable[Any]]
) -> None:
    """Attack every photo on several processes, and keep the scores."""
    if plan.job is None:
        raise InputError("workers: several need a plan that comes from a job")
    by_digest = {task.task().settings_digest: task for task in plan.tasks}
    threads = max(1, thread_count(None) // workers)
    try:
        with local_processes(workers) as pool:
            futures = {
                pool.submit(
                    _measure_photo, plan.job, str(folder), threads, (sample.key, sample.digest), digests
                ): sample
                for sample in plan.samples
                for digests in _by_recipe(by_digest)
            }
            for _ in progress(_Finished(futures, by_digest, folder)):  # type: ignore[arg-type]
                pass
    except BrokenExecutor as cause:
        raise WorkerError(
            "leakage: a worker died; what was finished is kept. Run it again, with fewer --workers if memory is short"
        ) from cause


class _Finished:
    """Photos under attacks as workers finish them, and how many there will be, for a progress bar."""

    def __init__(
        self, futures: Mapping[Future[Any], Sample], tasks: Mapping[str, AttackTask], folder: str | Path
    ) -> None:
        self._futures, self._tasks, self._folder = futures, tasks, folder

    def __len__(self) -> int:
        return len(self._tasks) * len(set(self._futures.values()))

    def __iter__(self) -> Generator[tuple[Sample, AttackTask], None, None]:
        for future in as_completed(self._futures):
            sample = self._futures[future]
            for digest, scores in future.result():
                if scores is not None:
                    note(self._tasks[digest].task(), self._folder, sample, scores)
                yield sample, self._tasks[digest]


def _by_recipe(tasks: Mapping[str, AttackTask]) -> list[tuple[str, ...]]:
    """Return the digests of tasks, those on one recipe and seed together."""
    groups: dict[str, list[str]] = {}
    for digest, task in tasks.items():
        groups.setdefault(str(task.subject), []).append(digest)
    return [tuple(group) for group in groups.values()]


def free_bytes() -> int:
    """Return how much memory is available now, as far as the system says."""
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


def _measure_photo(
    job: LeakageJob, folder: str, threads: int, sample_id: tuple[str, str], digests: tuple[str, ...]
) -> list[tuple[str, SampleScores | None]]:
    """Attack one photo in the ways with these digests, in a worker; return the new scores of each.

    Raises InputError if a file was changed since the job was planned.
    """
    plan, sample = _plan_in_worker(job, threads), Sample(*sample_id)
    by_digest = {task.task().settings_digest: task for task in plan.tasks}
    if sample not in plan.samples or not set(digests) <= set(by_digest):
        raise InputError(f"{sample.key}: photos, decoys or models were changed while they were measured: run it again")
    return [(digest, by_digest[digest].measure(folder, sample)) for digest in digests]


@lru_cache(maxsize=1)
def _plan_in_worker(job: LeakageJob, threads: int) -> LeakagePlan:
    """Plan the job in this process, once, and limit it to its share of the cores."""
    from threadpoolctl import threadpool_limits

    limit_threads(threads)
    os.environ.update(dict.fromkeys(THREADS, str(threads)))  # for libraries that are loaded later
    threadpool_limits(threads)
    return job.plan()
