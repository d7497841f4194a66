# SPDX-License-Identifier: Apache-2.0
"""Guards of the server's processes: none can load the clear side, whatever asks for it, and none logs a value.

The rules of imports are tested in the source; this is the same rule at run time. A module alone, because it is a
security boundary and must come before every other import.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FORBIDDEN = (
    "types.clear",
    "features",
    "images",
    "concealment",
    "inversion",
    "attacks",
    "auditing",
    "training",
    "experiments",
    "device",
    "publish",
    "codebooks",
    "cli",
    "client",
)
"""Modules of the package that handle pictures, clear descriptors or keys, and those that lead to them."""

LIBRARIES = ("torch", "onnxruntime", "dlib", "kornia")
"""Libraries that run networks: the server has none to run."""


class ImportGuard(MetaPathFinder):
    """A finder that refuses forbidden modules, and knows no others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse a forbidden module; leave others to the finders that follow."""
        if is_forbidden(fullname):
            raise ImportError(f"a server never loads {fullname}: pictures, clear features and keys stay on devices")
        return None


def is_forbidden(name: str) -> bool:
    """Tell whether a module belongs to the clear side."""
    parts = (*(f"sfumato.{part}" for part in FORBIDDEN), *LIBRARIES)
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def clear_modules() -> list[str]:
    """Return the modules of the clear side that are loaded; empty in every process of a server."""
    return sorted(name for name in sys.modules if is_forbidden(name))


def guard_imports() -> None:
    """Refuse the clear side from now on.

    Raises RuntimeError if some of it is loaded already: such a process is no server.
    """
    loaded = clear_modules()
    if loaded:
        raise RuntimeError(f"{len(loaded)} modules of the clear side are loaded, such as {loaded[0]}: no server starts")
    if not any(isinstance(finder, ImportGuard) for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportGuard())


# --- logs

OWN = ("sfumato.server", "uvicorn", "__main__")
"""Loggers whose texts hold no names and values."""


class JsonLines(logging.Formatter):
    """A line of JSON for each record: time, level, text, and the facts that were given as ``extra={"facts": ...}``.

    Texts of libraries are left out: they name files and images.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; of an error the kinds and places of its trace, never its values."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage() if record.name.startswith(OWN) else "",
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = type(record.exc_info[1]).__name__
            line["trace"] = trace_of(record.exc_info[1])
        return json.dumps(line)


def trace_of(error: BaseException) -> list[str]:
    """Return where an error came from, as module and line: texts of errors may quote what clients sent."""
    places, trace = [], error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        places.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return places[-12:]


def log_as_json(level: int = logging.INFO) -> None:
    """Write every log of this process as JSON lines to standard error."""
    _log_to(logging.StreamHandler(), level)


def log_quietly(level: int = logging.INFO) -> None:
    """Write logs as JSON lines to standard error, and drop all that libraries print: COLMAP prints names of files."""
    errors = os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    _log_to(logging.StreamHandler(errors), level)


def _log_to(handler: "logging.StreamHandler[Any]", level: int) -> None:
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").disabled = True  # its lines have paths, and those have ids
