# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, and the small files some of them name."""

import csv
import inspect
import json
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import typer
from numpy.typing import NDArray

from sfumato.concealment.decoy_file import load_decoys
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import bundled_names
from sfumato.concealment.randomness import is_weak
from sfumato.device import Outcome
from sfumato.errors import FileError
from sfumato.faces.gallery import Gallery
from sfumato.faces.probe import Faces, make_probe, one_face, read_faces
from sfumato.features.embeddings import read_column
from sfumato.features.faces import FaceParams
from sfumato.features.local import DESCRIPTORS, DETECTORS, LocalParams
from sfumato.types.concealed import ConcealedTemplates
from sfumato.types.recipe import GENERATED, KINDS, USUAL_DIMS

# ----------------------------------------------------------------
# What commands show: progress bars, sizes for people, what became of the images; nothing that acts on a terminal


def progress_bar(
    title: str, total: int | None, *, quiet: bool = False, unit: str | None = None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a wrapper that shows a bar on a terminal while what it wraps is worked through; ``unit`` a second too."""

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


def human_size(count: float) -> str:
    """Return bytes in a form for people: 1.5 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def printable(text: object) -> str:
    """Return a text from a file or a name as it may be shown on a terminal: nothing in it acts."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def tell(line: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """Print one line for a person, or the facts as JSON for a program."""
    print(json.dumps(facts, indent=2, sort_keys=True) if as_json else line)


def warn_about(outcome: Outcome) -> None:
    """Name what could not be used, on standard error."""
    for name, reason in outcome.unreadable.items():
        print(printable(f"skipped {name}: {reason}"), file=sys.stderr)
    for name in outcome.featureless:
        print(printable(f"no features in {name}"), file=sys.stderr)


def outcome_facts(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain values."""
    return {
        "images": outcome.images,
        "features": outcome.features,
        "skipped": outcome.skipped,
        "featureless": outcome.featureless,
        "unreadable": outcome.unreadable,
    }


# ----------------------------------------------------------------
# What a shell offers when a value is half typed: names that are known without reading or importing anything more


Completer = Callable[[str], list[str]]
"""From what was typed so far to all that it may become."""

ALL = "all"
"""Stands alone, never in a list."""


def one_of(names: Iterable[str]) -> Completer:
    """Return what completes one of some names."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def several_of(complete_one: Completer) -> Completer:
    """Return what completes the last of names with commas between them; those that were named are not offered again."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        names = [name for name in complete_one(last) if name not in given and not (comma and name == ALL)]
        return [f"{before}{comma}{name}" for name in names]

    return complete


def complete_recipe(incomplete: str) -> list[str]:
    """Complete the last link of a recipe: any by itself, after an encoder what may follow one."""
    before, plus, last = incomplete.rpartition("+")
    names = recipe_names("encoder", "lifting") if plus else ["default", *recipe_names("clear", "encoder", "lifting")]
    return [f"{before}{plus}{name}" for name in names if name.startswith(last)]


def complete_lifting(incomplete: str) -> list[str]:
    """Complete a recipe that is a lifting alone, as for faces."""
    return [name for name in recipe_names("lifting") if name.startswith(incomplete)]


def recipe_names(*roles: str) -> list[str]:
    """Return the links of recipes that do this, with their usual dimensions, and the encoders of the package."""
    names = []
    for kind, about in KINDS.items():
        if about.role not in roles:
            continue
        if about.argument == "variant":
            names += [f"{kind}-{name}" for name in bundled_names(kind)]
        elif about.argument == "none":
            names.append(kind)
        else:
            usual = f"{kind}-{USUAL_DIMS.get(kind, '2')}"
            names += [usual, f"{usual}{GENERATED}"] if GENERATED in about.variants else [usual]
    return names


complete_recipes = several_of(complete_recipe)


Detector = Annotated[
    str,
    typer.Option(
        help=f"For photos: how keypoints are found; {' or '.join(DETECTORS)}.", autocompletion=one_of(DETECTORS)
    ),
]
Descriptor = Annotated[
    str, typer.Option(help=f"For photos: one of {', '.join(DESCRIPTORS)}.", autocompletion=one_of(DESCRIPTORS))
]
Recipes = Annotated[
    str,
    typer.Option(help="What to compare, e.g. raw,default,random-2,sub-hybrid-4.", autocompletion=complete_recipes),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="For photos: the file of a network's weights, .safetensors or torch. Default: kornia downloads them."
    ),
]
MaxFeatures = Annotated[int, typer.Option(help="For photos: keep the strongest of each.")]
ContrastThreshold = Annotated[float, typer.Option(help="For photos: lower finds more, weaker keypoints.")]
ExtractorName = Annotated[
    str | None, typer.Option(help="For hloc and COLMAP files: what the descriptors are, e.g. superpoint.")
]
Labels = Annotated[
    Path | None, typer.Option(help="A table 'image name,label', a line for every image: for hybrid-labels.")
]
Workers = Annotated[int | None, typer.Option(help="Images extracted at once. Default: the cores there are.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


_LOCAL = LocalParams()


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: each parameter that is a dataclass becomes one option per field.

    The fields of a group are annotated as options are. A command names the group as a parameter whose default is an
    instance with the defaults of that command; called by other code it takes the group itself.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {name: one for name, one in signature.parameters.items() if is_dataclass(one.default)}
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
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of local features, for commands that read photos."""

    detector: Detector = _LOCAL.detector
    descriptor: Descriptor = _LOCAL.descriptor
    weights: Weights = None
    max_features: MaxFeatures = _LOCAL.max_features
    contrast_threshold: ContrastThreshold = _LOCAL.contrast_threshold

    @property
    def params(self) -> LocalParams:
        """Return the settings of extraction, checked."""
        return LocalParams(
            detector=self.detector,
            descriptor=self.descriptor,
            weights=self.weights,
            max_features=self.max_features,
            contrast_threshold=self.contrast_threshold,
        )


LARGEST_KEY = 2**20
"""How many bytes a key file may have: what is larger is some other file."""


def read_labels(path: Path) -> dict[str, str]:
    """Read a table 'image name,label' with a line for every image."""
    try:
        with open(path, newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise FileError(f"{path}: cannot read the labels: {cause}") from cause
    wrong = [number for number, row in enumerate(rows, 1) if len(row) != 2]
    if wrong:
        raise FileError(f"{path}: line {wrong[0]} is not 'image name,label'")
    return {name.strip(): label.strip() for name, label in rows}


def read_secret(path: Path) -> bytes:
    """Read a device key, and say so, as ssh does, if others could read it too.

    Raises FileError for what is no file, too large, or can be guessed: archives show a fingerprint to try guesses on.
    """
    advice = f"make one with: (umask 077; head -c 32 /dev/urandom > {path})"
    try:
        place = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # to open a pipe must not wait for its writer
        with os.fdopen(place, "rb") as file:
            info = os.fstat(place)
            if not stat.S_ISREG(info.st_mode):
                raise FileError(f"{path}: a device key is a plain file, and this is none; name one of 16 bytes or more")
            secret = file.read(LARGEST_KEY + 1)
    except FileError:
        raise
    except OSError as cause:
        raise FileError(f"{path}: cannot read the device key ({cause.strerror}); {advice}") from cause
    if len(secret) > LARGEST_KEY:
        raise FileError(f"{path}: more than {LARGEST_KEY} bytes, which is no device key; {advice}")
    if is_weak(secret):
        raise FileError(
            f"{path}: this device key can be guessed: it is short, regular, or a text that somebody could think of; "
            f"{advice}"
        )
    if os.name == "posix" and info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(info.st_mode)
        warning = f"warning: {path}: others may use this device key (mode {mode:04o}): chmod 600 {path}"
        print(printable(warning), file=sys.stderr)
    return secret


def own_key_path() -> Path:
    """Return where this user's device key is kept: $SFUMATO_KEY, or below the folder of settings."""
    named = os.environ.get("SFUMATO_KEY")
    settings = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(named) if named else Path(settings) / "sfumato" / "device.key"


def make_key(path: Path) -> None:
    """Write a new device key, 32 bytes of the operating system's source, that its owner alone may read.

    Raises FileError if it cannot be written, or there is one already.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(place, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        raise FileError(
            f"{path}: cannot write a device key ({cause.strerror}): name one with --secret-file or $SFUMATO_KEY"
        ) from cause


# ----------------------------------------------------------------
# Options that the commands for faces share, and how they become settings


GalleryPath = Annotated[Path, typer.Option("--gallery", "-g", help="The gallery's file, e.g. gallery.h5.")]
Network = Annotated[
    Path | None, typer.Option(help="For pictures: an ArcFace-style ONNX file. Default: dlib's network. Extra 'face'.")
]
Largest = Annotated[bool, typer.Option("--largest", help="For pictures: of several faces take the largest.")]
FaceExtractor = Annotated[
    str | None, typer.Option("--extractor", help="For files of embeddings: which network made them, e.g. arcface.")
]
Row = Annotated[str | None, typer.Option(help="For files of embeddings: the name of the row to use.")]
DecoysPath = Annotated[
    Path | None, typer.Option("--decoys", help="Decoys made by 'sfumato decoys build --faces'; all kinds but random.")
]
Comparison = Annotated[
    str,
    typer.Option("--distance", help="p-to-s: the probe is compared clear. s-to-s: it is concealed first."),
]


def read(path: Path, network: Path | None, largest: bool, extractor: str | None, *, quiet: bool = True) -> Faces:
    """Read pictures or embeddings; what cannot be used is named on standard error."""
    params = FaceParams(network=network, largest=largest)
    faces = read_faces(path, params, extractor=extractor, progress=progress_bar("faces", None, quiet=quiet))
    for reason in faces.unusable.values():
        print(printable(f"skipped {reason}"), file=sys.stderr)
    return faces


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of a command that holds one face against a gallery."""

    comparison: str
    decoys: Path | None
    row: str | None
    labels: Path | None
    network: Path | None
    largest: bool
    extractor: str | None


def ask(path: Path, people: Gallery, asked: Asked) -> NDArray[np.float32] | ConcealedTemplates:
    """Read the one face of a file and bring it to the form that a comparison with a gallery wants."""
    face = one_face(read(path, asked.network, asked.largest, asked.extractor), asked.row, path)
    return make_probe(face, people, asked.comparison, read_decoys(asked.decoys), labels_of(asked.labels, face.names))


def read_decoys(path: Path | None) -> Decoys | None:
    """Read a decoys file, if one is named; the bundled one is for SIFT and never meant."""
    return None if path is None else load_decoys(path)


def labels_of(table: Path | None, names: tuple[str, ...]) -> list[str] | None:
    """Return the label of each name from a table, if one is given."""
    if table is None:
        return None
    known = read_labels(table)
    missing = [name for name in names if name not in known]
    if missing:
        raise FileError(f"{table}: no label for {len(missing)} faces, the first is {printable(missing[0])}")
    return [known[name] for name in names]


def labels_in(path: Path, column: str) -> list[str]:
    """Return an array of a file of embeddings as labels; raises FileError if it has none of that name."""
    try:
        return [str(label) for label in read_column(path, column)]
    except FileError as cause:
        raise FileError(
            f"{cause}; name a list of an npz file, one label for each face, or give a table with --labels"
        ) from cause
