# SPDX-License-Identifier: Apache-2.0
"""An audit: what concealed features of some photos are still good for, and what a server could see in them.

Every photo is concealed under every recipe, matched with a second view of itself, and attacked in every way that the
tools at hand allow. What comes out are records and pictures, never a descriptor; a page is made of them elsewhere.
What is finished is kept, and found again when the same audit is called once more.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from sfumato.auditing.leakage import LeakageProtocol, Order, Works, count_workers, counts, evaluate_on
from sfumato.auditing.matching import HomographyProtocol, evaluate_homography, plan_homography, score_name
from sfumato.auditing.photos import Ready, ReadyParams, make_ready
from sfumato.auditing.pictures import SHOWN_PHOTOS, Point, collect_pictures, draw_plot
from sfumato.auditing.reference import DESCRIPTOR, reference_frontier, references_for
from sfumato.auditing.runner import code_version
from sfumato.auditing.subjects import settled
from sfumato.auditing.task import digest_data, short_digest
from sfumato.auditing.toolbox import KEYPOINTS, Toolbox
from sfumato.concealment.decoy_file import BUNDLED as BUNDLED_DECOYS
from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.files.atomic import write_text
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe
from sfumato.types.record import Picture, Record, Score, describe_machine

RECIPES = ("default", "sub-hybrid-2", "ninja-sift-1.0", "raw")
SAMPLES = ("astronaut", "coffee", "motorcycle-left", "chelsea")
"""Which of the sample photos are taken where there are no others."""

VOID = ("nearest", "nearest-projected", "nearest-sphere", "oracle", "oracle-projected")
"""Attacks on liftings that find a decoy, or are outdone by oracle-sphere, where public descriptors are the decoys."""

SLOW = "key-recovery"
"""An attack by who has known pairs, which takes minutes: ``evaluate leakage`` runs it."""

Stages = Callable[[str], Callable[[Sequence[Any]], Iterable[Any]]]
"""Given the name of a stage, what shows its progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProtocol:
    """What is measured: ``recipes``, with ``raw`` as the measure of all; photos of at most ``side`` pixels."""

    recipes: tuple[str, ...] = RECIPES
    seed: int = 0
    side: int = 640
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))

    def settled(self) -> tuple[str, ...]:
        """Return the recipes with their encoders named by checksum, each once, raw first.

        Raises InputError where there is none, else as ``resolve``.
        """
        if not self.recipes:
            raise InputError(f"audit: there is no recipe to audit: name one or more, as in {','.join(RECIPES)}")
        return tuple(dict.fromkeys(["raw", *(str(settled(one)) for one in self.recipes)]))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Audit:
    """What came out: the first record tells about the audit itself, the others what was measured."""

    records: tuple[Record, ...]
    pictures: tuple[Picture, ...]

    def __repr__(self) -> str:
        return f"Audit({len(self.records)} records, {len(self.pictures)} pictures)"


def run_audit(
    photos: Mapping[str, Path],
    folder: str | Path,
    protocol: AuditProtocol | None = None,
    toolbox: Toolbox | None = None,
    *,
    workers: int | None = None,
    stages: Stages = lambda title: iter,
) -> Audit:
    """Audit photos, given as paths by name; keep all that is finished below ``folder``.

    A photo that cannot be used is named in the first record. Without public descriptors in the toolbox the attacker
    is given the bundled decoys, which are descriptors of other people's photos.

    Raises ImageError if no photo can be used, InputError for no recipe, RecipeError or FileError for one that cannot
    be made, FileError if the folder cannot be written.
    """
    start = time.perf_counter()
    protocol = protocol or AuditProtocol()
    recipes = protocol.settled()
    place = Path(folder)
    params = ReadyParams(side=protocol.side, seed=protocol.seed, local=protocol.local)
    ready = make_ready(photos, place / "photos", params, progress=stages("reading"))
    pairing = HomographyProtocol(recipes=recipes, distances=("s-to-s",), seeds=(protocol.seed,), local=protocol.local)
    views = list(ready.pairs.values())
    matched = evaluate_homography(views, place, pairing, progress=stages("matching"))
    order = Order(
        photos=tuple(ready.photos.items()),
        protocol=LeakageProtocol(recipes=recipes, seeds=(protocol.seed,), local=protocol.local),
        toolbox=with_public(toolbox or Toolbox()),
    )
    works = worth_running(order.plan())
    attacked = evaluate_on(count_workers(workers, works), order, works, place, progress=stages("attacking"))
    pictures = collect_pictures(works, plan_homography(views, pairing), ready, place)
    references = references_for(recipes) if protocol.local.descriptor == DESCRIPTOR else []
    pictures.append(draw_plot(points_of(matched, [*attacked, *references]), reference := reference_points()))
    told = about(photos, ready, protocol, len(reference), time.perf_counter() - start)
    keep(told, place, short_digest(told.data, dict(told.params), told.seed))
    for one in references:
        keep(one, place, short_digest(one.params["recipe"]))
    return Audit((told, *references, *matched, *attacked), tuple(pictures))


def keep(record: Record, place: Path, name: str) -> None:
    """Write a record that no evaluation made, where the others are found."""
    write_text(place / record.task / "records" / f"{name}.json", record.to_json() + "\n", with_folder=True)


def points_of(matched: Sequence[Record], attacked: Sequence[Record]) -> list[Point]:
    """Return the recipes with their matching accuracy as a share of raw's and their worst leakage, where both are."""
    accuracy, leakage, shown = dict[str, float](), {"raw": 1.0}, -math.inf
    for record in matched:
        found = [one.value for one in record.scores if one.name == score_name("accuracy 3 px", "overall")]
        accuracy |= {str(record.params["recipe"]): found[0]} if found else {}
    for record in attacked:
        recipe, attack = str(record.params["recipe"]), str(record.params["attack"])
        if counts(attack):
            values = [one.value for one in record.scores if one.name == "leakage"]
            leakage[recipe] = max([*values, leakage.get(recipe, -math.inf)])
            shown = max([shown, *values]) if attack == KEYPOINTS else shown
    whole = accuracy.get("raw", 0.0)
    seen = {recipe: max(value, shown) for recipe, value in leakage.items() if math.isfinite(value)}
    return [Point(one, seen[one], use / whole) for one, use in accuracy.items() if whole and one in seen]


def reference_points() -> list[Point]:
    """Return the frontier that comes with the package; there may be none yet."""
    return [Point(one.recipe, one.leakage, one.accuracy_share) for one in reference_frontier()]


def with_public(toolbox: Toolbox) -> Toolbox:
    """Return a toolbox with public descriptors: those it has, or the decoys that come with the package."""
    if toolbox.public is not None or toolbox.decoys is not None:
        return toolbox
    with resources.as_file(resources.files("sfumato.concealment") / "data" / BUNDLED_DECOYS) as path:
        return Toolbox(decoys=toolbox.decoys, public=path, models=toolbox.models)


def worth_running(works: Works) -> Works:
    """Return the works without what takes too long, and attacks that only find decoys where public ones are these."""
    kept = []
    for work in works.made:
        case, tools = work.intruder.case, work.intruder.tools
        lifting = case.subject.recipe.lifting
        own = tools.decoys is not None and tools.public_digest == tools.decoys.checksum
        is_void = own and lifting is not None and lifting.decoy_count and case.attack.split(" then ")[0] in VOID
        if not is_void and case.attack != SLOW:
            kept.append(work)
    return Works(kept, works.samples)


def about(photos: Mapping[str, Path], ready: Ready, protocol: AuditProtocol, reference: int, seconds: float) -> Record:
    """Return the record of the audit itself: photos, settings, what was left out."""
    return Record(
        task="audit",
        scores=(
            Score("photos", len(ready.photos), "", len(photos)),
            Score("reduced", ready.reduced, "", len(photos)),
            Score("left out", len(ready.left_out), "", len(photos)),
        ),
        params={
            "default": str(settled(DEFAULT_RECIPE)),
            "recipes": ", ".join(str(Recipe.of(one)) for one in protocol.settled()),
            "side": protocol.side,
            "reference points": reference,
            "shown": SHOWN_PHOTOS,
            "max_features": protocol.local.max_features,
            "detector": protocol.local.detector,
            "descriptor": protocol.local.descriptor,
        },
        seed=protocol.seed,
        data=short_digest(sorted(digest_data(path) for path in ready.photos.values())),
        commit=code_version(),
        machine=describe_machine(),
        seconds=seconds,
        dropped=tuple(f"{name}: {why}" for name, why in ready.left_out.items()),
    )
