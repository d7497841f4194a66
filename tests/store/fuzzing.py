# SPDX-License-Identifier: Apache-2.0
"""Change the bytes of an archive at random and read it: run by test_read.py in a process of its own.

    python fuzzing.py archive folder first-seed number what

``what`` is ``load`` (an archive is opened and read) or ``resume`` (the bytes are what an interrupted run left).
The seed at work is in the file ``seed`` of the folder, so that a crash or a hang has a name. The last line of
the output counts the outcomes. Any image that comes back must be one of the images of the archive, bit for bit.
"""

import faulthandler
import hashlib
import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from sfumato.errors import ArchiveError
from sfumato.store import ArchiveWriter, load
from sfumato.types.concealed import ConcealedFeatures

SECONDS = 20
"""After which one change counts as a hang: stacks are dumped and the process ends."""


def mutate(raw: bytes, rng: np.random.Generator) -> bytes:
    """Return the bytes with one to three changes."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        if not data:
            break
        size = len(data)
        kind = rng.integers(9)
        at, other = (int(rng.integers(size)) for _ in range(2))
        length = int(rng.integers(1, 1 + min(64 if rng.random() < 0.7 else 4096, size)))
        if kind <= 1:  # bits
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:  # a burst of noise
            data[at : at + length] = rng.bytes(len(data[at : at + length]))
        elif kind == 3:  # zeros or ones
            data[at : at + length] = bytes([int(rng.choice([0, 255]))]) * len(data[at : at + length])
        elif kind == 4:  # an interesting number
            width = int(rng.choice([1, 2, 4, 8]))
            number = [0, 1, 2**7, 2**15, 2**31, 2**63, 2**64 - 1, size, at, 48][rng.integers(10)]
            data[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == 5:  # cut
            del data[at:]
        elif kind == 6:  # a block in the place of another
            block = data[other : other + length]
            data[at : at + len(block)] = block
        elif kind == 7:  # two blocks swapped
            low, high = sorted((at, other))
            length = min(length, high - low, len(data) - high)
            data[low : low + length], data[high : high + length] = (
                data[high : high + length], data[low : low + length],
            )  # fmt: skip
        elif rng.random() < 0.5:  # something inserted
            data[at:at] = rng.bytes(length)
        else:  # something left out
            del data[at : at + length]
    return bytes(data)


def fingerprint(name: str, image: ConcealedFeatures) -> str:
    state = hashlib.sha256()
    subspaces = image.subspaces
    for array in (image.keypoints, subspaces.origin, subspaces.basis):
        state.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
    described = (name, image.recipe.to_json(), image.extractor.to_json(), image.image_size, image.payload)
    state.update(repr(described).encode())
    return state.hexdigest()


def read_all(path: Path, known: set[str], outcome: Counter[str]) -> None:
    try:
        archive = load(path)
    except ArchiveError:
        outcome["refused"] += 1
        return
    with archive:
        archive.summary()
        for name in archive:
            try:
                image = archive[name]
            except ArchiveError:
                outcome["image refused"] += 1
                continue
            assert fingerprint(name, image) in known, f"image {name!r} came back changed"
            outcome["image intact"] += 1


def resume_all(path: Path, known: set[str], outcome: Counter[str]) -> None:
    try:
        with ArchiveWriter(path) as writer:
            outcome["resumed"] += len(writer.resumed)
    except ArchiveError:
        outcome["refused"] += 1
        Path(f"{path}.part").unlink()
        return
    before = outcome["image refused"], outcome["refused"]
    read_all(path, known, outcome)
    assert before == (outcome["image refused"], outcome["refused"]), "a resumed archive is not intact"
    assert len(load(path)) <= len(known)


def main(source: str, folder: str, first: int, number: int, what: str) -> None:
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    raw = Path(source).read_bytes()
    with load(source) as archive:
        known = {fingerprint(name, image) for name, image in archive.items()}
    outcome: Counter[str] = Counter()
    target = Path(folder) / "changed.sfm.h5"
    seed_file = os.open(Path(folder) / "seed", os.O_WRONLY | os.O_CREAT)
    for seed in range(first, first + number):
        os.pwrite(seed_file, b"%12d" % seed, 0)
        changed = mutate(raw, np.random.default_rng(seed))
        (target if what == "load" else Path(f"{target}.part")).write_bytes(changed)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        (read_all if what == "load" else resume_all)(target, known, outcome)
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
