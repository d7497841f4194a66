# SPDX-License-Identifier: Apache-2.0
"""Every error Sfumato raises on purpose.

    SfumatoError
    ├── InputError (ValueError)         an argument, array or setting is not what it must be
    │   ├── RecipeError                 a recipe is misspelt or impossible
    │   ├── DecoyError                  decoys are missing, too few, or of another extractor
    │   └── RankError                   basis rows that do not span what they claim to span
    ├── FileError (OSError)             a file is missing, damaged, hostile, of another version, or full
    │   ├── ImageError                  an image that cannot be read
    │   ├── ArchiveError                a .sfm.h5 archive
    │   └── SourceError                 features made by somebody else: hloc, COLMAP
    ├── WorkerError (RuntimeError)      a process or machine that was given work died, or could not do it
    └── MissingDependency (ImportError) an optional library is not installed

    EvaluationOnlyWarning (UserWarning) something was concealed in a way that protects nobody
    VoidDistanceWarning (UserWarning)   subspaces so large that any two of them meet
    WeakSecretWarning (UserWarning)     a device secret that can be guessed
    WideSealWarning (UserWarning)       a seal that shows attackers more than those that were measured and defended

Messages say what is wrong, where, and what to do. They never quote descriptor values.
"""

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType


class SfumatoError(Exception):
    """The root: ``except SfumatoError`` catches everything raised on purpose."""


class InputError(SfumatoError, ValueError):
    """An argument, array or setting is not what it must be."""


class RecipeError(InputError):
    """A recipe is misspelt or impossible."""


class DecoyError(InputError):
    """Decoys are missing, too few, or of another extractor."""


class RankError(InputError):
    """Basis rows are linearly dependent."""


class FileError(SfumatoError, OSError):
    """A file is missing, damaged, hostile, of another version, or the disk is full."""


class ImageError(FileError):
    """An image cannot be read."""


class ArchiveError(FileError):
    """A .sfm.h5 archive cannot be read or written."""


class SourceError(FileError):
    """A file of features made by another program cannot be read."""


class WorkerError(SfumatoError, RuntimeError):
    """A process or machine that was given work died, or could not do it."""


class MissingDependency(SfumatoError, ImportError):
    """An optional library is not installed."""


class EvaluationOnlyWarning(UserWarning):
    """Something was concealed in a way that protects nobody; fine for evaluations only."""


class VoidDistanceWarning(UserWarning):
    """Distances were asked for between subspaces so large that any two of them meet."""


class WeakSecretWarning(UserWarning):
    """A device secret is too short, too regular or too readable to be random."""


class WideSealWarning(UserWarning):
    """A seal has so many bits, or so large a bandwidth, that attackers without the key get more of it."""


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional library, or say which extra of Sfumato brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise MissingDependency(
            f"this needs {module}, which is not installed: pip install 'sfumato[{extra}]'"
        ) from cause


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the nearest known word, or an empty string."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
