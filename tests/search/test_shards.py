# SPDX-License-Identifier: Apache-2.0
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.matching.executors import local_processes
from sfumato.search import shards as module
from sfumato.search.shards import Shards, _overlapping_spans, _refuse_shared, _Span, build_shards, merge


@pytest.fixture(scope="module")
def lifted(lift_points):
    return lift_points(900, n=16)


@pytest.fixture(scope="module")
def shards(lifted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    parts = (lifted.code[first : first + 300] for first in range(0, 900, 300))
    return build_shards(parts, [folder / f"{number}.index" for number in range(3)], kind="exact")


def test_shards_answer_like_one_index(shards, lifted):
    whole = sfumato.search.build(lifted.code, "exact")
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
    with pytest.raises(InputError, match="at least"):
        Shards([])
    with pytest.raises(FileError, match="no such"):
        Shards([tmp_path / "none.index"]).search(lifted.views[:1])
    with pytest.raises(InputError, match="k: expected"):
        shards.search(lifted.views[:1], 0)
    with pytest.raises(InputError, match=r"R\^16"):
        shards.search(np.zeros((1, 4)))


def test_damage_is_found_at_the_first_search(lifted, tmp_path):
    paths = [tmp_path / f"{number}.index" for number in range(2)]
    shards = build_shards([lifted.code[:300], lifted.code[300:600]], paths, kind="exact")
    assert shards.search(lifted.points[:1], 1)[1].tolist() == [[0]]
    data = bytearray(paths[1].read_bytes())
    data[-5000] ^= 64
    paths[1].write_bytes(data)
    with pytest.raises(FileError, match="damaged"):
        shards.search(lifted.points[:1], 1)


def test_as_many_paths_as_parts(lifted, tmp_path):
    parts, path = [lifted.code[:20], lifted.code[20:40]], tmp_path / "0.index"
    with pytest.raises(InputError, match="paths"):
        build_shards(parts, [path], kind="exact")
    with pytest.raises(InputError, match="paths"):
        build_shards(parts, [path, tmp_path / "1.index", tmp_path / "2.index"], kind="exact")
    for wrong in (lambda: Shards(str(path)), lambda: build_shards(parts, path)):
        with pytest.raises(InputError, match="path"):
            wrong()


def test_merging_breaks_ties_by_id():
    first = np.array([[0.5, np.inf]], np.float32), np.array([[7, -1]])
    second = np.array([[0.5, 0.75]], np.float32), np.array([[3, 9]])
    assert merge(first, second, 2)[1].tolist() == [[3, 7]]


def write_index(path, points, ids):
    sfumato.search.build(points, "exact", ids=ids).save(path)
    return path


def test_an_id_in_two_files_is_refused_and_both_are_named(lifted, tmp_path):
    points = lifted.points[:6]
    first = write_index(tmp_path / "a.index", points, np.arange(0, 12, 2))
    second = write_index(tmp_path / "b.index", points, [1, 3, 5, 7, 9, 10])
    third = write_index(tmp_path / "c.index", points, np.arange(20, 26))
    shards = Shards([third, first, second])
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool):
            with pytest.raises(InputError, match="10"):
                shards.search(points, 1, executor=executor)
    with pytest.raises(InputError, match="20"):
        Shards([third, third]).search(points, 1)
    index = sfumato.search.load(second)
    index.remove([10])
    index.save(second)
    assert sorted(shards.search(points[:1], 18)[1][0].tolist()) == [-1, *range(11), *range(20, 26)]


def test_ids_are_compared_only_where_they_mingle_and_once(lifted, tmp_path, monkeypatch):
    points, read = lifted.points[:6], []
    monkeypatch.setattr(module, "ids_of", lambda path, known=module.ids_of: read.append(path) or known(path))
    apart = [write_index(tmp_path / f"{n}.index", points, np.arange(6) + 6 * n) for n in range(3)]
    shards = Shards(apart)
    shards.search(points, 1)
    assert len(read) == 3  # once each, for where they lie
    shards.search(points, 1)
    assert len(read) == 3
    odd = write_index(tmp_path / "odd.index", points, [1, 3, 5, 7, 9, 11])
    even = write_index(tmp_path / "even.index", points, [0, 2, 4, 6, 8, 10])
    shards, read[:] = Shards([odd, even, apart[2]]), []
    shards.search(points, 1)
    shards.search(points, 1)
    assert sorted(read) == sorted(map(str, [odd, even, odd, even]))


def test_files_mingle_in_groups():
    def spans(*ends):
        return [_Span(str(number), ("", 0, number), *end) for number, end in enumerate(ends)]

    assert _overlapping_spans([]) == []
    assert _overlapping_spans(spans((0, 4), (5, 9), (10, 12))) == []
    assert _overlapping_spans(spans((0, -1), (0, -1))) == []
    found = _overlapping_spans(spans((20, 25), (0, 10), (25, 30), (2, 3), (4, 5), (11, 19)))
    assert [[span.path for span in group] for group in found] == [["1", "3", "4"], ["0", "2"]]


def test_an_id_twice_in_one_file_is_left_to_its_search():
    _refuse_shared(["a", "b"], [np.array([1, 1]), np.array([2])])
    _refuse_shared(["a"], [np.zeros(0, np.int64)])
    with pytest.raises(InputError, match="entry"):
        _refuse_shared(["a", "b", "c"], [np.array([1]), np.array([3, 7]), np.array([7])])
