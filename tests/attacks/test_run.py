# SPDX-License-Identifier: Apache-2.0
"""Attacks on whole archives: each image with what is known about it."""

from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.run import Materials, archive_curves, attack_archive, choose_attacks, knowledge_of
from sfumato.concealment.resolve import remember, resolve
from sfumato.errors import ArchiveError, InputError
from sfumato.types.scene import Matches

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


@pytest.fixture(scope="module")
def clear(sift, rootsift):
    halves = [np.arange(0, 75), np.arange(75, 150)]
    return {
        f"{k}.jpg": sfumato.Features(sift.keypoints[rows], sift.descriptors[rows], sift.extractor, sift.image_size)
        for k, rows in enumerate(halves)
    }


@pytest.fixture(scope="module")
def archive(clear, decoys):
    return {name: conceal(features, "sub-hybrid-2", decoys) for name, features in clear.items()}


def test_attacks_are_scored_over_all_images(archive, clear, decoys):
    materials = Materials(general=Knowledge(decoys=decoys.descriptors), clear=clear)
    seen = []
    outcomes, left_out = attack_archive(
        archive, ["vertex", "decoys"], materials, on_recovery=lambda attack, name, *_: seen.append((attack, name))
    )
    vertex, removal = (outcome.facts for outcome in outcomes)
    assert not left_out
    assert vertex["within 0.02"] > 0.95
    assert vertex["within 0.02"] > removal["within 0.02"]
    assert (vertex["images"], vertex["features"], vertex["knowledge"]) == (2, 150, ["decoys"])
    assert removal["knowledge"] == ["decoys"]
    (alone,), _ = attack_archive(archive, ["vertex"], Materials(clear=clear))
    assert alone.facts["knowledge"] == []
    assert seen == [(a, name) for name in ("0.jpg", "1.jpg") for a in ("vertex", "decoys")]


def test_all_are_those_that_are_possible(archive, clear):
    outcomes, _ = attack_archive(archive, None, Materials())
    assert [outcome.attack.name for outcome in outcomes] == ["vertex"]
    assert "median" not in outcomes[0].facts
    assert outcomes[0].facts["confident"] > 100


def test_a_second_release_and_matches_are_used(archive, clear, decoys):
    second = {name: conceal(clear[name], "sub-hybrid-2", decoys, evaluation_seed=2) for name in clear}
    pairs = np.column_stack([np.arange(9), np.arange(9)]).astype(np.int32)
    matches = {("0.jpg", "1.jpg"): Matches(pairs, np.linspace(0, 1, 9, dtype=np.float32))}
    materials = Materials(clear=clear, release=second, matches=matches)
    known = knowledge_of("0.jpg", archive["0.jpg"], archive, materials, None)
    assert {"releases", "partners", "tracks", "clear"} <= set(known.known)
    (outcome,), _ = attack_archive(archive, ["intersection"], materials)
    assert outcome.facts["within 0.02"] > 0.99


def test_an_image_that_does_not_fit_is_named(archive, clear, sift):
    outcomes, left_out = attack_archive(archive, ["vertex"], Materials(clear={"0.jpg": clear["0.jpg"], "1.jpg": sift}))
    assert outcomes[0].images == 1
    assert "options of sfumato conceal" in left_out["1.jpg"]
    _, left_out = attack_archive(archive, ["vertex"], Materials(clear={}))
    assert set(left_out) == {"0.jpg", "1.jpg"}


def test_what_is_of_another_kind_of_descriptor_is_refused(archive, clear, rootsift):
    at = {"0.jpg": slice(0, 75), "1.jpg": slice(75, 150)}
    rooted = {
        name: sfumato.Features(clear[name].keypoints, rootsift.descriptors[rows], rootsift.extractor)
        for name, rows in at.items()
    }
    outcomes, left_out = attack_archive(archive, ["vertex"], Materials(clear=rooted))
    assert outcomes[0].images == 0
    assert left_out["0.jpg"].startswith("the clear features are rootsift, the concealed ones sift")
    for what in ("public", "decoys"):
        _, left_out = attack_archive(archive, ["vertex"], Materials(kinds={what: rootsift.extractor}))
        assert "are rootsift, the features are sift" in left_out["1.jpg"]
    for kind in ("sift", "unknown", "hloc"):
        kinds = dict.fromkeys(("public", "decoys", "clear"), sfumato.Extractor(kind))
        assert attack_archive(archive, ["vertex"], Materials(kinds=kinds))[1] == {}


def test_a_damaged_image_is_named(archive):
    class Damaged(dict):
        def __getitem__(self, name):
            if name == "1.jpg":
                raise ArchiveError("damaged")
            return super().__getitem__(name)

    outcomes, left_out = attack_archive(Damaged(archive), ["vertex"], Materials())
    assert outcomes[0].images == 1
    assert left_out == {"1.jpg": "damaged"}


def test_names_are_checked_and_needs_told(archive):
    with pytest.raises(InputError, match="'vertex'"):
        choose_attacks(["vertexx"])
    with pytest.raises(InputError, match="at least"):
        choose_attacks([])
    with pytest.raises(InputError, match="decoy"):
        attack_archive(archive, ["decoys"], Materials())
    assert list(choose_attacks(["oracle"], 3)) == ["oracle"]


def test_encoded_features_are_attacked_with_their_encoder(clear, decoys, encoder, make_encoder):
    archive = {name: sfumato.conceal(features, encoder.recipe) for name, features in clear.items()}
    general = Knowledge(public=decoys.descriptors[:1000], encoder=encoder)
    outcomes, left_out = attack_archive(archive, None, Materials(general=general, clear=clear), neighbours=1000)
    facts = {outcome.attack.name: outcome.facts for outcome in outcomes}
    assert not left_out
    assert list(facts) == ["nearest", "nearest-base", "oracle", "oracle-base", "oracle-encoded", "regression"]
    assert facts["nearest"]["knowledge"] == ["public", "encoder"]
    assert facts["oracle"]["median"] == pytest.approx(facts["oracle-base"]["median"], abs=1e-6)  # asked about all
    curves = archive_curves(archive, Materials(general=general, clear=clear))
    assert curves["paired"].count == 150
    assert curves["paired"].plain[-1] == pytest.approx(facts["oracle"]["mean"], rel=1e-3)
    other = resolve(f"ninja:other@{remember(make_encoder(9)).checksum[:12]}")
    _, left_out = attack_archive(archive, None, Materials(general=Knowledge(encoder=other)))
    assert "not by the known encoder" in left_out["0.jpg"]
    with pytest.raises(InputError, match="vertex"):
        attack_archive(archive, ["vertex"], Materials())
    with pytest.raises(InputError, match="clear"):
        archive_curves(archive, Materials())
    plain = {name: conceal(features, "random-2") for name, features in clear.items()}
    assert set(archive_curves(plain, Materials(general=Knowledge(public=general.public), clear=clear))) == {"oracle"}
