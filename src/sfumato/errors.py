# SPDX-License-Identifier: Apache-2.0
"""Tree of the errors and warnings that Sfumato raises on purpose.

    SfumatoError
    ├── InputError (ValueError)         an argument, array or setting is not valid
    │   ├── RecipeError                 a recipe is misspelt or impossible
    │   ├── DecoyError                  decoys are missing, too few, or of another extractor
    │   ├── FrameError                  bytes are no frame of concealed features, or features cannot be sent as one
    │   ├── NotEnrolledError            somebody has no template in a gallery
    │   └── RankError                   basis rows are linearly dependent
    ├── FileError (OSError)             a file is missing, damaged, hostile or of another version; a disk is full
    │   ├── ImageError                  an image cannot be read
    │   ├── ArchiveError                an archive of concealed features
    │   └── SourceError                 features from another program: hloc, COLMAP
    ├── ServerError (RuntimeError)      a server refused a request, cannot be reached, or failed
    ├── WorkerError (RuntimeError)      a process or machine that does part of the work died, or failed
    └── MissingDependency (ImportError) an optional library is not installed

    SfumatoWarning (UserWarning)
    ├── BandwidthWarning                the bandwidth of a seal was estimated: name it on the other devices
    ├── EvaluationOnlyWarning           a concealment protects nobody
    ├── MasterProbeWarning              one probe is accepted as many people of a gallery by whoever has their keys
    ├── NameWarning                     image names that later steps cannot use
    ├── NewKeyWarning                   a device key was made: copy it to the other devices
    ├── SkippedWarning                  a picture was left out
    ├── VoidDistanceWarning             subspaces are so large that any two of them meet
    ├── WeakSecretWarning               a device key can be guessed, or read by others
    └── WideSealWarning                 a seal shows attackers more than the seals that were measured

Messages say what is wrong, where, and what to do. They never quote descriptor values or keys.
"""

import importlib
import signal
import threading
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType


class SfumatoError(Exception):
    """The root: ``except SfumatoError`` catches everything raised on purpose."""


class InputError(SfumatoError, ValueError):
    """An argument, array or setting is not valid."""


class RecipeError(InputError):
    """A recipe is misspelt or impossible."""


class DecoyError(InputError):
    """Decoys are missing, too few, or of another extractor."""


class FrameError(InputError):
    """Bytes are no frame of concealed features, or features cannot be sent as one; see docs/reference/wire.md.

    ``code``: ``not_a_frame``, ``other_version``, ``too_large``, ``clear_features`` or ``bad_frame``.
    """

    def __init__(self, message: str, code: str = "bad_frame") -> None:
        super().__init__(message)
        self.code = code


class NotEnrolledError(InputError):
    """Somebody has no template in a gallery: ``person``. No other name of the gallery is in the message."""

    def __init__(self, message: str, person: str = "") -> None:
        super().__init__(message)
        self.person = person


class RankError(InputError):
    """Basis rows are linearly dependent."""


class FileError(SfumatoError, OSError):
    """A file is missing, damaged, hostile, of another version, or the disk is full."""


class ImageError(FileError):
    """An image cannot be read."""


class ArchiveError(FileError):
    """An archive of concealed features cannot be read or written."""


class SourceError(FileError):
    """A file of features from another program cannot be read."""


class ServerError(SfumatoError, RuntimeError):
    """A server refused a request, cannot be reached, or a job of it failed.

    ``status`` is that of HTTP, 0 where there was no answer; ``code`` a word for programs, such as ``no_map``; ``retry``
    whether the server says that the same request may succeed later.
    """

    def __init__(self, message: str, *, status: int = 0, code: str = "", retry: bool = False) -> None:
        super().__init__(message)
        self.status, self.code, self.retry = status, code, retry


class WorkerError(SfumatoError, RuntimeError):
    """A process or machine that does part of the work died, or failed."""


class MissingDependency(SfumatoError, ImportError):
    """An optional library is not installed."""


class SfumatoWarning(UserWarning):
    """The root of all warnings."""


class EvaluationOnlyWarning(SfumatoWarning):
    """A concealment protects nobody: it is for evaluations only."""


class MasterProbeWarning(SfumatoWarning):
    """One probe that is no face is accepted as many people of a gallery, by whoever has their keys."""


class NameWarning(SfumatoWarning):
    """Images have names that later steps cannot use."""


class NewKeyWarning(SfumatoWarning):
    """A device key was made, and the other devices need a copy of it."""


class SkippedWarning(SfumatoWarning):
    """A picture cannot be used and was left out."""


class VoidDistanceWarning(SfumatoWarning):
    """Subspaces are so large that any two of them meet: their distances say nothing."""


class WeakSecretWarning(SfumatoWarning):
    """A device key is too short, too regular or too readable to be random, or its file is readable by others."""


class BandwidthWarning(SfumatoWarning):
    """The bandwidth of a seal was estimated from the data: the other devices of a map must be given the same."""


class WideSealWarning(SfumatoWarning):
    """A seal whose number of bits or bandwidth is so large that attackers without the key get more from it."""


COLMAP_ERRORS_ONLY = 2
"""COLMAP's number for a log that shows errors and nothing less."""


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional library, or say which extra of Sfumato brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise MissingDependency(
            f"this needs {module}, which is not installed: pip install 'sfumato[{extra}]', or in a clone: "
            f"pip install '.[{extra}]'"
        ) from cause


def load_pycolmap() -> ModuleType:
    """Return pycolmap, with OpenCV loaded before it (both carry a zlib, and the first one wins) and a quiet log.

    It takes over SIGTERM when it is imported; in the main thread, which alone may, the handler of before is put back.

    Raises MissingDependency if it is not installed.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        import cv2  # noqa: F401
        import pycolmap
    except ImportError as cause:
        raise MissingDependency(
            f"COLMAP's features, maps and poses need pycolmap: pip install 'pycolmap>=4.0.4' ({cause})"
        ) from cause
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    pycolmap.logging.minloglevel = max(int(pycolmap.logging.minloglevel), COLMAP_ERRORS_ONLY)
    module: ModuleType = pycolmap
    return module


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the nearest known word, or an empty string."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
