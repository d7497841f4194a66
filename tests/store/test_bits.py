# SPDX-License-Identifier: Apache-2.0
"""Sealed features are stored as bits and come back as the float32 they were; nothing else changes."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, from_dtype

from sfumato.cli.inspect import describe_archive
from sfumato.device import conceal_photos
from sfumato.errors import ArchiveError, InputError
from sfumato.store import ArchiveWriter, load, save
from sfumato.store.layout import pack, packed_width, unpack
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces

FLOAT = from_dtype(np.dtype(np.float32), allow_nan=False, allow_infinity=False)
MARK = 2.0**-5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sfm.h5"


# ---------------------------------------------------------------- arrays


@given(st.data(), FLOAT, FLOAT, st.integers(0, 5), st.integers(1, 40))
def test_any_two_values_come_back_to_the_last_bit(data: Any, one: Any, other: Any, count: int, ambient_dim: int):
    chosen = data.draw(arrays(bool, (count, ambient_dim)))
    points = np.where(chosen, np.float32(one), np.float32(other))
    packed = pack(points)
    if packed is None:
        assert one == other == 0  # the two zeros, of which the smaller is either
        return
    assert (packed[0].shape, packed[0].dtype) == ((count, packed_width(ambient_dim)), np.uint8)
    back = unpack(*packed, ambient_dim)
    assert (back.shape, back.dtype, back.flags.c_contiguous) == (points.shape, np.float32, True)
    assert back.tobytes() == points.tobytes()


def test_the_order_of_bits_is_the_documented_one():
    points = np.where(np.arange(10) % 3 == 0, np.float32(1), np.float32(0))[None]
    packed, values = pack(points)
    assert values.tolist() == [0, 1]
    assert packed.tolist() == [[0b10010010, 0b01000000]]
    for i in range(10):
        assert packed[0, i // 8] >> (7 - i % 8) & 1 == points[0, i]


@pytest.mark.parametrize("values", [(0, 1, 2), (-1, 0, 1), (0.0, -0.0, 1), (1, 1 + 2**-23, 2)])
def test_three_values_are_no_bits(values: tuple[float, ...]):
    assert pack(np.array([values], np.float32)) is None


@pytest.mark.parametrize("values", [(np.nan, 1), (0, np.inf), (-np.inf, 0), (1, 0)])
def test_values_that_no_bits_have_are_refused(values: tuple[float, float]):
    with pytest.raises(InputError, match="finite"):
        unpack(np.zeros((1, 1), np.uint8), np.array(values, np.float32), 8)


def test_bits_behind_the_last_coordinate_are_refused():
    values = np.array([0, 1], np.float32)
    assert unpack(np.array([[0b11100000]], np.uint8), values, 3).tolist() == [[1, 1, 1]]
    for byte in (0b00010000, 1, 255):
        with pytest.raises(InputError, match="coordinate"):
            unpack(np.array([[byte]], np.uint8), values, 3)


# ---------------------------------------------------------------- archives


@pytest.mark.parametrize("dtype", ["float32", "float16", "bits"])
@pytest.mark.parametrize("bits", [32, 100, 512])
def test_sealed_features_come_back_bit_for_bit(path: Path, sealed: Any, same: Any, bits: int, dtype: str):
    features = {f"{i}.jpg": sealed(seed=i, count=i, bits=bits) for i in range(5)}
    save(path, features, dtype=dtype)
    with load(path) as archive:
        assert {header.dtype for header in archive.summary().images} == {"bits"}
        for name, image in features.items():
            back = archive[name]
            same(back, image)
            assert (back.subspaces.dim, back.subspaces.ambient_dim) == (0, bits)
            assert not back.subspaces.origin.flags.writeable
    save(path.with_name("again.h5"), load(path))
    assert path.with_name("again.h5").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("values", [(0, MARK), (-MARK, MARK), (MARK, MARK), (-0.0, 1), (-3, 1e-42)])
def test_a_seal_of_any_two_values_is_bits(path: Path, sealed: Any, same: Any, values: tuple[float, float]):
    signs = sealed(count=9).subspaces.origin > 0
    points = np.where(signs, np.float32(values[1]), np.float32(values[0]))
    image = ConcealedFeatures(np.zeros((9, 4)), Subspaces(points, np.zeros((9, 0, 64))), "sealed-64@0123456789ab")
    save(path, {"a.jpg": image}, dtype="bits")
    same(load(path)["a.jpg"], image)


def test_a_feature_of_512_bits_takes_80_bytes(path: Path, sealed: Any):
    image = sealed(count=5000, bits=512)
    save(path, {"a.jpg": image})
    with load(path) as archive:
        assert archive.header("a.jpg").nbytes == 5000 * (16 + 64) + 8
    assert 80 < path.stat().st_size / 5000 < 81


def test_libhdf5_reads_the_bits(path: Path, sealed: Any):
    image = sealed(count=6, bits=100)
    save(path, {"a.jpg": image, "none.jpg": sealed(count=0, bits=100)})
    with h5py.File(path) as file:
        assert file.attrs["version"] == 2
        group = file["images/a.jpg"]
        assert sorted(group) == ["basis", "keypoints", "origin", "values"]
        assert (group["origin"].dtype, group["origin"].shape) == (np.uint8, (6, 13))
        assert (group["basis"].dtype, group["basis"].shape) == (np.float32, (6, 0, 100))
        points = group["values"][()][np.unpackbits(group["origin"][()], axis=1, count=100)]
        assert points.tobytes() == image.subspaces.origin.tobytes()
        assert file["images/none.jpg/origin"].shape == (0, 13)


def test_one_image_is_read_alone(path: Path, sealed: Any, monkeypatch: pytest.MonkeyPatch):
    save(path, {f"{i}.jpg": sealed(seed=i, count=100, bits=512) for i in range(9)})
    archive = load(path)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read.append(size) or pread(fd, size, at))
    archive.header("3.jpg")
    assert sum(read) < 5000  # headers only
    archive["3.jpg"]
    assert sum(read) < 5000 + 5000 + 100 * 80


def test_inspect_says_bits(path: Path, sealed: Any):
    save(path, {"a.jpg": sealed(), "none.jpg": sealed(count=0)})
    facts = describe_archive(path, images=False, check=True)
    assert (facts["numbers"], facts["features"]) == ("bits", 5)
    assert facts["checked"] == "every checksum is right"
    assert facts["bytes"] == path.stat().st_size


# ---------------------------------------------------------------- everything else is as it was


def test_other_features_are_no_bits(path: Path, sealed: Any, features: Any, same: Any):
    signs = sealed(count=3).subspaces
    given = {
        "subspaces.jpg": features(),
        "network.jpg": ConcealedFeatures(np.zeros((3, 4)), signs, "ninja:x@0123456789ab"),
        "numbers.jpg": features(dim=0, ambient_dim=64, recipe="sealed-64@0123456789ab"),
    }
    save(path, given)
    with load(path) as archive, h5py.File(path) as file:
        assert file.attrs["version"] == archive.version == 1
        for name, image in given.items():
            assert archive.header(name).dtype == "float32"
            same(archive[name], image)
    for name, image in given.items():
        with pytest.raises(InputError, match=name):
            save(path, {name: image}, dtype="bits")


def test_sealed_features_in_an_older_archive_are_read_and_added_to(path: Path, sealed: Any, same: Any, forge: Any):
    old, new = sealed(count=40), sealed(seed=1, count=40)
    forge(path, "old.jpg", old)
    with load(path) as archive, h5py.File(path) as file:
        assert (archive.version, archive.header("old.jpg").dtype) == (1, "float32")
        assert file["images/old.jpg/origin"][()].tobytes() == old.subspaces.origin.tobytes()
        same(archive["old.jpg"], old)
    before = path.stat().st_size
    save(path, {"new.jpg": new}, append=True)
    assert path.stat().st_size < before + 40 * (16 + 8) + 1500
    with load(path) as archive:
        assert archive.version == 2
        assert [header.dtype for header in archive.summary().images] == ["bits", "float32"]
        same(archive["old.jpg"], old)
        same(archive["new.jpg"], new)


def test_six_steps_give_what_one_gives(path: Path, sealed: Any, features: Any):
    given = {"0.jpg": features(), **{f"{i}.jpg": sealed(seed=i, count=i) for i in range(1, 6)}}
    for name, image in given.items():
        save(path, {name: image}, append=True)
    save(path.with_name("once.h5"), given)
    assert path.with_name("once.h5").read_bytes() == path.read_bytes()


def test_another_recipe_does_not_join_bits(path: Path):
    class Photos:
        names = ("a.jpg", "b.jpg")
        extractor = None

        def features(self, skip: set[str], **options: Any) -> Any:
            for seed, name in enumerate(self.names):
                if name not in skip:
                    rows = np.random.default_rng(seed).normal(size=(9, 128))
                    yield name, Features(np.ones((9, 4)), rows / np.linalg.norm(rows, axis=1, keepdims=True))

    key = secrets.token_bytes(32)
    conceal_photos(Photos(), path, recipe="sealed-64", secret=key)
    before = path.read_bytes()
    with load(path) as archive:
        assert {header.dtype for header in archive.summary().images} == {"bits"}
    for recipe, secret in (("sealed-128", key), ("sealed-64", key[::-1]), ("random-2", None)):
        with pytest.raises(ArchiveError, match="sealed-64"):
            conceal_photos(Photos(), path, recipe=recipe, secret=secret)
    assert conceal_photos(Photos(), path, recipe="sealed-64", secret=key).skipped == 2
    assert path.read_bytes() == before


# ---------------------------------------------------------------- interrupted


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_interrupted_run_goes_on(path: Path, sealed: Any, same: Any, dtype: str):
    with suppress(KeyboardInterrupt), ArchiveWriter(path, dtype=dtype) as writer:
        writer.add("a.jpg", sealed())
        raise KeyboardInterrupt
    assert not path.exists()
    with ArchiveWriter(path, dtype=dtype) as writer:
        assert writer.resumed == ("a.jpg",)
        assert writer.header("a.jpg").dtype == "bits"
        same(writer.read("a.jpg"), sealed())
        writer.add("b.jpg", sealed(seed=1))
    with load(path) as archive:
        assert archive.version == 2
        same(archive["a.jpg"], sealed())
        same(archive["b.jpg"], sealed(seed=1))


def test_what_an_older_run_left_goes_on(path: Path, sealed: Any, same: Any, forge: Any):
    forge(path.with_name(path.name + ".part"), "a.jpg", sealed())
    with pytest.raises(ArchiveError, match="'float32'"), ArchiveWriter(path, dtype="float16"):
        pass
    with ArchiveWriter(path) as writer:
        assert writer.resumed == ("a.jpg",)
        writer.add("b.jpg", sealed(seed=1))
    with load(path) as archive:
        assert [header.dtype for header in archive.summary().images] == ["float32", "bits"]
        same(archive["a.jpg"], sealed())
        same(archive["b.jpg"], sealed(seed=1))


# ---------------------------------------------------------------- damaged and hostile


def replaced(member: str, **how: Any) -> Callable[[h5py.Group], None]:
    """Put another dataset in the place of one."""

    def edit(group: h5py.Group) -> None:
        values = group[member][()]
        del group[member]
        group.create_dataset(member, **({"data": values, **how} if "shape" not in how else how))

    return edit


def swapped(group: h5py.Group) -> None:
    group.move("origin", "x")
    group.move("basis", "origin")
    group.move("x", "basis")


EDITS: dict[str, tuple[Callable[[h5py.Group], Any], str]] = {
    "a bit": (lambda g: g["origin"].__setitem__((0, 0), g["origin"][0, 0] ^ 1), "checksum of its arrays"),
    "a value": (lambda g: g["values"].__setitem__(1, 7), "checksum of its arrays"),
    "no values": (lambda g: g.__delitem__("values"), "values that bits stand for"),
    "no bits": (replaced("origin", data=np.ones((5, 100), "<f4")), "values that bits stand for"),
    "half numbers": (replaced("origin", data=np.ones((5, 100), "<f2")), "values that bits stand for"),
    "a narrow row": (replaced("origin", data=np.zeros((5, 12), "u1")), "expected"),
    "a wide row": (replaced("origin", data=np.zeros((5, 14), "u1")), "expected"),
    "a byte a bit": (replaced("origin", data=np.zeros((5, 100), "u1")), "expected"),
    "fewer rows": (replaced("origin", data=np.zeros((4, 13), "u1")), "expected"),
    "flat": (replaced("origin", data=np.zeros(65, "u1")), "expected"),
    "signed": (replaced("origin", data=np.zeros((5, 13), "i1")), "type"),
    "truth values": (replaced("origin", data=np.zeros((5, 13), bool)), "type"),
    "words": (replaced("origin", data=np.zeros((5, 13), "<u2")), "type"),
    "compressed": (replaced("origin", compression="gzip"), "filter|chunked"),
    "huge": (replaced("origin", shape=(2**40, 13), dtype="u1"), "outside of the file"),
    "huge and of every size": (replaced("origin", shape=(2**62, 2**62), dtype="u1"), "outside of the file|bytes"),
    "wide basis": (replaced("basis", data=np.zeros((5, 0, 104), "<f4")), "checksum of its header"),
    "absurd basis": (replaced("basis", data=np.zeros((5, 0, 2**50), "<f4")), "expected"),
    "a direction": (replaced("basis", data=np.zeros((5, 1, 100), "<f4")), "dimension"),
    "basis of bytes": (replaced("basis", data=np.zeros((5, 0, 100), "u1")), "float32 beside bits"),
    "half a basis": (replaced("basis", data=np.zeros((5, 0, 100), "<f2")), "float32 beside bits"),
    "keypoints of bytes": (replaced("keypoints", data=np.zeros((5, 4), "u1")), "float32"),
    "one value": (replaced("values", data=np.zeros(1, "<f4")), "expected"),
    "three values": (replaced("values", data=np.zeros(3, "<f4")), "expected"),
    "a single value": (replaced("values", data=np.float32(1)), "expected"),
    "a row of values": (replaced("values", data=np.zeros((1, 2), "<f4")), "expected"),
    "half values": (replaced("values", data=np.zeros(2, "<f2")), "float32 beside bits"),
    "values of bytes": (replaced("values", data=np.zeros(2, "u1")), "float32 beside bits"),
    "swapped": (swapped, "values that bits stand for"),
    "another member": (lambda g: g.create_dataset("value", data=np.zeros(2, "<f4")), r"too many: \['value'\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(EDITS))
def test_changed_bits_are_refused_and_other_images_are_not(path: Path, sealed: Any, same: Any, name: str):
    edit, words = EDITS[name]
    save(path, {"a.jpg": sealed(bits=100), "b.jpg": sealed(seed=1, bits=100)})
    with h5py.File(path, "r+", libver=("v108", "latest")) as file:
        edit(file["images/a.jpg"])
    with load(path) as archive:
        with pytest.raises(ArchiveError, match=words) as caught:
            archive["a.jpg"]
        assert "'a.jpg'" in str(caught.value)
        same(archive["b.jpg"], sealed(seed=1, bits=100))
    with pytest.raises(ArchiveError, match=words), ArchiveWriter(path, append=True) as writer:
        writer.read("a.jpg")


def forged_bits(image: ConcealedFeatures, **changes: Any) -> dict[str, Any]:
    packed, values = pack(image.subspaces.origin)
    return {"origin": packed, "values": values, **changes}


def test_a_forger_can_make_bits(path: Path, sealed: Any, same: Any, forge: Any):
    image = sealed(bits=100)
    forge(path, "a.jpg", image, **forged_bits(image))
    same(load(path)["a.jpg"], image)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"values": np.array([np.nan, 1], "<f4")}, "two finite numbers"),
        ({"values": np.array([-1, np.inf], "<f4")}, "two finite numbers"),
        ({"values": np.array([1, -1], "<f4")}, "two finite numbers"),
        ({"origin": np.full((5, 13), 255, "u1")}, "behind the last coordinate"),
        ({"keypoints": np.full((5, 4), np.nan, "<f4")}, "not finite"),
        ({"recipe": "compress-100"}, "makes no bits"),
        ({"recipe": "ninja:x@0123456789ab"}, "makes no bits"),
        ({"recipe": "raw"}, "in the clear"),
        ({"recipe": "random-2"}, "in the clear"),
    ],
)
def test_forged_bits_with_right_checksums_are_refused(
    path: Path, sealed: Any, forge: Any, changes: dict[str, Any], words: str
):
    image = sealed(bits=100)
    changes = {key: image.recipe.of(value) if key == "recipe" else value for key, value in changes.items()}
    forge(path, "a.jpg", image, **forged_bits(image, **changes))
    with pytest.raises(ArchiveError, match=words):
        load(path)["a.jpg"]


def test_bits_of_nothing_with_a_huge_dimension_are_refused(path: Path, sealed: Any, forge: Any):
    nothing = {"keypoints": np.zeros((0, 4), "<f4"), "basis": np.zeros((0, 0, 2**40), "<f4")}
    forge(path, "a.jpg", sealed(), **nothing, origin=np.zeros((0, 2**37), "u1"), values=np.zeros(2, "<f4"))
    with pytest.raises(ArchiveError, match="outside"):
        load(path)["a.jpg"]


def test_a_cut_archive_is_refused(path: Path, sealed: Any):
    save(path, {"a.jpg": sealed()})
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveError):
            load(path)


@pytest.mark.parametrize(("what", "number"), [("load", 1000), ("resume", 200)])
def test_random_changes_to_bits_never_pass_wrong_data(
    path: Path, tmp_path: Path, sealed: Any, features: Any, what: str, number: int
):
    images = {f"{i}.jpg": sealed(seed=i, count=20 * i, bits=100) for i in range(4)}
    save(path, {**images, "other.jpg": features()})
    script = Path(__file__).with_name("fuzzing.py")
    command = [sys.executable, script, path, tmp_path, "0", str(number), what]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=250)
    seed = (tmp_path / "seed").read_text() if (tmp_path / "seed").exists() else "none"
    assert done.returncode == 0, f"seed {seed}, exit code {done.returncode}:\n{done.stderr[-4000:]}"
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["image intact"] > number / 10
    assert outcome["resumed" if what == "resume" else "image refused"] > number / 10
