# SPDX-License-Identifier: Apache-2.0
"""Gallery benchmark: what one enrollment, one verification and one identification cost, in galleries of two sizes.

    python benchmarks/galleries.py --json out.json

People are made up: 512 normal numbers each. "enroll" adds one person, with ``allow_similar``, so that only the file
counts; "enroll compared" also compares the face with everyone, which reads all templates. Files are in the cache of the
operating system.
"""

import sys
import tempfile
import warnings
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, finish, load_average, note, seconds

import sfumato
from sfumato.faces import GalleryWriter, Threshold

AT_ONCE = 10_000
THRESHOLD = Threshold(
    comparison="p-to-s", distance=0.5, wanted_rate=1e-3, measured_rate=1e-3, impostor_pairs=10_000, people=200
)


def fill(path: Path, people: int, dims: int, secret: bytes, rng: np.random.Generator) -> None:
    """Make a gallery of this many people, with a threshold."""
    for start in range(0, people, AT_ONCE):
        ids = [f"person{number}" for number in range(start, min(start + AT_ONCE, people))]
        sfumato.enroll(rng.normal(size=(len(ids), dims)), path, ids=ids, allow_similar=True, secret=secret)
    with GalleryWriter(path) as writer, writer.turn():
        writer.set_threshold(THRESHOLD)


def measure(path: Path, people: int, dims: int, args: Any) -> dict[str, Any]:
    """Time the commands on one gallery."""
    rng, secret, ids = np.random.default_rng([args.seed, people]), sfumato.new_key(), count()
    fill(path, people, dims, secret, rng)
    size = path.stat().st_size
    face = rng.normal(size=dims)

    def enroll(*, allow_similar: bool) -> None:
        person = f"new{next(ids)}"
        sfumato.enroll(rng.normal(size=dims), path, ids=person, allow_similar=allow_similar, secret=secret)

    works = {
        "enroll ms": lambda: enroll(allow_similar=True),
        "enroll compared ms": lambda: enroll(allow_similar=False),
        "verify ms": lambda: sfumato.verify(face, path, "person0"),
        "identify ms": lambda: sfumato.identify(face, path),
    }
    times = {name: 1000 * seconds(work, args.repeats)["median"] for name, work in works.items()}
    return {"people": people, **times, "bytes per template": round(size / people), "code bytes": 4 * 3 * dims}


def main() -> int:
    """Measure."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--people", type=int, nargs="+", default=[100, 100_000])
    args = parser.parse_args()
    people, dims = ([10, 50], 64) if args.small else (args.people, 512)
    load_average()
    rows = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        for number in people:
            note(f"a gallery of {number} people")
            rows.append(measure(Path(folder) / f"{number}.sqlite", number, dims, args))
    finish("galleries", args, {"people": people, "dims": dims}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
