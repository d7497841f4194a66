# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.errors import InputError
from sfumato.search.archives import add_images, index_images, place_of, remove_images, search_images, votes


def image(seed, count=30):
    rng = np.random.default_rng(seed)
    subspaces = sfumato.Subspaces(rng.standard_normal((count, 12)), rng.standard_normal((count, 2, 12)))
    return sfumato.ConcealedFeatures(np.zeros((count, 4)), subspaces, "random-2")


@pytest.fixture
def images():
    return {"a.jpg": image(0), "none.jpg": image(1, 0), "b.jpg": image(2, 20)}


@pytest.fixture
def index(images):
    return index_images(images, "exact")


def test_ids_say_image_and_feature(index, images):
    answers = list(search_images(index, images, 2))
    assert [answer.name for answer in answers] == ["a.jpg", "none.jpg", "b.jpg"]
    assert [place_of(index, int(entry)) for entry in answers[2].ids[:3, 0]] == [("b.jpg", f) for f in range(3)]
    assert votes(index, answers[0]) == [("a.jpg", 30)]
    assert votes(index, answers[1]) == []
    assert "30 features" in repr(answers[0])


def test_images_come_and_go(index, images, tmp_path):
    assert add_images(index, {"c.jpg": image(5)}) == 30
    with pytest.raises(InputError, match=r"'c.jpg'"):
        add_images(index, {"c.jpg": image(6)})
    assert remove_images(index, ["a.jpg"]) == 30
    with pytest.raises(InputError, match=r"'a.jpg'"):
        remove_images(index, ["a.jpg"])
    index.save(tmp_path / "x.index")
    again = sfumato.search.load(tmp_path / "x.index")
    found = votes(again, next(search_images(again, {"q": image(5)}, 1)))
    assert found == [("c.jpg", 30)]
    assert add_images(again, {"a.jpg": image(0)}) == 30
    assert add_images(again, {}) == 0


def test_nothing_to_index_is_said():
    with pytest.raises(InputError, match="no feature"):
        index_images({"none.jpg": image(1, 0)})
