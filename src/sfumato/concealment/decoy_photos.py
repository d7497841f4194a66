# SPDX-License-Identifier: Apache-2.0
"""Decoys of photos: the long build, from photos or files of features to a database file.

Descriptors go to the disk as they are read, and clustering reads them from there, so that memory does not grow with the
number of photos. A journal beside the output names the images that were read and keeps the cells that were clustered:
an interrupted build goes on. Of more descriptors than clustering needs an even sample is taken: those with the least
hash values. The hash is a function of the descriptor, so that the sample depends neither on the order of the photos nor
on interruptions, and equal descriptors are one.
"""

import hashlib
import json
import os
import zlib
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
from sfumato.files.atomic import LockedFile, RecordFile, check_output, explain_errors
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor
from sfumato.types.progress import SizedItems, StageProgress

Floats = NDArray[np.float32]
Hashes = NDArray[np.uint64]
Sources = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

MARK = b"sfumato-decoys-part-1\n"
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

    While it works, ``<path>.part`` and ``<path>.rows.part`` hold what is done. They are clear descriptors and stay on
    this device. Called again with the same settings an interrupted build goes on, with photos that are new as well;
    ``overwrite`` begins anew.

    Raises DecoyError if there are fewer distinct descriptors than ``size``, FileError for files that cannot be read or
    written and for an unfinished build with other settings.

    >>> import tempfile
    >>> from sfumato.images.samples import sample_paths
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(build_photo_decoys(sample_paths()["coffee"], f"{folder}/decoys.npz", size=64).decoys)
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
    present = {(number, name) for number, source in enumerate(sources) for name in source.names}
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


@dataclass(frozen=True, slots=True)
class _RowSpan:
    """Rows of one image: where they ``start`` in the file of rows, how many, and of how many ``features``."""

    start: int
    count: int
    features: int


class _Harvest:
    """Descriptors on the disk, one row each, and the journal that says whose they are.

    Rows are written before the record that names them, so that a kill loses one image at most.
    """

    def __init__(self, journal: RecordFile, rows: LockedFile, limit: int) -> None:
        self.images: dict[tuple[int, str], _RowSpan] = {}
        self.extractor: Extractor | None = None
        self.width = 0
        self.cells: dict[tuple[str, int], int] = {}
        self._journal, self._file, self._limit = journal, rows, limit
        self._hashes: list[Hashes] = []
        self._count = 0
        self._largest = np.uint64(2**64 - 1)
        self._below = 0

    def add(self, source: int, name: str, features: Features) -> None:
        """Keep the descriptors of an image that belong to the sample so far."""
        self._check_kind(features.extractor, features.descriptors.shape[1])
        hashes = row_hashes(features.descriptors)
        rows = np.ascontiguousarray(features.descriptors[hashes <= self._largest], "<f4")
        header = {
            "image": [source, name], "features": len(features), "rows": len(rows), "crc": zlib.crc32(rows.data),
            "width": self.width, "extractor": features.extractor.to_json(),
        }  # fmt: skip
        with explain_errors(f"cannot write {self._file.path}", "free space and run again: what was read is kept"):
            self._file.write(rows.reshape(-1).view("u1").data, self._count * self.width * 4)
        self._journal.add(json.dumps(header).encode())
        self._enter(source, name, len(features), hashes[hashes <= self._largest])

    def salvage(self) -> None:
        """Take over what an earlier run has read and clustered; stop at the first record that cannot be used."""
        for address, payload in self._journal.payloads():
            try:
                header = json.loads(payload.split(b"\n", 1)[0])
                if "cell" in header:
                    self.cells[str(header["of"]), int(header["cell"])] = address
                    continue
                (source, name), count, width = header["image"], int(header["rows"]), int(header["width"])
                self._check_kind(Extractor.from_json(header["extractor"]), width)
                raw = os.pread(self._file.fd, count * width * 4, self._count * width * 4)
                if len(raw) != count * width * 4 or zlib.crc32(raw) != header["crc"]:
                    break
                rows = np.frombuffer(raw, "<f4").reshape(count, width)
                self._enter(int(source), str(name), int(header["features"]), row_hashes(rows))
            except (ValueError, KeyError, TypeError, SfumatoError):
                break
        self._journal.cut()
        os.ftruncate(self._file.fd, self._count * self.width * 4)

    def _check_kind(self, extractor: Extractor, width: int) -> None:
        if self.extractor is not None and (self.extractor.name, self.width) != (extractor.name, width):
            kinds = sorted([(self.extractor.name, self.width), (extractor.name, width)])
            raise DecoyError(f"descriptors of different kinds cannot share a database: {kinds}")
        self.extractor, self.width = self.extractor or extractor, width

    def _enter(self, source: int, name: str, features: int, hashes: Hashes) -> None:
        self.images[source, name] = _RowSpan(self._count, len(hashes), features)
        self._hashes.append(hashes)
        self._count += len(hashes)
        self._below += len(hashes)
        if self._below > 2 * self._limit:
            distinct = np.unique(np.concatenate(self._hashes))
            if len(distinct) > self._limit:
                self._largest = min(self._largest, distinct[self._limit - 1])
            self._below = int(sum((hashes <= self._largest).sum() for hashes in self._hashes))

    def sample(self) -> "_SampledRows":
        """Return the distinct descriptors to build from."""
        spans = self.images.values()
        places = np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(one.start, one.start + one.count) for one in spans)]
        )
        owners = np.repeat(np.arange(len(spans)), [one.count for one in spans])
        hashes = np.concatenate([np.zeros(0, np.uint64), *self._hashes])[places]
        first = np.sort(np.unique(hashes, return_index=True)[1][: self._limit])
        stored: Floats = np.zeros((0, max(1, self.width)), np.float32)
        if self._count:
            stored = np.memmap(self._file.path, "<f4", "r", shape=(self._count, self.width))
        digest = hashlib.blake2b(hashes[first].tobytes(), digest_size=16).hexdigest()
        return _SampledRows(stored, places[first], owners[first], digest)

    def remove(self) -> None:
        """Delete both files."""
        self._file.remove()
        self._journal.remove()

    def read_cell(self, address: int) -> Floats:
        payload = self._journal.payload(address)
        if payload is None:
            raise FileError(f"{self._journal.path} was damaged while it was in use, at byte {address}: run again")
        return np.frombuffer(payload, "<f4", offset=payload.index(b"\n") + 1).reshape(-1, self.width)

    def add_cell(self, digest: str, number: int, centroids: Floats) -> None:
        header = json.dumps({"cell": number, "of": digest}).encode()
        self.cells[digest, number] = self._journal.add(header + b"\n" + centroids.astype("<f4").tobytes())


class _SampledRows:
    """Rows of a file, in memory only while they are used, with the number of the image of each and a digest of all."""

    def __init__(self, stored: Floats, places: NDArray[np.int64], owners: NDArray[np.int64], digest: str) -> None:
        self._stored, self._places, self.owners, self.digest = stored, places, owners, digest
        self.shape = len(places), stored.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Floats:
        """Read rows by a slice, a mask or a list of indices."""
        read: Floats = np.asarray(self._stored[self._places[rows]], np.float32)
        return read


class _Cells(MutableMapping[int, Floats]):
    """Centroids of cells that are clustered, kept in the journal; ``settings`` are all that decides them."""

    def __init__(self, harvest: _Harvest, settings: Iterable[str]) -> None:
        self._harvest = harvest
        self._digest = hashlib.blake2b("\0".join(settings).encode(), digest_size=16).hexdigest()

    def __getitem__(self, number: int) -> Floats:
        return self._harvest.read_cell(self._harvest.cells[self._digest, number])

    def __setitem__(self, number: int, centroids: Floats) -> None:
        self._harvest.add_cell(self._digest, number, centroids)

    def __delitem__(self, number: int) -> None:
        raise TypeError("a cell that was clustered stays in the journal")

    def __iter__(self) -> Iterator[int]:
        return (number for digest, number in self._harvest.cells if digest == self._digest)

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
    """Open what an interrupted build left beside its output, or begin; remove both files when it is done."""
    text = json.dumps(purpose, sort_keys=True, default=str)
    journal = RecordFile(target.with_name(f"{target.name}.part"), MARK, "an unfinished decoys file")
    try:
        if journal.purpose and journal.purpose != text and not overwrite:
            raise FileError(
                f"{journal.path} was begun with other photos or settings: give the same to go on, or begin anew "
                f"(--overwrite, overwrite=True)"
            )
        with explain_errors(f"cannot write beside {target}", "check the folder and its permissions"):
            rows = LockedFile(target.with_name(f"{target.name}.rows.part"))
            os.fchmod(rows.fd, 0o600)  # descriptors of photos
    except BaseException:
        journal.close()
        raise
    harvest = _Harvest(journal, rows, DESCRIPTORS_EACH * purpose["size"])
    try:
        if overwrite or journal.purpose != text:
            journal.begin(text)
            os.ftruncate(rows.fd, 0)
        else:
            harvest.salvage()
        yield harvest
    except BaseException as problem:
        if isinstance(problem, DecoyError) or not harvest.images:  # there is nothing to go on with
            harvest.remove()
        raise
    else:
        harvest.remove()
    finally:
        rows.close()
        journal.close()
