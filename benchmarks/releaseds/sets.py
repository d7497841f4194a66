# SPDX-License-Identifier: Apache-2.0
"""Material of the attacks: archives of sets of photos, with what was released and what stayed home; descriptors."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from common import note

from sfumato import load
from sfumato.concealment.rows import order_rows
from sfumato.device.positions import open_positions
from sfumato.device.release import release_positions
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images, read_image
from sfumato.types.clear import Features

Floats = np.ndarray


LONGEST = 480
"""Longer side of the photos on which painters have learned, in pixels."""


def figure(part: str, of: str, name: str, value: float | None, count: int | None = None, **more: Any) -> dict[str, Any]:
    """Return one figure as a row: of what, its name, its value, of how many, and the ends of an interval if it has one.

    ``low`` and ``high`` are an interval of 95 %, or the least and the most of the single photos, as the part says.
    """
    row = {"part": part, "of": of, "figure": name, "value": value, "count": count, "low": None, "high": None} | more
    told = {word: f"{it:.4g}" if isinstance(it, float) else it for word, it in row.items() if it is not None}
    note(" ".join(f"{word}={it}" for word, it in told.items()))
    return row


def key_of(seed: int, number: int | None = None) -> bytes:
    """Return the key of a run, or the one of a photo that has its own."""
    name = f"benchmark key {seed}" if number is None else f"benchmark key {seed} {number}"
    return blake2b(name.encode(), digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class Sealed:
    """A photo as its device has it: ``pixels``; ``bits`` (N, 64) and ``positions`` (N, 2) of its rows; which of them
    are ``shown`` (N,) after a release; ``path`` and ``name``."""

    name: str
    path: Path
    pixels: Floats
    bits: Floats
    positions: Floats
    shown: Floats

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    def reduced(self) -> tuple[Floats, float]:
        """Return the pixels of the size of the photos that painters have learned on, and the factor of positions."""
        import cv2

        factor = min(1.0, LONGEST / max(self.size))
        size = (round(self.size[0] * factor), round(self.size[1] * factor))
        return cv2.resize(self.pixels, size, interpolation=cv2.INTER_AREA), factor

    def clear(self, key: bytes) -> Features:
        """Return the clear features behind the rows, in their order."""
        features = extract(self.path, LocalParams())
        return features.take(order_rows(features, secret=key).astype(np.int32))


def sealed_set(photos: Path, work: Path, seed: int) -> list[Sealed]:
    """Return the photos of a set after the default's ``conceal``, ``match`` and ``release``, made once in ``work``."""
    archive, matches, key = work / "private.sfm", work / "matches.h5", work / "device.key"
    if not (work / "done").is_file():
        work.mkdir(parents=True, exist_ok=True)
        key.unlink(missing_ok=True)
        key.write_bytes(key_of(seed))
        key.chmod(0o600)
        sfumato("conceal", photos, "-o", archive, "--secret-file", key, "--overwrite")
        if not matches.is_file():
            sfumato("match", archive, "--exhaustive", "-o", matches)
        release_positions(archive, matches, secret=key_of(seed))
        (work / "done").touch()
    paths, results = dict(list_images(photos)), list[Sealed]()
    with load(archive) as images, open_positions(archive) as kept:
        for name in images:
            rows = images[name]
            assert rows.tags is not None
            places = kept.read(name, rows.tags.photo)
            assert places is not None
            pixels = read_image(paths[name]).pixels
            results.append(Sealed(name, paths[name], pixels, rows.code.packed, places, rows.is_shown))
    return results


def sfumato(*words: str | Path) -> None:
    """Run a command of the package as a user does; raise SystemExit if it fails."""
    command = [sys.executable, "-m", "sfumato", *map(str, words), "--quiet"]
    environment = {**os.environ, "SFUMATO_KEY": "/nonexistent/none.key"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Clear descriptors of many photos: ``rows`` (N, 128) float16, ``counts`` of each photo, ``names``, ``sizes``."""

    rows: Floats
    counts: Floats
    names: list[str]
    sizes: Floats

    def of(self, number: int) -> Floats:
        """Return the descriptors (n, 128) of a photo, of unit norm as before they were kept."""
        start = int(self.counts[:number].sum())
        rows = self.rows[start : start + int(self.counts[number])].astype(np.float32)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows


def descriptors_of(paths: Sequence[Path], file: Path, local: LocalParams | None = None) -> Descriptors:
    """Return the descriptors of photos, extracted once and kept in ``file``; photos without any are left out."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        rows, counts, names, sizes = list[Floats](), list[int](), list[str](), list[tuple[int, int]]()
        for number, path in enumerate(paths):
            if number % 100 == 0:
                note(f"{file.stem}: {number} of {len(paths)} photos")
            features = extract(path, local or LocalParams())
            if len(features) and features.image_size is not None:
                rows.append(features.descriptors.astype(np.float16))
                counts.append(len(features))
                names.append(path.stem)
                sizes.append(features.image_size)
        with file.open("wb") as out:
            np.savez(out, rows=np.concatenate(rows), counts=counts, names=names, sizes=sizes)
    with np.load(file, allow_pickle=False) as kept:
        return Descriptors(kept["rows"], kept["counts"], kept["names"].tolist(), kept["sizes"])
