# SPDX-License-Identifier: Apache-2.0
"""Kinds of index: making one, and reading one back from its file."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from numpy.typing import ArrayLike

from sfumato.errors import FileError, InputError, SfumatoError, suggest
from sfumato.search.entries import METRICS, Entries, check_metric, read_blocks
from sfumato.search.file import ADVICE, part_of, read_arrays
from sfumato.search.index import Index

KINDS = ("exact", "inverted", "grassmann", "projector")


def build(
    subspaces: Any,
    kind: str = "inverted",
    metric: str = "distance",
    params: Any = None,
    ids: ArrayLike | None = None,
) -> Index:
    """Return an index of subspaces.

    ``subspaces``: Subspaces, ConcealedFeatures, points (N, n), or a list of these of any dimensions; they are not
    copied. ``kind``: "exact" compares with all, "inverted" is the fast one, "grassmann" and "projector" are the
    published ones. ``metric``: "distance" or "angle". ``params``: a mapping of the kind's parameters. ``ids`` (N,): a
    number for each, by default 0 to N - 1.

    Raises InputError for unknown names, subspaces of different spaces, ids given twice, and parameters that cannot be.

    >>> import numpy as np
    >>> index = build(np.eye(3, dtype=np.float32), "exact")
    >>> index.search(np.array([[0.0, 2.0, 0.0]]), k=2)[1].tolist()
    [[1, 0]]
    """
    kind_type, name = _kind_class(kind), check_metric(metric)
    settings = _check_params(kind_type, params)
    blocks = read_blocks(subspaces, "subspaces", name)
    entries = Entries(blocks.dim, blocks.source)
    entries.add(blocks, ids)
    return kind_type.build(entries, name, settings)


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
    close = suggest(kind, KINDS) if isinstance(kind, str) else ""
    raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r:.80}{close}")


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
