# SPDX-License-Identifier: Apache-2.0
"""Frontier evaluation: matching, maps, training of attackers, attacks and matches, recipe after recipe.

Every part is an evaluation of its own that keeps what it finished; here they are called for the same recipes in one
folder. After each recipe the records so far are handed on, so that an interrupted run leaves a frontier of what it has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.attacks.registry import AttackId
from sfumato.auditing.leakage import LeakageJob, LeakageProtocol, evaluate_leakage
from sfumato.auditing.matching import HomographyProtocol, evaluate_homography
from sfumato.auditing.reference import FrontierPoint, write_frontier
from sfumato.auditing.subjects import choose_decoys, choose_subjects, settled
from sfumato.auditing.toolbox import Toolbox, Tools
from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages, read_posed_folder
from sfumato.experiments.data.generated import make_room_folder
from sfumato.experiments.frontier.matched import evaluate_matched
from sfumato.experiments.frontier.points import FrontierRecords, draw_frontier, frontier_table, locate
from sfumato.experiments.frontier.training import TrainingBudget, missing_for, train_missing
from sfumato.experiments.maps.mapping import MapProtocol, evaluate_map
from sfumato.features.local import LocalParams, extractor_of
from sfumato.files.atomic import write_text
from sfumato.images.homography import HomographySequence
from sfumato.types.recipe import Recipe
from sfumato.types.record import ENOUGH_CODES, AttackRole, Record, Value

Bar = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierJob:
    """Frontier evaluation: what is measured, and with what. Without ``train_photos`` missing networks stay missing."""

    photos: tuple[tuple[str, Path], ...]
    sequences: tuple[HomographySequence, ...]
    scenes: Mapping[str, PosedImages] = field(default_factory=dict)
    recipes: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    toolbox: Toolbox
    train_photos: tuple[Path, ...] = ()
    budget: TrainingBudget = field(default_factory=TrainingBudget)
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    pair_features: int = 2000
    scene_features: int = 2000
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.train_photos and self.toolbox.models is None:
            raise InputError("networks that are trained need a folder: name one with --models")
        inside = {path.resolve() for path in self.train_photos} & {path.resolve() for _, path in self.photos}
        if inside:
            raise InputError(f"{min(inside)} is both attacked and trained on: train on other photos")


def distinct(recipes: Iterable[str], kind: str = "sift") -> list[Recipe]:
    """Return recipes with their encoders read, raw first, each once whatever it is called."""
    by_identity = {one.identity: one for one in (settled(name, kind) for name in ("raw", *recipes))}
    return list(by_identity.values())


def measure_frontier(
    job: FrontierJob,
    folder: str | Path,
    *,
    report: Callable[[str], None] = lambda line: None,
    bar: Callable[[str], Bar] = lambda title: iter,
    overwrite: bool = False,
) -> Iterator[FrontierRecords]:
    """Measure every recipe; yield all that was measured so far, after each.

    Raises as the evaluations do; what was finished is kept, and found again by the same call.
    """
    so_far = FrontierRecords(pairs=())
    for recipe in distinct(job.recipes, job.local.descriptor):
        report(f"{recipe}: matching")
        pairs = _match(job, recipe, folder, bar("matching"), overwrite)
        scenes = _map(job, recipe, folder, report, overwrite)
        so_far = replace(
            so_far,
            pairs=[*so_far.pairs, *pairs],
            scenes={name: [*so_far.scenes.get(name, ()), *records] for name, records in scenes.items()},
        )
        if not recipe.is_clear:
            so_far = _attack(job, recipe, folder, so_far, (report, bar), overwrite)
        yield so_far


def _match(job: FrontierJob, recipe: Recipe, folder: str | Path, bar: Bar, overwrite: bool) -> list[Record]:
    protocol = HomographyProtocol(
        recipes=(str(recipe),),
        distances=("s-to-s",),
        seeds=job.seeds,
        local=replace(job.local, max_features=job.pair_features),
    )
    decoys = job.toolbox.open_decoys()
    return evaluate_homography(job.sequences, folder, protocol, decoys, progress=bar, overwrite=overwrite)


def _map(
    job: FrontierJob, recipe: Recipe, folder: str | Path, report: Callable[[str], None], overwrite: bool
) -> dict[str, list[Record]]:
    protocol = MapProtocol(
        recipes=(str(recipe),),
        seeds=job.seeds[:1],
        local=replace(job.local, max_features=job.scene_features),
        cameras="known",
        baselines=False,
    )
    maps = {}
    for name, images in job.scenes.items():
        report(f"{recipe}: a map of {name}")
        results = evaluate_map(images, folder, protocol, job.toolbox.open_decoys(), overwrite=overwrite)
        maps[name] = [result.record for result in results]
    return maps


def _attack(
    job: FrontierJob,
    recipe: Recipe,
    folder: str | Path,
    so_far: FrontierRecords,
    shown: tuple[Callable[[str], None], Callable[[str], Bar]],
    overwrite: bool,
) -> FrontierRecords:
    """Train what is missing, attack the photos, and use the matches of the pairs."""
    report, bar = shown
    kind = extractor_of(job.local).name
    tools = _train(job, recipe, kind, report)
    report(f"{recipe}: attacking")
    protocol = LeakageProtocol(recipes=(str(recipe),), seeds=job.seeds, local=job.local)
    plan = LeakageJob(photos=job.photos, protocol=protocol, toolbox=job.toolbox).plan()
    leaks = evaluate_leakage(plan, folder, workers=job.workers, progress=bar("attacking"), overwrite=overwrite)
    report(f"{recipe}: what matches reveal")
    matched = evaluate_matched(
        job.sequences, folder, [str(recipe)], tools, local=job.local, seeds=job.seeds, overwrite=overwrite
    )
    missing = [str(one) for one in missing_for(recipe, kind, tools)]
    missing += [] if job.toolbox.public else ["public descriptors other than the decoys"]
    missing += missing_codes(recipe, leaks)
    return replace(
        so_far,
        leakage=[*so_far.leakage, *leaks],
        matched=[*so_far.matched, *matched],
        missing={**so_far.missing, recipe.identity: missing},
    )


def missing_codes(recipe: Recipe, leaks: Iterable[Record]) -> list[str]:
    """Return what is missing where a seal was attacked with too few codes of its key to tell anything."""
    if not recipe.is_sealed:
        return []
    aligned = [one for one in leaks if AttackId.of(one.params).role in (AttackRole.ALIGNMENT, AttackRole.BOUND)]
    codes = max((_features(one) for one in aligned), default=0)
    words = f"an alignment of {ENOUGH_CODES:,} codes or more of one key: these photos have {codes:,}"
    return [words] if codes < ENOUGH_CODES else []


def _features(record: Record) -> int:
    """Return how many features a record is about, of all photos together."""
    return round(sum(score.value * score.samples for score in record.scores if score.name == "features"))


def _train(job: FrontierJob, recipe: Recipe, kind: str, report: Callable[[str], None]) -> Tools:
    """Return the tools, with the networks for a recipe if there are photos to train them on."""
    models = job.toolbox.models
    if models is not None and job.train_photos:
        try:
            models.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise FileError(f"{models}: cannot be made: {cause.strerror or cause}") from cause
    subjects = choose_subjects([recipe], ("s-to-s",), job.seeds)
    tools = job.toolbox.open()
    tools = replace(tools, decoys=choose_decoys(subjects, extractor_of(job.local), tools.decoys))
    if models is None or not job.train_photos or not missing_for(recipe, kind, tools):
        return tools
    train_missing(missing_for(recipe, kind, tools), job.train_photos, models, tools, job.budget, report=report)
    return replace(job.toolbox.open(), decoys=tools.decoys)


# --- files of an evaluation


def evaluate_frontier(
    job: FrontierJob,
    stem: Path,
    *,
    keyed: bool = False,
    report: Callable[[str], None] = lambda line: None,
    bar: Callable[[str], Bar] = lambda title: iter,
    overwrite: bool = False,
) -> tuple[list[FrontierPoint], list[Record], tuple[Path, Path]]:
    """Measure the frontier and write it: frontier.json beside ``stem``, tables and a figure named after it.

    All are written after every recipe, so that an interrupted run leaves what it has. Returns the points, all records
    and the files of the figure.
    """
    made: dict[str, Value] = {
        "photos": len(job.photos),
        "sequences": len(job.sequences),
        "seeds": len(job.seeds),
        "keyed": keyed,
        "max_features": job.local.max_features,
        "pair_features": job.pair_features,
        "scene_features": job.scene_features,
        "patch_steps": job.budget.patch_steps,
        "refine_steps": job.budget.refine_steps,
        "decoder_steps": job.budget.decoder_steps,
    }
    for records in measure_frontier(job, stem.parent, report=report, bar=bar, overwrite=overwrite):
        points = locate(records, keyed=keyed)
        write_frontier(stem.with_name("frontier.json"), points, made)
        write_tables(points, stem)
        figures = draw_frontier(points, stem, f"Use against the worst of all attacks, {job.local.descriptor}")
    return points, records_of(records), figures


def write_tables(points: Sequence[FrontierPoint], stem: Path) -> None:
    """Write all figures as markdown and comma-separated values; a terminal shows fewer."""
    table = frontier_table(points)
    write_text(stem.with_name(f"{stem.name}.md"), table.to_markdown(), with_folder=True)
    write_text(stem.with_name(f"{stem.name}.csv"), table.to_csv(), with_folder=True)


def scenes_of(folders: Iterable[Path], output: Path, *, room: bool) -> dict[str, PosedImages]:
    """Read folders of posed images by name, after the generated room.

    Raises InputError for two folders of one name.
    """
    scenes = {}
    if room:
        scenes["room"] = read_posed_folder(make_room_folder(output / "generated-room", np.random.default_rng(0)))
    for folder in folders:
        name = folder.resolve().name
        if name in scenes:
            raise InputError(f"--posed: two folders are called {name}: rename one")
        scenes[name] = read_posed_folder(folder)
    return scenes


def records_of(records: FrontierRecords) -> list[Record]:
    """Return all records behind a frontier, each once."""
    maps = [record for scene in records.scenes.values() for record in scene]
    return list(dict.fromkeys((*records.pairs, *maps, *records.leakage, *records.matched)))
