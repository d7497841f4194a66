# SPDX-License-Identifier: Apache-2.0
"""The three stages: a few steps against each inverter, interrupted and not, another lambda, and what is refused."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sfumato.concealment.encoder import encode, load_encoder
from sfumato.errors import FileError, InputError, MissingDependency
from sfumato.features.local import LocalParams
from sfumato.images.samples import sample_image
from sfumato.training.loop import part_of
from sfumato.training.ninja import adversaries, train
from sfumato.training.ninja import train as module
from sfumato.training.ninja.params import PAPER, SMALL, AdversaryParams, NinjaTrainParams, StageParams
from sfumato.training.ninja.state import NinjaFiles
from sfumato.training.ninja.train import train_ninja
from sfumato.training.pairs import DescriptorPairs

pytest.importorskip("torch")

FEW = AdversaryParams(
    rows=32, hidden=16, patch_hidden=16, width=0.0625, side=32, perceptual_side=32, local=LocalParams(max_features=60)
)


LEARNING: dict[str, Any] = {
    "inverter": StageParams(batch=2, rate=1e-2, epochs=1),
    "joint_inverter_rate": 1e-2,
    "adversary_steps": 2,
}
"""Rates at which the inverter is soon better than a constant guess."""


def tiny(**changes: Any) -> NinjaTrainParams:
    stage = StageParams(batch=32, rate=1e-3, epochs=1)
    small = replace(SMALL, utility=stage, inverter=replace(stage, batch=2), joint=stage, opponents=FEW, minutes=None)
    return replace(small, **({"steps": 20, "shares": (0.2, 0.2, 0.6)} | changes))


def make_pairs(count: int = 400, n: int = 24, noise: float = 0.3, seed: int = 0) -> DescriptorPairs:
    """Two views of points: what they have in common lies in 8 directions, what is of the view alone in the others."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(n, n)))[0]
    point = rng.normal(size=(count, 8)) @ turn[:8]
    views = [point + noise * rng.normal(size=(count, n - 8)) @ turn[8:] for _ in range(2)]
    first, second = ((view / np.linalg.norm(view, axis=1, keepdims=True)).astype(np.float32) for view in views)
    return DescriptorPairs(first, second, np.arange(count), np.arange(count) // 40)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of what only costs time."""
    monkeypatch.setattr(adversaries, "ROWS_REFITTED", 400)
    monkeypatch.setattr(module, "WHITEN_ROWS", 400)
    monkeypatch.setattr(train, "VALIDATIONS", 4)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    for name in ("chelsea", "coffee", "astronaut"):
        assert cv2.imwrite(str(folder / f"{name}.png"), sample_image(name).pixels[100:180, 100:200, ::-1])
    return sorted(folder.iterdir())


def stopping_after(count: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A progress that is interrupted after so many parts of all stages, as by Ctrl-C."""
    done = 0

    def wrapped(items: Iterable[Any]) -> Iterator[Any]:
        nonlocal done
        for item in items:
            if done == count and isinstance(items, range):
                raise KeyboardInterrupt
            done += isinstance(items, range)
            yield item

    return wrapped


@pytest.mark.parametrize("adversary", ["decoder", "patch", "unet", "all"])
def test_a_few_steps_of_all_stages(adversary: str, photos: list[Path], tmp_path: Path):
    path, lines = tmp_path / "n.safetensors", []
    params, files = tiny(adversary=adversary), NinjaFiles(data="generated", command="sfumato train ninja")
    encoder = train_ninja(params, make_pairs(n=128), photos, path, files=files, report=lines.append)
    card = load_encoder(path).card
    assert [(one["stage"], one["steps"]) for one in card["stages"]] == [("utility", 4), ("inverter", 4), ("joint", 12)]
    assert (card["lambda"], card["adversary"], card["seed"], card["preset"]) == (1.0, adversary, 0, "small")
    assert (card["data"], card["command"]) == ("generated", "sfumato train ninja")
    assert "batch 32" in card["differences"]
    wanted = {"decoder", "patch", "unet"} if adversary == "all" else {adversary}
    assert set(card["history"][-1]["reconstruction"]) == wanted == set(card["adversary losses"])
    named = {"utility utility", "inverter reconstruction", "joint utility", "joint reconstruction"}
    assert set(card["losses"]) == named | {f"joint escaped {one}" for one in wanted}
    assert card["losses"].keys() == card["flat"].keys()
    assert card["selected"]["step"] > 5
    assert any("min of the stage left" in line for line in lines)
    assert 0 <= card["held out"]["encoded"]["fpr95"] <= 1
    assert np.allclose(np.linalg.norm(encode(encoder, make_pairs(n=128).first), axis=1), 1, atol=1e-3)
    assert path.stat().st_size < 1_000_000
    assert [one.name for one in tmp_path.iterdir()] == ["n.safetensors"]


@pytest.mark.slow
def test_the_first_stage_learns_what_is_of_use(tmp_path: Path):
    settings = tiny(steps=200, shares=(0.98, 0.01, 0.01), privacy=0)
    held = train_ninja(settings, make_pairs(2000, noise=1.0), [], tmp_path / "n").card["held out"]
    assert held["encoded"]["fpr95"] < 0.5 * held["raw"]["fpr95"]
    assert held["encoded"]["matched"] > held["raw"]["matched"]


@pytest.mark.slow
def test_privacy_costs_the_inverter(tmp_path: Path):
    """What the inverter in training still recovers on rows held out: less with a lambda than without."""
    settings = tiny(steps=240, output_dim=24, joint=StageParams(batch=32, rate=1e-2, epochs=1), **LEARNING)
    start, pairs, found = tmp_path / "start", make_pairs(2000), {}
    for privacy in (0.0, 5.0):
        card = train_ninja(
            replace(settings, privacy=privacy), pairs, [], tmp_path / str(privacy), files=NinjaFiles(start=start)
        ).card
        found[privacy] = card["history"][-1]["reconstruction"]["decoder"]
    assert found[5.0] > found[0.0] + 0.1


@pytest.mark.parametrize("after", [150, 1400, 2500])
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(after: int, tmp_path: Path):
    settings = tiny(save_minutes=0, dropout=0.1)
    whole = train_ninja(settings, make_pairs(), [], tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_ninja(settings, make_pairs(), [], tmp_path / "parts", progress=stopping_after(after))
    assert part_of(tmp_path / "parts").is_file()
    parts = train_ninja(settings, make_pairs(), [], tmp_path / "parts", resume=True)
    assert parts.checksum == whole.checksum
    assert parts.card["losses"] == whole.card["losses"]
    assert parts.card["history"] == whole.card["history"]
    assert not part_of(tmp_path / "parts").exists()


def test_an_interruption_in_the_first_stage_is_no_loss_and_resume_may_begin(tmp_path: Path):
    settings = tiny(dropout=0.1)
    with pytest.raises(KeyboardInterrupt):
        train_ninja(settings, make_pairs(), [], tmp_path / "parts", progress=stopping_after(100))
    assert part_of(tmp_path / "parts").is_file()
    whole = train_ninja(settings, make_pairs(), [], tmp_path / "whole", resume=True)
    assert train_ninja(settings, make_pairs(), [], tmp_path / "parts", resume=True).checksum == whole.checksum


@pytest.mark.parametrize(("change", "told"), [({"output_dim": 25}, "more numbers"), ({"device": "abacus"}, "device")])
def test_what_can_not_be_is_told_at_once(change: dict[str, Any], told: str, tmp_path: Path):
    with pytest.raises(InputError, match=told):
        train_ninja(tiny(**change), make_pairs(), [], tmp_path / "n")


def test_another_seed_is_another_encoder(tmp_path: Path):
    found = {train_ninja(tiny(seed=seed), make_pairs(), [], tmp_path / "n").checksum for seed in (0, 0, 1)}
    assert len(found) == 2


@pytest.mark.slow
def test_other_lambdas_start_where_the_second_stage_ended(tmp_path: Path):
    start, pairs, quick = tmp_path / "start.part", make_pairs(), tiny(steps=40, output_dim=20, **LEARNING)
    first = train_ninja(quick, pairs, [], tmp_path / "a", files=NinjaFiles(start=start))
    assert start.is_file()
    ran: list[int] = []

    def counted(items: Iterable[Any]) -> Iterable[Any]:
        ran.append(1)
        return items

    again = train_ninja(quick, pairs, [], tmp_path / "b", files=NinjaFiles(start=start), progress=counted)
    assert len(ran) == 1  # the joint stage alone
    assert again.checksum == first.checksum
    other = train_ninja(replace(quick, privacy=2.5), pairs, [], tmp_path / "c", files=NinjaFiles(start=start))
    assert other.checksum != first.checksum
    assert other.checksum == train_ninja(replace(quick, privacy=2.5), pairs, [], tmp_path / "d").checksum
    with pytest.raises(FileError, match="other settings"):
        train_ninja(replace(quick, seed=1), pairs, [], tmp_path / "e", files=NinjaFiles(start=start))
    with pytest.raises(FileError, match="other settings"):
        train_ninja(replace(quick, output_dim=None), pairs, [], tmp_path / "e", files=NinjaFiles(start=start))
    with pytest.raises(FileError, match="settings"):
        train_ninja(quick, make_pairs(seed=5), [], tmp_path / "e", files=NinjaFiles(start=start))


def test_only_the_same_training_goes_on(tmp_path: Path):
    settings, path = tiny(save_minutes=0), tmp_path / "n"
    with pytest.raises(KeyboardInterrupt):
        train_ninja(settings, make_pairs(), [], path, progress=stopping_after(1200))
    for other in ({"privacy": 2.0}, {"joint": StageParams(batch=32, rate=0.1, epochs=1)}, {"seed": 3}):
        with pytest.raises(FileError, match="other settings"):
            train_ninja(replace(settings, **other), make_pairs(), [], path, resume=True)
    with pytest.raises(FileError, match="stage"):
        train_ninja(settings, make_pairs(), [], tmp_path / "m", files=NinjaFiles(start=part_of(path)))
    data = part_of(path).read_bytes()
    part_of(path).write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match="damaged"):
        train_ninja(settings, make_pairs(), [], path, resume=True)


@pytest.mark.slow
def test_the_paper_preset_runs(photos: list[Path], tmp_path: Path):
    params = replace(PAPER, opponents=replace(FEW, local=LocalParams(extractor="harris", max_features=60)), steps=3)
    card = train_ninja(params, make_pairs(1200, 128), photos, tmp_path / "n").card
    assert [one["steps"] for one in card["stages"]] == [1, 1, 2]
    assert card["settings"]["joint"] == {"batch": 968, "rate": 1e-5, "epochs": 20}
    one = StageParams(batch=200, rate=1e-3, epochs=2)
    epochs = replace(params, steps=None, utility=one, inverter=replace(one, batch=2), joint=one)
    card = train_ninja(epochs, make_pairs(600, 128), photos, tmp_path / "m").card
    assert [part["steps"] for part in card["stages"]] == [6, 4, 6]


def test_what_can_not_be_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match="too few"):
        train_ninja(tiny(), make_pairs(3), [], tmp_path / "n")
    with pytest.raises(InputError, match="--photos"):
        train_ninja(tiny(adversary="patch"), make_pairs(), [], tmp_path / "n")
    assert not list(tmp_path.iterdir())

    def missing(name: str, *, extra: str) -> Any:
        raise MissingDependency(f"this needs {name}: pip install 'sfumato[{extra}]'")

    monkeypatch.setattr(module, "need", missing)
    with pytest.raises(MissingDependency, match=r"sfumato\[learn\]"):
        train_ninja(tiny(), make_pairs(), [], tmp_path / "n")
