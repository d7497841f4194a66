# SPDX-License-Identifier: Apache-2.0
"""What a NinjaNet is trained and judged with: the split by origin, which inverters are made, and the scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.training.ninja.data import make_adversaries, scores, split_material
from sfumato.training.ninja.params import SMALL
from sfumato.training.pairs import DescriptorPairs

pytest.importorskip("torch")


def make_pairs(count: int = 200, noise: float = 0.1, groups: int = 10, seed: int = 0) -> DescriptorPairs:
    rng = np.random.default_rng(seed)
    point = rng.normal(size=(count, 16))
    views = [point + noise * rng.normal(size=point.shape) for _ in range(2)]
    first, second = (view / np.linalg.norm(view, axis=1, keepdims=True) for view in views)
    return DescriptorPairs(first, second, np.arange(count), np.arange(count) % groups)


def test_whole_groups_are_held_out():
    material = split_material(SMALL, make_pairs(), [])
    held, learned = (set(part.groups.tolist()) for part in (material.held_out, material.training))
    assert len(held) == 1
    assert not held & learned
    assert len(held | learned) == 10
    facts = material.facts()
    assert (facts["pairs"], facts["held_out_pairs"], facts["held_out_groups"]) == (180, 20, 1)
    assert facts["digest"] != split_material(SMALL, make_pairs(seed=1), []).facts()["digest"]
    assert "180" in repr(material)
    assert "0." not in repr(material)  # no value of a descriptor


def test_points_are_held_out_where_all_is_one_group():
    pairs = make_pairs(groups=1)
    doubled = DescriptorPairs(
        np.tile(pairs.first, (2, 1)), np.tile(pairs.second, (2, 1)), np.tile(pairs.points, 2), np.tile(pairs.groups, 2)
    )
    material = split_material(SMALL, doubled, [])
    assert len(material.held_out) == 40
    assert not set(material.held_out.points.tolist()) & set(material.training.points.tolist())


def test_too_little_is_told():
    with pytest.raises(InputError, match="too few"):
        split_material(SMALL, make_pairs(4), [])
    for adversary in ("patch", "unet", "all"):
        with pytest.raises(InputError, match="with --photos"):
            split_material(replace(SMALL, adversary=adversary), make_pairs(), [Path("one.jpg")])


def test_the_decoder_learns_from_both_views_and_is_checked_on_others():
    material = split_material(SMALL, make_pairs(), [])
    (adversary,) = make_adversaries(SMALL, material, iter)
    assert len(adversary.clear) == 360
    known = {row.tobytes() for row in adversary.clear}
    held, _ = adversary.draw(np.random.default_rng(0), held_out=True)
    assert not known & {row.tobytes() for row in held}


def test_scores_tell_good_pairs_from_bad():
    def as_they_are(rows: np.ndarray) -> np.ndarray:
        return rows

    good, bad = (scores(as_they_are, make_pairs(500, noise), 0) for noise in (0.05, 2.0))
    assert good == {"fpr95": 0.0, "matched": 1.0}
    assert bad["fpr95"] > 0.3
    assert bad["matched"] < 0.3
    assert bad == scores(as_they_are, make_pairs(500, 2.0), 0)


def test_several_pairs_of_one_point_are_no_mistakes():
    pairs = make_pairs(50, 0.05)
    tripled = DescriptorPairs(
        np.tile(pairs.first, (3, 1)), np.tile(pairs.second, (3, 1)), np.tile(pairs.points, 3), np.tile(pairs.groups, 3)
    )
    assert scores(lambda rows: rows, tripled, 0) == {"fpr95": 0.0, "matched": 1.0}
