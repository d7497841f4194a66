# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.concealment.faces import build_face_decoys, conceal_embeddings, split_decoys
from sfumato.errors import DecoyError, InputError
from sfumato.faces.gallery import Gallery
from sfumato.faces.gallery_file import load_gallery
from sfumato.faces.probe import make_probe
from sfumato.features.embeddings import save_embeddings
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
    with pytest.raises(InputError, match="gallery"):
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


def test_a_gallery_is_used_from_python_with_arrays_files_and_tables(photos, tmp_path):
    path, first, newer = tmp_path / "gallery.sqlite", photos(range(3)), photos(range(3), seed=1)
    for faces in (first.values, first.values[0]):
        with pytest.raises(InputError, match="ids"):
            sfumato.enroll(faces, path)
    assert sfumato.enroll(first.values, path, ids=["a", "b", "c"], extractor="arcface", recipe="random-2").people == 3
    save_embeddings(tmp_path / "newer.npz", newer)
    assert sfumato.identify(tmp_path / "newer.npz", path, k=1, row="p1_0").candidates[0].id == "b"
    found = sfumato.identify(newer.values[1], load_gallery(path), k=2, extractor="arcface")
    assert (found.candidates[0].id, found.people, found.accepts(found.candidates[0])) == ("b", 3, None)
    assert found.expected_by_chance is None
    strangers = photos(range(100, 200))
    with pytest.raises(InputError, match="people"):
        sfumato.calibrate(strangers.values, path, rate=0.01, extractor="arcface")
    with pytest.raises(InputError, match="person"):
        sfumato.calibrate(strangers, path, rate=0.01, people={"p100_0": "someone"})
    named = dict(zip(strangers.names, strangers.names, strict=True))
    threshold = sfumato.calibrate(strangers, path, rate=0.01, people=named)
    assert threshold == sfumato.calibrate(strangers, path, rate=0.01, people=list(named)) or threshold.people == 100
    assert sfumato.verify(newer[[1]], path, "b").accepted
    accepted = sum(sfumato.verify(strangers[[row]], path, "b").accepted for row in range(100))
    assert accepted <= 15  # one is expected, and draws differ from run to run
    assert sfumato.identify(newer[[1]], path).expected_by_chance == pytest.approx(
        3 * load_gallery(path).thresholds[0].measured_rate
    )
    assert sfumato.renew(newer[[1]], path, ids="b", allow_similar=True).ids == ("b",)
    assert sfumato.revoke(["b", "b"], path).ids == ("b",)
    with pytest.raises(InputError, match="revoked"):
        sfumato.verify(newer[[1]], path, "b")
    with pytest.raises(InputError, match="label"):
        sfumato.enroll(photos(range(5, 6)), tmp_path / "new.sqlite", labels={}, recipe="random-2")
