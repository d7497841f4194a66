# SPDX-License-Identifier: Apache-2.0
"""The one door to COLMAP: everything here that needs pycolmap asks this module for it.

Knows in which order the libraries must be loaded and keeps COLMAP's own log quiet; knows nothing of images or maps.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from sfumato.errors import MissingDependency

ERRORS_ONLY, NOTHING = 2, 3
"""COLMAP's numbers for a log that shows errors and nothing less, and for one that shows only what ends the process."""


def load_pycolmap() -> ModuleType:
    """Return pycolmap, with OpenCV loaded before it (both carry a zlib, and the first one wins) and a quiet log.

    Raises MissingDependency if it is not installed.
    """
    try:
        import cv2  # noqa: F401
        import pycolmap
    except ImportError as cause:
        raise MissingDependency(f"maps and poses need pycolmap: pip install 'pycolmap>=4.0.4' ({cause})") from cause
    pycolmap.logging.minloglevel = max(int(pycolmap.logging.minloglevel), ERRORS_ONLY)
    module: ModuleType = pycolmap
    return module


@contextmanager
def silenced() -> Iterator[None]:
    """Keep COLMAP from logging errors that are told in another way."""
    log = load_pycolmap().logging
    before = int(log.minloglevel)
    log.minloglevel = max(before, NOTHING)
    try:
        yield
    finally:
        log.minloglevel = before
