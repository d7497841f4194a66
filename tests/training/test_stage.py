# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.training.loop import VALIDATIONS, Budget, Stage

torch = pytest.importorskip("torch")


def begin(path=None, steps=40, settings=None):
    modules = torch.nn.ParameterDict({"x": torch.nn.Parameter(torch.tensor([4.0, -3.0]))})
    optimizer = torch.optim.AdamW(modules.parameters(), lr=0.1)
    stage = Stage("toy", modules, optimizer, Budget(steps=steps).pace(), settings or {"seed": 0}, path)
    stage.resume()
    return stage


def go_on(stage, until=1.0):
    while True:
        if stage.is_due():
            stage.validated(float((stage.modules["x"].detach() ** 2).sum()))
        if stage.pace.share >= until:
            return stage
        noise = np.random.default_rng(stage.pace.steps).normal()  # drawn from the number of the step
        stage.learn((stage.modules["x"] ** 2).sum() * (1 + 0.1 * noise), 0.5)


def test_a_stage_learns_and_tells_how_it_went():
    told = []
    stage = begin()
    stage.report = lambda one: told.append(one.pace.steps)
    go_on(stage)
    facts = stage.facts()
    assert facts["steps"] == 40
    assert facts["last_loss"] < facts["first_loss"]
    assert len(stage.losses) == VALIDATIONS + 1 == len(told)
    assert stage.seconds_left == 0


def test_an_interrupted_stage_ends_with_the_same_numbers(tmp_path):
    whole = go_on(begin())
    go_on(begin(tmp_path / "a.part"), until=0.5)
    resumed = begin(tmp_path / "a.part")
    assert 0.4 <= resumed.pace.share <= 0.5
    go_on(resumed)
    np.testing.assert_array_equal(resumed.modules["x"].detach().numpy(), whole.modules["x"].detach().numpy())
    assert resumed.losses == whole.losses


def test_the_state_of_another_training_is_refused(tmp_path):
    path = tmp_path / "a.part"
    go_on(begin(path), until=0.1)
    with pytest.raises(FileError, match="other settings"):
        begin(path, settings={"seed": 1})
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FileError):
        begin(path)


def test_a_loss_that_is_no_number_ends_the_training():
    with pytest.raises(InputError, match="lower rate"):
        begin().validated(float("nan"))


def test_a_falling_loss_is_not_flat():
    stage = begin()
    stage.losses = [1.0] * 20
    assert stage.facts()["flatness"] is None  # too few steps to tell
    stage.pace.steps = 1000
    assert stage.facts()["is_flat"]
    stage.losses = list(np.linspace(1, 0.5, 21))
    assert not stage.facts()["is_flat"]
    stage.losses = [1.0]
    assert stage.facts()["flatness"] is None


@pytest.mark.parametrize("settings", [{}, {"minutes": -1.0}, {"steps": 0}, {"minutes": float("nan")}])
def test_budgets_of_nothing(settings):
    with pytest.raises(InputError, match="minutes"):
        Budget(**settings)
