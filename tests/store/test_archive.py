# SPDX-License-Identifier: Apache-2.0
"""Archives are read lazily, and a damaged or hostile one gives an error, never a crash, a hang or wrong data."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import ArchiveError
from sfumato.store import Archive, load, save
from sfumato.types.recipe import Recipe

NAMES = ("b.jpg", "a/ü.jpg", "..", "empty.jpg")


@pytest.fixture
def given(features: Callable[..., Any]) -> dict[str, Any]:
    return {
        "b.jpg": features(seed=1),
        "a/ü.jpg": features(seed=2, dim=4, image_size=None),
        "..": features(seed=3, dim=0, recipe="compress-16"),
        "empty.jpg": features(seed=4, count=0),
    }


@pytest.fixture
def path(tmp_path: Path, given: dict[str, Any]) -> Path:
    save(tmp_path / "a.sfm.h5", given)
    return tmp_path / "a.sfm.h5"


def test_an_archive_is_a_read_only_mapping(path: Path, given: dict[str, Any], same: Any):
    archive = load(path)
    assert isinstance(archive, Mapping)
    assert list(archive) == sorted(NAMES)
    assert len(archive) == 4
    for name, image in archive.items():
        same(image, given[name])
    assert "b.jpg" in archive
    assert "c.jpg" not in archive
    assert 3 not in archive
    assert archive.get("c.jpg") is None
    with pytest.raises(KeyError):
        archive["c.jpg"]
    with pytest.raises(KeyError):
        archive.header("c.jpg")
    assert not hasattr(archive, "__setitem__")


def test_repr_shows_path_and_count_only(path: Path):
    assert repr(load(path)) == f"Archive({str(path)!r}, 4 images)"


def test_comparing_and_hashing_read_nothing(path: Path):
    archive = load(path)
    assert archive == archive
    assert archive != load(path)
    assert len({archive}) == 1


def test_images_are_read_when_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = load(path)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read.append(size) or pread(fd, size, at))
    assert list(archive) == sorted(NAMES)
    assert not read
    headers = archive.summary().images
    assert [header.count for header in headers] == [5, 5, 5, 0]
    assert max(read) < 1500  # headers only
    archive["b.jpg"]
    assert max(read) < 2000


def test_headers_and_summary(path: Path, given: dict[str, Any]):
    with load(path) as archive:
        header = archive.header("a/ü.jpg")
        assert (header.name, header.count, header.dim, header.ambient_dim) == ("a/ü.jpg", 5, 4, 16)
        assert (header.dtype, header.image_size) == ("float32", None)
        assert (header.recipe, header.extractor) == (Recipe.of("random-4"), given["b.jpg"].extractor)
        summary = archive.summary()
    assert summary.path == path
    assert summary.size_bytes == path.stat().st_size
    assert [image.name for image in summary.images] == sorted(NAMES)
    assert not summary.damaged


def test_a_closed_archive_says_so(path: Path):
    with load(path) as archive:
        pass
    archive.close()
    with pytest.raises(ArchiveError, match="closed"):
        archive["b.jpg"]
    with pytest.raises(ArchiveError, match="closed"):
        archive.header("b.jpg")
    assert len(archive) == 4


def test_files_are_closed(path: Path, tmp_path: Path):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("needs /proc")
    for _ in range(5):
        load(path)
    (tmp_path / "bad").write_bytes(b"x" * 100)
    for _ in range(5):
        with pytest.raises(ArchiveError):
            load(tmp_path / "bad")
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_open_archive_outlives_its_replacement(path: Path, given: dict[str, Any], features: Any, same: Any):
    archive = load(path)
    save(path, {"new.jpg": features(seed=9)})
    same(archive["b.jpg"], given["b.jpg"])
    assert list(load(path)) == ["new.jpg"]


def test_an_empty_archive(tmp_path: Path):
    save(tmp_path / "a.h5", {})
    archive = load(tmp_path / "a.h5")
    assert len(archive) == 0
    assert archive.summary().images == ()
    with h5py.File(tmp_path / "a.h5") as file:
        assert list(file["images"]) == []


def test_public_names():
    assert sfumato.load is load
    assert sfumato.save is save
    assert issubclass(Archive, Mapping)


# ---------------------------------------------------------------- not an archive


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "outside of the file"),
        (b"\x89HDF\r\n\x1a\n", "outside of the file"),
        (b"name, x, y\n" * 100, "not an HDF5 file"),
        (bytes(4096), "not an HDF5 file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(4096), "not a Sfumato archive"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str):
    (tmp_path / "a.h5").write_bytes(content)
    with pytest.raises(ArchiveError, match=words) as caught:
        load(tmp_path / "a.h5")
    assert str(tmp_path / "a.h5") in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path: Path):
    with pytest.raises(ArchiveError, match="path"):
        load(tmp_path / "a.h5")
    with pytest.raises(ArchiveError, match="not a"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="not a"):
        load(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="long"):
        load(tmp_path / ("n" * 300))


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
def test_hdf5_files_of_others_are_refused(tmp_path: Path, libver: str):
    with h5py.File(tmp_path / "features.h5", "w", libver=libver) as file:
        group = file.create_group("db/1.jpg")
        group["keypoints"] = np.zeros((3, 2), np.float16)
        group["descriptors"] = np.zeros((128, 3), np.float16)
    with pytest.raises(ArchiveError, match="Sfumato"):
        load(tmp_path / "features.h5")


def test_truncations_are_noticed(path: Path, tmp_path: Path):
    raw = path.read_bytes()
    for size in (one for one in range(len(raw)) if one < 100 or one % 5 == 0 or one > len(raw) - 100):
        os.truncate(path, len(raw) - 1 - size)
        with pytest.raises(ArchiveError):
            load(path)


# ---------------------------------------------------------------- changed with an HDF5 library


def change(path: Path, edit: Callable[[h5py.File], Any]) -> None:
    with h5py.File(path, "r+", libver=("v108", "latest")) as file:
        edit(file)


ROOT: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "future version": (lambda f: f.attrs.modify("version", 4), "version 4 of the format.*1 to 3: use another"),
    "version 0": (lambda f: f.attrs.modify("version", 0), "version 0"),
    "no version": (lambda f: f.attrs.__delitem__("version"), "version None"),
    "other format": (lambda f: f.attrs.create("format", np.bytes_(b"sfumato-ARCHIVE")), "not a Sfumato archive"),
    "other payload": (lambda f: f.attrs.create("payload", np.bytes_(b"points")), "unknown payload 'points'"),
    "extra attribute": (lambda f: f.attrs.create("more", 3), "other members or attributes"),
    "extra member": (lambda f: f.create_group("more"), "other members or attributes"),
    "ragged text": (lambda f: f.attrs.create("format", "sfumato-archive"), "neither"),
    "lost image": (lambda f: f["images"].__delitem__("b.jpg"), "lost, added or renamed"),
    "renamed image": (lambda f: f["images"].move("b.jpg", "c.jpg"), "lost, added or renamed"),
    "added image": (lambda f: f["images"].__setitem__("c.jpg", f["images/b.jpg"]), "lost, added or renamed"),
    "soft link": (lambda f: f["images"].__setitem__("c.jpg", h5py.SoftLink("b.jpg")), "a soft link"),
    "external link": (lambda f: f["images"].__setitem__("c", h5py.ExternalLink("x.h5", "/")), "an external link"),
    "attribute of the images": (lambda f: f["images"].attrs.create("x", 1), "has attributes"),
    "thousands of images": (lambda f: [f["images"].create_group(f"x{i}") for i in range(3000)], "heap"),
    "thousands of members": (lambda f: [f.create_group(f"x{i}") for i in range(3000)], "heap"),
    "wrong count": (lambda f: f.attrs.modify("images", 5), "lost, added or renamed"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ROOT))
def test_a_changed_archive_is_refused_when_opened(path: Path, name: str):
    edit, words = ROOT[name]
    change(path, edit)
    with pytest.raises(ArchiveError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)


def replaced(**how: Any) -> Callable[[h5py.Group], None]:
    """Put another dataset in the place of the basis."""

    def edit(group: h5py.Group) -> None:
        values = group["basis"][()]
        del group["basis"]
        given = {"data": values, **how} if "shape" not in how else how
        group.create_dataset("basis", **given)

    return edit


def linked(link: Any) -> Callable[[h5py.Group], None]:
    def edit(group: h5py.Group) -> None:
        del group["basis"]
        group["basis"] = link(group)

    return edit


def virtual(group: h5py.Group) -> None:
    del group["basis"]
    layout = h5py.VirtualLayout((5, 2, 16), "<f4")
    layout[:] = h5py.VirtualSource("x.h5", "basis", (5, 2, 16))
    group.create_virtual_dataset("basis", layout)


IMAGE: dict[str, tuple[Callable[[h5py.Group], Any], str]] = {
    "one value": (lambda g: g["basis"].__setitem__((0, 0, 0), 0.5), "checksum of its arrays"),
    "NaN": (lambda g: g["origin"].__setitem__((0, 0), np.nan), "checksum of its arrays"),
    "gzip": (replaced(compression="gzip"), "filter|chunked"),
    "scale offset": (replaced(scaleoffset=3), "filter|chunked"),
    "fletcher": (replaced(fletcher32=True), "filter|chunked"),
    "chunked": (replaced(chunks=(1, 2, 16)), "chunked"),
    "growing": (replaced(maxshape=(None, 2, 16)), "chunked|may grow"),
    "float64": (replaced(dtype="<f8"), "type"),
    "big endian": (replaced(dtype=">f4"), "type"),
    "texts": (replaced(shape=(5, 2, 16), dtype=h5py.string_dtype()), "type"),
    "objects": (replaced(shape=(5, 2, 16), dtype=h5py.vlen_dtype("<f4")), "type"),
    "external storage": (
        replaced(shape=(5, 2, 16), dtype="<f4", external=[("/etc/passwd", 0, 640)]), "external storage"),
    "other shape": (replaced(shape=(5, 16, 2), dtype="<f4", data=np.ones((5, 16, 2), "<f4")), "expected"),
    "huge shape": (replaced(shape=(2**40, 2, 16), dtype="<f4"), "outside of the file"),
    "unwritten": (replaced(shape=(5, 2, 16), dtype="<f4"), "outside of the file"),
    "other values": (replaced(shape=(5, 2, 16), dtype="<f4", data=np.ones((5, 2, 16), "<f4")), "checksum"),
    "virtual": (virtual, "virtual"),
    "soft link": (linked(lambda g: h5py.SoftLink("origin")), "a soft link"),
    "external link": (linked(lambda g: h5py.ExternalLink("x.h5", "/basis")), "an external link"),
    "array of another image": (linked(lambda g: g.parent["a%2F%C3%BC.jpg/basis"]), "dimension"),
    "group": (linked(lambda g: g.parent), "attribute|message"),
    "circle": (linked(lambda g: g), "an attribute|message"),
    "missing": (lambda g: g.__delitem__("basis"), r"missing: \['basis'\]"),
    "another member": (lambda g: g.create_dataset("x", data=np.zeros(3)), r"too many: \['x'\]"),
    "thousands of members": (lambda g: [g.create_group(f"x{i}") for i in range(3000)], "heap"),
    "another attribute": (lambda g: g.attrs.create("x", 3), r"too many: \['x'\]"),
    "huge attribute": (lambda g: g.attrs.create("x", np.zeros(2**17)), "heap"),
    "ragged attribute": (lambda g: g.attrs.create("recipe", "text"), "neither"),
    "number for a text": (lambda g: g.attrs.create("recipe", 3), "expected a text"),
    "clear recipe": (
        lambda g: g.attrs.create("recipe", np.bytes_(Recipe.of("raw").to_json().encode())), "in the clear"),
    "no image size": (lambda g: g.attrs.__delitem__("image_size"), "checksum of its header"),
    "attribute of an array": (lambda g: g["origin"].attrs.create("x", 1), "an attribute"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(IMAGE))
def test_a_changed_image_is_refused_and_the_others_are_not(path: Path, given: dict[str, Any], same: Any, name: str):
    edit, words = IMAGE[name]
    change(path, lambda file: edit(file["images/b.jpg"]))
    with load(path) as archive:
        with pytest.raises(ArchiveError, match=words) as caught:
            archive["b.jpg"]
        assert "'b.jpg'" in str(caught.value)
        assert str(path) in str(caught.value)
        assert "restore the archive" in str(caught.value)
        for other in set(NAMES) - {"b.jpg"}:
            same(archive[other], given[other])
        summary = archive.summary()
        assert {*summary.damaged, *(header.name for header in summary.images)} == set(NAMES)
        assert set(summary.damaged) <= {"b.jpg"}


def test_two_swapped_images_are_noticed(path: Path):
    def swap(file: h5py.File) -> None:
        images = file["images"]
        images.move("b.jpg", "x")
        images.move("empty.jpg", "b.jpg")
        images.move("x", "empty.jpg")

    change(path, swap)
    with load(path) as archive:
        for name in ("b.jpg", "empty.jpg"):
            with pytest.raises(ArchiveError, match="another image"):
                archive[name]


def test_an_archive_written_with_an_hdf5_library_is_read(tmp_path: Path, given: dict[str, Any], same: Any):
    """docs/format.md alone, followed by hand; up to eight images libhdf5 needs no special settings."""
    path = tmp_path / "foreign.h5"
    links = {"b.jpg": "b.jpg", "a%2F%C3%BC.jpg": "a/ü.jpg", "%2E.": "..", "empty.jpg": "empty.jpg"}

    def digest(person: bytes, data: bytes) -> np.bytes_:
        return np.bytes_(hashlib.blake2b(data, digest_size=32, person=person).hexdigest().encode())

    with h5py.File(path, "w", libver=("v108", "v108")) as file:
        file.attrs["format"] = np.bytes_(b"sfumato-archive")
        file.attrs["version"] = 1
        file.attrs["payload"] = np.bytes_(b"subspaces")
        file.attrs["images"] = len(links)
        file.attrs["names"] = digest(b"sfumato-names", "".join(f"{link}\n" for link in sorted(links)).encode())
        for link, name in links.items():
            image = given[name]
            group = file.create_group(f"images/{link}")
            arrays = {"keypoints": image.keypoints, "origin": image.subspaces.origin, "basis": image.subspaces.basis}
            for key, value in arrays.items():
                group.create_dataset(key, data=value)
            data = digest(b"sfumato-data", b"".join(value.tobytes() for value in arrays.values()))
            texts = [link, image.payload, image.recipe.to_json(), image.extractor.to_json()]
            shapes = [[key, "<f4", list(value.shape)] for key, value in arrays.items()]
            whole = [*texts, image.image_size and list(image.image_size), shapes, data.decode()]
            checksum = digest(b"sfumato-header", json.dumps(whole, separators=(",", ":")).encode())
            for key, text in zip(("name", "payload", "recipe", "extractor"), texts, strict=True):
                group.attrs[key] = np.bytes_(text.encode())
            group.attrs["data"], group.attrs["checksum"] = data, checksum
            if image.image_size:
                group.attrs["image_size"] = np.array(image.image_size, np.int64)
    with load(path) as archive:
        assert list(archive) == sorted(given)
        for name in archive:
            same(archive[name], given[name])
    more = given["b.jpg"]
    save(path, {"more.jpg": more}, append=True)  # its blocks are not where our writer puts them
    with load(path) as archive, h5py.File(path) as file:
        assert list(archive) == sorted([*given, "more.jpg"])
        assert len(file["images"]) == 5
        for name in archive:
            same(archive[name], given.get(name, more))


# ---------------------------------------------------------------- changed at random


def fuzz(source: Path, folder: Path, first: int, number: int, what: str) -> dict[str, int]:
    script = Path(__file__).with_name("fuzzing.py")
    command = [sys.executable, script, source, folder, str(first), str(number), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    seed = (folder / "seed").read_text() if (folder / "seed").exists() else "none"
    assert done.returncode == 0, f"{what}, seed {seed}, exit code {done.returncode}:\n{done.stderr[-4000:]}"
    outcome: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def test_random_changes_never_crash_hang_or_pass_wrong_data(path: Path, tmp_path: Path):
    outcome = fuzz(path, tmp_path, 0, 1500, "load")
    assert outcome["refused"] > 150
    assert outcome["image refused"] > 150
    assert outcome["image intact"] > 150


def test_random_changes_to_what_an_interrupted_run_left(path: Path, tmp_path: Path):
    outcome = fuzz(path, tmp_path, 10_000, 250, "resume")
    assert outcome["resumed"] > 150
    assert outcome["image intact"] >= outcome["resumed"]


def test_the_fuzzer_sees_wrong_data(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the digest of arrays switched off, wrong data passes and the fuzzer must say so."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import sfumato.store.archive as image\n"
        "image.digest_arrays = lambda arrays: image_digest\n"
        "class Any(str):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n"
        "image_digest = Any()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AssertionError, match="came"):
        fuzz(path, tmp_path, 0, 1000, "load")


# ---------------------------------------------------------------- focal lengths


def test_focal_lengths_that_an_owner_released_come_back(tmp_path: Path, features: Callable[..., Any], same: Any):
    path, made = tmp_path / "a.sfm.h5", {"a.jpg": features(focal_px=512.3), "b.jpg": features(seed=1)}
    save(path, made)
    with load(path) as archive:
        assert archive.version == 3
        assert [archive.header(name).focal_px for name in archive] == [512.3, None]
        assert [archive[name].focal_px for name in archive] == [512.3, None]
        for name in archive:
            same(archive[name], made[name])
    with h5py.File(path) as file:
        assert file["images/a.jpg"].attrs["focal_px"] == 512.3
        assert "focal_px" not in file["images/b.jpg"].attrs
    save(path, {"c.jpg": features(seed=2)}, append=True)
    with load(path) as archive:
        assert [archive.header(name).focal_px for name in archive] == [512.3, None, None]


def test_without_focal_lengths_archives_are_what_they_were(tmp_path: Path, features: Callable[..., Any]):
    save(tmp_path / "a.sfm.h5", {"b.jpg": features(seed=1)})
    with load(tmp_path / "a.sfm.h5") as archive:
        assert archive.version == 1


@pytest.mark.parametrize("value", [np.float64("nan"), np.float64(-1), np.float64("inf"), np.int64(500), np.bytes_("x")])
def test_a_focal_length_is_a_positive_number_and_part_of_the_checksum(
    tmp_path: Path, features: Callable[..., Any], value: Any
):
    save(tmp_path / "a.sfm.h5", {"b.jpg": features(focal_px=500.0)})
    change(tmp_path / "a.sfm.h5", lambda file: file["images/b.jpg"].attrs.create("focal_px", value))
    with load(tmp_path / "a.sfm.h5") as archive, pytest.raises(ArchiveError, match="focal_px"):
        archive["b.jpg"]


def test_a_focal_length_that_was_changed_is_noticed(tmp_path: Path, features: Callable[..., Any]):
    save(tmp_path / "a.sfm.h5", {"b.jpg": features(focal_px=500.0)})
    change(tmp_path / "a.sfm.h5", lambda file: file["images/b.jpg"].attrs.modify("focal_px", np.float64(600)))
    with load(tmp_path / "a.sfm.h5") as archive, pytest.raises(ArchiveError, match="checksum"):
        archive["b.jpg"]
