# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError
from sfumato.search.archives import index_images, remove_images, summarise
from sfumato.search.factory import KINDS, build


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sketch"])
def test_every_kind_is_told_in_counts(tmp_path, lift_points, kind):
    index = build(lift_points(60, n=16).code, kind)
    index.remove([3, 4])
    index.save(tmp_path / "x.index")
    found = summarise(tmp_path / "x.index", check=True)
    assert (found.kind, found.metric, found.dim) == (kind, "distance", 16)
    assert (found.entries, found.removed, dict(found.subspaces)) == (58, 2, {2: 58})
    assert (found.first_id, found.last_id, dict(found.images)) == (0, 59, {})
    assert (found.extractor, found.space) == ("", "")
    assert found.size_bytes == (tmp_path / "x.index").stat().st_size
    assert not {"threads", "points"} & set(found.params)
    assert ("filed" in found.params) == (kind == "inverted")


def test_images_and_dimensions_are_counted_without_those_removed(tmp_path):
    rng, images = np.random.default_rng(0), {}
    for name, count, recipe in (("a.jpg", 5, "random-2"), ("b.jpg", 7, "random-4"), ("c.jpg", 3, "random-4")):
        rows = rng.normal(size=(count, 16))
        images[name] = sfumato.conceal(sfumato.Features(np.ones((count, 4)), rows, sfumato.Extractor("sift")), recipe)
    index = index_images(images, "exact")
    remove_images(index, ["b.jpg"])
    index.save(tmp_path / "x.index")
    found = summarise(tmp_path / "x.index")
    assert dict(found.images) == {"a.jpg": 5, "c.jpg": 3}
    assert dict(found.subspaces) == {2: 5, 4: 3}
    assert (found.extractor, found.space, found.entries, found.removed) == ("sift", "clear", 8, 7)


def test_an_index_of_nothing(tmp_path):
    index = build(np.eye(4, dtype=np.float32), "exact")
    index.remove(np.arange(4))
    index.save(tmp_path / "x.index")
    found = summarise(tmp_path / "x.index", check=True)
    assert (found.entries, found.removed, dict(found.subspaces)) == (0, 4, {})
    assert (found.first_id, found.last_id) == (-1, -1)


def test_damage_within_is_found_by_a_check_alone(tmp_path, lift_points):
    path = tmp_path / "x.index"
    build(lift_points(60, n=16).code, "exact").save(path)
    data = bytearray(path.read_bytes())
    data[-3000] ^= 1
    path.write_bytes(data)
    assert summarise(path).entries == 60
    with pytest.raises(FileError, match="damaged"):
        summarise(path, check=True)
    path.write_bytes(data[:-100])
    with pytest.raises(FileError, match="damaged"):
        summarise(path)
