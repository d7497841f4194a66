# SPDX-License-Identifier: Apache-2.0
"""Decoys of photos: the long build, from photos or files of features to a database file.

Descriptors go to the disk as they are read, and clustering reads them from there, so that memory does not grow with the
number of photos. An SQLite file beside the output keeps the images that were read and the cells that were clustered: an
interrupted build goes on. Of more descriptors than clustering needs an even sample is taken: those with the least
hash values. The hash is a function of the descriptor, so that the sample depends neither on the order of the photos nor
on interruptions, and equal descriptors are one.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoy_clusters import DEFAULT_SIZE, check_settings, cluster_rows, draw_rows
from sfumato.concealment.decoys import DEFAULT_PARTS, Decoys, save_decoys
from sfumato.errors import DecoyError, FileError, InputError, SfumatoError
from sfumato.features.local import LocalParams, extractor_of
from sfumato.features.sources import FeatureSource, open_source
from sfumato.files import sqlite
from sfumato.files.atomic import check_output, file_lock
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor
from sfumato.types.progress import SizedItems, StageProgress

Floats = NDArray[np.float32]
Hashes = NDArray[np.uint64]
Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

log = logging.getLogger(__name__)

UNFINISHED = sqlite.FileKind(
    "an unfinished decoys file",
    0x53664470,
    1,
    (
        "CREATE TABLE purpose (text TEXT NOT NULL) STRICT",
        "CREATE TABLE image (source INTEGER NOT NULL, name TEXT NOT NULL, features INTEGER NOT NULL, "
        "width INTEGER NOT NULL, extractor TEXT NOT NULL, digest TEXT NOT NULL, rows BLOB NOT NULL, "
        "UNIQUE (source, name)) STRICT",
        "CREATE TABLE cell (settings TEXT NOT NULL, number INTEGER NOT NULL, digest TEXT NOT NULL, "
        "centroids BLOB NOT NULL, UNIQUE (settings, number)) STRICT",
    ),
    "delete it to begin anew, or move it away if it is not Sfumato's",
)
DESCRIPTORS_EACH = 16
"""Distinct descriptors for each decoy, at most: more do not make better centroids."""

REASONS_SHOWN = 3
READING, CLUSTERING = "reading", "clustering"
"""Stages of a build, for progress."""


@dataclass(slots=True)
class DecoysOutcome:
    """A build of decoys: the ``decoys``, and the images and features they are of.

    ``resumed`` images were read by an earlier run, which was interrupted; ``sampled`` descriptors, all distinct, were
    clustered or drawn from.
    """

    images: int = 0
    features: int = 0
    resumed: int = 0
    sampled: int = 0
    featureless: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    decoys: Decoys | None = None


def no_progress(_: str, items: Iterable[Any], __: int) -> Iterable[Any]:
    """Show no progress."""
    return items


def build_photo_decoys(
    photos: Sources,
    path: str | os.PathLike[str],
    *,
    size: int = DEFAULT_SIZE,
    parts: int = DEFAULT_PARTS,
    labels: Mapping[str, str] | None = None,
    drawn: bool = False,
    iterations: int = 10,
    seed: int = 0,
    local: LocalParams | None = None,
    extractor: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: StageProgress = no_progress,
) -> DecoysOutcome:
    """Build a database of ``size`` decoys from photos, and write it to a file.

    ``photos``: folders of photos, photos, hloc features.h5 files or COLMAP databases, one or several; never those that
    are to be protected. ``local`` and ``workers`` are for photos, ``extractor`` names the descriptors of hloc and
    COLMAP files. ``labels`` holds a label for each image; ``drawn`` draws real descriptors instead of clustering them:
    a public set for attacks. Memory does not grow with the number of photos.

    While it works, ``<path>.part`` holds what is done. It has clear descriptors and stays on this device. Called again
    with the same settings an interrupted build goes on, with photos that are new as well; ``overwrite`` begins anew.

    Raises DecoyError if there are fewer distinct descriptors than ``size``, FileError for files that cannot be read or
    written and for an unfinished build with other settings.

    >>> import tempfile
    >>> from sfumato.images import sample_paths
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(build_photo_decoys(sample_paths()["coffee"], f"{folder}/decoys.safetensors", size=64).decoys)
    64
    """
    check_output(path, overwrite=overwrite)
    check_settings(size, parts, iterations, seed)
    if drawn and labels is not None:
        raise DecoyError("labels are for decoys that are clustered: leave out drawn (--drawn)")
    places = [photos] if isinstance(photos, str | os.PathLike) else list(photos)
    sources = [open_source(one, params=local, extractor=extractor, workers=workers) for one in places]
    if not sources:
        raise InputError("give photos or features to build decoys from")
    purpose = {
        "sources": [os.path.abspath(source.path) for source in sources],
        "photos": asdict(local or LocalParams()) if any(source.kind == "images" for source in sources) else None,
        "network": _network_name(sources, local),
        "extractor": extractor,
        "size": size,
    }
    outcome = DecoysOutcome()
    with _unfinished(Path(os.path.realpath(path)), purpose, overwrite=overwrite) as harvest:
        _read(sources, harvest, outcome, progress)
        rows, tags = _choose_rows(harvest, outcome, size, labels)
        assert harvest.extractor is not None
        if drawn:
            decoys = draw_rows(rows, size, parts=parts, extractor=harvest.extractor, seed=seed)
        else:
            decoys = cluster_rows(
                rows,
                size,
                parts=parts,
                tags=tags,
                extractor=harvest.extractor,
                iterations=iterations,
                seed=seed,
                cells=_Cells(harvest, [rows.digest, str(iterations), str(seed), *([] if tags is None else tags)]),
                progress=lambda cells: progress(CLUSTERING, cells, len(cells)),  # type: ignore[arg-type]
            )
        save_decoys(path, decoys)
        outcome.decoys = decoys
    return outcome


def _network_name(sources: Iterable[FeatureSource], local: LocalParams | None) -> str | None:
    """Return the name of descriptors of photos, which for a network holds the checksum of its weights."""
    return extractor_of(local or LocalParams()).name if any(one.kind == "images" for one in sources) else None


def _read(sources: list[FeatureSource], harvest: "_Harvest", outcome: DecoysOutcome, progress: StageProgress) -> None:
    """Read the images that no earlier run has read; images that are gone since then are left out."""
    present = dict.fromkeys((number, name) for number, source in enumerate(sources) for name in source.names)
    harvest.images = {key: image for key, image in harvest.images.items() if key in present}
    done = [{name for number, name in harvest.images if number == index} for index in range(len(sources))]
    outcome.resumed = len(harvest.images)

    def every() -> Iterator[tuple[int, str, Features | SfumatoError]]:
        for index, source in enumerate(sources):
            for name, features in source.features(skip=done[index]):
                yield index, name, features

    count = len(present) - outcome.resumed
    for index, name, features in progress(READING, SizedItems(every(), count), count):
        if isinstance(features, SfumatoError):
            outcome.unreadable[name] = str(features)
        else:
            harvest.add(index, name, features)
    harvest.images = {key: harvest.images[key] for key in present if key in harvest.images}
    outcome.images = len(harvest.images)
    outcome.features = sum(image.features for image in harvest.images.values())
    outcome.featureless = [name for (_, name), image in harvest.images.items() if not image.features]


def _choose_rows(
    harvest: "_Harvest", outcome: DecoysOutcome, size: int, labels: Mapping[str, str] | None
) -> tuple["_SampledRows", NDArray[np.str_] | None]:
    """Return the descriptors to build from, and the label of each."""
    missing = [] if labels is None else [name for _, name in harvest.images if name not in labels]
    if missing:
        raise FileError(f"labels: no label for {len(missing)} images, the first is {missing[0]!r:.80}")
    rows = harvest.sample()
    outcome.sampled = len(rows)
    if not len(rows):
        reasons = "".join(f"; {name}: {reason}" for name, reason in list(outcome.unreadable.items())[:REASONS_SHOWN])
        raise DecoyError(f"there are no descriptors to build decoys from{reasons}")
    if len(rows) < size:
        raise DecoyError(
            f"{size} decoys need at least as many distinct descriptors, there are {len(rows)} in {outcome.images} "
            f"images: give more photos, or find more in each with a lower --contrast-threshold"
        )
    return rows, None if labels is None else np.array([labels[name] for _, name in harvest.images])[rows.owners]


# --- what is done, on the disk


@dataclass(frozen=True, slots=True, eq=False)
class _ImageRows:
    """Rows of one image that are kept, by their hashes, of how many ``features``."""

    hashes: Hashes
    features: int


class _Harvest:
    """Descriptors and cells on the disk, each image and each cell in one transaction: a kill loses one at most."""

    def __init__(self, state: sqlite.Database, limit: int) -> None:
        self.images: dict[tuple[int, str], _ImageRows] = {}
        self.extractor: Extractor | None = None
        self.width = 0
        self.state, self._limit = state, limit
        self._largest = np.uint64(2**64 - 1)
        self._below = 0

    def add(self, source: int, name: str, features: Features) -> None:
        """Keep the descriptors of an image that belong to the sample so far."""
        self._check_kind(features.extractor, features.descriptors.shape[1])
        hashes = row_hashes(features.descriptors)
        rows = np.ascontiguousarray(features.descriptors[hashes <= self._largest], "<f4").tobytes()
        facts = source, json.dumps(name), len(features), self.width, features.extractor.to_json()
        with self.state.transaction():
            self.state.rows("INSERT INTO image VALUES (?, ?, ?, ?, ?, ?, ?)", (*facts, _digest(facts, rows), rows))
        self._enter(source, name, len(features), hashes[hashes <= self._largest])

    def salvage(self) -> None:
        """Take over what an earlier run has read and clustered; what is damaged is done again."""
        for table in ("image", "cell"):
            for (number,) in self.state.rows(f"SELECT rowid FROM {table} ORDER BY rowid"):
                *facts, digest, raw = self.state.rows(f"SELECT * FROM {table} WHERE rowid = ?", (number,))[0]
                try:
                    if digest != _digest(facts, raw):
                        raise InputError("its digest is wrong")
                    if table == "image":
                        self._take(facts, raw)
                except (ValueError, TypeError, KeyError):  # InputError is a ValueError
                    log.warning("%s is damaged in places: part of it is done again", self.state.path)
                    self.state.rows(f"DELETE FROM {table} WHERE rowid = ?", (number,))

    def _take(self, facts: list[Any], raw: bytes) -> None:
        source, name, count, width, extractor = facts
        self._check_kind(Extractor.from_json(extractor), width)
        self._enter(source, str(json.loads(name)), count, row_hashes(np.frombuffer(raw, "<f4").reshape(-1, width)))

    def _check_kind(self, extractor: Extractor, width: int) -> None:
        if self.extractor is not None and (self.extractor.name, self.width) != (extractor.name, width):
            kinds = sorted([(self.extractor.name, self.width), (extractor.name, width)])
            raise DecoyError(f"descriptors of different kinds cannot share a database: {kinds}")
        self.extractor, self.width = self.extractor or extractor, width

    def _enter(self, source: int, name: str, features: int, hashes: Hashes) -> None:
        self.images[source, name] = _ImageRows(hashes, features)
        self._below += len(hashes)
        if self._below > 2 * self._limit:
            every = [image.hashes for image in self.images.values()]
            distinct = np.unique(np.concatenate(every))
            if len(distinct) > self._limit:
                self._largest = min(self._largest, distinct[self._limit - 1])
            self._below = int(sum((hashes <= self._largest).sum() for hashes in every))

    def sample(self) -> "_SampledRows":
        """Return the distinct descriptors to build from, in a file without a name."""
        every = [image.hashes for image in self.images.values()]
        hashes = np.concatenate([np.zeros(0, np.uint64), *every])
        first = np.sort(np.unique(hashes, return_index=True)[1][: self._limit])
        owners = np.repeat(np.arange(len(every)), [len(one) for one in every])[first]
        digest = hashlib.blake2b(hashes[first].tobytes(), digest_size=16).hexdigest()
        stored: Floats = np.zeros((0, max(1, self.width)), np.float32)
        if len(first):
            starts = np.cumsum([0, *(len(one) for one in every)])
            with (
                sqlite.explain(self.state.path, UNFINISHED),
                tempfile.TemporaryFile(dir=self.state.path.parent) as file,
            ):
                for number, (source, name) in enumerate(self.images):
                    rows = first[owners == number] - starts[number]
                    file.write(self._rows(source, name)[rows].tobytes())
                file.flush()
                stored = np.memmap(file, "<f4", "r", shape=(len(first), self.width))
        return _SampledRows(stored, owners, digest)

    def _rows(self, source: int, name: str) -> Floats:
        query = "SELECT rows FROM image WHERE source = ? AND name = ?"
        ((raw,),) = self.state.rows(query, (source, json.dumps(name)))
        return np.frombuffer(raw, "<f4").reshape(-1, self.width)


def _digest(facts: Iterable[Any], raw: bytes) -> str:
    state = hashlib.blake2b(json.dumps(list(facts)).encode("ascii"), digest_size=16, person=b"sfumato-decoys")
    state.update(raw)
    return state.hexdigest()


class _SampledRows:
    """Rows of a file, in memory only while they are used, with the number of the image of each and a digest of all."""

    def __init__(self, stored: Floats, owners: NDArray[np.int64], digest: str) -> None:
        self._stored, self.owners, self.digest = stored, owners, digest
        self.shape = stored.shape

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, rows: Any, /) -> Floats:
        """Read rows by a slice, a mask or a list of indices."""
        read: Floats = np.asarray(self._stored[rows], np.float32)
        return read


class _Cells(MutableMapping[int, Floats]):
    """Centroids of cells that are clustered, on the disk; ``settings`` are all that decides them."""

    def __init__(self, harvest: _Harvest, settings: Iterable[str]) -> None:
        self._state, self._width = harvest.state, harvest.width
        self._settings = hashlib.blake2b("\0".join(settings).encode(), digest_size=16).hexdigest()

    def __getitem__(self, number: int) -> Floats:
        query = "SELECT centroids FROM cell WHERE settings = ? AND number = ?"
        for (raw,) in self._state.rows(query, (self._settings, number)):
            return np.frombuffer(raw, "<f4").reshape(-1, self._width)
        raise KeyError(number)

    def __setitem__(self, number: int, centroids: Floats) -> None:
        raw, facts = np.ascontiguousarray(centroids, "<f4").tobytes(), (self._settings, int(number))
        with self._state.transaction():
            self._state.rows("INSERT OR REPLACE INTO cell VALUES (?, ?, ?, ?)", (*facts, _digest(facts, raw), raw))

    def __delitem__(self, number: int) -> None:
        raise TypeError("a cell that was clustered stays")

    def __iter__(self) -> Iterator[int]:
        rows = self._state.rows("SELECT number FROM cell WHERE settings = ?", (self._settings,))
        return (int(number) for (number,) in rows)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def row_hashes(rows: Floats) -> Hashes:
    """Return 64 bits for each row (N, n), the same for the same numbers on every machine."""
    words = np.ascontiguousarray(rows, "<f4").view("<u4").astype(np.uint64)
    weights = np.random.default_rng(words.shape[1]).integers(1, 2**64 - 1, words.shape[1], np.uint64) | np.uint64(1)
    mixed = np.einsum("ni,i->n", words, weights)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the end of splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    hashes: Hashes = mixed ^ (mixed >> np.uint64(31))
    return hashes


@contextmanager
def _unfinished(target: Path, purpose: Mapping[str, Any], *, overwrite: bool) -> Iterator[_Harvest]:
    """Open what an interrupted build left beside its output, or begin; remove it when the build is done."""
    text = json.dumps(purpose, sort_keys=True, default=str)
    part = target.with_name(f"{target.name}.part")
    with file_lock(target, wait=0):
        if part.is_symlink():
            raise FileError(f"{part} is a link; move it away")
        with sqlite.open_writer(part, UNFINISHED, private=True) as state:
            purposes = [one for (one,) in state.rows("SELECT text FROM purpose")]
            if purposes not in ([], [text]) and not overwrite:
                raise FileError(
                    f"{part} was begun with other photos or settings: give the same to go on, or begin anew "
                    f"(--overwrite, overwrite=True)"
                )
            harvest = _Harvest(state, DESCRIPTORS_EACH * purpose["size"])
            if overwrite or not purposes:
                with state.transaction():
                    for table in ("purpose", "image", "cell"):
                        state.rows(f"DELETE FROM {table}")
                    state.rows("INSERT INTO purpose VALUES (?)", (text,))
            else:
                harvest.salvage()
            keep = False
            try:
                yield harvest
            except BaseException as problem:  # unless there is nothing to go on with
                keep = bool(harvest.images) and not isinstance(problem, DecoyError)
                raise
            finally:
                state.close()
                if not keep:
                    sqlite.remove(part)
