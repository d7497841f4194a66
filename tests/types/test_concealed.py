# SPDX-License-Identifier: Apache-2.0
import dataclasses
import re
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError, RankError, RecipeError
from sfumato.subspace import reference
from sfumato.types import clear
from sfumato.types.concealed import Bits, ConcealedFeatures, Points, Subspaces, canonical_rows, is_canonical
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

SENTINEL = 8.7654321


def random_parts(seed: int, count: int, m: int, n: int, dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, n)).astype(dtype), rng.normal(size=(count, m, n)).astype(dtype)


def gap(origin: np.ndarray, basis: np.ndarray, made: Subspaces) -> float:
    """How far the given point and directions are from lying in the subspaces that were made of them."""
    steps = np.concatenate([origin[:, None], origin[:, None] + basis], axis=1)
    inside = [reference.project(steps[:, k], made.origin, made.basis) for k in range(steps.shape[1])]
    return float(np.abs(np.stack(inside, axis=1) - steps).max(initial=0.0))


shapes = st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, 5), st.integers(0, n), st.just(n)))


@given(st.integers(0, 2**32), shapes, st.floats(-3, 3), st.sampled_from([np.float32, np.float64]))
def test_any_point_and_directions_become_canonical(seed: int, shape, power: float, dtype):
    origin, basis = random_parts(seed, *shape, dtype)
    basis *= dtype(10**power)
    try:
        made = Subspaces(origin, basis)
    except RankError:  # a square random matrix may be badly conditioned, nothing else
        assert np.linalg.cond(basis.astype(float)).max() > 1e4
        return
    assert made.origin.dtype == made.basis.dtype == np.float32
    assert (len(made), made.dim, made.ambient_dim) == shape
    gram = np.einsum("nki,nli->nkl", made.basis, made.basis, dtype=float)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(shape[1]), gram.shape), atol=1e-6)
    np.testing.assert_allclose(np.einsum("nki,ni->nk", made.basis, made.origin, dtype=float), 0, atol=5e-6)
    conditions = np.linalg.cond(basis.astype(float)) if basis.size else 1.0
    assert gap(origin, basis, made) <= 1e-6 * np.max(conditions, initial=1.0) * max(1.0, 10**power) * shape[2]


@given(st.integers(0, 2**32), shapes)
def test_its_own_output_is_kept_bit_for_bit(seed: int, shape):
    count, m, n = shape
    made = Subspaces(*random_parts(seed, count, min(m, n // 2), n))
    again = Subspaces(made.origin, made.basis)
    assert again.origin.tobytes() == made.origin.tobytes()
    assert again.basis.tobytes() == made.basis.tobytes()
    writable = Subspaces(made.origin.copy(), made.basis.astype(np.float64))
    assert writable.basis.tobytes() == made.basis.tobytes()


@pytest.mark.parametrize("n", [512, 4096])
def test_own_output_is_kept_in_many_dimensions_too(n: int):
    made = Subspaces(*random_parts(0, 20, 4, n))
    assert is_canonical(made.origin, made.basis)
    assert Subspaces(made.origin, made.basis).basis.tobytes() == made.basis.tobytes()


def test_one_row_that_is_not_canonical_does_not_touch_the_others():
    made = Subspaces(*random_parts(1, 4, 2, 8))
    origin, basis = made.origin.copy(), made.basis.copy()
    origin[2] += 3 * basis[2, 0]
    basis[2] = [[2, 1], [0, 1]] @ basis[2]
    again = Subspaces(origin, basis)
    for row in (0, 1, 3):
        assert again.basis[row].tobytes() == made.basis[row].tobytes()
        assert again.origin[row].tobytes() == made.origin[row].tobytes()
    np.testing.assert_allclose(again.origin[2], made.origin[2], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e25, 1e30])
def test_origins_of_any_size_are_made_canonical(scale: float):
    made = Subspaces(np.array([[scale, scale, 0.0]]), np.array([[[1.0, 0.0, 0.0]]]))
    np.testing.assert_allclose(made.origin, [[0, scale, 0]], rtol=1e-6)
    assert not is_canonical(np.array([[1e30, 0, 1e30]], np.float32), np.array([[[1, 0, 0]]], np.float32))


def test_tiny_directions_count_as_directions():
    made = Subspaces(np.ones((1, 3)), np.array([[[1e-300, 0, 0]]]))
    np.testing.assert_array_equal(made.basis, [[[1, 0, 0]]])


def test_points_and_empty_sets_are_valid():
    points = Subspaces(np.ones((3, 4)), np.zeros((3, 0, 4)))
    assert (len(points), points.dim) == (3, 0)
    np.testing.assert_array_equal(points.origin, np.ones((3, 4)))
    for m in (0, 2, 4):
        none = Subspaces(np.zeros((0, 4)), np.zeros((0, m, 4)))
        assert (len(none), none.dim, none.ambient_dim) == (0, m, 4)
    whole = Subspaces(np.ones((1, 4)), np.eye(4)[None])
    np.testing.assert_array_equal(whole.origin, np.zeros((1, 4)))


@pytest.mark.parametrize(
    ("origin", "basis", "says"),
    [
        (np.zeros(4), np.zeros((1, 2, 4)), "origin: expected shape"),
        (np.zeros((1, 4)), np.zeros((1, 2, 5)), r"basis: expected shape \(1, any, 4\), got \(1, 2, 5\)"),
        (np.zeros((2, 4)), np.zeros((1, 2, 4)), r"basis: expected shape \(2, any, 4\)"),
        (np.zeros((1, 0)), np.zeros((1, 0, 0)), "origin: need at least one dimension"),
        (np.zeros((1, 2)), np.ones((1, 3, 2)), "basis: 3 directions cannot be independent in 2 dimensions"),
        (np.full((1, 4), np.inf), np.ones((1, 1, 4)), "origin: 1 of 1 rows are not finite"),
        (np.zeros((1, 4)), np.full((1, 1, 4), np.nan), "basis: 1 of 1 rows are not finite"),
    ],
)
def test_subspaces_refuse(origin, basis, says: str):
    with pytest.raises(InputError, match=says):
        Subspaces(origin, basis)


@pytest.mark.parametrize("m", [1, 2, 5, 12])
@pytest.mark.parametrize("slip", [0.0, 1e-9, 1e-7])
def test_dependent_directions_are_refused_by_number(m: int, slip: float):
    origin, basis = random_parts(2, 5, m, 20)
    basis[3, -1] = basis[3, :-1].sum(axis=0) + slip * basis[3, -1]
    if m == 1:
        basis[3] = 0
    with pytest.raises(RankError, match=f"{m} rows"):
        Subspaces(origin, basis)
    made = Subspaces(origin[:3], basis[:3])
    stacked = np.concatenate([made.basis, basis[3:]])
    with pytest.raises(RankError, match="subspace 3"):
        Subspaces(origin, stacked)


def test_selecting_rows():
    made = Subspaces(*random_parts(3, 5, 2, 8))
    for rows in (slice(1, 3), [1, 2], np.array([False, True, True, False, False])):
        part = made[rows]
        assert part.basis.tobytes() == made.basis[1:3].tobytes()
    assert len(made[4]) == 1
    assert len(made[[]]) == 0
    with pytest.raises(IndexError):
        made[5]


def test_arrays_are_read_only_and_detached():
    made = Subspaces(*random_parts(4, 2, 1, 3))
    origin, basis = made.origin.copy(), made.basis.copy()
    kept = Subspaces(origin, basis)
    origin[:] = 9
    basis[:] = 9
    assert kept.basis.tobytes() == made.basis.tobytes()
    for array in (kept.origin, kept.basis, kept[0:1].origin, kept[0:1].basis):
        assert not array.flags.writeable
        assert array.flags.c_contiguous
    with pytest.raises(dataclasses.FrozenInstanceError):
        kept.origin = origin  # type: ignore[misc]


@given(st.integers(0, 2**32))
def test_canonical_rows_agree_with_the_definition(seed: int):
    made = Subspaces(*random_parts(seed, 6, 3, 10))
    spoilt = made.basis.copy()
    spoilt[1] *= 1 + 1e-5
    spoilt[2, 0] += 1e-5 * spoilt[2, 1]
    origin = made.origin.copy()
    origin[4] += 1e-5 * made.basis[4, 2] * max(1.0, np.linalg.norm(origin[4]))
    assert canonical_rows(origin, spoilt).tolist() == [True, False, False, True, False, True]
    assert not is_canonical(origin, spoilt)


def concealed(count: int = 3, recipe="random-2", **more) -> ConcealedFeatures:
    m = Recipe.of(recipe).dim
    subspaces = Subspaces(np.full((count, 6), SENTINEL), np.broadcast_to(np.eye(m, 6)[None], (count, m, 6)))
    return ConcealedFeatures(np.full((count, 4), SENTINEL), subspaces, recipe, **more)


def test_concealed_features():
    made = concealed(extractor=Extractor("sift"), image_size=(640, 480))
    assert len(made) == 3
    assert made.recipe == Recipe("random", 2)
    assert not made.keypoints.flags.writeable
    assert len(concealed(0)) == 0
    assert concealed(2, "raw").code.dim == 0


BITS = Bits(np.full((3, 64), 165, np.uint8))
KEYPOINTS = np.zeros((3, 4))


def test_bits_are_packed_read_only_and_silent():
    packed = np.full((3, 64), 165, np.uint8)
    bits = Bits(packed)
    packed[:] = 0
    assert (bits.packed == 165).all()
    assert not bits.packed.flags.writeable
    assert (len(bits), bits.dim, bits.ambient_dim) == (3, 0, 512)
    assert repr(bits) == "Bits(3 of 512 bits)"
    assert "165" not in repr(ConcealedFeatures(KEYPOINTS, bits, "sealed-512"))
    assert bits[[2, 0]].packed.shape == (2, 64)
    assert len(bits[np.array([True, False, False])]) == 1


@pytest.mark.parametrize("packed", [np.zeros(3, np.uint8), np.zeros((3, 0), np.uint8), np.zeros((3, 64)), [[256]]])
def test_bits_refuse_what_is_not_packed(packed):
    with pytest.raises(InputError, match="packed bits"):
        Bits(packed)


def test_bits_belong_to_seals_and_seals_to_bits():
    sealed = ConcealedFeatures(KEYPOINTS, BITS, "sealed-512@0123456789ab")
    with pytest.raises(InputError, match="made bits"):
        sealed.subspaces  # noqa: B018
    for code, recipe in [
        (BITS, "sealed-256"),
        (BITS, "random-2"),
        (BITS, "ninja-sift-1.0"),
        (Points(np.zeros((3, 512))), "sealed-512@0123456789ab"),
    ]:
        with pytest.raises(InputError, match="makes"):
            ConcealedFeatures(KEYPOINTS, code, recipe)


def test_points_are_subspaces_of_dimension_0():
    points = Points(np.eye(3, 8))
    assert isinstance(points, Subspaces)
    assert (points.dim, points.ambient_dim, points.basis.shape) == (0, 8, (3, 0, 8))
    assert repr(points[1:]) == "Points(2 in R^8)"
    assert ConcealedFeatures(KEYPOINTS, points, "ninja-sift-1.0").subspaces is points


def test_concealed_features_refuse():
    good = concealed()
    with pytest.raises(InputError, match="keypoints"):
        ConcealedFeatures(np.zeros((2, 4)), good.code, "random-2")
    with pytest.raises(InputError, match="random-4"):
        ConcealedFeatures(good.keypoints, good.code, Recipe("random", 4))
    with pytest.raises(InputError, match="ndarray"):
        ConcealedFeatures(good.keypoints, np.zeros((3, 6)), "random-2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Extractor"):
        concealed(extractor="sift")
    with pytest.raises(RecipeError, match="'random-2'"):
        ConcealedFeatures(good.keypoints, good.code, "randon-2")  # type: ignore[arg-type]


def test_text_forms_show_counts_and_no_values():
    made = concealed(extractor=Extractor("sift"))
    text = repr(made) + str(made) + repr(made.code) + str(made.code)
    assert not re.search(r"8\.?7", text)
    assert repr(made) == "ConcealedFeatures(Subspaces(3 of dimension 2 in R^6), 'random-2', sift)"


def test_the_concealed_side_has_no_field_of_a_clear_type():
    types = {clear.Features, clear.Image}
    for cls in (Subspaces, ConcealedFeatures):
        hints = get_type_hints(cls)
        assert hints
        assert not types & set(hints.values())
        assert not types & set(cls.__mro__)
        assert "descriptors" not in {field.name for field in dataclasses.fields(cls)}


def test_points_are_what_an_encoder_releases():
    assert Points(np.eye(2, 5, dtype=np.float32)).dim == 0


def test_positions_alone_keep_their_place_and_nothing_else():
    places = np.array([[3, 4, 5.5, 90], [1, 2, 7, 180]], np.float32)
    given = ConcealedFeatures(places, Points(np.eye(2, 5, dtype=np.float32)), "ninja-x@0123456789ab", image_size=(9, 8))
    found = given.positions_only()
    np.testing.assert_array_equal(found.keypoints, [[3, 4, 1, 0], [1, 2, 1, 0]])
    np.testing.assert_array_equal(given.keypoints, places)
    assert (found.recipe, found.image_size, found.subspaces) == (given.recipe, (9, 8), given.code)


def test_codes_whose_distances_do_not_fit_sixteen_bits_are_refused():
    assert Bits(np.zeros((1, 8191), np.uint8)).ambient_dim == 65_528
    with pytest.raises(InputError, match="8192"):
        Bits(np.zeros((1, 8192), np.uint8))
