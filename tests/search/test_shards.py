# SPDX-License-Identifier: Apache-2.0
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.matching.executors import local_processes
from sfumato.search.shards import Shards, build_shards, merge


@pytest.fixture(scope="module")
def lifted(lift_points):
    return lift_points(900, n=16)


@pytest.fixture(scope="module")
def shards(lifted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    parts = (lifted.subspaces[first : first + 300] for first in range(0, 900, 300))
    return build_shards(parts, [folder / f"{number}.index" for number in range(3)], kind="exact")


def test_shards_answer_like_one_index(shards, lifted):
    whole = sfumato.search.build(lifted.subspaces, "exact")
    for k in (1, 5, 1000):
        expected, found = whole.search(lifted.views[:30], k), shards.search(lifted.views[:30], k)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
        np.testing.assert_array_equal(found[1][:, :5], expected[1][:, :5])
    assert shards.search_counted(lifted.views[:30])[2].looked_at == 30 * 900
    assert (len(shards), repr(shards)) == (3, "Shards(3 files)")


def test_any_executor_will_do(shards, lifted):
    alone = shards.search(lifted.views[:10], 3)
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(shards.search(lifted.views[:10], 3, executor=pool)[1], alone[1])
    with local_processes(1) as pool:
        np.testing.assert_array_equal(shards.search(lifted.views[:10], 3, executor=pool)[1], alone[1])


def test_mistakes(shards, lifted, tmp_path):
    with pytest.raises(InputError, match="at least one index"):
        Shards([])
    with pytest.raises(FileError, match="no such index"):
        Shards([tmp_path / "none.index"]).search(lifted.views[:1])
    with pytest.raises(InputError, match="k: expected"):
        shards.search(lifted.views[:1], 0)
    with pytest.raises(InputError, match=r"R\^16"):
        shards.search(np.zeros((1, 4)))


def test_damage_is_found_at_the_first_search(lifted, tmp_path):
    paths = [tmp_path / f"{number}.index" for number in range(2)]
    shards = build_shards([lifted.subspaces[:300], lifted.subspaces[300:600]], paths, kind="exact")
    assert shards.search(lifted.points[:1], 1)[1].tolist() == [[0]]
    data = bytearray(paths[1].read_bytes())
    data[-5000] ^= 64
    paths[1].write_bytes(data)
    with pytest.raises(FileError, match="damaged"):
        shards.search(lifted.points[:1], 1)


def test_as_many_paths_as_parts(lifted, tmp_path):
    parts, path = [lifted.subspaces[:20], lifted.subspaces[20:40]], tmp_path / "0.index"
    with pytest.raises(InputError, match="more of them than the 1 paths"):
        build_shards(parts, [path], kind="exact")
    with pytest.raises(InputError, match="one for each of 3 paths, got 2"):
        build_shards(parts, [path, tmp_path / "1.index", tmp_path / "2.index"], kind="exact")
    for wrong in (lambda: Shards(str(path)), lambda: build_shards(parts, path)):
        with pytest.raises(InputError, match="path"):
            wrong()


def test_merging_breaks_ties_by_id():
    first = np.array([[0.5, np.inf]], np.float32), np.array([[7, -1]])
    second = np.array([[0.5, 0.75]], np.float32), np.array([[3, 9]])
    assert merge(first, second, 2)[1].tolist() == [[3, 7]]
