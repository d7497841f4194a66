# SPDX-License-Identifier: Apache-2.0
"""Options that several commands take, and the small files some of them name."""

import csv
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.complete import complete_recipes, one_of
from sfumato.cli.output import printable
from sfumato.concealment.randomness import is_weak
from sfumato.errors import FileError
from sfumato.features.local import DESCRIPTORS, DETECTORS

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


LARGEST_KEY = 2**20
"""How many bytes a key file may have: what is larger is some other file."""


def read_labels(path: Path) -> dict[str, str]:
    """Read a table 'image name,label' with a line for every image."""
    try:
        with open(path, newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise FileError(f"{path}: can not read the labels: {cause}") from cause
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
        raise FileError(f"{path}: can not read the device key ({cause.strerror}); {advice}") from cause
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

    Raises FileError if it can not be written, or there is one already.
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
            f"{path}: can not write a device key ({cause.strerror}): name one with --secret-file or $SFUMATO_KEY"
        ) from cause
