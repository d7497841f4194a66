# SPDX-License-Identifier: Apache-2.0
import itertools
import tracemalloc
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import FileError, InputError
from sfumato.matching.pairs import TILE, PairSet, exhaustive, list_pairs, parse_rule, read_pairs, sequential

NAMES = [f"{i:05}.jpg" for i in range(10_000)]


def reads(pairs, kept):
    """How many images a reader loads that keeps the last ``kept``."""
    cache, count = OrderedDict(), 0
    for name in itertools.chain.from_iterable(pairs):
        count += name not in cache
        cache[name] = None
        cache.move_to_end(name)
        if len(cache) > kept:
            cache.popitem(last=False)
    return count


@pytest.mark.parametrize("count", [0, 1, 2, 3, TILE, TILE + 1, 2 * TILE + 5])
def test_exhaustive_is_every_pair_once(count):
    pairs = exhaustive(reversed(NAMES[:count]))
    assert sorted(pairs) == list(itertools.combinations(NAMES[:count], 2))
    assert len(pairs) == len(list(pairs))


def test_fifty_million_pairs_are_not_held():
    names = list(NAMES)
    tracemalloc.start()
    pairs = exhaustive(names)
    first = list(itertools.islice(pairs, 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pairs) == 49_995_000
    assert len(set(first)) == 1000
    assert peak < 5_000_000


def test_the_order_reads_images_rarely():
    names = NAMES[: 8 * TILE]
    by_rows = list(itertools.combinations(names, 2))
    assert reads(exhaustive(names), TILE + 4) < reads(by_rows, TILE + 4) / 3
    assert reads(list_pairs(by_rows), TILE + 4) == reads(exhaustive(names), TILE + 4)


@pytest.mark.parametrize(("count", "overlap"), [(0, 1), (1, 2), (2, 1), (5, 1), (5, 2), (5, 4), (5, 99)])
def test_sequential_is_each_with_the_next(count, overlap):
    names = NAMES[:count]
    expected = [(names[i], names[j]) for i in range(count) for j in range(i + 1, count) if j - i <= overlap]
    pairs = sequential(reversed(names), overlap)
    assert list(pairs) == expected
    assert len(pairs) == len(expected)


@pytest.mark.parametrize("overlap", [0, -1, 1.5, "2", True])
def test_an_overlap_that_is_none(overlap):
    with pytest.raises(InputError, match="overlap"):
        sequential(NAMES[:3], overlap)


def test_one_text_is_not_a_list_of_names():
    with pytest.raises(InputError, match="several"):
        exhaustive("a.jpg")


def test_repeats_and_images_with_themselves_are_counted_and_left_out():
    given_pairs = [("b", "a"), ("a", "b"), ("b", "a"), ("c", "c"), ("a", "c")]
    pairs = list_pairs(iter(given_pairs))
    assert sorted(pairs) == [("a", "c"), ("b", "a")]  # in the order in which each was first named
    assert (len(pairs), pairs.duplicates, pairs.selves) == (2, 2, 1)
    assert pairs.names == ("a", "b", "c")
    assert list(list_pairs([])) == []


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh"))))
def test_a_list_keeps_each_unordered_pair_once(pairs):
    found = list(list_pairs(pairs))
    wanted = {frozenset(pair) for pair in pairs if pair[0] != pair[1]}
    assert {frozenset(pair) for pair in found} == wanted
    assert len(found) == len(wanted)
    assert set(found) <= set(pairs)


@pytest.mark.parametrize("pairs", [["ab"], [("a",)], [("a", "b", "c")], [("a", 1)], [None]])
def test_what_is_no_pair(pairs):
    with pytest.raises(InputError, match="image names"):
        list_pairs(pairs)


def test_unknown_names_are_told_all_at_once_with_a_suggestion():
    with pytest.raises(InputError, match=r"'db/1.jpg'"):
        list_pairs([("db/1.jpg", "db/7.jpg"), ("db/1.jpg", "zzz")], known={"db/1.jpg"})
    with pytest.raises(InputError, match="15"):
        list_pairs([(NAMES[i], NAMES[i + 1]) for i in range(19)], known=set())


def test_a_file_of_pairs(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_bytes(
        b"\xef\xbb\xbfq/1.jpg db/2.jpg\r\n\r\n# a comment\n  #another one\n\tq/1.jpg\tdb/\xff.jpg \ndb/2.jpg q/1.jpg"
    )
    pairs = read_pairs(path)
    assert sorted(pairs) == [("q/1.jpg", "db/2.jpg"), ("q/1.jpg", "db/\udcff.jpg")]
    assert pairs.duplicates == 1


def test_wrong_lines_are_told_with_their_numbers(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("a b\nmy photo.jpg b\n\na\n" + "x y z\n" * 9)
    with pytest.raises(FileError, match="words"):
        read_pairs(path)
    path.write_text("a b\n")
    with pytest.raises(FileError, match="'b'"):
        read_pairs(path, ["a"])
    for missing in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(FileError, match=r"no such|not a"):
            read_pairs(missing)


def test_a_set_of_pairs_knows_them_in_either_order():
    pairs = PairSet([("a", "b"), ("c", "a"), ("b", "a")])
    assert len(pairs) == 2
    assert ("a", "b") in pairs
    assert ("b", "a") in pairs
    assert ("a", "c") in pairs
    for other in (("b", "c"), ("a", "a"), ("a", "d"), "ab", ("a",), None):
        assert other not in pairs
    assert ("a", "b") not in PairSet()


def test_rules_have_a_name_and_a_number():
    assert parse_rule("exhaustive") == ("exhaustive", 0)
    assert parse_rule("sequential:10") == ("sequential", 10)
    assert parse_rule("votes:2") == ("votes", 2)
    for path in ("pairs.txt", "votes.txt", Path("votes:2"), [("a", "b")], None):
        assert parse_rule(path) == ("", 0)
    for wrong in ("exhaustive:3", "votes", "votes:", "votes:0", "votes:-1", "votes:x", "sequential", "sequential:1.5"):
        with pytest.raises(InputError, match=wrong.partition(":")[0]):
            parse_rule(wrong)
