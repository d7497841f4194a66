# SPDX-License-Identifier: Apache-2.0
"""One image of an archive: what a forger with right checksums cannot make us believe."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.store import archive, hdf5
from sfumato.store.hdf5_reader import FileBytes
from sfumato.types.concealed import is_canonical
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

START = hdf5.SUPERBLOCK_SIZE


@pytest.fixture
def forged(
    tmp_path: Path, forge: Callable[..., None], features: Callable[..., Any]
) -> Iterator[Callable[..., FileBytes]]:
    """Forge an archive of one image, as a source; ``spoil`` changes the bytes afterwards."""
    opened = []

    def run(given: Any = None, *, spoil: Callable[[bytes], bytes] | None = None, **changes: Any) -> FileBytes:
        forge(tmp_path / "a.h5", "a.jpg", features() if given is None else given, **changes)
        if spoil:
            (tmp_path / "a.h5").write_bytes(spoil((tmp_path / "a.h5").read_bytes()))
        opened.append(os.open(tmp_path / "a.h5", os.O_RDONLY))
        return FileBytes.of(opened[-1])

    yield run
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize(
    "more", [{}, {"image_size": None}, {"dim": 16}, {"dim": 1}, {"dim": 0, "recipe": "compress-16"}]
)
def test_float32_comes_back_bit_for_bit(forged: Any, features: Any, same: Any, count: int, more: dict[str, Any]):
    given = features(count=count, **more)
    back = archive.read_image(forged(given), START, "a.jpg")
    same(back, given)
    for array in (back.keypoints, back.subspaces.origin, back.subspaces.basis):
        assert not array.flags.writeable


def test_float16_comes_back_canonical_and_near(forged: Any, features: Any):
    given = features(count=50, dim=4, ambient_dim=128)
    origin, basis = given.subspaces.origin.astype("<f2"), given.subspaces.basis.astype("<f2")
    back = archive.read_image(forged(given, origin=origin, basis=basis), START, "a.jpg")
    assert back.subspaces.basis.dtype == np.float32
    assert is_canonical(back.subspaces.origin, back.subspaces.basis)
    outside = given.subspaces.basis - np.einsum(
        "nkl,nli->nki",
        np.einsum("nki,nli->nkl", given.subspaces.basis, back.subspaces.basis),
        back.subspaces.basis,
    )
    assert 0 < np.abs(outside).max() < 1e-3
    assert np.linalg.norm(given.subspaces.origin - back.subspaces.origin, axis=1).max() < 1e-2
    assert back.keypoints.tobytes() == given.keypoints.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("array", ["keypoints", "origin", "basis"])
def test_values_that_are_not_finite_are_refused(forged: Any, features: Any, array: str, value: float):
    given = features()
    owner = given if array == "keypoints" else given.subspaces
    spoilt = getattr(owner, array).copy()
    spoilt.reshape(-1)[-1] = value
    with pytest.raises(InputError, match="not finite"):
        archive.read_image(forged(given, **{array: spoilt}), START, "a.jpg")


@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
@pytest.mark.parametrize("fault", ["long", "skew", "dependent", "zero", "origin"])
def test_what_is_not_canonical_is_refused(forged: Any, features: Any, dtype: str, fault: str):
    given = features()
    origin, basis = given.subspaces.origin.copy(), given.subspaces.basis.copy()
    if fault == "long":
        basis[2, 0] *= 1.01
    elif fault == "skew":
        basis[2, 0] += 0.01 * basis[2, 1]
    elif fault == "dependent":
        basis[2, 0] = basis[2, 1]
    elif fault == "zero":
        basis[2, 0] = 0
    else:
        origin[2] += 0.05 * basis[2, 0]
    source = forged(given, origin=origin.astype(dtype), basis=basis.astype(dtype))
    assert archive.read_header(source, START, "a.jpg")[0].count == 5
    with pytest.raises(InputError, match="orthonormal"):
        archive.read_image(source, START, "a.jpg")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": Recipe.of("raw")}, "in the clear"),
        ({"recipe": Recipe.of("raw"), "basis": np.zeros((5, 0, 16), "<f4"), "dim": 0}, "in the clear"),
        ({"basis": np.zeros((5, 0, 16), "<f4"), "dim": 0}, "in the clear"),
        ({"recipe": Recipe.of("random-3")}, "dimension"),
        ({"recipe": Recipe.of("compress-16")}, "dimension"),
        ({"payload": "points"}, "unknown payload"),
        ({"image_size": (0, 3)}, "image_size"),
        ({"image_size": (2**40, 3)}, "image_size"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(forged: Any, changes: dict[str, Any], words: str):
    with pytest.raises(InputError, match=words):
        archive.read_header(forged(**changes), START)


def test_a_huge_dimension_of_nothing_is_refused(forged: Any, features: Any):
    empty = {"keypoints": np.zeros((0, 4), "<f4"), "origin": np.zeros((0, 2**40), "<f4")}
    source = forged(features(count=0), **empty, basis=np.zeros((0, 2, 2**40), "<f4"))
    with pytest.raises(InputError, match="outside"):
        archive.read_header(source, START)


def spoil_shape(raw: bytes, before: tuple[int, ...], after: tuple[int, ...]) -> bytes:
    """Swap a shape for another of the same size; checksums of HDF5 are not what we rely on."""
    assert raw.count(hdf5.dataspace(before)) == 1
    return raw.replace(hdf5.dataspace(before), hdf5.dataspace(after))


@pytest.mark.parametrize(
    ("before", "after"),
    [((5, 4), (4, 5)), ((5, 4), (2, 10)), ((5, 16), (16, 5)), ((5, 2, 16), (5, 16, 2)), ((5, 2, 16), (10, 1, 16))],
)
def test_shapes_that_do_not_agree_are_refused(forged: Any, before: tuple[int, ...], after: tuple[int, ...]):
    source = forged(spoil=lambda raw: spoil_shape(raw, before, after))
    with pytest.raises(InputError, match="expected"):
        archive.read_header(source, START)


def test_types_that_do_not_agree_are_refused(forged: Any):
    def spoil(raw: bytes) -> bytes:
        at = raw.rfind(hdf5.FLOATS["<f4"])
        raw = raw[:at] + hdf5.FLOATS["<f2"] + raw[at + 20 :]
        return spoil_shape(raw, (5, 2, 16), (5, 4, 16))

    with pytest.raises(InputError, match="one type"):
        archive.read_header(forged(spoil=spoil), START)


def test_a_changed_array_is_noticed(forged: Any, features: Any):
    basis = features().subspaces.basis.tobytes()
    flipped = bytes([basis[0] ^ 1]) + basis[1:]
    source = forged(spoil=lambda raw: raw.replace(basis, flipped))
    archive.read_header(source, START, "a.jpg")
    with pytest.raises(InputError, match="checksum"):
        archive.read_image(source, START, "a.jpg")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"max_features":8000', b'"max_features":8001'),
        (b'"keyed":false,', b'"keyed":true ,'),
        (b'"kind":"random"', b'"kind":"rendom"'),
        (b"checksum", b"chacksum"),
        (b"keypoints", b"kaypoints"),
        (b"a.jpg", b"b.jpg"),
    ],
)
def test_a_changed_header_is_noticed(forged: Any, before: bytes, after: bytes):
    source = forged(spoil=lambda raw: raw.replace(before, after))
    with pytest.raises(InputError):
        archive.read_header(source, START)


def test_another_image_under_this_name_is_noticed(forged: Any):
    with pytest.raises(InputError, match=r"'a.jpg'"):
        archive.read_header(forged(), START, "b.jpg")


def test_an_attribute_of_the_wrong_kind_is_refused(forged: Any):
    """The attribute image_size says that it is called data, and the other way round."""

    def spoil(raw: bytes) -> bytes:
        return raw.replace(b"\x05\x00\x08\x00\x04\x00\x00data\0", b"\x05\x00\x08\x00\x04\x00\x00dada\0")

    with pytest.raises(InputError, match="'dada'"):
        archive.read_header(forged(spoil=spoil), START)


def test_blocks_are_read_only_in_the_form_a_writer_gives_them(forged: Any, features: Any):
    header, end = archive.read_block(forged(), START)
    assert header.name == "a.jpg"
    assert end % 8 == 0
    head, _, _ = hdf5.block_head(header, START)
    wrong = head[:-1] + bytes([head[-1] ^ 1])  # HDF5's own checksum, or padding behind it
    with pytest.raises(InputError, match="HDF5"):
        archive.read_block(forged(spoil=lambda raw: raw.replace(head, wrong)), START)
    basis = features().subspaces.basis.tobytes()
    with pytest.raises(InputError, match="checksum"):
        archive.read_block(forged(spoil=lambda raw: raw.replace(basis, basis[::-1])), START)


def test_a_header_that_says_everything(forged: Any, features: Any):
    given = features(extractor=Extractor("disk", {"é": "ü"}))
    header, datasets = archive.read_header(forged(given), START)
    assert replace(header) == header
    assert (header.name, header.count, header.dim, header.ambient_dim) == ("a.jpg", 5, 2, 16)
    assert header.extractor == given.extractor
    assert [dataset.shape for dataset in datasets] == [(5, 4), (5, 16), (5, 2, 16)]
    assert "0." not in repr(header)
