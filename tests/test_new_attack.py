# SPDX-License-Identifier: Apache-2.0
"""A new attack is one line of the registry: the Python function, the command, the audit and the page know it then."""

import json

import pytest
from typer.testing import CliRunner

import sfumato
from sfumato.attacks.knowledge import Knowledge, Recovery, fallback
from sfumato.attacks.registry import ATTACKS, Attack, AttackId, applicable_attacks
from sfumato.auditing.leakage import LeakageJob, LeakageProtocol, evaluate_leakage
from sfumato.auditing.toolbox import Toolbox
from sfumato.cli.app import app
from sfumato.features.local import LocalParams
from sfumato.report.page import make_page
from sfumato.types.concealed import ConcealedFeatures


def recover_toy(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Return what the subspace alone says."""
    return fallback(features.code)


@pytest.fixture
def toy(monkeypatch):
    attack = Attack("toy", (), "nothing at all", recover_toy, about="plays with the subspace", decoys_variant=True)
    monkeypatch.setitem(ATTACKS, "toy", attack)
    return attack


@pytest.fixture
def archive(small_photos, tmp_path):
    clear = sfumato.extract(small_photos["coffee.png"], max_features=40)
    path = tmp_path / "private.sfm"
    sfumato.save(path, {"coffee.png": sfumato.conceal(clear, "sub-hybrid-2", sfumato.load_decoys())})
    return path


def test_it_is_found_where_it_fits_and_run_by_name(toy, archive):
    record = sfumato.attack(archive, "toy")
    assert (record.task, record.params["attack"], record.params["about"]) == ("attack", "toy", toy.about)
    assert "toy" in [one.params["attack"] for one in sfumato.attack(archive)]
    with sfumato.load(archive) as images:
        assert "toy" in applicable_attacks(images["coffee.png"], Knowledge())


def test_the_command_lists_and_runs_it(toy, archive):
    assert "nothing at all" in CliRunner().invoke(app, ["attack", "--list"]).stdout
    done = CliRunner().invoke(app, ["attack", str(archive), "toy", "--json", "-q"])
    assert [one["attack"] for one in json.loads(done.stdout)["attacks"]] == ["toy"]


@pytest.mark.parametrize("counts", [True, False])
def test_the_audit_plans_it_and_the_page_shows_it(toy, small_photos, tmp_path, monkeypatch, counts):
    from dataclasses import replace

    monkeypatch.setitem(ATTACKS, "toy", replace(toy, counts=counts))
    job = LeakageJob(
        photos=(("coffee.png", small_photos["coffee.png"]),),
        protocol=LeakageProtocol(recipes=("sub-hybrid-2",), local=LocalParams(max_features=20)),
        toolbox=Toolbox(),
    )
    plan = job.plan()
    assert {"toy", "toy+decoys"} <= {task.attack.label for task in plan.tasks}
    records = evaluate_leakage(plan.only(lambda task: task.is_scale or task.attack.name == "toy"), tmp_path)
    (record,) = [one for one in records if one.params["attack"] == "toy"]
    assert record.params["counts"] is counts
    assert AttackId.of(record.params) == AttackId("toy")
    page = make_page(records)
    assert f"<b>toy</b>: {toy.about}{'' if counts else ' (shown, not counted)'}" in page
    assert f"<b>toy+decoys</b>: {toy.about}; also has the decoy database" in page
    assert (">toy *<" in page) is not counts
