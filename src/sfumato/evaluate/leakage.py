# SPDX-License-Identifier: Apache-2.0
"""What an attacker gets out of concealed features: descriptors, and the picture (Table 1 of the paper's supplement).

Each photo is concealed under each recipe and attacked in every way the attacker's tools allow. What is recovered is
compared with the clear descriptors, painted by an inverter, and the picture compared with the photo.

*The floor*: the same inverter given the same keypoints and one constant descriptor. Structural similarity alone says
little, a flat grey picture has 0.3 of it; leakage is (similarity - floor) / (clear - floor), over the same photos.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sfumato.attack.knowledge import MEANINGS
from sfumato.attack.table import NEVER_NEGATIVE
from sfumato.concealment.encoders import resolve
from sfumato.errors import InputError, suggest
from sfumato.evaluate.attackers import Tools
from sfumato.evaluate.intruder import SCORE_VERSION, VARIANTS, VERSION, Case, Intruder, Scale, needs_on
from sfumato.evaluate.painters import KEYPOINTS
from sfumato.evaluate.results import Results
from sfumato.evaluate.runner import Measured, measure, note, run
from sfumato.evaluate.staged import STAGED, StagedIntruder, staged_cases
from sfumato.evaluate.subjects import POINTS, ClearFeatures, Subject, choose_decoys, choose_subjects
from sfumato.evaluate.tables import Table, group_by_seed, make_table
from sfumato.evaluate.task import Sample, Task, digest_data
from sfumato.features.local import LocalParams, extract, extractor_of
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

    Raises FileError if the folder can not be written. A photo that can not be measured is named in the records.
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
            continue  # it can not be made on what went through an encoder, or only there
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


def table_of(records: Iterable[Record]) -> Table:
    """Return recovered distances, picture scores and leakage, one row for each recipe and attack."""
    groups = group_by_seed(records)
    used = {title: name for title, name in SHOWN.items() if any(group.values(name) for group in groups)}
    return make_table(groups, ("descriptor", "recipe", "attack", "inverter"), used)
