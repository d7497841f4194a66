# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.decoys import Decoys
from sfumato.errors import DecoyError, InputError
from sfumato.experiments.data.face_benchmarks import FacePairs, read_face_pairs
from sfumato.experiments.faces.lifting import read_face_decoys
from sfumato.experiments.faces.verification import (
    VerificationProtocol,
    evaluate_verification,
    read_distances,
    verification_table,
    with_intervals,
)
from sfumato.types.clear import Embeddings


@pytest.fixture(scope="module")
def pairs(made_faces):
    """Two photos of each of 40 people against each other, and as many pairs of neighbours; four folds."""
    faces, _ = made_faces(photos=2)
    people = np.arange(40)
    left, right = np.r_[2 * people, 2 * people], np.r_[2 * people + 1, (2 * people + 3) % 80]
    return FacePairs(faces, left, right, np.arange(80) < 40, np.r_[people % 4, people % 4])


def scores_of(record):
    return {score.name: score.value for score in record.scores}


def test_every_recipe_and_distance_has_a_record(pairs, strangers, tmp_path):
    protocol = VerificationProtocol(recipes=("raw", "random-2", "hybrid-2"), seeds=(0, 1))
    records = evaluate_verification(pairs, tmp_path, protocol, strangers)
    told = [(one.params["recipe"], one.params["distance"], one.seed) for one in records]
    assert told[0] == ("raw", "p-to-p", None)
    assert len(set(told)) == len(told) == 9
    found = {key[:2]: scores_of(record) for key, record in zip(told, records, strict=True)}
    assert found["raw", "p-to-p"]["accuracy"] > 0.95
    assert found["random-2", "p-to-s"]["accuracy"] > 0.9
    assert found["hybrid-2", "s-to-s"]["equal error rate"] > found["raw", "p-to-p"]["equal error rate"]
    assert "true accepts at 0.001" not in found["raw", "p-to-p"]  # 40 impostors cannot tell
    table = verification_table(records)
    assert "TAR at FAR 0.001" not in table.columns
    assert [row[2].value for row in table.rows] == [None, 2, 2, 2, 2]


def test_strangers_by_their_names_tell_low_rates_and_have_names_of_their_own(pairs, strangers, tmp_path):
    protocol = VerificationProtocol(recipes=("raw", "hybrid-2"), distances=("s-to-s",), strangers=2000)
    raw, hybrid = (scores_of(record) for record in evaluate_verification(pairs, tmp_path, protocol, strangers))
    assert "true accepts at 0.001" not in raw
    assert 0.5 < raw["true accepts at 0.001 of strangers"] <= 1
    assert hybrid["true accepts at 0.001 of strangers"] <= raw["true accepts at 0.001 of strangers"]
    assert "true accepts at 0.0001 of strangers" not in raw
    assert any(
        "all strangers" in title
        for title in verification_table(evaluate_verification(pairs, tmp_path, protocol, strangers)).columns
    )
    nameless = FacePairs(Embeddings(pairs.faces.values), pairs.left, pairs.right, pairs.same, pairs.fold)
    with pytest.raises(InputError, match="who is"):
        evaluate_verification(nameless, tmp_path, protocol, strangers)
    with pytest.raises(InputError, match="number"):
        VerificationProtocol(strangers=-1)


def test_halves_of_the_decoys_keep_strangers_from_meeting(pairs, tmp_path):
    few = made_decoys(12, pairs.faces.values.shape[1])
    shares = []
    for halves in (False, True):
        protocol = VerificationProtocol(recipes=("adversarial-2",), distances=("s-to-s",), halves=halves)
        (record,) = evaluate_verification(pairs, tmp_path, protocol, few)
        distances, same = read_distances(record, tmp_path)
        shares.append((distances[~same] < 1e-4).mean())
    assert shares[0] > 0.1
    assert shares[1] == 0


def made_decoys(count, dims):
    return Decoys(np.random.default_rng(9).normal(size=(count, dims)))


def test_many_dimensions_cost_accuracy(pairs, strangers, tmp_path):
    protocol = VerificationProtocol(recipes=("adversarial-2", "adversarial-16"), distances=("s-to-s",))
    few, many = (scores_of(record) for record in evaluate_verification(pairs, tmp_path, protocol, strangers))
    assert few["accuracy"] > many["accuracy"]


def test_sealed_faces_are_verified_and_without_the_key_nobody_is(pairs, tmp_path):
    protocol = VerificationProtocol(recipes=("sealed-1024:1", "raw"), seeds=(0, 1))
    records = evaluate_verification(pairs, tmp_path, protocol)
    assert [(record.params["recipe"], record.params["distance"], record.seed) for record in records] == [
        ("sealed-1024:1", "bits", 0), ("sealed-1024:1", "bits", 1), ("raw", "p-to-p", None),
    ]  # fmt: skip
    sealed, _, raw = (scores_of(record) for record in records)
    assert sealed["accuracy"] > raw["accuracy"] - 0.1
    one, other = (read_distances(record, tmp_path)[0] for record in records[:2])
    assert not np.array_equal(one, other)  # another key
    assert sealed["accepted without the key"] == 0
    assert sealed["pairs without the key"] == 20 * len(pairs)
    assert "accepted without the key" not in raw


def test_the_bandwidth_of_a_seal_is_that_of_the_network(pairs, tmp_path):
    (record,) = evaluate_verification(pairs, tmp_path, VerificationProtocol(recipes=("sealed-256",)))
    assert record.params["recipe"] == "sealed-256:1"


def test_the_table_for_readers_has_intervals_in_their_figures(pairs, tmp_path):
    protocol = VerificationProtocol(recipes=("raw", "sealed-256:1"), strangers=2000)
    table = verification_table(evaluate_verification(pairs, tmp_path, protocol))
    brief = with_intervals(table)
    assert not any(title.endswith((" low", " high")) for title in brief.columns)
    place = brief.columns.index("TAR at FAR 0.01, all strangers")
    assert all(" to " in str(row[place]) for row in brief.rows)


def test_finished_work_is_found_again_and_holds_no_face(pairs, strangers, tmp_path, monkeypatch, files_below):
    protocol = VerificationProtocol(recipes=("hybrid-2",), distances=("p-to-s",))
    first = evaluate_verification(pairs, tmp_path, protocol, strangers)
    kept = [np.load(path) for path in tmp_path.rglob("predictions/*.npz")]
    assert [sorted(arrays.files) for arrays in kept] == [["distance", "fold", "people", "same", "seconds"]]
    monkeypatch.setattr("sfumato.experiments.faces.verification.lift_faces", None)
    assert evaluate_verification(pairs, tmp_path, protocol, strangers) == first
    distances, same = read_distances(first[0], tmp_path)
    assert distances[same].mean() < distances[~same].mean()


def test_what_can_not_be_measured_is_told(pairs, tmp_path):
    with pytest.raises(DecoyError, match="--decoys"):
        evaluate_verification(pairs, tmp_path, VerificationProtocol(recipes=("hybrid-2",)))
    with pytest.raises(InputError, match="p-to-s"):
        evaluate_verification(pairs, tmp_path, VerificationProtocol(distances=("p-to-z",)))
    nothing = np.zeros(0, np.int64)
    empty = FacePairs(Embeddings(np.eye(2, 4)), nothing, nothing, nothing.astype(bool), nothing)
    with pytest.raises(InputError, match="no pairs"):
        evaluate_verification(empty, tmp_path)


def test_real_faces_are_verified_as_in_the_paper(shared_data, tmp_path):
    folder = shared_data / "faces"
    if not (folder / "lfw_arcface_folds_0-4.npz").exists():
        pytest.skip(f"needs the embeddings in {folder}")
    pairs = read_face_pairs(folder / "lfw_arcface_folds_0-4.npz")
    decoys = read_face_decoys(folder / "utkface_arcface.npz", 2000)
    records = evaluate_verification(pairs, tmp_path, VerificationProtocol(recipes=("raw", "hybrid-2")), decoys)
    raw, point, subspace = (scores_of(record)["accuracy"] for record in records)
    assert raw == pytest.approx(0.994, abs=0.002)
    assert point > raw - 0.02
    assert subspace >= 0.955
