# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import build_face_decoys, conceal_embeddings, split_decoys
from sfumato.errors import DecoyError, InputError
from sfumato.faces.gallery import Gallery
from sfumato.faces.probe import make_probe
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor


def test_a_probe_is_clear_or_lifted_as_the_gallery_is(photos):
    decoys, others = (build_face_decoys(photos(range(first, first + 40))) for first in (100, 200))
    gallery = Gallery(conceal_embeddings(photos(range(3)), "hybrid-2", split_decoys(decoys)[0]))
    face = photos(range(1), seed=2)
    assert np.array_equal(make_probe(face, gallery, "p-to-s"), face.values)
    lifted = make_probe(face, gallery, "s-to-s", decoys)
    assert lifted.recipe == gallery.recipe
    assert lifted.recipe.decoys == split_decoys(decoys)[1].checksum
    assert len(lifted) == 1
    with pytest.raises(DecoyError, match="needs decoys"):
        make_probe(face, gallery, "s-to-s")
    with pytest.raises(InputError, match="not the ones the gallery was made with"):
        make_probe(face, gallery, "s-to-s", others)


def test_embeddings_of_another_network_are_refused(photos):
    gallery = Gallery(conceal_embeddings(photos(range(3)), "random-2"))
    face = photos(range(1))
    with pytest.raises(InputError, match="dlib-face"):
        make_probe(Embeddings(face.values, (), Extractor("dlib-face")), gallery, "p-to-s")
    with pytest.raises(InputError, match="64"):
        make_probe(Embeddings(np.eye(1, 8)), gallery, "p-to-s")
    with pytest.raises(InputError, match="distance 'other' is unknown"):
        make_probe(face, gallery, "other")
