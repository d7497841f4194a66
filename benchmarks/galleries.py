# SPDX-License-Identifier: Apache-2.0
"""Gallery benchmark: what one enrollment, one verification and one identification cost, in galleries of two sizes.

    python benchmarks/galleries.py --json out.json

People are made up: 512 normal numbers each. "enroll" adds one person to a gallery of this size. "seal" is what a device
does for a verification: it expands the person's key and seals the probe. "verify" is what the server does: it reads one
row of the file and decides. Lifted galleries compare a clear probe and have no seal; there "enroll" allows similar
faces, so that only the file counts, and "enroll compared" reads all templates. Medians; files are in the cache of the
operating system.
"""

import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, finish, load_average, note, seconds

import sfumato
from sfumato.concealment.faces import FACE_RECIPE
from sfumato.faces import GalleryWriter, Threshold, load_gallery, make_probe
from sfumato.faces.decide import verify_probe
from sfumato.types import Embeddings, Extractor

LIFTED = "random-2"
NETWORK = "arcface"
AT_ONCE = 10_000


def fill(path: Path, recipe: str, keys: dict[str, bytes], faces: np.ndarray) -> None:
    """Make a gallery of people, ``keys`` by their ids."""
    ids = list(keys)
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        own = {"key": keys} if recipe != LIFTED else {"secret": keys[ids[0]], "allow_similar": True}
        sfumato.enroll(faces[start : start + AT_ONCE], path, ids=some, recipe=recipe, extractor=NETWORK, **own)
        note(f"{start + len(some)} people")


def enroll(face: np.ndarray, path: Path, person: str, recipe: str, key: bytes, *, compared: bool = False) -> None:
    """Enroll one person; a lifting is not compared with the others unless asked."""
    own = {"key": key} if recipe != LIFTED else {"secret": key, "allow_similar": not compared}
    sfumato.enroll(face, path, ids=person, recipe=recipe, extractor=NETWORK, **own)


def set_threshold(path: Path, comparison: str) -> None:
    """Put a threshold into a gallery."""
    threshold = Threshold(
        comparison=comparison, distance=0.3, wanted_rate=1e-3, measured_rate=1e-3, impostor_pairs=10_000, people=200
    )
    with GalleryWriter(path) as writer, writer.turn():
        writer.set_threshold(threshold)


def measure(path: Path, recipe: str, people: int, dims: int, args: Any) -> dict[str, Any]:
    """Time the commands on one gallery."""
    rng, ids, is_sealed = np.random.default_rng([args.seed, people]), count(), recipe != LIFTED
    keys = {f"person{number}": sfumato.new_key() for number in range(people)}
    fill(path, recipe, keys, rng.standard_normal((people, dims), np.float32))
    set_threshold(path, "bits" if is_sealed else "p-to-s")
    face = Embeddings(rng.normal(size=(1, dims)), ("face",), Extractor(NETWORK))
    given: dict[str, Any] = {"person": "person0", "key": keys} if is_sealed else {"comparison": "p-to-s"}
    probe = make_probe(face, load_gallery(path, ("person0",)), **given)

    def add(*, compared: bool = False) -> None:
        enroll(rng.normal(size=dims), path, f"new{next(ids)}", recipe, sfumato.new_key(), compared=compared)

    works = {"enroll ms": add}
    if not is_sealed:
        works["enroll compared ms"] = lambda: add(compared=True)
        works["identify ms"] = lambda: sfumato.identify(face, path)
    if is_sealed:
        works["seal ms"] = lambda: make_probe(face, load_gallery(path, ("person0",)), **given)
    works["verify ms"] = lambda: verify_probe(probe, load_gallery(path, ("person0",)), "person0")
    times = {name: 1000 * seconds(work, args.repeats)["median"] for name, work in works.items()}
    size = path.stat().st_size
    return {"recipe": recipe, "people": people, **times, "bytes per template": round(size / people)}


def main() -> int:
    """Measure."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--people", type=int, nargs="+", default=[100, 100_000])
    parser.add_argument("--recipes", nargs="+", default=[FACE_RECIPE, LIFTED])
    args = parser.parse_args()
    people, dims = ([10, 50], 64) if args.small else (args.people, 512)
    load_average()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in args.recipes:
            for number in people:
                note(f"a gallery of {number} people, {recipe}")
                rows.append(measure(Path(folder) / f"{recipe}-{number}.sqlite", recipe, number, dims, args))
    finish("galleries", args, {"people": people, "dims": dims}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
