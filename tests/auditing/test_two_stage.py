# SPDX-License-Identifier: Apache-2.0
"""Attacks in two stages: the lifting first, then the encoder."""

import numpy as np
import pytest

import sfumato
from sfumato.auditing.attack_task import AttackData
from sfumato.auditing.leakage import LeakageProtocol, evaluate_leakage, leakage_table, plan_leakage
from sfumato.auditing.subjects import ClearFeatures, choose_subjects
from sfumato.auditing.toolbox import Tools
from sfumato.auditing.two_stage import encoder_part, two_stage_tasks
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import save_encoder
from sfumato.concealment.resolve import encode_points, resolve
from sfumato.experiments.frontier.sheets import draw_sheets
from sfumato.features.local import LocalParams
from sfumato.types.extractor import Extractor

LOCAL = LocalParams(max_features=40)


def score(record, name):
    return next((one.value for one in record.scores if one.name == name), None)


@pytest.fixture(scope="module")
def chain(tmp_path_factory, make_encoder):
    path = tmp_path_factory.mktemp("encoder") / "n.safetensors"
    save_encoder(path, make_encoder())
    return f"ninja:{path}+random-2"


@pytest.fixture(scope="module")
def public():
    return Decoys(sfumato.load_decoys().descriptors[:500], Extractor("sift"), parts=1)


def test_an_encoder_after_which_is_lifted_is_undone_in_both_spaces(chain, public, small_photos, tmp_path, make_painter):
    resolved = resolve(chain)
    before = encoder_part(resolved.recipe)
    rows = public.descriptors

    def decode(points):  # the clear descriptor whose encoded form is nearest
        gaps = np.linalg.norm(encode_points(resolved, rows)[None] - points.origin[:, None], axis=2)
        return rows[gaps.argmin(axis=1)]

    tools = Tools(
        inverters=[make_painter(), make_painter(str(before))],
        public=public,
        decoders={("sift", before.identity): ("digest", decode)},
    )
    names = ("intersection then decoder", "intersection then inverter", "nearest-projected then decoder")
    works = plan_leakage(small_photos, LeakageProtocol(recipes=(chain,), attacks=names, local=LOCAL), tools)
    records = {record.params["attack"]: record for record in evaluate_leakage(works, tmp_path)}
    assert set(names) <= set(records)
    met = records["intersection then decoder"]
    assert score(met, "lifted within 0.1") == 1.0, "two releases meet in the encoded descriptor"
    assert score(met, "within 0.1") < 1.0, "of the encoder this decoder knows little"
    assert met.params["knows"] == "releases, encoder, decoder"
    assert met.params["decoder"] == "digest"
    painted = records["intersection then inverter"]
    assert score(painted, "leakage") is not None
    assert score(painted, "within 0.1") is None
    assert "lifted within 0.1" in leakage_table(records.values()).columns


def test_without_networks_the_lifting_alone_is_undone(chain, public, small_photos, tmp_path, make_painter):
    tools = Tools(inverters=[make_painter()], public=public)
    wanted = LeakageProtocol(recipes=(chain,), attacks=("density then nothing", "nearest"), local=LOCAL)
    works = plan_leakage(small_photos, wanted, tools)
    records = {record.params["attack"]: record for record in evaluate_leakage(works, tmp_path)}
    told = records["density then nothing"]
    assert score(told, "lifted within 0.3") is not None
    assert score(told, "leakage") is None
    assert draw_sheets(works, tmp_path, "sift"), "what paints nothing has no column"


def test_all_attacks_on_liftings_are_tried_and_only_there(chain, public, make_painter):
    tools = Tools(inverters=[make_painter()], public=public)
    for recipe, count in ((chain, True), (chain.removesuffix("+random-2"), False), ("random-2", False)):
        (subject,) = choose_subjects([recipe], ("s-to-s",), (0,))
        data = AttackData({}, [], ClearFeatures(lambda path: None), tools, Extractor("sift"))
        found = {task.attack.name for task in two_stage_tasks(subject, data)}
        assert bool(found) == count
        assert not count or found >= {"density", "nearest-projected", "intersection", "clusters", "oracle-sphere"}
