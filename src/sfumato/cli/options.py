# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, their groups, and what commands print."""

import csv
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sfumato.concealment.decoy_photos import DecoysOutcome
from sfumato.concealment.encoder import bundled_names
from sfumato.device import ConcealOutcome
from sfumato.errors import FileError
from sfumato.features.faces import FaceParams
from sfumato.features.local import DESCRIPTORS, DETECTORS, LocalParams
from sfumato.files.atomic import open_text
from sfumato.types.progress import StageProgress
from sfumato.types.recipe import GENERATED, KINDS, USUAL_DIMS

if TYPE_CHECKING:
    from sfumato.auditing.tables import Table

# --- what commands print: nothing that acts on a terminal


def progress_bar(
    title: str, total: int | None, *, quiet: bool = False, unit: str | None = None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a wrapper that shows a bar on a terminal while its items are worked through, with ``unit`` per second."""

    def wrapped(items: Iterable[Any]) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
        from rich.text import Text

        class Rate(TextColumn):
            def render(self, task: Task) -> Text:
                return Text(f"{task.finished_speed or task.speed or 0:.1f} {unit}/s")

        rate = () if unit is None else (Rate(""),)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
        console = Console(stderr=True)
        count = len(items) if total is None and isinstance(items, Sized) else total
        with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
            yield from bar.track(items, total=count, description=title)

    return wrapped


def printable(text: object) -> str:
    """Return a text from a file or a name with control characters escaped, for a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def stage_bars(*, quiet: bool, unit: str | None = None) -> StageProgress:
    """Return a wrapper for work of several stages: a progress bar for each."""
    return lambda stage, items, total: progress_bar(stage, total, quiet=quiet, unit=unit)(items)


def quantity(count: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun: 1 pair, 2 pairs."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"


def tell(line: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """Print one line for a person, or the facts as JSON for a program."""
    print(json.dumps(facts, indent=2, sort_keys=True) if as_json else line)


def warn_about(outcome: ConcealOutcome | DecoysOutcome) -> None:
    """Name unreadable and featureless images on standard error."""
    for name, reason in outcome.unreadable.items():
        print(printable(f"skipped {name}: {reason}"), file=sys.stderr)
    for name in outcome.featureless:
        print(printable(f"no features in {name}"), file=sys.stderr)


def outcome_facts(outcome: ConcealOutcome) -> dict[str, Any]:
    """Return an outcome as plain values."""
    return {
        "images": outcome.images,
        "features": outcome.features,
        "skipped": outcome.skipped,
        "featureless": outcome.featureless,
        "unreadable": outcome.unreadable,
    }


# --- completion in the shell: names that are known without reading or importing anything more


Completer = Callable[[str], list[str]]
"""Completes a word: from its beginning to all that it may become."""

ALL = "all"
"""Stands alone, never in a list."""


def one_of(names: Iterable[str]) -> Completer:
    """Return a completer of one name."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def several_of(complete_one: Completer) -> Completer:
    """Return a completer of the last of several names with commas between them; no name is offered twice."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        earlier = before.split(",")
        names = [name for name in complete_one(last) if name not in earlier and not (comma and name == ALL)]
        return [f"{before}{comma}{name}" for name in names]

    return complete


def complete_recipe(incomplete: str) -> list[str]:
    """Complete the last link of a recipe: any link, or after an encoder one that may follow it."""
    before, plus, last = incomplete.rpartition("+")
    names = recipe_names("encoder", "lifting") if plus else ["default", *recipe_names("clear", "encoder", "lifting")]
    return [f"{before}{plus}{name}" for name in names if name.startswith(last)]


def complete_face_recipe(incomplete: str) -> list[str]:
    """Complete a recipe for faces: a seal or a lifting alone."""
    return [name for name in ("sealed-2048", *recipe_names("lifting")) if name.startswith(incomplete)]


def recipe_names(*roles: str) -> list[str]:
    """Return the links of these roles with their usual dimensions, and the bundled encoders."""
    names = []
    for kind, entry in KINDS.items():
        if entry.role not in roles:
            continue
        if entry.argument == "variant":
            names += [f"{kind}-{name}" for name in bundled_names(kind)]
        elif entry.argument == "none":
            names.append(kind)
        else:
            usual = f"{kind}-{USUAL_DIMS.get(kind, '2')}"
            names += [usual, f"{usual}{GENERATED}"] if GENERATED in entry.variants else [usual]
    return names


complete_recipes = several_of(complete_recipe)


PhotoExtractor = Annotated[
    str,
    typer.Option(
        help="Who finds keypoints: colmap, opencv (three times as fast, worse for maps) or harris.",
        autocompletion=one_of(DETECTORS),
    ),
]
Descriptor = Annotated[
    str,
    typer.Option(
        help=f"For photos: the descriptor, one of {', '.join(DESCRIPTORS)}.", autocompletion=one_of(DESCRIPTORS)
    ),
]
Recipes = Annotated[
    str,
    typer.Option(
        help="The recipes to compare, e.g. raw,default,random-2,sub-hybrid-4.", autocompletion=complete_recipes
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="For photos: the weights of a network, a .safetensors or torch file. Default: published ones."),
]
MaxFeatures = Annotated[int, typer.Option(help="For photos: keep this many features of each, those of largest scale.")]
ContrastThreshold = Annotated[float, typer.Option(help="For photos: a lower value finds more and weaker keypoints.")]
ExtractorName = Annotated[
    str | None,
    typer.Option(
        help="For photos: who finds keypoints: colmap (default), opencv (three times as fast, worse for maps) or "
        "harris. For hloc and COLMAP files: the name of their descriptors, e.g. superpoint.",
        autocompletion=one_of(DETECTORS),
    ),
]
Labels = Annotated[
    Path | None, typer.Option(help="For hybrid-labels: a table 'image name,label' with one line per image.")
]
Workers = Annotated[
    int | None, typer.Option(help="Number of images extracted at the same time. Default: one per core.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]


_LOCAL = LocalParams()


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: each parameter that is a dataclass becomes one option per field.

    The fields of a group are annotated as options are. A command names the group as a parameter whose default is an
    instance with the defaults of that command; called by other code it takes the group itself.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {name: value for name, value in signature.parameters.items() if is_dataclass(value.default)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(type(parameter.default), include_extras=True)
        for field in fields(parameter.default):
            default = getattr(parameter.default, field.name)
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
                )
            )

    @wraps(command)
    def run(**options: Any) -> None:
        for name, parameter in groups.items():
            names = [field.name for field in fields(parameter.default)]
            options[name] = type(parameter.default)(**{field: options.pop(field) for field in names})
        command(**options)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of local features, for commands that read photos or features of other programs."""

    descriptor: Descriptor = _LOCAL.descriptor
    weights: Weights = None
    max_features: MaxFeatures = _LOCAL.max_features
    contrast_threshold: ContrastThreshold = _LOCAL.contrast_threshold

    @property
    def params(self) -> LocalParams:
        """Return the settings of extraction, checked."""
        return LocalParams(**{field.name: getattr(self, field.name) for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotoOptions(LocalOptions):
    """Options of local features, for commands that read photos alone."""

    extractor: PhotoExtractor = _LOCAL.extractor


def read_labels(path: Path) -> dict[str, str]:
    """Read a table 'image name,label' with one line per image."""
    try:
        with open_text(path, newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except csv.Error as cause:
        raise FileError(f"{path}: cannot read the labels: {cause}") from cause
    wrong = [number for number, row in enumerate(rows, 1) if len(row) != 2]
    if wrong:
        raise FileError(f"{path}: line {wrong[0]} is not 'image name,label'")
    return {name.strip(): label.strip() for name, label in rows}


# --- options of faces

GalleryPath = Annotated[Path, typer.Option("--gallery", "-g", help="The gallery's file, e.g. gallery.sqlite.")]
Network = Annotated[
    Path | None, typer.Option(help="For pictures: an ArcFace-style ONNX file. Default: dlib's network. Extra 'face'.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceOptions:
    """Options of commands that read faces."""

    network: Network = None
    largest: Annotated[bool, typer.Option("--largest", help="For pictures: of several faces take the largest.")] = False
    extractor: Annotated[
        str | None, typer.Option("--extractor", help="For embeddings: the network that made them, e.g. arcface.")
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of the functions that read faces."""
        return {"params": FaceParams(network=self.network, largest=self.largest), "extractor": self.extractor}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Options of a command that writes one file after long work."""

    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False
    as_json: AsJson = False
    quiet: Quiet = False

    def bar(self, title: str, total: int | None = None) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return a progress bar; a hidden one if the command is quiet or prints JSON."""
        return progress_bar(title, total, quiet=self.is_silent)

    @property
    def is_silent(self) -> bool:
        """Whether nothing but the result is printed."""
        return self.quiet or self.as_json


def show_table(table: "Table") -> None:
    """Print a table as wide as it is; a narrower terminal wraps it."""
    from rich.console import Console

    console = Console()
    Console(width=None if console.is_terminal else 240).print(table.to_rich())


def split_names(text: str) -> tuple[str, ...]:
    """Read a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
