# SPDX-License-Identifier: Apache-2.0
"""Archive benchmark: write, append and read 10,000 images; bytes per 1,000 features; memory.

    python benchmarks/archives.py --json out.json

The peers hold the same numbers, in the same run: an HDF5 file with one group an image, as hloc has them, flushed after
each image; and the tables of a COLMAP database with clear SIFT (128 bytes a feature), committed after each image.
Neither has digests. Lifted features are so large that only a tenth of the images are written.
"""

import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from common import arguments, finish, note, sift_like

import sfumato
from sfumato.store import ArchiveWriter

VARIETY = 10
"""Different images, which come again in turn."""
Images = Iterator[tuple[str, Any]]


def make_images(recipe: str, features: int, rng: np.random.Generator) -> list[sfumato.ConcealedFeatures]:
    """Return images of concealed features, positions alone."""
    key, decoys, images = rng.bytes(32), sfumato.Decoys(sift_like(2048, rng)), []
    for _ in range(VARIETY):
        clear = sfumato.Features(rng.uniform(0, 640, (features, 4)), sift_like(features, rng), image_size=(640, 480))
        sealed = {"secret": key} if recipe.startswith("sealed") else {"decoys": decoys}
        images.append(sfumato.conceal(clear, recipe, **sealed).positions_only())
    return images


class OurArchive:
    """An archive of Sfumato."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype = path, dtype

    def add(self, images: Images) -> None:
        """Add images to the file, or to a new one."""
        with ArchiveWriter(self.path, append=True, dtype=self.dtype) as writer:
            for name, image in images:
                writer.add(name, image)

    def read(self) -> int:
        """Read every image; return the number of features."""
        with sfumato.load(self.path) as archive:
            return sum(len(image.code) for image in archive.values())


class Hdf5Groups:
    """An HDF5 file with one group an image."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path

    def add(self, images: Images) -> None:
        """Add images to the file, or to a new one."""
        with h5py.File(self.path, "a") as file:
            for name, image in images:
                group = file.create_group(name)
                group["keypoints"], group["code"] = image.keypoints[:, :2], image.code.packed
                group["image_size"] = np.array(image.image_size)
                file.flush()

    def read(self) -> int:
        """Read every image; return the number of features."""
        with h5py.File(self.path) as file:
            arrays = ((file[name]["keypoints"][()], file[name]["code"][()]) for name in file)
            return sum(len(code) for _, code in arrays)


class ColmapTables:
    """The tables of a COLMAP database, with clear descriptors of 128 bytes."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path

    def add(self, images: Images) -> None:
        """Add images to the file, or to a new one."""
        columns = "image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB"
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            for setting in ("journal_mode=WAL", "synchronous=NORMAL"):
                database.execute(f"PRAGMA {setting}")
            for table in ("keypoints", "descriptors"):
                database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
            database.execute("CREATE TABLE IF NOT EXISTS images (image_id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
            for name, image in images:
                clear = np.concatenate((image.code.packed, image.code.packed), axis=1)
                database.execute("BEGIN")
                number = database.execute("INSERT INTO images (name) VALUES (?)", (name,)).lastrowid
                for table, array in (("keypoints", image.keypoints[:, :2]), ("descriptors", clear)):
                    row = number, *array.shape, np.ascontiguousarray(array).tobytes()
                    database.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", row)
                database.execute("COMMIT")

    def read(self) -> int:
        """Read every image; return the number of features."""
        total = 0
        with closing(sqlite3.connect(self.path)) as database:
            for (number,) in database.execute("SELECT image_id FROM images").fetchall():
                for table, kind in (("keypoints", np.float32), ("descriptors", np.uint8)):
                    query = f"SELECT rows, cols, data FROM {table} WHERE image_id = ?"
                    ((rows, columns, data),) = database.execute(query, (number,))
                    array = np.frombuffer(data, kind).reshape(rows, columns)
                total += len(array)
        return total


def peak_mib() -> float:
    """Return the most memory this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(container: Any, images: list[Any], count: int, more: int) -> dict[str, float]:
    """Write ``count`` images, append ``more``, and read them all."""

    def some(start: int, stop: int) -> Images:
        return ((f"{i:06}.jpg", images[i % VARIETY]) for i in range(start, stop))

    before, features = peak_mib(), len(images[0])
    write = timed(lambda: container.add(some(0, count)))
    size = container.path.stat().st_size
    append = timed(lambda: container.add(some(count, count + more)))
    read = timed(container.read)
    return {
        "bytes_per_1000_features": round(1000 * size / (count * features)),
        "write_ms": 1000 * write / count,
        "append_ms": 1000 * append / more,
        "read_ms": 1000 * read / (count + more),
        "memory_mib": peak_mib() - before,
    }


def main(argv: list[str] | None = None) -> None:
    args = arguments(__doc__.splitlines()[0]).parse_args(argv)
    rng = np.random.default_rng(args.seed)
    count, features = (30, 50) if args.small else (10_000, 2000)
    cases = [
        ("archive", OurArchive, "sealed-512", "bits", count),
        ("HDF5 groups", Hdf5Groups, "sealed-512", "bits", count),
        ("COLMAP tables", ColmapTables, "clear SIFT", "bytes", count),
        ("archive", OurArchive, "sub-hybrid-2", "float32", count // 10),
        ("archive", OurArchive, "sub-hybrid-2", "float16", count // 10),
    ]
    rows: list[dict[str, Any]] = []
    made = {recipe: make_images(recipe, features, rng) for recipe in ("sealed-512", "sub-hybrid-2")}
    for name, kind, recipe, dtype, number in cases:
        note(f"{name}, {recipe}, {dtype}, {number} images")
        with tempfile.TemporaryDirectory() as folder:
            images = made.get(recipe, made["sealed-512"])
            figures = measure(kind(Path(folder) / "images", dtype), images, number, max(number // 100, 1))
        rows.append({"container": name, "code": recipe, "numbers": dtype, "images": number, **figures})
    peer = rows[1]
    for row in rows:  # of the same bits only
        same = row["numbers"] == "bits"
        for key in ("write_ms", "read_ms", "bytes_per_1000_features"):
            row[f"{key}_to_hdf5"] = row[key] / peer[key] if same else None
    finish("archives", args, {"images": count, "features": features, "n": 128}, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
