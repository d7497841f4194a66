# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import conceal_embeddings
from sfumato.errors import DecoyError, InputError
from sfumato.faces import enrollment
from sfumato.faces.compare import Threshold
from sfumato.faces.enrollment import point_threshold, refuse_decoys, refuse_different, refuse_similar
from sfumato.faces.gallery import Gallery
from sfumato.types.clear import Embeddings


def threshold(comparison, distance=0.5):
    return Threshold(
        comparison=comparison, distance=distance, wanted_rate=0.01, measured_rate=0.01, impostor_pairs=1000, people=40
    )


@pytest.fixture
def gallery(photos):
    return Gallery(conceal_embeddings(photos(range(3)), "random-2"))


def test_only_a_threshold_for_clear_probes_judges_clear_faces(gallery):
    assert point_threshold(gallery) is None
    assert point_threshold(gallery.with_threshold(threshold("s-to-s"))) is None
    assert point_threshold(gallery.with_threshold(threshold("p-to-s"))).comparison == "p-to-s"


def test_another_photo_is_similar_by_the_threshold_and_the_same_photo_always(gallery, photos):
    names, ids = photos(range(1)).names, ("p1_0",)
    newer, same = (Embeddings(photos(range(1), seed=seed).values, names) for seed in (1, 0))
    marked = gallery.with_threshold(threshold("p-to-s"))
    refuse_similar(gallery, newer, ids)  # nobody can tell
    with pytest.raises(InputError, match="'p1_0'"):
        refuse_similar(marked, newer, ids)
    for people in (gallery, marked):
        with pytest.raises(InputError, match="'p1_0'"):
            refuse_similar(people, same, ids)
        refuse_similar(people, same, ("p0_0",))  # who it is
    refuse_similar(marked, newer[:0], ())


def test_a_face_the_old_template_rejects_is_different(gallery, photos):
    right = photos(range(2), seed=1)
    swapped = Embeddings(right.values[::-1], right.names)
    marked = gallery.with_threshold(threshold("p-to-s"))
    refuse_different(marked, right)
    refuse_different(marked, right[:0])
    refuse_different(gallery, swapped)  # nobody can tell
    with pytest.raises(InputError, match=r"'p0_0'.* 0\.5000 .*2 of 2"):
        refuse_different(marked, swapped)


def test_decoys_are_other_people(photos, monkeypatch):
    monkeypatch.setattr(enrollment, "AT_ONCE", 2)
    faces, others = photos(range(5)), photos(range(100, 140))
    refuse_decoys(faces, None)
    refuse_decoys(faces, Decoys(others.values))
    refuse_decoys(faces, Decoys(np.eye(3)))  # of other dimensions: refused elsewhere
    refuse_decoys(faces[:0], Decoys(others.values))
    refuse_decoys(faces, Decoys(photos(range(5), seed=1).values))  # other photos of the same people are not seen
    nearly = np.concatenate([others.values, np.zeros((1, 64)), 7 * faces.values[[3]] + 0.01])
    with pytest.raises(DecoyError, match="--faces"):
        refuse_decoys(faces, Decoys(nearly))
