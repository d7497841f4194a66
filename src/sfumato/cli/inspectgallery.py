# SPDX-License-Identifier: Apache-2.0
"""sfumato inspect, for a gallery: how many people, how they were concealed and told apart; no name, never a value."""

from pathlib import Path
from typing import Any

from sfumato.faces.galleryfile import KINDS, load_gallery
from sfumato.faces.thresholds import Threshold


def holds_gallery(path: Path) -> bool:
    """Tell whether a file has the arrays of a gallery, right or not; if it can not be opened, whether its name says so.

    So a damaged gallery is told as such, where anybody can know.
    """
    import h5py

    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            return set(file) == set(KINDS)
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, SystemError):
        return path.is_file() and "gallery" in path.name.lower() and not path.name.endswith(".sfm.h5")


def describe_gallery(path: Path, *, check: bool) -> dict[str, Any]:
    """Return the counts of a gallery; its checksums are compared in any case, ``check`` says so."""
    gallery = load_gallery(path)
    subspaces, again = gallery.templates.subspaces, sum(count > 1 for count in gallery.releases.values())
    facts: dict[str, Any] = {
        "file": str(path),
        "kind": "gallery of concealed faces",
        "templates": len(gallery),
        "revoked": len(gallery.revoked),
        "recipe": str(gallery.recipe),
        "subspaces": f"dimension {subspaces.dim} in R^{subspaces.ambient_dim}",
        "extractor": gallery.templates.extractor.name,
        "draws": "device secret" if gallery.recipe.keyed else "operating system",
        "decoys": gallery.recipe.decoys or "none",
        "thresholds": {one.comparison: _told(one) for one in gallery.thresholds},
        "bytes": path.stat().st_size,
    }
    if again:
        facts["warning"] = f"{again} people were released more than once: two releases of a face meet near it"
    if check:
        facts["checked"] = "every checksum is right"
    return facts


def _told(one: Threshold) -> str:
    """Return a threshold in words, with the data that its rate was measured on."""
    return (
        f"up to {one.distance:.4g}, false-accept rate {one.measured_rate:.3g} (wanted {one.wanted_rate:.3g}), measured "
        f"on {one.impostor_pairs} pairs of {one.people} people"
    )
