# SPDX-License-Identifier: Apache-2.0
"""sfumato inspect, for the file of an index: counts, dimensions and settings, never a value of an entry."""

from pathlib import Path
from typing import Any

from sfumato.search.indexfile import is_index_file
from sfumato.search.summary import summarise

SUFFIX = ".index"


def holds_index(path: Path) -> bool:
    """Tell whether a file is an index, or is called one, so that a damaged one is told as such."""
    return is_index_file(path) or (path.suffix == SUFFIX and path.is_file())


def describe_index(path: Path, *, images: bool, check: bool) -> dict[str, Any]:
    """Return the counts of an index; with ``check`` everything in it is read and verified."""
    found = summarise(path, check=check)
    facts: dict[str, Any] = {
        "file": str(path),
        "kind": "index of concealed features",
        "search": found.kind,
        "metric": found.metric,
        "params": ", ".join(f"{name}={_told(value)}" for name, value in found.params.items()) or "none",
        "entries": found.entries,
        "removed": found.removed,
        "dimensions": found.dim,
        "subspaces": ", ".join(f"{count} {_form(dim)}" for dim, count in found.subspaces.items()) or "none",
        "images": len(found.images) if found.images else "not named",
        "ids": f"{found.first_id} to {found.last_id}" if found.entries else "none",
        "extractor": found.extractor or "not stated",
        "encoder": "none" if found.space in ("", "clear") else found.space,
        "bytes": found.size_bytes,
    }
    if check:
        facts["checked"] = "every checksum is right, every entry a subspace, no id there twice"
    if images:
        facts["image list"] = {name: f"{count} features" for name, count in found.images.items()}
    return facts


def _told(value: Any) -> Any:
    return "default" if value is None else value


def _form(dim: int) -> str:
    return f"of dimension {dim}" if dim else "points"
