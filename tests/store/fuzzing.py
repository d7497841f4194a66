# SPDX-License-Identifier: Apache-2.0
"""Make hostile archives of a good one and read them: run by test_archive.py in a process of its own.

    python fuzzing.py archive folder first-seed number

Each file gets one to three changes of its bytes, or one with SQLite; a third of them have a changed ``-wal`` beside
them. The seed at work is in the file ``seed`` of the folder, so that a crash or a hang has a name. The last line of
the output counts the outcomes. Any image that comes back must be one of the images of the archive, bit for bit, and
none may be missing; the only exceptions are of Sfumato; memory stays within a few times the size of the file.
"""

import faulthandler
import json
import os
import resource
import shutil
import sqlite3
import sys
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from conftest import HUGE, bytes_of, mutate

from sfumato.errors import SfumatoError
from sfumato.store import ArchiveWriter, load
from sfumato.store.layout import TABLE

SECONDS = 30
"""After which one change counts as a hang: stacks are dumped and the process ends."""
MOST_GROWTH = 64 * 2**20

EDITS = (
    "CREATE VIEW other AS SELECT * FROM image",
    "CREATE TRIGGER t AFTER INSERT ON image BEGIN DELETE FROM image; END",
    "CREATE TABLE other (x)",
    "CREATE INDEX other ON image (count)",
    "CREATE TABLE sqlite_stat1 (tbl, idx, stat)",
    "PRAGMA user_version = 2",
    "PRAGMA application_id = 7",
    "UPDATE image SET count = {number} WHERE rowid = {row}",
    "UPDATE image SET ambient_dim = {number} WHERE rowid = {row}",
    "UPDATE image SET dim = {number} WHERE rowid = {row}",
    "UPDATE image SET width = {number} WHERE rowid = {row}",
    "UPDATE image SET focal_px = 1e400 WHERE rowid = {row}",
    "UPDATE image SET code = zeroblob({size}) WHERE rowid = {row}",
    "UPDATE image SET keypoints = zeroblob({size}) WHERE rowid = {row}",
    "UPDATE image SET code = CAST(code AS TEXT) WHERE rowid = {row}",
    "UPDATE image SET checksum = 7 WHERE rowid = {row}",
    "UPDATE image SET count = 'many' WHERE rowid = {row}",
    "UPDATE image SET count = 1.5 WHERE rowid = {row}",
    "UPDATE image SET recipe = NULL WHERE rowid = {row}",
    "UPDATE image SET name = {number} WHERE rowid = {row}",
    "UPDATE image SET name = CAST(X'ff0a00' AS TEXT) WHERE rowid = {row}",
    "UPDATE image SET name = X'61' WHERE rowid = {row}",
    "UPDATE image SET rowid = {number} WHERE rowid = {row}",
    "DELETE FROM image WHERE rowid = {row}",
    "INSERT INTO image SELECT name || 'x', * FROM (SELECT count, dim, ambient_dim, dtype, recipe, extractor, width, "
    "height, focal_px, data, checksum, keypoints, code FROM image WHERE rowid = {row})",
    "UPDATE sqlite_schema SET sql = replace(sql, 'TEXT', 'BLOB')",
    "UPDATE sqlite_schema SET rootpage = 1 + rootpage % 4",
    "UPDATE sqlite_schema SET rootpage = {number}",
    "DELETE FROM sqlite_schema WHERE type = 'index'",
    "PRAGMA journal_mode = DELETE",
    "VACUUM",
)
"""Changes that anyone can make with SQLite. The table is made loose first, and looks as it did afterwards."""


def edit(path: Path, rng: np.random.Generator) -> None:
    """Make one change with SQLite."""
    words = {"row": rng.integers(1, 6), "number": HUGE[rng.integers(len(HUGE))], "size": rng.integers(0, 4000)}
    statement = EDITS[rng.integers(len(EDITS))].format(**words)
    loose = TABLE.replace(" NOT NULL", "").replace(") STRICT", ")")
    form = "PRAGMA writable_schema = ON", "UPDATE sqlite_schema SET sql = ? WHERE name = 'image' AND sql IS NOT NULL"
    for batch in (
        [(form[0], ()), (form[1], (loose,))],
        [(form[0], ()), (statement, ())],
        [(form[0], ()), (form[1], (TABLE,))],
    ):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection, suppress(sqlite3.Error):
            connection.execute("PRAGMA synchronous=OFF")
            for one, values in batch:
                connection.execute(one, values)


def make(target: Path, source: Path, rng: np.random.Generator) -> bool:
    """Make a hostile file; tell whether images may be missing, as after a changed ``-wal`` or a deletion."""
    for end in ("", "-wal", "-shm", "-journal"):
        Path(f"{target}{end}").unlink(missing_ok=True)
    kind = rng.integers(6)
    shutil.copy(source, target)
    if kind == 0:
        edit(target, rng)
    elif kind <= 3:
        target.write_bytes(mutate(source.read_bytes(), rng))
    else:
        wal = Path(f"{source}.unfinished-wal").read_bytes()
        shutil.copy(f"{source}.unfinished", target)
        Path(f"{target}-wal").write_bytes(mutate(wal, rng))
        if kind == 5:
            target.write_bytes(mutate(target.read_bytes(), rng))
    return not 1 <= kind <= 3


def leave_unfinished(source: Path) -> None:
    """Keep a copy of an archive as a killed writer leaves it: one image in the file, the others beside it."""
    with load(source) as archive:
        images = dict(archive)
    unfinished = Path(f"{source}.making")
    unfinished.unlink(missing_ok=True)
    with ArchiveWriter(unfinished, append=True) as writer:
        for name, image in images.items():
            writer.add(name, image)
        for end in ("", "-wal"):
            shutil.copy(f"{unfinished}{end}", f"{source}.unfinished{end}")


def read_all(path: Path, known: dict[str, object], outcome: Counter[str], *, may_miss: bool = False) -> None:
    try:
        archive = load(path)
    except SfumatoError:
        outcome["refused"] += 1
        return
    with archive:
        archive.summary()
        assert may_miss or set(archive) == set(known), "images were lost"
        for name in archive:
            try:
                image = archive[name]
            except SfumatoError:
                outcome["image refused"] += 1
                continue
            assert bytes_of(image) == known[name], f"image {name!r} came back changed"
            outcome["image intact"] += 1


def add_one(path: Path, known: dict[str, object], outcome: Counter[str], image: object) -> None:
    """Add to a hostile file: that works, and the image is there, or it is refused."""
    try:
        with ArchiveWriter(path, append=True) as writer:
            writer.add("new.jpg", image)
        with load(path) as archive:
            assert bytes_of(archive["new.jpg"]) == bytes_of(image)
        outcome["added"] += 1
    except SfumatoError:
        outcome["not added"] += 1


def main(source: Path, folder: Path, first: int, number: int) -> None:
    faulthandler.enable()
    leave_unfinished(source)
    with load(source) as archive:
        known = {name: bytes_of(image) for name, image in archive.items()}
        extra = next(iter(archive.values()))
    outcome: Counter[str] = Counter(files=number)
    target = folder / "changed.sfm"
    seed_file = os.open(folder / "seed", os.O_WRONLY | os.O_CREAT)
    read_all(source, known, Counter())
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(first, first + number):
        os.pwrite(seed_file, b"%12d" % seed, 0)
        rng = np.random.default_rng(seed)
        may_miss = make(target, source, rng)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        if rng.random() < 0.8:
            read_all(target, known, outcome, may_miss=may_miss)
        else:
            add_one(target, known, outcome, extra)
    faulthandler.cancel_dump_traceback_later()
    unit = 1024 if sys.platform == "linux" else 1
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) * unit
    assert growth < MOST_GROWTH, f"{growth} bytes for a file of {source.stat().st_size}"
    sys.stdout.write(json.dumps(outcome | {"growth": growth}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
