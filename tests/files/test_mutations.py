# SPDX-License-Identifier: Apache-2.0
"""Mutated files: every reader gives what was written, or a FileError; never another error, and never other contents."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfumato
from sfumato.concealment.decoys import load_decoys, save_decoys
from sfumato.concealment.encoder import Encoder, load_encoder, save_encoder
from sfumato.errors import FileError
from sfumato.features.embeddings import read_embeddings, save_embeddings
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.geometry.cameras import read_cameras, read_poses, write_cameras, write_poses
from sfumato.geometry.shortlist import read_shortlists
from sfumato.matching.codebook import make_codebook, read_codebook, save_codebook
from sfumato.matching.pairs import read_pairs
from sfumato.search.factory import build, load
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor
from sfumato.types.scene import Camera, Pose

RNG = np.random.default_rng(3)
ROWS = np.abs(RNG.standard_normal((60, 8))).astype(np.float32)
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)


@dataclass(frozen=True)
class Reader:
    """A file: how it is written and read, and what is compared; ``guarded`` by a digest, or else plain to edit."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    facts: Callable[[Any], Any] = lambda content: content
    guarded: bool = True


def write_encoder(path: Path) -> None:
    layers = ((ROWS[:6], ROWS[:6, 0], True), (ROWS[:4, :6], ROWS[:4, 0], False))
    save_encoder(path, Encoder(layers=layers, extractor_name="sift", card={"note": "a test"}))


def write_list(path: Path) -> None:
    path.write_text("a.jpg b.jpg\n# more\nb.jpg c.jpg\n", encoding="utf-8")


READERS = {
    "encoder": Reader(write_encoder, load_encoder, lambda one: (one.checksum, dict(one.card), one.extractor_name)),
    "checkpoint": Reader(
        lambda path: save_checkpoint(path, {"a": ROWS, "b": np.arange(5)}, {"kind": "a test", "steps": 3}),
        load_checkpoint,
        lambda one: ({name: array.tobytes() for name, array in one[0].items()}, one[1]),
    ),
    "decoys": Reader(
        lambda path: save_decoys(path, sfumato.Decoys(ROWS, Extractor("toy"), parts=3, made={"seed": 1})),
        load_decoys,
        lambda one: (one.checksum, dict(one.made), one.extractor),
    ),
    "codebook": Reader(
        lambda path: save_codebook(path, make_codebook(ROWS, Extractor("toy"), size=6)),
        read_codebook,
        lambda one: (one.words.tobytes(), one.background.tobytes(), dict(one.made), one.space),
    ),
    "index": Reader(
        lambda path: build(ROWS, "exact").save(path), load, lambda one: one.search(ROWS[:5], k=2)[0].tobytes()
    ),
    "embeddings": Reader(
        lambda path: save_embeddings(path, Embeddings(ROWS, tuple(map(str, range(60))), Extractor("toy"))),
        read_embeddings,
        guarded=False,
    ),
    "compressed": Reader(
        lambda path: np.savez_compressed(path, embedding=ROWS, name=np.arange(60)), read_embeddings, guarded=False
    ),
    "cameras": Reader(
        lambda path: write_cameras(path, {"a.jpg": Camera("PINHOLE", 640, 480, (500.0, 500.0, 320.0, 240.0))}),
        read_cameras,
        guarded=False,
    ),
    "poses": Reader(lambda path: write_poses(path, {"a.jpg": Pose(np.eye(3), np.ones(3))}), read_poses, guarded=False),
    "pairs": Reader(write_list, read_pairs, guarded=False),
    "shortlists": Reader(write_list, read_shortlists, guarded=False),
}
"""By name; the ending of the file is npz for those that are told by it."""

TOKENS = (b"-1", b"9" * 5000, b"1e999", b"nan", b"\0", b"\xff\xfe", b"[" * 3000, b"{}", b'"', b"18446744073709551616")


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a content with a bit flipped, cut, lengthened, a block copied elsewhere, or a hostile word put in."""
    at = int(rng.integers(len(content)) if rng.random() < 0.5 else rng.integers(min(len(content), 600)))
    match rng.integers(6):
        case 0 | 1:
            return content[:at] + bytes([content[at] ^ 1 << int(rng.integers(8))]) + content[at + 1 :]
        case 2:
            return content[:at]
        case 3:
            return content + content[:at]
        case 4:
            start, length = int(rng.integers(len(content))), int(rng.integers(1, 64))
            return content[:at] + content[start : start + length] + content[at + length :]
        case _:
            token = TOKENS[rng.integers(len(TOKENS))]
            return content[:at] + token + content[at + int(rng.integers(len(token) + 1)) :]


def count_refused(reader: Reader, path: Path, trials: int, seed: int) -> int:
    """Read mutated files; return how many were refused, and fail for other errors and other contents."""
    reader.write(path)
    content, expected = path.read_bytes(), reader.facts(reader.read(path))
    rng, refused = np.random.default_rng(seed), 0
    for _ in range(trials):
        path.write_bytes(mutate(content, rng))
        try:
            found = reader.facts(reader.read(path))
        except FileError:
            refused += 1
        else:
            assert not reader.guarded or found == expected
    return refused


def file_name(name: str) -> str:
    return f"{name}.npz" if name in ("embeddings", "compressed") else name


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_refused_or_harmless(name, tmp_path):
    refused = count_refused(READERS[name], tmp_path / file_name(name), 60, seed=1)
    assert refused >= (50 if READERS[name].guarded else 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_mutated_files_are_refused_or_harmless(name, tmp_path):
    assert count_refused(READERS[name], tmp_path / file_name(name), 5000, seed=2) > 500
