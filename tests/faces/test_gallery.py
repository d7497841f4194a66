# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import build_face_decoys, conceal_embeddings, conceal_parallel
from sfumato.errors import EvaluationOnlyWarning, InputError
from sfumato.faces.compare import choose_threshold
from sfumato.faces.gallery import Gallery
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor


@pytest.fixture
def gallery(photos):
    return Gallery(conceal_embeddings(photos(range(4)), "random-2"))


def test_people_are_added_revoked_and_remembered(gallery, photos):
    more = gallery.add(conceal_embeddings(photos(range(4, 6)), "random-2"))
    assert len(more) == 6
    assert np.array_equal(more.template("p2_0").subspaces.basis, gallery.template("p2_0").subspaces.basis)
    less = more.revoke(["p1_0", "p5_0"])
    assert (len(less), less.revoked) == (4, ("p1_0", "p5_0"))
    with pytest.raises(InputError, match="revoked"):
        less.row("p1_0")
    with pytest.raises(InputError, match="'p4_0'"):
        less.row("p4-0")
    again = less.add(conceal_embeddings(photos(range(1, 2)), "random-2"))
    assert again.releases["p1_0"] == 2
    assert again.releases["p0_0"] == 1
    assert len(more.revoke(more.templates.ids)) == 0
    assert "6 of dimension 2" in repr(more)


def test_a_second_lifting_of_an_enrolled_id_is_refused(gallery, photos):
    with pytest.raises(InputError, match="'p3_0'"):
        gallery.add(conceal_embeddings(photos(range(3, 5)), "random-2"))


def test_only_parallel_templates_replace(gallery, photos):
    newer = photos(range(1, 3), seed=9)
    with pytest.raises(InputError, match="other directions"):
        gallery.replace(conceal_embeddings(newer, "random-2"))
    renewed = gallery.replace(conceal_parallel(newer, gallery.templates[[1, 2]]))
    assert renewed.releases == gallery.releases
    assert renewed.templates.ids == gallery.templates.ids
    assert np.array_equal(renewed.template("p0_0").subspaces.origin, gallery.template("p0_0").subspaces.origin)
    assert not np.allclose(renewed.template("p1_0").subspaces.origin, gallery.template("p1_0").subspaces.origin)


def test_what_protects_nobody_is_no_gallery(photos):
    faces = photos(range(2))
    with pytest.warns(EvaluationOnlyWarning):
        weak = [conceal_embeddings(faces, "raw"), conceal_embeddings(faces, "random-2", evaluation_seed=1)]
    for templates in weak:
        with pytest.raises(InputError, match="protects nobody"):
            Gallery(templates)
    with pytest.raises(InputError, match="local"):
        Gallery.empty("ninja-sift-1+random-2", Extractor(), 64)


def test_templates_of_another_kind_are_refused(gallery, photos):
    faces, decoys = photos(range(8, 10)), build_face_decoys(photos(range(100, 140)))
    hybrid = Gallery(conceal_embeddings(photos(range(2)), "hybrid-2", decoys))
    others = build_face_decoys(photos(range(200, 240)))
    for old, new, words in (
        (gallery, conceal_embeddings(faces, "random-3"), "made with random-2, these templates with random-3"),
        (hybrid, conceal_embeddings(faces, "hybrid-2", others), "with other decoys"),
        (gallery, conceal_embeddings(Embeddings(faces.values, faces.names), "random-2"), "these are unknown"),
        (gallery, conceal_embeddings(Embeddings(np.eye(2, 8)), "random-2"), "64 dimensions"),
    ):
        with pytest.raises(InputError, match=words):
            old.add(new)


def test_there_is_one_threshold_for_each_comparison(gallery):
    first, second = (
        choose_threshold(np.arange(1.0, scale * 100, scale), 0.2, comparison="p-to-s", people=9) for scale in (1, 2)
    )
    with pytest.raises(InputError, match="calibrate"):
        gallery.threshold("p-to-s")
    marked = gallery.with_threshold(first).with_threshold(second)
    assert marked.thresholds == (second,)
    assert marked.threshold("p-to-s") is second
    with pytest.raises(InputError, match="comparison"):
        Gallery(gallery.templates, {}, (first, second))
