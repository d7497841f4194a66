# SPDX-License-Identifier: Apache-2.0
"""Kinds of index: making one, writing it to a file, and reading it back.

The file is a safetensors file, whose arrays are mapped into memory when they are read. Its texts are the format, the
version and a header in JSON. A digest finds damage, not malice: the kind that restores an index checks what its arrays
point to.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError, SfumatoError, suggest
from sfumato.files.atomic import ANY_SIZE, open_file
from sfumato.files.tensors import Arrays, format_of, map_tensors, save_tensors
from sfumato.search.entries import METRICS, Entries, check_metric, read_blocks
from sfumato.search.index import Index

KINDS = ("exact", "inverted", "grassmann", "projector", "sketch")


def build(
    subspaces: Any,
    kind: str | None = None,
    metric: str = "distance",
    params: Any = None,
    ids: ArrayLike | None = None,
) -> Index:
    """Return an index of subspaces or bits.

    ``subspaces``: Subspaces, Bits, ConcealedFeatures, points (N, n), or a list of these, of any dimensions and one
    space; they are not copied. ``kind``: "exact" compares with all; "inverted" is the fast one of subspaces, "sketch"
    of bits, and the default; "grassmann" and "projector" are the published ones, for subspaces. ``metric``: "distance",
    of bits the number that differ, or "angle". ``params``: a mapping of the kind's parameters. ``ids`` (N,): a number
    for each, by default 0 to N - 1.

    Raises InputError for unknown names, subspaces of different spaces, ids given twice, parameters that cannot be, and
    a kind that is not for bits, or for nothing else.

    >>> import numpy as np
    >>> index = build(np.eye(3, dtype=np.float32), "exact")
    >>> index.search(np.array([[0.0, 2.0, 0.0]]), k=2)[1].tolist()
    [[1, 0]]
    """
    name = check_metric(metric)
    blocks = read_blocks(subspaces, "subspaces", name)
    kind_type = _kind_class(default_kind(blocks.is_bits) if kind is None else kind)
    settings = _check_params(kind_type, params)
    entries = Entries(blocks.dim, blocks.source, is_bits=blocks.is_bits)
    _check_payload(kind_type, entries)
    entries.add(blocks, ids)
    return kind_type.build(entries, name, settings)


def default_kind(is_bits: bool) -> str:
    """Return the kind that is the fast one for bits, or for subspaces."""
    return "sketch" if is_bits else "inverted"


def load(path: str | os.PathLike[str], *, verify: bool = True) -> Index:
    """Return the index of a file, its arrays mapped into memory: only what a search touches is read.

    ``verify`` reads the whole file once and checks it; without, damage may show as wrong answers.

    Raises FileError for a file that is missing, damaged or of another version.
    """
    header, arrays = read_arrays(path, verify=verify)
    with _explained(path):
        kind_type, params = _kind_and_params(header)
        entries = Entries.restore(part_of(arrays, "entries"), header["entries"])
        if verify:
            entries.refuse_nonsense()
        _check_payload(kind_type, entries)
        return kind_type.restore(entries, header["metric"], params, part_of(arrays, kind_type.kind), header["settings"])


def load_entries(path: str | os.PathLike[str]) -> tuple[type[Index], str, Any, Entries]:
    """Return the kind of an index, its metric, its params and its entries; what the kind holds beside is not read.

    Checksums are not compared. Raises FileError for a file that is missing, cut short or of another version.
    """
    header, arrays = read_arrays(path, verify=False)
    with _explained(path):
        kind_type, params = _kind_and_params(header)
        entries = Entries.restore(part_of(arrays, "entries"), header["entries"])
        return kind_type, header["metric"], params, entries


def _kind_and_params(header: Mapping[str, Any]) -> tuple[type[Index], Any]:
    kind_type = _kind_class(header["kind"])
    if header["metric"] not in METRICS:
        raise FileError("unknown metric")
    params = {name: value for name, value in header["params"].items() if name != "threads"}  # another machine's
    return kind_type, _check_params(kind_type, params)


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what goes wrong with the parts of a file into one FileError."""
    try:
        yield
    except (
        SfumatoError,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        OverflowError,
        AttributeError,
        RecursionError,
    ) as cause:
        reason = cause if isinstance(cause, SfumatoError) else type(cause).__name__
        raise FileError(f"{path}: this index cannot be used ({reason!s:.200}); {ADVICE}") from cause


def _kind_class(kind: Any) -> type[Index]:
    """Return the class of a kind; InputError with a suggestion for an unknown one."""
    if kind == "exact":
        from sfumato.search.exact import ExactIndex

        return ExactIndex
    if kind == "inverted":
        from sfumato.search.inverted.index import InvertedIndex

        return InvertedIndex
    if kind == "grassmann":
        from sfumato.search.grassmann.index import GrassmannIndex

        return GrassmannIndex
    if kind == "projector":
        from sfumato.search.projector.index import ProjectorIndex

        return ProjectorIndex
    if kind == "sketch":
        from sfumato.search.sketch import SketchIndex

        return SketchIndex
    close = suggest(kind, KINDS) if isinstance(kind, str) else ""
    raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r:.80}{close}")


def _check_payload(kind_type: type[Index], entries: Entries) -> None:
    """Refuse bits for a kind of subspaces, and the other way round."""
    if not (kind_type.takes_bits if entries.is_bits else kind_type.takes_subspaces):
        fitting = default_kind(entries.is_bits)
        raise InputError(f"kind: {kind_type.kind} is not for {entries.space}; use {fitting} or exact")


def _check_params(kind_type: type[Index], params: Any) -> Any:
    """Return parameters of a kind from None, a mapping, or the kind's own dataclass."""
    params_type = kind_type.params_type
    if params is None:
        return params_type()
    if isinstance(params, params_type):
        return params
    if not isinstance(params, Mapping):
        raise InputError(f"params: expected a mapping or {params_type.__name__}, got {type(params).__name__}")
    known = [field.name for field in fields(params_type)]
    for name in params:
        if name not in known:
            hint = suggest(name, known) if isinstance(name, str) else ""
            raise InputError(f"params: {kind_type.kind} has no {name!r:.80}{hint}; it has {', '.join(known) or 'none'}")
    return params_type(**params)


if TYPE_CHECKING:
    from sfumato.search.index import Index

FORMAT, VERSION = "sfumato-index", "3"
OLD_START = b"sfumato-index\0"
"""How files of versions 1 and 2 begin, which had a form of their own."""
ADVICE = "copy it again, or make it with: sfumato index build"


def write_index(path: str | os.PathLike[str], index: "Index") -> None:
    """Write an index, whole or not at all; raises FileError if it cannot be written."""
    arrays = {f"entries/{name}": array for name, array in index.entries.arrays().items()}
    arrays |= {f"{index.kind}/{name}": array for name, array in index.arrays().items()}
    header = {
        "kind": index.kind,
        "metric": index.metric,
        "params": index.saved_params(),
        "entries": index.entries.settings(),
        "settings": index.settings(),
    }
    write_arrays(path, header, arrays)


def write_arrays(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a header and named arrays."""
    text = json.dumps(dict(header), sort_keys=True, allow_nan=False)
    save_tensors(path, arrays, {"format": FORMAT, "version": VERSION, "header": text})


def read_arrays(path: str | os.PathLike[str], *, verify: bool = True) -> tuple[dict[str, Any], Arrays]:
    """Return the header and the arrays of a file, mapped into memory and read-only.

    Sizes are always checked; ``verify`` also reads every array once and compares the digest.

    Raises FileError for a file that is missing, of another kind or version, cut short or damaged.
    """
    if _head(path) == OLD_START:
        raise FileError(f"{path}: an index of an older version, this program reads {VERSION}; build it again")
    try:
        arrays, texts = map_tensors(path, verify=verify)
    except FileError as cause:
        raise FileError(f"{cause}; {ADVICE}") from cause
    if texts.get("format") != FORMAT:
        raise FileError(f"{path}: this is not an index; make one with: sfumato index build")
    if texts.get("version") != VERSION:
        version = f"{texts.get('version')!s:.20}"
        raise FileError(f"{path}: an index of version {version}, this program reads {VERSION}; build it again")
    try:
        header = json.loads(texts.get("header", ""))
    except (ValueError, RecursionError) as cause:
        raise FileError(f"{path}: the header of this index is damaged; {ADVICE}") from cause
    if not isinstance(header, dict):
        raise FileError(f"{path}: the header of this index is damaged; {ADVICE}")
    return header, arrays


def _head(path: str | os.PathLike[str]) -> bytes:
    with open_file(path, ANY_SIZE) as file:
        return file.read(len(OLD_START))


def refuse_existing(
    path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str] | None], *, overwrite: bool
) -> None:
    """Raise FileError if a result cannot be written to a path: it is read, or it is there and not to be replaced."""
    if not os.path.exists(path):
        return
    for source in inputs:
        if source is not None and os.path.exists(source) and os.path.samefile(path, source):
            raise FileError(f"{path} is read by this command: choose another output")
    if not overwrite:
        raise FileError(f"{path} exists: choose another path, or overwrite it (--overwrite, overwrite=True)")


def is_index_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file is an index, whatever its version; False where it cannot be read."""
    try:
        return _head(path) == OLD_START or format_of(path) == FORMAT
    except FileError:
        return False


def part_of(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
