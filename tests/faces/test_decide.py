# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import conceal_embeddings
from sfumato.errors import InputError
from sfumato.faces.calibration import CalibrateParams, measure_threshold
from sfumato.faces.compare import distances
from sfumato.faces.decide import verify_probe
from sfumato.faces.gallery import Gallery
from sfumato.features.embeddings import read_embeddings
from sfumato.types.clear import people_of


@pytest.fixture(scope="module")
def gallery(photos):
    templates = conceal_embeddings(photos(range(5)), "random-2")
    chosen = measure_threshold(photos(range(100, 200)), templates.recipe, None, CalibrateParams(rate=0.01))
    return Gallery(templates, {}, (chosen,))


def test_the_same_person_is_accepted_and_others_as_rarely_as_wanted(gallery, photos):
    """One stranger in a hundred may be accepted: a rate over many, for templates are drawn anew in every run."""
    strangers = photos(range(300, 500), seed=8)
    accepted = 0
    for person in range(5):
        newer = photos(range(person, person + 1), seed=8)
        own = verify_probe(newer.values, gallery, f"p{person}_0")
        assert own.accepted
        assert own.distance < own.threshold.distance
        accepted += sum(verify_probe(face[None], gallery, f"p{person}_0").accepted for face in strangers.values)
    assert accepted < 50


def test_a_decision_needs_one_probe_an_id_and_a_threshold(gallery, photos):
    with pytest.raises(InputError, match="face, got 2"):
        verify_probe(photos(range(2)).values, gallery, "p0_0")
    with pytest.raises(InputError, match="not enrolled"):
        verify_probe(photos(range(1)).values, gallery, "nobody")
    with pytest.raises(InputError, match="s-to-s"):
        verify_probe(conceal_embeddings(photos(range(1)), "random-2"), gallery, "p0_0")
    with pytest.raises(InputError, match="different spaces"):
        verify_probe(np.eye(1, 8), gallery, "p0_0")


def test_real_faces_are_told_apart(shared_data):
    """LFW: 100 people enrolled with one photo, asked for with another; the threshold comes from 1,000 other photos."""
    faces = read_embeddings(shared_data / "faces" / "lfw_arcface_folds_0-4.npz", "arcface")
    who = np.array(people_of(faces.names))
    names, counts = np.unique(who, return_counts=True)
    chosen = names[counts >= 2][:100]
    first, second = (faces[[np.flatnonzero(who == name)[place] for name in chosen]] for place in (0, 1))
    others = faces[np.flatnonzero(~np.isin(who, chosen))[:1000]]
    gallery = Gallery(conceal_embeddings(first, "random-2"))
    threshold = measure_threshold(others, gallery.recipe, None, CalibrateParams(rate=1e-3))
    found = distances(second.values, gallery.templates) <= threshold.distance
    assert np.diag(found).mean() > 0.9
    assert found[~np.eye(100, dtype=bool)].mean() < 5e-3
