# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import build_face_decoys, conceal_embeddings, conceal_parallel
from sfumato.errors import EvaluationOnlyWarning, InputError, NotEnrolledError
from sfumato.faces.compare import choose_threshold
from sfumato.faces.gallery import Gallery, GalleryFacts, refuse_other_directions, refuse_unprotected
from sfumato.types.clear import Embeddings
from sfumato.types.recipe import Recipe


@pytest.fixture
def gallery(photos):
    return Gallery(conceal_embeddings(photos(range(4)), "random-2"), {"p3_0": 2, "gone": 1})


def facts_of(templates, **changes):
    kind = {"recipe": templates.recipe, "extractor": templates.extractor, "dimensions": templates.code.ambient_dim}
    return GalleryFacts(**{"id": bytes(16), **kind, **changes})


def test_people_are_in_a_gallery_or_remembered(gallery):
    assert (len(gallery), gallery.revoked) == (4, ("gone",))
    assert dict(gallery.releases) == {"p0_0": 1, "p1_0": 1, "p2_0": 1, "p3_0": 2, "gone": 1}
    assert np.array_equal(gallery.template("p2_0").code.basis[0], gallery.templates.code.basis[2])
    with pytest.raises(InputError, match="revoked"):
        gallery.row("gone")
    for somebody in ("p1-0", None):
        with pytest.raises(NotEnrolledError) as problem:
            gallery.row(somebody)
        assert problem.value.person == somebody
        assert not any(person in str(problem.value) for person in gallery.releases)  # nobody else is named
    with pytest.raises(InputError, match="releases"):
        Gallery(gallery.templates, {"p0_0": 0})
    assert "4 of dimension 2" in repr(gallery)


def test_only_parallel_templates_replace(gallery, photos):
    newer, old = photos(range(1, 3), seed=9), gallery.templates[[1, 2]]
    with pytest.raises(InputError, match="directions"):
        refuse_other_directions(old, conceal_embeddings(newer, "random-2"))
    refuse_other_directions(old, conceal_parallel(newer, old))


def test_what_protects_nobody_is_no_gallery(photos):
    faces = photos(range(2))
    with pytest.warns(EvaluationOnlyWarning):
        weak = [conceal_embeddings(faces, "raw"), conceal_embeddings(faces, "random-2", evaluation_seed=1)]
    for templates in weak:
        with pytest.raises(InputError, match="protects nobody"):
            Gallery(templates)
        with pytest.raises(InputError, match="protects nobody"):
            facts_of(templates)
    with pytest.raises(InputError, match="local"):
        refuse_unprotected(Recipe.of("ninja-sift-1+random-2"))


def test_templates_of_another_kind_are_refused(gallery, photos):
    faces, decoys = photos(range(8, 10)), build_face_decoys(photos(range(100, 140)))
    hybrid = conceal_embeddings(photos(range(2)), "hybrid-2", decoys)
    others = build_face_decoys(photos(range(200, 240)))
    for old, new, words in (
        (gallery.templates, conceal_embeddings(faces, "random-3"), "made with random-2, these templates with random-3"),
        (hybrid, conceal_embeddings(faces, "hybrid-2", others), "with other decoys"),
        (gallery.templates, conceal_embeddings(Embeddings(faces.values, faces.names), "random-2"), "these are unknown"),
        (gallery.templates, conceal_embeddings(Embeddings(np.eye(2, 8)), "random-2"), "64 dimensions"),
    ):
        with pytest.raises(InputError, match=words):
            facts_of(old).refuse_other(new)


def test_there_is_one_threshold_for_each_comparison(gallery):
    first, second = (
        choose_threshold(np.arange(1.0, scale * 100, scale), 0.2, comparison="p-to-s", people=9) for scale in (1, 2)
    )
    with pytest.raises(InputError, match="calibrate"):
        gallery.threshold("p-to-s")
    facts = facts_of(gallery.templates).with_threshold(first).with_threshold(second)
    assert (facts.thresholds, facts.threshold("p-to-s"), facts.threshold("s-to-s")) == ((second,), second, None)
    assert Gallery(gallery.templates, {}, (second,)).threshold("p-to-s") is second
    for make in (lambda: Gallery(gallery.templates, {}, (first, second)),
                 lambda: facts_of(gallery.templates, thresholds=(first, second))):  # fmt: skip
        with pytest.raises(InputError, match="comparison"):
            make()


def test_facts_are_checked(gallery):
    for change in ({"id": b"short"}, {"dimensions": 0}, {"dimensions": 2**17}, {"dimensions": "64"}):
        with pytest.raises(InputError):
            facts_of(gallery.templates, **change)
