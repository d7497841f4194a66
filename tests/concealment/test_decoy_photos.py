# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

import sfumato
from sfumato.concealment import decoy_clusters, decoy_photos
from sfumato.concealment.decoy_photos import CLUSTERING, READING, build_photo_decoys, row_hashes
from sfumato.errors import DecoyError, FileError
from sfumato.features.hloc import read_hloc, write_hloc
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor

IMAGES, EACH = 6, 40


def features(seed, count=EACH, kind="disk"):
    rows = np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32)
    return Features(np.zeros((count, 4)), rows / np.linalg.norm(rows, axis=1, keepdims=True), Extractor(kind))


def expected(source, size, **settings):
    """The decoys of all features of a file, built in memory."""
    return sfumato.build_decoys([image for _, image in read_hloc(source)], size, **settings).checksum


def many(images=IMAGES):
    return {f"{number}.jpg": features(number) for number in range(images)}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "features.h5"
    write_hloc(path, many().items())
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "decoys.npz"


def leftovers(path):
    return sorted(file.name for file in path.parent.glob("*.part"))


def stop_in(stage, after):
    """A progress that is interrupted when this many items of a stage are done."""

    def progress(title, items, _):
        yield from islice(items, after) if title == stage else items
        if title == stage:
            raise KeyboardInterrupt

    return progress


def test_it_is_the_build_of_all_descriptors(source, path):
    outcome = build_photo_decoys(source, path, size=50, parts=4)
    assert (outcome.images, outcome.features, outcome.resumed, outcome.sampled) == (6, 240, 0, 240)
    assert outcome.decoys.checksum == sfumato.load_decoys(path).checksum
    assert outcome.decoys.checksum == expected(source, 50, parts=4)
    assert leftovers(path) == []


@pytest.mark.parametrize("after", [0, 1, 4, 6])
def test_an_interrupted_build_goes_on(source, path, after):
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=50, progress=stop_in(READING, after))
    assert not path.exists()
    assert bool(leftovers(path)) == bool(after)  # nothing is left of nothing
    outcome = build_photo_decoys(source, path, size=50)
    assert outcome.resumed == after
    assert outcome.features == 240
    assert outcome.decoys.checksum == expected(source, 50)
    assert leftovers(path) == []


def test_cells_that_are_clustered_stay(source, path, monkeypatch):
    monkeypatch.setattr(decoy_clusters, "FLAT_LIMIT", 16)
    checksum = expected(source, 100)
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=100, progress=stop_in(CLUSTERING, 7))
    done = []
    real = decoy_clusters._kmeans
    monkeypatch.setattr(decoy_clusters, "_kmeans", lambda *settings: done.append(1) or real(*settings))
    assert build_photo_decoys(source, path, size=100).decoys.checksum == checksum
    assert len(done) == 1 + 10 - 7  # the split into ten cells, and the cells that were left


def test_cells_of_another_seed_are_not_used(source, path, monkeypatch):
    monkeypatch.setattr(decoy_clusters, "FLAT_LIMIT", 16)
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=100, progress=stop_in(CLUSTERING, 7))
    decoys = build_photo_decoys(source, path, size=100, seed=1).decoys
    assert decoys.checksum == expected(source, 100, seed=1)


@pytest.mark.parametrize("name", ["decoys.npz.part", "decoys.npz.rows.part"])
def test_a_torn_end_costs_what_was_torn(source, path, name):
    checksum = expected(source, 50)
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=50, progress=stop_in(READING, 4))
    files = {file: file.read_bytes() for file in path.parent.glob("*.part")}
    torn = path.parent / name
    for cut in range(0, len(files[torn]), max(1, len(files[torn]) // 9)):
        for file, content in files.items():
            file.write_bytes(content[:cut] if file == torn else content)
        outcome = build_photo_decoys(source, path, size=50)
        assert outcome.resumed < 4
        assert outcome.decoys.checksum == checksum
        path.unlink()


def test_damaged_rows_are_read_again(source, path):
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=50, progress=stop_in(READING, 4))
    rows = path.parent / "decoys.npz.rows.part"
    content = bytearray(rows.read_bytes())
    content[2 * EACH * 64 + 5] ^= 1
    rows.write_bytes(content)
    assert build_photo_decoys(source, path, size=50).resumed == 2


def test_a_killed_process_loses_at_most_an_image(source, path):
    program = f"""
import os, signal
from itertools import islice
from sfumato.concealment.decoy_photos import build_photo_decoys
def progress(stage, items, total):
    for number, item in enumerate(items):
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item
build_photo_decoys({str(source)!r}, {str(path)!r}, size=50, progress=progress)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert build_photo_decoys(source, path, size=50).resumed == 4


def test_other_settings_are_refused_until_begun_anew(source, path):
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=50, progress=stop_in(READING, 4))
    with pytest.raises(FileError, match="overwrite"):
        build_photo_decoys(source, path, size=51)
    assert len(leftovers(path)) == 2
    assert build_photo_decoys(source, path, size=51, overwrite=True).resumed == 0
    with pytest.raises(FileError, match=r"decoys\.npz"):
        build_photo_decoys(source, path, size=51)


def test_new_photos_are_read_and_old_ones_forgotten(source, path):
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=50, progress=stop_in(READING, 4))
    images = many(8)
    del images["1.jpg"]
    write_hloc(source, images.items())
    outcome = build_photo_decoys(source, path, size=50)
    assert (outcome.resumed, outcome.images) == (3, 7)
    assert outcome.decoys.checksum == expected(source, 50)


def test_of_many_descriptors_an_even_sample_is_taken(source, path, tmp_path, monkeypatch):
    monkeypatch.setattr(decoy_photos, "DESCRIPTORS_EACH", 2)
    first = build_photo_decoys(source, path, size=30, drawn=True)
    assert (first.features, first.sampled) == (240, 60)
    rows = np.concatenate([image.descriptors for _, image in read_hloc(source)])
    least = rows[np.sort(np.argsort(row_hashes(rows))[:60])]
    assert (
        first.decoys.checksum == sfumato.concealment.draw_descriptors(least, 30, extractor=Extractor("disk")).checksum
    )
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, tmp_path / "again.npz", size=30, drawn=True, progress=stop_in(READING, 5))
    assert os.stat(tmp_path / "again.npz.rows.part").st_size < 5 * EACH * 64  # what the sample needs no more
    again = build_photo_decoys(source, tmp_path / "again.npz", size=30, drawn=True)
    assert again.decoys.checksum == first.decoys.checksum


def test_too_few_descriptors_leave_nothing(source, path):
    with pytest.raises(DecoyError, match="240"):
        build_photo_decoys(source, path, size=241)
    assert leftovers(path) == []


def test_different_kinds_and_no_source(source, path, tmp_path):
    write_hloc(tmp_path / "other.h5", [("a.jpg", features(1, kind="sift"))])
    with pytest.raises(DecoyError, match="disk"):
        build_photo_decoys([source, tmp_path / "other.h5"], path, size=20)
    assert leftovers(path) == []
    with pytest.raises(sfumato.SfumatoError):
        build_photo_decoys([], path)
    with pytest.raises(DecoyError, match="drawn"):
        build_photo_decoys(source, path, drawn=True, labels={})


def test_labels_can_be_mended_after_photos_were_read(source, path):
    labels = {f"{number}.jpg": "ab"[number % 2] for number in range(5)}
    with pytest.raises(FileError, match=r"5\.jpg"):
        build_photo_decoys(source, path, size=20, labels=labels)
    outcome = build_photo_decoys(source, path, size=20, labels=labels | {"5.jpg": "b"})
    assert outcome.resumed == 6
    assert sorted(outcome.decoys.labels.tolist()) == ["a"] * 10 + ["b"] * 10


def test_hashes_are_even_and_the_same_everywhere():
    rows = np.concatenate([features(number, 1000).descriptors for number in range(4)])
    hashes = row_hashes(rows)
    assert len(np.unique(hashes)) == 4000
    assert abs((hashes < np.uint64(2**62)).mean() - 0.25) < 0.03
    assert row_hashes(np.ones((1, 4), np.float32)).tolist() == [row_hashes(np.ones((2, 4), np.float32))[1]]
