# SPDX-License-Identifier: Apache-2.0
"""The settings of a NinjaNet's training: the paper's figures, what the small preset says of itself, what is refused."""

from dataclasses import replace

import pytest

from sfumato.errors import InputError
from sfumato.training.ninja.params import (
    PAPER,
    PRESETS,
    SMALL,
    AdversaryParams,
    NinjaTrainParams,
    StageParams,
    differences,
    preset,
)


def test_the_paper_preset_has_the_figures_of_the_paper():
    assert PAPER.utility == StageParams(batch=1024, rate=0.01, epochs=200)
    assert PAPER.inverter == StageParams(batch=64, rate=1e-4, epochs=200)
    assert PAPER.joint == StageParams(batch=968, rate=1e-5, epochs=20)
    assert (PAPER.joint_inverter_rate, PAPER.adversary_steps, PAPER.adversary) == (1e-5, 1, "unet")
    assert (PAPER.blocks, PAPER.dropout, PAPER.output_dim, PAPER.initialisation) == (1, 0.1, None, "orthogonal")
    assert (PAPER.schedule, PAPER.minutes, PAPER.steps, PAPER.select_after) == ("constant", None, None, 0)
    assert (PAPER.opponents.split, PAPER.opponents.width) == ((0.6, 0.1, 0.3), 1.0)
    assert (PAPER.opponents.local.extractor, PAPER.opponents.local.max_features) == ("harris", 1000)
    learned = preset("paper", "hardtfeat")
    assert (learned.joint.rate, learned.joint_inverter_rate) == (5e-5, 5e-5)
    assert preset("paper", "rootsift") == preset("paper") == PAPER


def test_the_small_preset_says_where_it_differs():
    assert differences(PAPER).startswith("perceptual: no VGG16")
    told = differences(SMALL)
    for part in (
        "batch 512, rate 0.0003",
        "narrowing: 1.6 (paper: 0.0)",
        "margin: 0.5 (paper: 1.0)",
        "initialisation: discriminant (paper: orthogonal)",
        "schedule: cosine (paper: constant)",
        "split",
        "30.0 (paper: none)",
        "colmap",
    ):
        assert part in told
    assert "blocks" not in told
    assert "blocks: 2 (paper: 1)" in differences(replace(SMALL, blocks=2))
    assert set(PRESETS) == {"paper", "small"}
    assert all(name == params.preset for name, params in PRESETS.items())


def test_an_encoder_is_narrower_the_more_privacy_counts():
    assert [replace(SMALL, privacy=one).width(128) for one in (0, 0.1, 1, 2.5, 1000)] == [128, 110, 49, 26, 2]
    assert replace(SMALL, output_dim=40).width(128) == 40
    assert PAPER.width(128) == 128


def test_what_the_first_two_stages_depend_on_has_no_lambda_but_a_width():
    assert SMALL.first_settings() != replace(SMALL, privacy=2.5).first_settings()
    as_wide = replace(SMALL, output_dim=24)
    one, other = as_wide, replace(as_wide, privacy=2.5, adversary_steps=7, select_after=0.1)
    assert one.first_settings() == other.first_settings()
    assert one.joint_settings() != other.joint_settings()
    assert one.first_settings() != replace(SMALL, adversary="patch").first_settings()
    assert one.first_settings() != replace(SMALL, seed=1).first_settings()
    kept = replace(SMALL, opponents=replace(SMALL.opponents, perceptual="/some/where/vgg.pth")).first_settings()
    assert kept["opponents"]["perceptual"] is True
    assert "some" not in str(kept)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"privacy": -1}, "privacy must be from 0"),
        ({"adversary": "decodr"}, "did you mean 'decoder'"),
        ({"initialisation": "zeros"}, "initialisation must be one of"),
        ({"schedule": "linear"}, "schedule must be one of"),
        ({"steps": 0}, "steps must be from 3"),
        ({"minutes": float("nan")}, "minutes must be from"),
        ({"shares": (1.0, 0.0, 0.0)}, "shares must be three"),
        ({"blocs": 2}, "did you mean 'blocks'"),
        ({"adversary_steps": 0}, "adversary_steps"),
    ],
)
def test_what_can_not_be_is_told(settings: dict[str, object], told: str):
    with pytest.raises(InputError, match=told):
        NinjaTrainParams(**settings)  # type: ignore[arg-type]


def test_wrong_settings_of_the_inverters_are_told_at_once():
    with pytest.raises(InputError, match="split must"):
        AdversaryParams(rows=0, split=(1.0, 0.0, 0.0))
    with pytest.raises(InputError, match="16"):
        AdversaryParams(side=40)
    with pytest.raises(InputError, match="architecture"):
        AdversaryParams(architecture="vnet")
    with pytest.raises(InputError, match="rate"):
        StageParams(batch=1, rate=0, epochs=1)
    with pytest.raises(InputError, match="'small'"):
        preset("smal")


def test_a_decoder_needs_no_way_to_describe_photos():
    blind = replace(SMALL, opponents=replace(SMALL.opponents, local=None))
    assert blind.first_settings()["opponents"]["local"] is None
    assert "local: none (paper: 1000 harris keypoints)" in differences(blind)
    for adversary in ("patch", "unet", "all"):
        with pytest.raises(InputError, match="described"):
            replace(blind, adversary=adversary)
