# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import conceal_embeddings
from sfumato.errors import DecoyError, InputError
from sfumato.faces import enrollment
from sfumato.faces.compare import Threshold
from sfumato.faces.enrollment import refuse_decoys, refuse_different, refuse_similar
from sfumato.types.clear import Embeddings


def threshold(comparison, distance=0.5):
    return Threshold(
        comparison=comparison, distance=distance, wanted_rate=0.01, measured_rate=0.01, impostor_pairs=1000, people=40
    )


LIMIT = threshold("p-to-s")


@pytest.fixture
def templates(photos):
    return conceal_embeddings(photos(range(3)), "random-2")


@pytest.mark.parametrize("few", [0, 8])
def test_another_photo_is_similar_by_the_threshold_and_the_same_photo_always(templates, photos, monkeypatch, few):
    monkeypatch.setattr(enrollment, "FEW_FACES", few)
    newer, same = (Embeddings(photos(range(1), seed=seed).values, ("p1_0",)) for seed in (1, 0))
    for blocks in ([templates], [templates[:1], templates[1:]], [templates[1:], templates[:1]]):
        refuse_similar(blocks, None, newer)  # nobody can tell
        with pytest.raises(InputError, match=r"'p1_0' looks like 'p0_0'.*0\.02 "):
            refuse_similar(blocks, LIMIT, newer)
        for limit in (None, LIMIT):
            with pytest.raises(InputError, match=r"'p1_0'.*--allow-similar"):
                refuse_similar(blocks, limit, same)
            refuse_similar(blocks, limit, Embeddings(same.values, ("p0_0",)))  # who it is
    refuse_similar([templates], LIMIT, newer[:0])
    refuse_similar([], LIMIT, newer)


def test_a_face_the_old_template_rejects_is_different(templates, photos):
    right = photos(range(2), seed=1)
    swapped = Embeddings(right.values[::-1], right.names)
    refuse_different(templates[:2], LIMIT, right)
    refuse_different(templates[:0], LIMIT, right[:0])
    refuse_different(templates[:2], None, swapped)  # nobody can tell
    with pytest.raises(InputError, match=r"'p0_0'.* 0\.5000 .*2 of 2"):
        refuse_different(templates[:2], LIMIT, swapped)


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
