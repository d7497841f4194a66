# SPDX-License-Identifier: Apache-2.0
"""sfumato inspect: what a file holds, in counts and sizes, never a value."""

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli.options import AsJson, printable, tell
from sfumato.concealment.decoys import FORMAT as DECOYS_FORMAT
from sfumato.concealment.decoys import collision_probability, load_decoys
from sfumato.concealment.encoder import Encoder, load_encoder
from sfumato.concealment.resolve import resolve
from sfumato.concealment.seal import bandwidth_of, without_key
from sfumato.concealment.subset import privacy_of_images
from sfumato.errors import ArchiveError, FileError
from sfumato.faces.compare import Threshold
from sfumato.faces.gallery import Gallery, has_personal_keys
from sfumato.faces.gallery_file import KIND, load_gallery
from sfumato.files.tensors import format_of
from sfumato.search.archives import IndexSummary, summarise
from sfumato.search.factory import is_index_file
from sfumato.store.archive import Archive, load
from sfumato.store.layout import ImageHeader
from sfumato.types.recipe import Recipe

# --- galleries: the number of people, how they are concealed and told apart; no name, never a value


def holds_gallery(path: Path) -> bool:
    """Tell whether a file is a gallery by its first bytes or, where they say nothing, by its name.

    So a damaged gallery is reported as one.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(72)
    if len(head) == 72 and head.startswith(b"SQLite format 3"):
        return head[68:] == KIND.mark.to_bytes(4, "big")
    return "gallery" in path.name.lower() and ".sfm" not in path.suffixes


def describe_gallery(path: Path, *, check: bool) -> dict[str, Any]:
    """Return the counts of a gallery; its checksums are compared in any case, ``check`` says so."""
    gallery = load_gallery(path)
    again = sum(count > 1 for count in gallery.releases.values())
    facts: dict[str, Any] = {
        "file": str(path),
        "kind": "gallery of concealed faces",
        "templates": len(gallery),
        "revoked": len(gallery.revoked),
        "recipe": str(gallery.recipe),
        **_gallery_form(gallery),
        "extractor": gallery.templates.extractor.name,
        "thresholds": {threshold.comparison: _gallery_facts(threshold) for threshold in gallery.thresholds},
        "bytes": path.stat().st_size,
    }
    if again and not gallery.recipe.is_sealed:
        facts["warning"] = f"{again} people were released more than once: two releases of a face meet near it"
    if check:
        facts["checked"] = "every checksum is right"
    return facts


def _gallery_form(gallery: Gallery) -> dict[str, str]:
    """Return what the templates are, and under which keys or with which draws they were made."""
    code, recipe = gallery.templates.code, gallery.recipe
    if recipe.is_sealed:
        keys = "one of each person" if has_personal_keys(recipe) else f"one for all, {recipe.links[-1].checksum}"
        return {"codes": f"{code.ambient_dim} bits", "keys": keys}
    draws = "device secret" if recipe.keyed else "operating system"
    subspaces = f"dimension {code.dim} in R^{code.ambient_dim}"
    return {"subspaces": subspaces, "draws": draws, "decoys": recipe.decoys or "none"}


def _gallery_facts(threshold: Threshold) -> str:
    """Return a threshold in words, with the data that its rate was measured on."""
    return (
        f"up to {threshold.distance:.4g}, false-accept rate {threshold.measured_rate:.3g} (wanted "
        f"{threshold.wanted_rate:.3g}), measured on {threshold.impostor_pairs} pairs of {threshold.people} people"
    )


# --- indexes: counts, dimensions and settings, never a value of an entry


SUFFIX = ".index"


def holds_index(path: Path) -> bool:
    """Tell whether a file is an index, or is called one, so that a damaged one is reported as an index."""
    return is_index_file(path) or (path.suffix == SUFFIX and path.is_file())


def describe_index(path: Path, *, images: bool, check: bool) -> dict[str, Any]:
    """Return the counts of an index; with ``check`` everything in it is read and verified."""
    summary = summarise(path, check=check)
    facts: dict[str, Any] = {
        "file": str(path),
        "kind": "index of concealed features",
        "search": summary.kind,
        "metric": summary.metric,
        "params": ", ".join(f"{name}={_index_facts(value)}" for name, value in summary.params.items()) or "none",
        "entries": summary.entries,
        "removed": summary.removed,
        **_index_form(summary),
        "images": len(summary.images) if summary.images else "not named",
        "ids": f"{summary.first_id} to {summary.last_id}" if summary.entries else "none",
        "extractor": summary.extractor or "not stated",
        "encoder": "none" if summary.space in ("", "clear") else summary.space,
        "bytes": summary.size_bytes,
    }
    if check:
        facts["checked"] = "every checksum is right, every entry valid, no id there twice"
    if images:
        facts["image list"] = {name: f"{count} features" for name, count in summary.images.items()}
    return facts


def _index_facts(value: Any) -> Any:
    return "default" if value is None else value


def _index_form(summary: IndexSummary) -> dict[str, Any]:
    """Return what entries are: bits, or subspaces by their dimensions."""
    if summary.is_bits:
        return {"bits": summary.dim}
    parts = [f"{count} {f'of dimension {dim}' if dim else 'points'}" for dim, count in summary.subspaces.items()]
    return {"dimensions": summary.dim, "subspaces": ", ".join(parts) or "none"}


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            help="An archive (.sfm), an index (.index), a gallery (.sqlite), decoys or an encoder (.safetensors)."
        ),
    ],
    images: Annotated[bool, typer.Option("--images", help="List every image.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read everything and verify every checksum.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what an archive, index, gallery, decoys file or encoder holds, in counts and sizes. Never a value.

    Example: sfumato inspect private.sfm --images
    """
    if not path.exists():
        raise FileError(f"{path}: no such file")
    if format_of(path) == DECOYS_FORMAT or path.suffix == ".npz":
        facts = describe_decoys(path)
    elif path.suffix == ".safetensors":
        facts = describe_encoder(path)
    elif holds_index(path):
        facts = describe_index(path, images=images, check=check)
    elif holds_gallery(path):
        facts = describe_gallery(path, check=check)
    else:
        facts = describe_archive(path, images=images, check=check)
    if "damaged" in facts:
        print(f"error: {printable(path)}: {len(facts['damaged'])} images are damaged", file=sys.stderr)
    lines = _lines(facts)
    tell("\n".join(lines), facts, as_json=as_json)
    if "damaged" in facts:
        raise typer.Exit(1)


def describe_archive(path: Path, *, images: bool, check: bool) -> dict[str, Any]:
    """Return the counts of an archive."""
    with load(path) as archive:
        summary = archive.summary()
        spent = privacy_of_images(archive, summary.images)
        damaged = dict(summary.damaged) | (_read_all(archive) if check else {})
    entries = summary.images
    counts = [entry.count for entry in entries]
    size, total = path.stat().st_size, sum(counts)
    facts: dict[str, Any] = {
        "file": str(path),
        "kind": "archive of concealed features",
        "images": len(entries),
        "features": total,
        "features per image": f"{min(counts)} to {max(counts)}, median {median(counts):.0f}" if counts else "none",
        "featureless images": sum(count == 0 for count in counts),
        "recipe": _tally(str(entry.recipe) for entry in entries),
        "subspaces": _tally(_form(entry) for entry in entries),
        **_seals(entries),
        "extractor": _tally(entry.extractor.name for entry in entries),
        "settings": _tally(
            ", ".join(f"{key}={value}" for key, value in sorted(entry.extractor.settings.items())) for entry in entries
        ),
        "cameras": _cameras(entries),
        "numbers": _tally(entry.dtype for entry in entries),
        "draws": _tally(_draws(entry.recipe) for entry in entries),
        "decoys": _tally(entry.recipe.decoys or "none" for entry in entries),
        "bytes": size,
        "bytes per 1000 features": round(1000 * size / total) if total else 0,
    }
    if spent is not None:
        facts["privacy spent"] = spent
    warnings = _warnings(entries)
    if warnings:
        facts["warning"] = "; ".join(warnings)
    if check and not damaged:
        facts["checked"] = "every checksum is right"
    if damaged:
        facts["damaged"] = damaged
    if images:
        facts["image list"] = {entry.name: f"{entry.count} features" for entry in entries}
    return facts


def _read_all(archive: Archive) -> dict[str, str]:
    """Read every image; return what is wrong with those that cannot be read."""
    damaged = {}
    for name in archive:
        try:
            archive[name]
        except ArchiveError as problem:
            damaged[name] = str(problem)
    return damaged


def describe_decoys(path: Path) -> dict[str, Any]:
    """Return the counts of a decoys file, with the chance that two features of one part share a decoy."""
    decoys = load_decoys(path)
    part = len(decoys) // decoys.parts
    return {
        "file": str(path),
        "kind": "decoys",
        "entries": len(decoys),
        "dimensions": decoys.descriptors.shape[1],
        "extractor": decoys.extractor.name,
        "parts": f"{decoys.parts} of {part} entries",
        "labels": "none" if decoys.labels is None else _tally(str(label) for label in decoys.labels),
        "made": ", ".join(f"{key}={value}" for key, value in sorted(decoys.made.items())) or "not stated",
        "checksum": decoys.checksum,
        "collision, same part": f"{collision_probability(part):.2f} (one decoy each, 8000 features an image)",
        "collision, any part": f"{collision_probability(len(decoys)):.2f} (whole database)",
        "bytes": path.stat().st_size,
    }


def describe_encoder(path: Path) -> dict[str, Any]:
    """Return what an encoder's file says: whose descriptors it takes, its layers, and its card."""
    encoder = load_encoder(path)
    widths = [encoder.input_dim, *(len(bias) for _, bias, _ in encoder.layers)]
    return {
        "file": str(path),
        "kind": "encoder",
        "extractor": encoder.extractor_name,
        "layers": " - ".join(map(str, widths)),
        "recipe": _recipe_of(encoder, path),
        "checksum": encoder.checksum,
        "card": {name: json.dumps(value, sort_keys=True) for name, value in sorted(encoder.card.items())},
        "bytes": path.stat().st_size,
    }


def _recipe_of(encoder: Encoder, path: Path) -> str:
    """Return how a recipe names an encoder: a network with its checksum, components with their number to be chosen."""
    if "+" in str(path):
        return "rename it: no + in recipes"
    if encoder.kind == "compress":
        return f"compress-D:{path.name}, D from 1 to {min(encoder.output_dim, encoder.input_dim - 1)}"
    return str(resolve(f"ninja:{path}").recipe)


def _form(entry: ImageHeader) -> str:
    if entry.recipe.is_sealed:
        return "none, sealed bits"
    space = f"R^{entry.ambient_dim}"
    return f"dimension {entry.dim} in {space}" if entry.dim else f"none, points of an encoder's space {space}"


def _seals(entries: Iterable[ImageHeader]) -> dict[str, str]:
    """Return how sealed images are sealed, in words; nothing where there are none."""
    texts = []
    for recipe in (entry.recipe for entry in entries if entry.recipe.is_sealed):
        link, key = recipe.links[-1], "device key" if recipe.keyed else "key of evaluations"
        bits = f"{link.dim} bits a feature, bandwidth {bandwidth_of(link):g}"
        texts.append(f"{bits}, under the {key} with the fingerprint {link.checksum}")
    return {"sealed": _tally(texts)} if texts else {}


def _cameras(entries: Collection[ImageHeader]) -> str:
    """Return what an archive tells about the cameras."""
    known = sum(entry.focal_px is not None for entry in entries)
    return f"focal lengths of {known} of {len(entries)} images" if known else "none"


def _warnings(entries: Iterable[ImageHeader]) -> list[str]:
    """Return what an owner should know: draws that anyone can repeat, and seals of more than one key."""
    seeded, keys = 0, dict[tuple[str, str], dict[str, int]]()
    for entry in entries:
        seeded += entry.recipe.evaluation_seed is not None
        if entry.recipe.is_sealed:
            counts = keys.setdefault((str(without_key(entry.recipe)), entry.extractor.name), {})
            name = entry.recipe.links[-1].checksum
            counts[name] = counts.get(name, 0) + 1
    warnings = [f"{seeded} images were made with an evaluation seed: anyone can repeat their draws"] if seeded else []
    for counts in (counts for counts in keys.values() if len(counts) > 1):
        shown = ", ".join(f"{name} ({count} images)" for name, count in counts.items())
        warnings.append(f"sealed under {len(counts)} keys, {shown}: features of different keys never match")
    return warnings


def _draws(recipe: Recipe) -> str:
    if recipe.is_sealed and recipe.evaluation_seed is None:
        by = "the device key" if recipe.keyed else "a key of evaluations, which protects nobody"
        return f"none: {by} gives the same descriptor the same bits"
    if recipe.lifting is None and not recipe.is_sealed:
        return "none: an encoder gives the same descriptor the same point"
    if recipe.evaluation_seed is not None:
        return f"evaluation seed {recipe.evaluation_seed}"
    return "device secret" if recipe.keyed else "operating system"


def _tally(values: Any) -> str:
    counter = Counter(values)
    if len(counter) == 1:
        return str(next(iter(counter)))
    shown = [f"{value} ({count})" for value, count in counter.most_common(8)]
    return ", ".join(shown) + (f" and {len(counter) - 8} more" if len(counter) > 8 else "") or "none"


def _lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people, lists below their heading."""
    width = max(len(name) for name in facts)
    lines = []
    for name, value in facts.items():
        shown = decimal(value) if name == "bytes" else len(value) if isinstance(value, dict) else value
        lines.append(f"{name:<{width}}  {printable(shown)}")
        if isinstance(value, dict):
            lines += [printable(f"  {entry}: {text}") for entry, text in value.items()]
    return lines
