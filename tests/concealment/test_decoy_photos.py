# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
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


@pytest.fixture(scope="module")
def six_images(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "features.h5"
    write_hloc(path, many().items())
    return path


@pytest.fixture
def source(six_images, tmp_path):
    return shutil.copy(six_images, tmp_path / "features.h5")


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


@pytest.mark.parametrize("table", ["image", "cell"])
def test_what_is_damaged_is_done_again(source, path, monkeypatch, table):
    monkeypatch.setattr(decoy_clusters, "FLAT_LIMIT", 16)
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=100, progress=stop_in(CLUSTERING, 7))
    blob = "rows" if table == "image" else "centroids"
    with closing(sqlite3.connect(f"{path}.part")) as part:
        part.execute(f"UPDATE {table} SET {blob} = zeroblob(length({blob})) WHERE rowid = 2")
        part.commit()
    outcome = build_photo_decoys(source, path, size=100)
    assert outcome.resumed == (5 if table == "image" else 6)
    assert outcome.decoys.checksum == expected(source, 100)


def test_what_is_cut_off_is_told(source, path):
    with pytest.raises(KeyboardInterrupt):
        build_photo_decoys(source, path, size=50, progress=stop_in(READING, 4))
    os.truncate(f"{path}.part", 50)
    with pytest.raises(FileError, match="delete"):
        build_photo_decoys(source, path, size=50)
    os.unlink(f"{path}.part")
    (path.parent / "decoys.npz.part").symlink_to(path.parent / "elsewhere")
    with pytest.raises(FileError, match="link"):
        build_photo_decoys(source, path, size=50)
    assert not (path.parent / "elsewhere").exists()


def test_descriptors_on_the_disk_are_their_owners(source, path):
    modes = []

    def progress(stage, items, _):
        for item in items:
            modes.extend(file.stat().st_mode & 0o777 for file in path.parent.glob("decoys.npz.part*"))
            yield item

    build_photo_decoys(source, path, size=50, progress=progress)
    assert len(modes) > 6
    assert set(modes) == {0o600}


def test_one_build_at_a_time(source, path):
    def progress(stage, items, _):
        with pytest.raises(FileError, match="another"):
            build_photo_decoys(source, path, size=50)
        return items

    assert build_photo_decoys(source, path, size=50, progress=progress).images == IMAGES


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
    assert len(leftovers(path)) == 1
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
    with closing(sqlite3.connect(tmp_path / "again.npz.part")) as part:
        ((size,),) = part.execute("SELECT sum(length(rows)) FROM image")
    assert size < 5 * EACH * 64  # what the sample needs no more is not kept
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
