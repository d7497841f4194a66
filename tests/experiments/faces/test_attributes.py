# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.data.face_benchmarks import LabelledFaces
from sfumato.experiments.faces.attributes import (
    KEY,
    NO_KEY,
    AttributeProtocol,
    age_groups,
    attribute_table,
    evaluate_attributes,
    split_faces,
)
from sfumato.types.clear import Embeddings

SMALL = {"decoys": 80, "attacker": 300, "attacked": 100, "attributes": ("kind",)}


@pytest.fixture(scope="module")
def source(made_faces):
    faces, kinds = made_faces(people=500, photos=1)
    return LabelledFaces(faces, {"kind": kinds})


def scores_of(record):
    return {score.name: score.value for score in record.scores}


def test_no_face_is_dealt_twice():
    names = [str(number) for number in range(500)]
    deal = split_faces(names, AttributeProtocol(**SMALL), 0)
    rows = np.concatenate([deal.decoys, deal.attacker, deal.attacked])
    assert len(set(rows.tolist())) == 480
    other = split_faces(names, AttributeProtocol(**SMALL), 1)
    assert not np.array_equal(deal.attacked, other.attacked)
    with pytest.raises(InputError, match="479"):
        split_faces(names[:479], AttributeProtocol(**SMALL), 0)


def test_names_may_decide_who_is_attacked():
    names = [f"{'val' if number % 3 else 'train'}/{number}" for number in range(900)]
    protocol = AttributeProtocol(**{**SMALL, "attacker": 200}, attacked_prefix="val/")
    deal = split_faces(names, protocol, 0)
    assert all(names[row].startswith("val/") for row in deal.attacked)
    assert all(names[row].startswith("train/") for row in (*deal.decoys, *deal.attacker))
    with pytest.raises(InputError, match="'test/'"):
        split_faces(names, AttributeProtocol(**SMALL, attacked_prefix="test/"), 0)


def test_clear_faces_tell_and_an_attribute_that_is_not_in_them_does_not(source, tmp_path):
    record = evaluate_attributes(source, tmp_path, AttributeProtocol(**SMALL, recipes=("raw",)))[0]
    found = scores_of(record)
    assert found["neighbours"] > 0.9
    assert found["majority"] < 0.65
    chance = np.random.default_rng(0).integers(2, size=500)
    blind = LabelledFaces(source.faces, {"kind": chance})
    record = evaluate_attributes(blind, tmp_path, AttributeProtocol(**SMALL, recipes=("raw",)))[0]
    assert scores_of(record)["templates"] < 0.68


def test_public_decoys_give_away_what_neighbours_do_not_see(source, tmp_path):
    protocol = AttributeProtocol(**SMALL, recipes=("adversarial-4", "hybrid-labels-2"))
    adversarial, labelled = (scores_of(record) for record in evaluate_attributes(source, tmp_path, protocol))
    assert adversarial["neighbours"] + 0.1 < adversarial["undone"] == adversarial["leakage"]
    assert labelled["undone"] > 0.97  # a decoy of the other kind names the kind
    assert labelled["leakage"] >= labelled["neighbours relabelled"] >= labelled["majority"]


def test_what_is_kept_names_nobody(source, tmp_path):
    evaluate_attributes(source, tmp_path, AttributeProtocol(**SMALL, recipes=("random-2",)))
    (path,) = tmp_path.rglob("predictions/*.npz")
    with np.load(path) as kept:
        assert all(kept[name].shape in ((2, 2), ()) for name in kept.files)


def test_equal_photos_with_two_labels_are_no_trouble(tmp_path, made_faces):
    faces, kinds = made_faces(people=500, photos=1)
    values = np.repeat(faces.values[:250], 2, axis=0)
    source = LabelledFaces(Embeddings(values), {"kind": kinds})
    (record,) = evaluate_attributes(source, tmp_path, AttributeProtocol(**SMALL, recipes=("hybrid-labels-2",)))
    assert record.scores
    assert not record.dropped


def test_table_has_a_row_for_each_recipe(source, tmp_path):
    protocol = AttributeProtocol(**SMALL, recipes=("raw", "random-2"), seeds=(0, 1))
    table = attribute_table(evaluate_attributes(source, tmp_path, protocol))
    assert table.columns[:5] == ("attribute", "recipe", "attacker", "seeds", "majority")
    assert [row[3].value for row in table.rows] == [2, 2]


def test_seals_tell_nothing_without_the_key_and_everything_with_it(source, tmp_path):
    records = evaluate_attributes(source, tmp_path, AttributeProtocol(**SMALL, recipes=("sealed-512:1", "raw")))
    without, having, raw = (scores_of(record) for record in records)
    assert [record.params["attacker"] for record in records] == [NO_KEY, KEY, None]
    for attack in ("neighbours", "templates", "undone"):
        assert without[attack] < without["majority"] + 0.15
        assert having[attack] > raw[attack] - 0.1
    with np.load(next(tmp_path.rglob("predictions/*.npz"))) as tables:
        assert all(tables[name].shape in ((2, 2), ()) for name in tables.files)


def test_ages_become_groups():
    assert age_groups([0, 20, 21, 40, 41, 60, 61, 116]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_can_not_be_measured_is_told(source, tmp_path):
    with pytest.raises(InputError, match="'age'"):
        evaluate_attributes(source, tmp_path, AttributeProtocol(attributes=("age",)))
    with pytest.raises(InputError, match="encoders"):
        AttributeProtocol(recipes=("compress-8+random-2",))
    with pytest.raises(InputError, match="5000, 0"):
        AttributeProtocol(attacked=0)
