# SPDX-License-Identifier: Apache-2.0
import math
from itertools import pairwise

import numpy as np
import pytest

from sfumato.concealment.decoys import (
    Decoys,
    as_rootsift,
    checked_labels,
    collision_probability,
    load_decoys,
    save_decoys,
)
from sfumato.errors import DecoyError, InputError
from sfumato.types.extractor import Extractor


def test_parts_are_disjoint_and_cover_everything(decoys):
    starts = decoys.part_starts
    parts = [set(decoys.permutation[a:b].tolist()) for a, b in pairwise(starts)]
    assert [len(part) for part in parts] == [500] * 4
    assert set.union(*parts) == set(range(2000))


def test_uneven_parts_differ_by_one_at_most():
    sizes = np.diff(Decoys(np.eye(7, dtype=np.float32), parts=3).part_starts)
    assert sizes.sum() == 7
    assert set(sizes.tolist()) <= {2, 3}


def test_checksum_sees_every_field(decoys):
    labels = np.arange(2000) % 2
    variants = [
        decoys,
        Decoys(decoys.descriptors[::-1].copy(), parts=4),
        Decoys(decoys.descriptors, parts=4),
        Decoys(decoys.descriptors, Extractor("sift"), decoys.permutation, 4),
        Decoys(decoys.descriptors, permutation=decoys.permutation, parts=5),
        Decoys(decoys.descriptors, permutation=decoys.permutation, parts=4, labels=labels),
        Decoys(decoys.descriptors, permutation=decoys.permutation, parts=4, labels=1 - labels),
    ]
    assert len({variant.checksum for variant in variants}) == len(variants)


@pytest.mark.parametrize(("change", "error"), [
    ({"descriptors": np.zeros((0, 4))}, DecoyError), ({"descriptors": np.zeros(4)}, InputError),
    ({"descriptors": np.full((2, 2), np.inf)}, InputError), ({"parts": 0}, DecoyError), ({"parts": 2.5}, DecoyError),
    ({"permutation": [0, 0, 1]}, DecoyError), ({"permutation": [0, 1]}, InputError), ({"labels": [1, 2]}, InputError),
    ({"labels": [0.5, 1, 2]}, InputError),
])  # fmt: skip
def test_bad_databases(change, error):
    with pytest.raises(error):
        Decoys(**({"descriptors": np.eye(3)} | change))


@pytest.mark.parametrize(
    "change",
    [{"labels": ["a", "b", "x\x1b[2J"]}, {"made": {"seed": float("nan")}}, {"made": {"a\nb": 1}}, {"made": {"a": []}}],
)
def test_texts_that_would_act_on_a_terminal(change):
    with pytest.raises(InputError):
        Decoys(np.eye(3), **change)


def test_made_can_not_be_changed():
    given = {"seed": 1}
    decoys = Decoys(np.eye(3), made=given)
    given["seed"] = 2
    assert decoys.made == {"seed": 1}
    with pytest.raises(TypeError):
        decoys.made["seed"] = 3


def test_repr_shows_counts_and_no_value():
    assert repr(Decoys(np.full((3, 2), 0.987))) == "Decoys(3 x 2 unknown, 3 parts)"


def test_labels_are_integers_or_texts():
    assert checked_labels(["a", "b"], 2).dtype.kind == "U"
    assert checked_labels([1, 2], 2).dtype == np.int64


def test_labels_narrower_than_their_array_come_back_from_the_file(tmp_path):
    labels = np.array(["a", "b"] * 2, "U10")
    decoys = Decoys(np.eye(4), labels=labels)
    save_decoys(tmp_path / "decoys.safetensors", decoys)
    assert load_decoys(tmp_path / "decoys.safetensors").checksum == decoys.checksum


def test_collision_probability_against_simulation():
    rng = np.random.default_rng(0)
    size, features, each = 400, 60, 2
    hits = 0
    for _ in range(2000):
        mine = set(range(each))  # which ones does not matter
        others = np.concatenate([rng.choice(size, each, replace=False) for _ in range(features)])
        hits += bool(mine & set(others.tolist()))
    expected = collision_probability(size, features=features, decoys_each=each)
    assert abs(hits / 2000 - expected) < 4 * math.sqrt(expected * (1 - expected) / 2000)


def test_collision_probability_of_the_sizes_we_state():
    assert round(collision_probability(65_536 // 16), 2) == 0.86
    assert round(collision_probability(256_000 // 16), 2) == 0.39
    assert collision_probability(3, decoys_each=2) == 1.0


def test_rooted_decoys_are_rootsift():
    rows = np.abs(np.random.default_rng(0).normal(size=(20, 128)))
    sift = Decoys(
        rows / np.linalg.norm(rows, axis=1, keepdims=True), "sift", np.random.default_rng(1).permutation(20), 4
    )
    rooted = as_rootsift(sift)
    assert rooted.extractor.name == "rootsift"
    np.testing.assert_allclose(rooted.descriptors**2, rows / rows.sum(axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(rooted.permutation, sift.permutation)
    assert rooted.parts == 4
