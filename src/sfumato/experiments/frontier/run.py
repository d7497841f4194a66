# SPDX-License-Identifier: Apache-2.0
"""Measures the frontier: matching, maps, training of attackers, attacks, matches, recipe after recipe.

Every part is an evaluation of its own that keeps what it finished; here they are called for the same recipes in one
folder. After each recipe the points so far are handed on, so that an interrupted run leaves a frontier of what it has.
Knows the order of things, not what they measure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sfumato.auditing.leakage import LeakageProtocol, Order, count_workers, evaluate_on
from sfumato.auditing.matching import HomographyProtocol, evaluate_homography
from sfumato.auditing.subjects import choose_decoys, choose_subjects, settled
from sfumato.auditing.toolbox import Toolbox, Tools
from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages
from sfumato.experiments.frontier.matched import evaluate_matched
from sfumato.experiments.frontier.points import Measured
from sfumato.experiments.frontier.training import Budget, missing_for, train_missing
from sfumato.experiments.maps.mapping import MapProtocol, evaluate_map
from sfumato.features.local import LocalParams, extractor_of
from sfumato.images.homography import HomographySequence
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record

ALIGNED = ("alignment", "told-alignment")
ENOUGH_CODES = 16_000
"""Codes of one key with which alignment finds its way, those of some twenty photos; with fewer it often fails."""

Bar = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierOrder:
    """What is measured, and with what. ``train_photos``: without, a network that is missing stays missing."""

    photos: tuple[tuple[str, Path], ...]
    sequences: tuple[HomographySequence, ...]
    scenes: Mapping[str, PosedImages] = field(default_factory=dict)
    recipes: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    toolbox: Toolbox
    train_photos: tuple[Path, ...] = ()
    budget: Budget = field(default_factory=Budget)
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    pair_features: int = 2000
    scene_features: int = 2000
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.train_photos and self.toolbox.models is None:
            raise InputError("networks that are trained need a place: name a folder with --models")
        inside = {path.resolve() for path in self.train_photos} & {path.resolve() for _, path in self.photos}
        if inside:
            raise InputError(f"{min(inside)} is attacked and learned from: train on other photos")


def distinct(recipes: Iterable[str]) -> list[Recipe]:
    """Return recipes with their encoders read, raw first, each once whatever it is called."""
    found = {one.identity: one for one in (settled(name) for name in ("raw", *recipes))}
    return list(found.values())


def measure_frontier(
    order: FrontierOrder,
    folder: str | Path,
    *,
    report: Callable[[str], None] = lambda line: None,
    bar: Callable[[str], Bar] = lambda title: iter,
    overwrite: bool = False,
) -> Iterator[Measured]:
    """Measure every recipe; yield all that was measured so far, after each.

    Raises as the evaluations do; what was finished is kept, and found again by the same call.
    """
    so_far = Measured(pairs=())
    for recipe in distinct(order.recipes):
        report(f"{recipe}: matching")
        pairs = _match(order, recipe, folder, bar("matching"), overwrite)
        scenes = _map(order, recipe, folder, report, overwrite)
        so_far = replace(
            so_far,
            pairs=[*so_far.pairs, *pairs],
            scenes={name: [*so_far.scenes.get(name, ()), *records] for name, records in scenes.items()},
        )
        if not recipe.is_clear:
            so_far = _attack(order, recipe, folder, so_far, (report, bar), overwrite)
        yield so_far


def _match(order: FrontierOrder, recipe: Recipe, folder: str | Path, bar: Bar, overwrite: bool) -> list[Record]:
    protocol = HomographyProtocol(
        recipes=(str(recipe),),
        distances=("s-to-s",),
        seeds=order.seeds,
        local=replace(order.local, max_features=order.pair_features),
    )
    decoys = order.toolbox.open_decoys()
    return evaluate_homography(order.sequences, folder, protocol, decoys, progress=bar, overwrite=overwrite)


def _map(
    order: FrontierOrder, recipe: Recipe, folder: str | Path, report: Callable[[str], None], overwrite: bool
) -> dict[str, list[Record]]:
    protocol = MapProtocol(
        recipes=(str(recipe),),
        seeds=order.seeds[:1],
        local=replace(order.local, max_features=order.scene_features),
    )
    found = {}
    for name, images in order.scenes.items():
        report(f"{recipe}: a map of {name}")
        results = evaluate_map(images, folder, protocol, order.toolbox.open_decoys(), overwrite=overwrite)
        found[name] = [result.record for result in results]
    return found


def _attack(
    order: FrontierOrder,
    recipe: Recipe,
    folder: str | Path,
    so_far: Measured,
    shown: tuple[Callable[[str], None], Callable[[str], Bar]],
    overwrite: bool,
) -> Measured:
    """Train what is missing, attack the photos, and use the matches of the pairs."""
    report, bar = shown
    kind = extractor_of(order.local).name
    tools = _train(order, recipe, kind, report)
    report(f"{recipe}: attacking")
    protocol = LeakageProtocol(recipes=(str(recipe),), seeds=order.seeds, local=order.local)
    work = Order(photos=order.photos, protocol=protocol, toolbox=order.toolbox)
    plan = work.plan()
    count = count_workers(order.workers, plan)
    leaks = evaluate_on(count, work, plan, folder, progress=bar("attacking"), overwrite=overwrite)
    report(f"{recipe}: what matches reveal")
    matched = evaluate_matched(
        order.sequences, folder, [str(recipe)], tools, local=order.local, seeds=order.seeds, overwrite=overwrite
    )
    missing = [str(one) for one in missing_for(recipe, kind, tools)]
    missing += [] if order.toolbox.public else ["public descriptors other than the decoys"]
    missing += few_codes(recipe, leaks)
    return replace(
        so_far,
        leakage=[*so_far.leakage, *leaks],
        matched=[*so_far.matched, *matched],
        missing={**so_far.missing, recipe.identity: missing},
    )


def few_codes(recipe: Recipe, leaks: Iterable[Record]) -> list[str]:
    """Return what is missing where a seal was attacked with too few codes of its key to tell anything."""
    if not recipe.is_sealed:
        return []
    codes = max((_features(one) for one in leaks if str(one.params.get("attack")) in ALIGNED), default=0)
    wanted = f"an alignment of {ENOUGH_CODES:,} codes or more of one key: these photos have {codes:,}"
    return [wanted] if codes < ENOUGH_CODES else []


def _features(record: Record) -> int:
    """Return how many features a record is about, of all photos together."""
    return round(sum(score.value * score.samples for score in record.scores if score.name == "features"))


def _train(order: FrontierOrder, recipe: Recipe, kind: str, report: Callable[[str], None]) -> Tools:
    """Return the tools, with the networks for a recipe if there are photos to train them on."""
    models = order.toolbox.models
    if models is not None and order.train_photos:
        try:
            models.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise FileError(f"{models}: cannot be made: {cause.strerror or cause}") from cause
    subjects = choose_subjects([recipe], ("s-to-s",), order.seeds)
    tools = order.toolbox.open()
    tools = replace(tools, decoys=choose_decoys(subjects, extractor_of(order.local), tools.decoys))
    if models is None or not order.train_photos or not missing_for(recipe, kind, tools):
        return tools
    train_missing(missing_for(recipe, kind, tools), order.train_photos, models, tools, order.budget, report=report)
    return replace(order.toolbox.open(), decoys=tools.decoys)
