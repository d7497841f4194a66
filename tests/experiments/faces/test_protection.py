# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.faces.figures import draw_protection
from sfumato.experiments.faces.lifting import face_prior, face_seal, invert_seals
from sfumato.experiments.faces.protection import (
    KEY_EACH,
    ONE_KEY,
    ProtectionProtocol,
    compare_templates,
    evaluate_protection,
    linkability,
    local_linkability,
    protection_table,
    renewal_accuracies,
)
from sfumato.experiments.faces.releases import collect_albums
from sfumato.types.recipe import Recipe

SEALED = Recipe.of("sealed-1024:1")


def scores_of(record):
    return {score.name: score.value for score in record.scores}


def test_linkability_from_nothing_to_everything():
    rng = np.random.default_rng(0)
    far = rng.normal(size=20_000)
    assert linkability(rng.normal(size=2000), far) < 0.05
    assert linkability(far[:100] - 100, far) == 1
    between = linkability(rng.normal(-1.5, 1, 2000), far)
    assert 0.3 < between < 0.8
    assert linkability(np.ones(5), np.ones(7)) == 0
    with pytest.raises(InputError, match="both kinds"):
        linkability([], [1.0])


def test_linkability_of_a_score_is_the_definition():
    rng = np.random.default_rng(0)
    near, far = rng.normal(-1, 1, 4000), rng.normal(1, 1, 4000)
    local, edges = local_linkability(near, far)
    assert len(edges) == len(local) + 1
    middle = (edges[1:] + edges[:-1]) / 2
    ratio = np.exp(-2 * middle)  # of two normal laws
    expected = np.maximum(0, 2 * ratio / (1 + ratio) - 1)
    assert local[1:-1] == pytest.approx(expected[1:-1], abs=0.12)
    share = np.histogram(near, edges)[0] / len(near)
    assert linkability(near, far) == pytest.approx((share * local).sum(), abs=0.01)


@pytest.fixture(scope="module")
def albums(made_faces):
    return collect_albums(made_faces(people=60, photos=3)[0], 3)


def test_liftings_can_be_linked_and_never_revoked_and_meet_in_the_face(albums, strangers):
    compared = compare_templates(albums, Recipe.of("random-2"), strangers, keys=None, seed=0)
    assert linkability(compared.mated.ravel(), compared.unmated.ravel()) > 0.7
    assert compared.recovered["from two"].mean() > 0.7
    assert np.median(compared.revoked) < np.quantile(compared.impostors, 0.05)


def test_a_key_each_cannot_be_linked_or_read_and_is_revoked(albums, strangers):
    compared = compare_templates(albums, SEALED, strangers, keys=KEY_EACH, seed=0)
    for name in ("mated", "unmated", "revoked"):  # coin throws, all of them
        values = getattr(compared, name)
        assert values.mean() == pytest.approx(0.5, abs=0.01)
        assert values.std() == pytest.approx(0.5 / np.sqrt(1024), rel=0.15)
    assert linkability(compared.mated.ravel(), compared.unmated.ravel()) < 0.12
    assert compared.recovered["from database"].mean() < 0.15  # chance: as many as pass for others, see below
    assert compared.recovered["from two"].mean() < 0.15


def test_without_the_key_a_face_passes_for_its_person_as_often_as_for_others(albums, strangers):
    photos = albums.faces.values[albums.photos[:, 0]]
    later, prior = albums.faces.values[albums.photos[:, -1]], face_prior(strangers.descriptors, 64)
    sealed, own, others = face_seal(SEALED, 64, seed=0)(photos), [], []
    for seed in range(1, 11):
        wrong = face_seal(SEALED, 64, seed=seed)
        cosines = invert_seals(sealed, wrong.directions, wrong.phases, prior) @ later.T
        own.append(np.diag(cosines).mean())
        others.append(cosines[~np.eye(len(cosines), dtype=bool)].mean())
    assert np.mean(own) == pytest.approx(np.mean(others), abs=0.04)


def test_whoever_has_key_and_template_has_the_face(albums, strangers):
    for keys in (KEY_EACH, ONE_KEY):
        compared = compare_templates(albums, SEALED, strangers, keys=keys, seed=0)
        raw = compare_templates(albums, Recipe.of("raw"), strangers, keys=None, seed=0)
        assert compared.recovered["with key"].mean() > raw.recovered["from database"].mean() - 0.1
        assert np.median(compared.genuine) < np.quantile(compared.impostors, 0.05)


def test_one_key_for_all_is_linked(albums, strangers):
    compared = compare_templates(albums, SEALED, strangers, keys=ONE_KEY, seed=0)
    assert linkability(compared.mated.ravel(), compared.unmated.ravel()) > 0.7
    assert compared.revoked.mean() == pytest.approx(0.5, abs=0.02)  # a new key for all


def test_impostors_of_a_person_have_that_persons_key(albums, strangers):
    each = compare_templates(albums, SEALED, strangers, keys=KEY_EACH, seed=0)
    one = compare_templates(albums, SEALED, strangers, keys=ONE_KEY, seed=0)
    assert each.impostors.mean() == pytest.approx(one.impostors.mean(), abs=0.01)
    assert each.genuine.mean() == pytest.approx(one.genuine.mean(), abs=0.01)


def test_photos_that_have_nothing_in_common_are_not_linked(made_faces, strangers):
    faces, _ = made_faces(people=60, photos=3, noise=8.0)
    compared = compare_templates(collect_albums(faces, 3), Recipe.of("hybrid-2"), strangers, keys=None, seed=0)
    assert linkability(compared.mated.ravel(), compared.unmated.ravel()) < 0.35
    assert compared.recovered["from two"].mean() < 0.2
    assert renewal_accuracies(compared.genuine, compared.impostors).mean() < 0.75


def test_records_table_and_figure(made_faces, strangers, tmp_path):
    faces, _ = made_faces(people=20, photos=3)
    protocol = ProtectionProtocol(recipes=("raw", "sealed-256:1", "hybrid-2"), seeds=(0, 1))
    records = evaluate_protection(faces, tmp_path, protocol, strangers)
    assert len(records) == 8
    table = protection_table(records)
    assert table.columns[:4] == ("recipe", "keys", "seeds", "linkable")
    assert [(str(row[0]), str(row[1])) for row in table.rows] == [
        ("raw", ""), ("sealed-256:1", KEY_EACH), ("sealed-256:1", ONE_KEY), ("hybrid-2", ""),
    ]  # fmt: skip
    for record in records:
        scores = scores_of(record)
        assert scores["lowest renewed accuracy"] <= scores["renewed accuracy"] <= 1
        if "true accepts" in scores:
            assert scores["true accepts low"] <= scores["true accepts"] <= scores["true accepts high"]
    drawn = draw_protection(records, tmp_path, tmp_path / "protection")
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert draw_protection(records, tmp_path / "elsewhere", tmp_path / "protection") == ()
    with pytest.raises(InputError, match="at least"):
        ProtectionProtocol(recipes=())
