# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, ImageError, InputError, SfumatoError
from sfumato.features import sources
from sfumato.features.local import LocalParams, extract
from sfumato.features.sources import extract_many
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_image
from sfumato.types.clear import Features


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten photos of different sizes, one of them broken, one flat."""
    folder = tmp_path_factory.mktemp("photos")
    pixels = sample_image("coins").pixels
    for number in range(8):
        assert cv2.imwrite(str(folder / f"{number}.png"), pixels[: 300 - 30 * number])
    (folder / "3b.jpg").write_text("no picture")
    assert cv2.imwrite(str(folder / "flat.png"), np.full((50, 60), 9, np.uint8))
    return list_images(folder)


@pytest.mark.parametrize("workers", [1, 2, 5, None])
def test_order_and_errors_are_kept(photos, workers):
    params = LocalParams(max_features=60)
    results = list(extract_many(photos, params, workers=workers))
    assert [name for name, _ in results] == [name for name, _ in photos]
    for (name, found), (_, path) in zip(results, photos, strict=True):
        if name == "3b.jpg":
            assert isinstance(found, ImageError)
            assert "3b.jpg" in str(found)
        else:
            expected = extract(path, params)
            assert (found.keypoints == expected.keypoints).all()
            assert (found.descriptors == expected.descriptors).all()
    assert len(dict(results)["flat.png"]) == 0


def test_nothing_gives_nothing():
    assert list(extract_many([])) == []


def test_progress_wraps_the_results_and_knows_their_number(photos):
    seen = []

    def progress(items):
        seen.append(len(items))
        for item in items:
            seen.append(item[0])
            yield item

    assert len(list(extract_many(photos, progress=progress))) == len(photos)
    assert seen == [len(photos), *(name for name, _ in photos)]

    def unknown(items):
        with pytest.raises(TypeError):
            len(items)
        return items

    assert len(list(extract_many((item for item in photos), progress=unknown))) == len(photos)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_wrong_settings_are_told_before_any_work(workers):
    with pytest.raises(InputError, match="workers"):
        extract_many([("a", "/nowhere")], workers=workers)
    with pytest.raises(InputError, match="LocalParams"):
        extract_many([], {"max_features": 3})


def extract_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("extract")]


def test_only_a_few_are_read_ahead(photos):
    begun = []

    def items():
        for name, path in photos * 5:
            begun.append(name)
            yield name, path

    results = extract_many(items(), workers=2)
    for taken in range(1, 10):
        next(results)
        assert len(begun) <= taken + 3
    results.close()
    assert not extract_threads()


def test_giving_up_ends_the_threads(photos):
    results = extract_many(photos * 20, workers=3)
    next(results)
    assert extract_threads()
    del results
    assert not extract_threads()


def test_giving_up_leaves_what_waits_for_memory(photos, monkeypatch):
    """One large picture is under way and others wait for its memory: when nobody wants them they are not begun."""
    begun, leaving = [], threading.Event()

    def slow(image, params):
        begun.append(image.name)
        leaving.wait(60)
        return SfumatoError("enough")

    class Pool(sources.ThreadPoolExecutor):
        def shutdown(self, *args, **options):
            leaving.set()
            super().shutdown(*args, **options)

    monkeypatch.setattr(sources, "extract", slow)
    monkeypatch.setattr(sources, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(sources, "PIXELS_AT_ONCE", 1)
    broken_first = sorted(photos, key=lambda item: item[0] != "3b.jpg")
    results = extract_many(broken_first, workers=4)
    assert next(results)[0] == "3b.jpg"
    results.close()
    assert len(begun) <= 1
    assert not extract_threads()


def test_what_is_not_the_images_fault_is_raised(photos, monkeypatch):
    def fail(image, params):
        raise MemoryError("none left")

    monkeypatch.setattr(sources, "extract", fail)
    with pytest.raises(MemoryError, match="none left"):
        list(extract_many(photos, workers=2))
    assert not extract_threads()


def test_a_broken_list_of_items_ends_the_threads(photos):
    def items():
        yield photos[0]
        raise KeyError("the caller's own trouble")

    with pytest.raises(KeyError, match="own trouble"):
        list(extract_many(items(), workers=2))
    assert not extract_threads()


def test_large_pictures_wait_for_one_another(photos, monkeypatch):
    """At most PIXELS_AT_ONCE are worked on together; a picture larger than that is worked on alone."""
    sizes = {name: int(np.prod(read_image(path).size)) for name, path in photos if name != "3b.jpg"}
    largest = max(sizes.values())
    under_way, most, lock = [], [], threading.Lock()

    def slow(image, params):
        with lock:
            under_way.append(int(np.prod(image.size)))
            most.append(tuple(under_way))
        time.sleep(0.005)
        with lock:
            under_way.remove(int(np.prod(image.size)))
        return SfumatoError("enough")

    monkeypatch.setattr(sources, "extract", slow)
    for limit in (largest // 2, largest * 2):
        monkeypatch.setattr(sources, "PIXELS_AT_ONCE", limit)
        most.clear()
        assert len(list(extract_many(photos, workers=6))) == len(photos)
        assert all(sum(together) <= limit or len(together) == 1 for together in most)
    assert max(len(together) for together in most) > 1, "and still in parallel"


def test_opencv_is_left_as_it_was(photos):
    before = cv2.getNumThreads()
    list(extract_many(photos, workers=2))
    assert cv2.getNumThreads() == before


def test_ctrl_c_ends_the_work(tmp_path, photos):
    """A process that is interrupted in the middle ends by itself, with KeyboardInterrupt."""
    program = """
import sys
from sfumato.features.sources import extract_many
from sfumato.images.read import list_images
items = list_images(sys.argv[1])
def forever():
    while True:
        yield from items
for count, _ in enumerate(extract_many(forever(), workers=3)):
    if count == 5:
        print("working", flush=True)
"""
    folder = str(photos[0][1].parent)
    with subprocess.Popen(
        [sys.executable, "-c", program, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "working\n"
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130)
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
def test_a_folder_of_real_photos(shared_data):
    items = list_images(shared_data / "photos" / "bsds500" / "val")[:12]
    results = list(extract_many(items, LocalParams(max_features=500)))
    assert all(isinstance(found, Features) for _, found in results)
    assert sum(len(found) for _, found in results) > 1000


def test_networks_in_several_threads(photos, untrained):
    params = LocalParams(descriptor="hardtfeat", weights=untrained(), max_features=40)
    for (name, found), (_, path) in zip(extract_many(photos, params, workers=4), photos, strict=True):
        if name != "3b.jpg":
            expected = extract(path, params)
            assert (found.descriptors == expected.descriptors).all()
            assert found.extractor == expected.extractor


def test_wrong_weights_are_no_matter_of_single_images(photos, tmp_path):
    params = LocalParams(descriptor="hardtfeat", weights=tmp_path / "none.pth")
    with pytest.raises(FileError, match="not there"):
        extract_many(photos, params)
