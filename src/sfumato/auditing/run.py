# SPDX-License-Identifier: Apache-2.0
"""Audit: what concealed features of some photos are still good for, and what a server could see in them.

Every photo is concealed under every recipe, matched with a second view of itself, and attacked in every way that the
tools allow. The results are records and pictures, never a descriptor, and one page made of them. What is finished is
kept, and used again when the same audit is called once more.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from sfumato.attacks.registry import ATTACKS
from sfumato.auditing.attack_task import AttackTask
from sfumato.auditing.leakage import LeakageJob, LeakagePlan, LeakageProtocol, evaluate_leakage, with_facts
from sfumato.auditing.matching import HomographyProtocol, evaluate_homography, plan_homography, score_name
from sfumato.auditing.photos import PhotoParams, PreparedPhotos, prepare_photos, short_name
from sfumato.auditing.pictures import SHOWN_PHOTOS, Point, collect_pictures, draw_plot
from sfumato.auditing.reference import DESCRIPTOR, reference_frontier, references_for
from sfumato.auditing.releases import released_rows
from sfumato.auditing.runner import code_version, load_records
from sfumato.auditing.subjects import settled
from sfumato.auditing.task import digest_data, short_digest
from sfumato.auditing.toolbox import Toolbox
from sfumato.concealment.decoys import BUNDLED as BUNDLED_DECOYS
from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams
from sfumato.files.atomic import read_text, write_file, write_text
from sfumato.images.read import AUDIT_MARK, list_images
from sfumato.images.samples import sample_paths
from sfumato.report.page import make_page
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe
from sfumato.types.record import AttackFacts, Picture, Record, Score, describe_machine

RECIPES = ("default", "sub-hybrid-2", "ninja-sift-1.0", "raw")
SAMPLES = ("astronaut", "coffee", "motorcycle-left", "chelsea")
"""Sample photos that are audited by default."""

FilePath = str | PathLike[str]
Stages = Callable[[str], Callable[[Sequence[Any]], Iterable[Any]]]
"""Takes the name of a stage, returns what shows its progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProtocol:
    """Settings of an audit: ``recipes``, to which ``raw`` is added; photos of at most ``side`` pixels.

    ``positions``: all positions of sealed features leave the device, and not only what several of the photos see.
    """

    recipes: tuple[str, ...] = RECIPES
    seed: int = 0
    side: int = 640
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    positions: bool = False

    def settled(self) -> tuple[str, ...]:
        """Return the recipes with their encoders named by checksum, each once, raw first.

        Raises InputError where there is none, else as ``resolve``.
        """
        if not self.recipes:
            raise InputError(f"audit: there is no recipe to audit: name at least one, as in {','.join(RECIPES)}")
        return tuple(dict.fromkeys(["raw", *(str(settled(one, self.local.descriptor)) for one in self.recipes)]))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Audit:
    """Results of an audit: the first record is about the audit itself, the others hold what was measured."""

    records: tuple[Record, ...]
    pictures: tuple[Picture, ...]

    def __repr__(self) -> str:
        return f"Audit({len(self.records)} records, {len(self.pictures)} pictures)"


def audit(
    photos: FilePath | None = None,
    folder: FilePath = "report",
    *,
    recipes: Iterable[str] = RECIPES,
    models: FilePath | None = None,
    public: FilePath | None = None,
    max_features: int = 1000,
    side: int = 640,
    seed: int = 0,
    workers: int | None = None,
    stages: Stages = lambda title: iter,
) -> Path:
    """Audit photos and return the path of the page: ``report.html`` in the folder, or a name that ends in .html.

    ``photos``: a photo or a folder of them; None takes bundled sample photos. ``recipes``: what to compare; "default"
    is the recipe of ``sfumato.conceal``. ``models``: a folder of trained inverters and decoders for the attacker,
    ``public``: a decoys file of other photos for him. Photos are downscaled to ``side`` pixels. ``workers``: processes,
    by default one per core as far as memory allows. Beside the page a folder keeps what is finished: both contain your
    photos.

    Raises ImageError if no photo can be used, InputError or RecipeError for a recipe that does not exist, FileError
    for files that cannot be read or written.
    """
    protocol = AuditProtocol(recipes=tuple(recipes), seed=seed, side=side, local=LocalParams(max_features=max_features))
    toolbox = Toolbox(models=None if models is None else Path(models), public=None if public is None else Path(public))
    return write_audit(photos, folder, protocol, toolbox, workers=workers, stages=stages)[0]


def write_audit(
    photos: FilePath | None,
    output: FilePath,
    protocol: AuditProtocol,
    toolbox: Toolbox,
    *,
    workers: int | None = None,
    stages: Stages = lambda title: iter,
) -> tuple[Path, Audit]:
    """Audit photos, write the page, and return its path with the results; see ``audit``."""
    page = page_path(output)
    samples = sample_paths()
    paths = (
        {name: samples[name] for name in SAMPLES if name in samples} if photos is None else dict(list_images(photos))
    )
    check_ahead(paths, protocol, toolbox)
    results = run_audit(paths, data_folder(page), protocol, toolbox, workers=workers, stages=stages)
    content = make_page(results.records, results.pictures, date.today().isoformat())
    write_text(page, content, with_folder=True, private=True)  # photos are in it
    return page, results


def page_path(output: FilePath) -> Path:
    """Return the path of the page: the given name, or report.html in a folder of that name.

    Raises InputError for a name that is neither.
    """
    path = Path(output)
    is_page = path.suffix.lower() in (".html", ".htm")
    if path.suffix and not is_page and not path.is_dir():
        raise InputError(
            f"--output {path}: the page is HTML: give a name that ends in .html, or a folder (which must exist if "
            f"its name has an ending)"
        )
    return path if is_page and not path.is_dir() else path / "report.html"


def data_folder(page: Path) -> Path:
    """Return the folder beside a page that keeps what is finished."""
    return page.with_name(f"{page.stem}-data")


def check_ahead(photos: Mapping[str, Path], protocol: AuditProtocol, toolbox: Toolbox) -> None:
    """Open the attacker's tools and try each recipe on one row, before a photo is read or a folder made.

    Raises InputError, RecipeError or FileError for what would fail later.
    """
    attacks = LeakageProtocol(recipes=protocol.settled(), seeds=(protocol.seed,), local=protocol.local)
    first = tuple((short_name(name), path) for name, path in list(photos.items())[:1])
    LeakageJob(photos=first, protocol=attacks, toolbox=with_public(toolbox)).plan()


def run_audit(
    photos: Mapping[str, Path],
    folder: FilePath,
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
    data = Path(folder)
    params = PhotoParams(side=protocol.side, seed=protocol.seed, local=protocol.local)
    write_file(data / AUDIT_MARK, b"photos of an audit: not to be concealed\n", with_folder=True)
    prepared = prepare_photos(photos, data / "photos", params, progress=stages("reading"))
    pairing = HomographyProtocol(recipes=recipes, distances=("s-to-s",), seeds=(protocol.seed,), local=protocol.local)
    views = list(prepared.pairs.values())
    matching = evaluate_homography(views, data, pairing, progress=stages("matching"))
    job = LeakageJob(
        photos=tuple(prepared.photos.items()),
        protocol=LeakageProtocol(recipes=recipes, seeds=(protocol.seed,), local=protocol.local),
        toolbox=with_public(toolbox or Toolbox()),
        released=None if protocol.positions else released_rows(prepared.photos, recipes, protocol.local, protocol.seed),
    )
    plan = quick_plan(job.plan())
    leakage = evaluate_leakage(plan, data, workers=workers, progress=stages("attacking"))
    pictures = collect_pictures(plan, plan_homography(views, pairing), prepared, data)
    references = references_for(recipes) if protocol.local.descriptor == DESCRIPTOR else []
    published = reference_points()
    pictures.append(draw_plot(points_of(matching, [*leakage, *references]), published))
    about = audit_record(photos, prepared, protocol, len(published), time.perf_counter() - start)
    keep(about, data, short_digest(about.data, dict(about.params), about.seed))
    for record in references:
        keep(record, data, short_digest(record.params["recipe"]))
    return Audit((about, *references, *matching, *leakage), tuple(pictures))


def keep(record: Record, folder: Path, name: str) -> None:
    """Write a record that no evaluation made to where the others are."""
    write_text(folder / record.task / "records" / f"{name}.json", record.to_json() + "\n", with_folder=True)


def points_of(matching: Sequence[Record], leakage: Sequence[Record]) -> list[Point]:
    """Return the recipes with their matching accuracy as a share of raw's and their worst leakage, where both exist."""
    accuracy, worst = dict[str, float](), {"raw": 1.0}
    for record in matching:
        values = [one.value for one in record.scores if one.name == score_name("accuracy 3 px", "overall")]
        accuracy |= {str(record.params["recipe"]): values[0]} if values else {}
    for record in leakage:
        recipe, facts = str(record.params["recipe"]), AttackFacts.of(record.params)
        if facts.counts:
            values = [one.value for one in record.scores if one.name == "leakage"]
            worst[recipe] = max([*values, worst.get(recipe, -math.inf)])
    raw = accuracy.get("raw", 0.0)
    leaks = {recipe: value for recipe, value in worst.items() if math.isfinite(value)}
    return [Point(recipe, leaks[recipe], use / raw) for recipe, use in accuracy.items() if raw and recipe in leaks]


def reference_points() -> list[Point]:
    """Return the frontier that comes with the package."""
    return [Point(one.recipe, one.leakage, one.accuracy_share) for one in reference_frontier()]


def with_public(toolbox: Toolbox) -> Toolbox:
    """Return a toolbox with public descriptors: its own, or the decoys that come with the package."""
    if toolbox.public is not None or toolbox.decoys is not None:
        return toolbox
    with resources.as_file(resources.files("sfumato.concealment") / "data" / BUNDLED_DECOYS) as path:
        return Toolbox(decoys=toolbox.decoys, public=path, models=toolbox.models)


def quick_plan(plan: LeakagePlan) -> LeakagePlan:
    """Return the plan without attacks that are slow, and those that only find decoys where these are public."""

    def is_included(task: AttackTask) -> bool:
        attack, lifting = ATTACKS.get(task.attack.name), task.subject.recipe.lifting
        if attack is None:
            return True
        has_decoys = lifting is not None and lifting.decoy_count > 0
        return not attack.slow and not (attack.finds_decoys and has_decoys and task.data.tools.public_is_decoys)

    return plan.only(is_included)


def audit_record(
    photos: Mapping[str, Path], prepared: PreparedPhotos, protocol: AuditProtocol, reference: int, seconds: float
) -> Record:
    """Return the record of the audit itself: photos, settings, what was left out."""
    return Record(
        task="audit",
        scores=(
            Score("photos", len(prepared.photos), "", len(photos)),
            Score("reduced", prepared.reduced, "", len(photos)),
            Score("left out", len(prepared.left_out), "", len(photos)),
        ),
        params={
            "default": str(settled(DEFAULT_RECIPE, protocol.local.descriptor)),
            "recipes": ", ".join(str(Recipe.of(one)) for one in protocol.settled()),
            "side": protocol.side,
            "positions": "all" if protocol.positions else "what several photos see",
            "reference points": reference,
            "shown": SHOWN_PHOTOS,
            "max_features": protocol.local.max_features,
            "extractor": protocol.local.extractor,
            "descriptor": protocol.local.descriptor,
        },
        seed=protocol.seed,
        data=short_digest(sorted(digest_data(path) for path in prepared.photos.values())),
        commit=code_version(),
        machine=describe_machine(),
        seconds=seconds,
        dropped=tuple(f"{name}: {reason}" for name, reason in prepared.left_out.items()),
    )


# --- a page of records that other runs left


def write_report(paths: Iterable[FilePath], output: FilePath) -> list[Record]:
    """Write one page of all records below folders, or of single ones, without pictures; return the records.

    Raises FileError for what is not a record, InputError where there is nothing to report.
    """
    records = [record for path in paths for record in read_records(Path(path))]
    write_text(output, make_page(with_references(records), when=date.today().isoformat()), with_folder=True)
    return records


def read_records(path: Path) -> list[Record]:
    """Read all records below a folder, or a single one, with what this version says about their attacks.

    Raises FileError for what is not a record.
    """
    if path.is_dir():
        return [with_facts(record) for record in load_records(path)]
    try:
        return [with_facts(Record.from_json(read_text(path)))]
    except InputError as cause:
        raise FileError(f"{path}: not a record of sfumato evaluate: {cause}") from cause


def with_references(records: Sequence[Record]) -> list[Record]:
    """Return records with what the package knows of their sealed recipes, unless an audit has added that."""
    known = {str(one.params.get("recipe")) for one in records if one.task == "reference"}
    recipes = [
        str(one.params.get("recipe"))
        for one in records
        if one.task in ("leakage", "homography") and one.params.get("descriptor") == DESCRIPTOR
    ]
    return [*records, *references_for(one for one in recipes if one not in known)]
