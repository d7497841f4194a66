# SPDX-License-Identifier: Apache-2.0
"""Where features come from: photos, an hloc file or a COLMAP database, told apart by what is in them."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import InputError, SourceError
from sfumato.features import colmap, hloc
from sfumato.features.local import LocalParams, chosen
from sfumato.features.many import extract_many
from sfumato.features.results import Counted, Progress, Result, identity
from sfumato.images.read import SUFFIXES, image_format, list_images


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Features that can be read, image by image.

    ``kind`` is images, hloc or colmap; ``names`` are those of all images, known before anything is read.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    _read: Callable[[Iterable[str]], Iterator[Result]]

    def features(self, skip: Collection[str] = (), *, progress: Progress = identity) -> Iterator[Result]:
        """Yield (name, Features) of every image that is not to be skipped; what can not be read comes as an error."""
        names = [name for name in self.names if name not in skip]
        return iter(progress(Counted(self._read(names), len(names))))

    def __iter__(self) -> Iterator[Result]:
        return self.features()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Source({str(self.path)!r}, {self.kind}, {len(self)} images)"


def open_source(
    path: str | os.PathLike[str],
    *,
    params: LocalParams | None = None,
    extractor: str | None = None,
    workers: int | None = None,
    **settings: Any,
) -> Source:
    """Open a folder of photos, a photo, an hloc features.h5 or a COLMAP database.

    For photos ``params``, ``workers`` and settings of LocalParams say how features are extracted; the others
    are read as they are, and ``extractor`` says what their descriptors are, where they do not say it
    themselves.

    Raises FileError naming the file if there is nothing to read in it, InputError for settings that are not
    valid.
    """
    params = chosen(params, settings)
    path = Path(path)
    kind = _kind(path)
    if kind == "hloc":
        names = hloc.names_in_hloc(path)
        name = hloc.named_extractor(path, extractor)
        return Source(path, kind, tuple(names), lambda some: hloc.features_in_hloc(path, some, extractor=name))
    if kind == "colmap":
        names = colmap.names_in_colmap(path)
        return Source(path, kind, tuple(names), lambda some: colmap.features_in_colmap(path, some, extractor=extractor))
    if extractor is not None and extractor != params.descriptor:
        raise InputError(
            f"extractor says what the descriptors of an hloc or COLMAP file are; {path} holds photos: choose their "
            f"descriptor instead, on the command line --descriptor"
        )
    paths = dict(list_images(path))
    return Source(
        path,
        kind,
        tuple(paths),
        lambda some: extract_many([(name, paths[name]) for name in some], params, workers=workers),
    )


def _kind(path: Path) -> str:
    """Tell what a path holds from its first bytes; the file's name decides only what a damaged one should have been."""
    if path.is_dir():
        return "images"
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except (OSError, ValueError) as cause:
        reason = "is not there" if isinstance(cause, FileNotFoundError) else f"can not be read: {cause}"
        raise SourceError(f"{str(path)!r} {reason}: check the path") from cause
    suffix = path.suffix.lower()
    if head.startswith(hloc.SIGNATURE) or suffix in (".h5", ".hdf5"):
        return "hloc"
    if head.startswith(colmap.SIGNATURE) or suffix in (".db", ".sqlite", ".sqlite3"):
        return "colmap"
    if suffix in SUFFIXES or image_format(head):
        return "images"
    raise SourceError(
        f"{path} holds no features: give a folder of photos, a photo, an hloc features.h5 or a COLMAP database"
    )
