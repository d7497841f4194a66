# SPDX-License-Identifier: Apache-2.0
"""Indexes of bits: every kind that takes them, against the definition."""

import tracemalloc

import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.hamming import distances as hamming
from sfumato.search.archives import add_images, index_images, remove_images, search_images, summarise, votes
from sfumato.search.entries import Entries, read_blocks
from sfumato.search.exact import MANY_CODES
from sfumato.search.factory import read_arrays
from sfumato.search.sketch import SketchIndex, sketch_blocks

KINDS = ("exact", "sketch")


def codes(count, bits=512, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, bits // 8), np.uint8)


def views(packed, share=0.25, seed=1):
    """The same codes, with a share of their bits changed."""
    noise = np.random.default_rng(seed).random((len(packed), 8 * packed.shape[1])) < share
    return packed ^ np.packbits(noise, axis=1)


def nearest(queries, entries, k):
    """The definition: distances and rows, of equals the lower row first."""
    matrix = hamming(queries, entries)
    rows = np.argsort(matrix, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(matrix, rows, axis=1), rows


@pytest.mark.parametrize("bits", [8, 72, 128, 512])
@pytest.mark.parametrize("count", [1, 20, MANY_CODES])
def test_exact_is_the_definition(bits, count):
    entries, queries = codes(300, bits), codes(count, bits, seed=5)
    found = sfumato.search.build(sfumato.Bits(entries), "exact").search(sfumato.Bits(queries), 4)
    expected = nearest(queries, entries, 4)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert (found[0].dtype, found[1].dtype) == (np.float32, np.int64)


@pytest.mark.parametrize("bits", [136, 200, 512])
@pytest.mark.parametrize("threads", [1, 3])
def test_sketch_gives_the_nearest_of_its_candidates(bits, threads):
    entries = codes(9001, bits)
    queries = views(entries[:12], 0.3)
    index = sfumato.search.build(sfumato.Bits(entries), "sketch", params={"threads": threads})
    index.remove([3])
    distances, ids, stats = index.search_counted(sfumato.Bits(queries), 3, effort=0.6)
    limit = index.limit(3, 0.6)
    near = hamming(queries[:, :16], entries[:, :16]) <= limit
    near[:, 3] = False
    matrix = np.where(near, hamming(queries, entries), 2**20)
    rows = np.argsort(matrix, axis=1, kind="stable")[:, :3]
    is_there = np.take_along_axis(near, rows, axis=1)
    np.testing.assert_array_equal(ids, np.where(is_there, rows, -1))
    np.testing.assert_array_equal(distances, np.where(is_there, np.take_along_axis(matrix, rows, axis=1), np.inf))
    assert (stats.looked_at, stats.evaluated) == (12 * 9000, int(near.sum()))
    near = hamming(queries[:, :16], entries[:, :16]) <= index.limit(1, 0.6)
    near[:, 3] = False
    for candidates, row in zip(index.candidates(sfumato.Bits(queries), 0.6), near, strict=True):
        np.testing.assert_array_equal(candidates, np.flatnonzero(row))


def test_sketch_finds_what_is_related_and_looks_at_little():
    entries = codes(40_000)
    queries = views(entries[:400])
    index = sfumato.search.build(sfumato.Bits(entries))
    assert isinstance(index, SketchIndex)
    _, ids, stats = index.search_counted(sfumato.Bits(queries), 1)
    assert np.mean(ids[:, 0] == np.arange(400)) > 0.97
    assert stats.evaluated < 0.006 * stats.looked_at
    assert stats.empty == 0
    least, most = (index.search(sfumato.Bits(views(entries[:400], 0.34)), 1, effort)[1] for effort in (0.0, 0.6))
    recall = [np.mean(found[:, 0] == np.arange(400)) for found in (least, most)]
    assert recall[0] + 0.3 < recall[1]


def test_efforts_are_shares_of_unrelated_codes():
    index = sfumato.search.build(sfumato.Bits(codes(20_000)))
    assert [index.limit(1, effort) for effort in (0.0, 0.5, 0.6)] == [44, 48, 50]
    assert index.limit(1, None) == 48
    assert index.limit(1, 1.0) is None
    assert index.limit(40, 0.5) > 48, "as many as there should be answers"
    assert index.limit(500, 0.5) is None
    assert sfumato.search.build(sfumato.Bits(codes(20_000, 128))).limit(1, 0.5) is None


def test_few_codes_and_the_greatest_effort_are_exact():
    entries, queries = codes(200), codes(9, seed=4)
    few = sfumato.search.build(sfumato.Bits(entries))
    np.testing.assert_array_equal(few.search(sfumato.Bits(queries), 5)[1], nearest(queries, entries, 5)[1])
    many = codes(5000, seed=7)
    all_compared = sfumato.search.build(sfumato.Bits(many)).search(sfumato.Bits(queries), 2, effort=1)[1]
    np.testing.assert_array_equal(all_compared, nearest(queries, many, 2)[1])


def test_sketches_are_the_first_words_of_blocks_of_entries():
    entries = codes(70)
    blocks = sketch_blocks(entries)
    assert blocks.shape == (3, 8, 32)
    np.testing.assert_array_equal(blocks[1, :, 5], entries.view(np.uint16)[37, :8])
    assert not blocks[2, :, 6:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_added_removed_saved_and_loaded(tmp_path, kind):
    entries = codes(5000)
    index = sfumato.search.build([sfumato.Bits(entries[:4000]), sfumato.Bits(entries[4000:4500])], kind)
    assert index.add(sfumato.Bits(entries[4500:]), np.arange(9000, 9500)).tolist() == [*range(9000, 9500)]
    assert index.remove([0, 9499]) == 2
    index.save(tmp_path / "x.index")
    again = sfumato.search.load(tmp_path / "x.index")
    assert (again.kind, again.dim, len(again), repr(again)) == (kind, 512, 4998, repr(index))
    assert "of 512 bits" in repr(again)
    assert "of 512 bits" in repr(again.entries)
    queries = sfumato.Bits(views(entries[[0, 1, 4998, 4999]], 0.1))
    for one in (index, again):
        assert one.search(queries, 1)[1][1:3, 0].tolist() == [1, 9498]
        assert not np.isin(one.search(queries, 3)[1], [0, 9499]).any()
    assert again.add(sfumato.Bits(entries[:1])).tolist() == [9500]
    assert again.search(queries, 1)[1][0, 0] == 9500


def test_bits_stay_packed_in_memory_and_in_the_file(tmp_path):
    entries = sfumato.Bits(codes(50_000))
    queries = sfumato.Bits(views(entries.packed[:50]))
    sfumato.search.build(entries).search(queries, 1)  # what is compiled or imported is not counted
    tracemalloc.start()
    index = sfumato.search.build(entries)
    index.search(queries, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert index.entries.segments[0].origin is not None
    assert np.shares_memory(index.entries.segments[0].origin, entries.packed)
    assert peak < 2 * entries.packed.nbytes, "floats would be 32 times as large"
    index.save(tmp_path / "x.index")
    assert (tmp_path / "x.index").stat().st_size < 50_000 * (64 + 9) + 10_000
    origin = sfumato.search.load(tmp_path / "x.index", verify=False).entries.segments[0].origin
    assert origin.dtype == np.uint8
    base = origin
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) or "mmap" in type(base).__module__


@pytest.mark.parametrize("change", [
    lambda arrays: {"origin 0": arrays["origin 0"][:-1]},
    lambda arrays: {"origin 0": arrays["origin 0"][:, :-1]},
    lambda arrays: {"origin 0": arrays["origin 0"].view(np.uint8)},
    lambda arrays: {"origin 0": arrays["origin 0"].reshape(-1)},
])  # fmt: skip
def test_codes_of_a_file_that_do_not_fit_are_refused(change):
    entries = Entries(512, is_bits=True)
    entries.add(read_blocks(sfumato.Bits(codes(5)), "x"))
    arrays = entries.arrays()
    assert len(Entries.restore(arrays, entries.settings())) == 5
    with pytest.raises(FileError):
        Entries.restore({**arrays, **change(arrays)}, entries.settings())


def test_a_file_of_bits_for_a_kind_of_subspaces_is_refused(tmp_path):
    from sfumato.search.factory import write_arrays

    sfumato.search.build(sfumato.Bits(codes(5)), "exact").save(tmp_path / "x.index")
    header, arrays = read_arrays(tmp_path / "x.index")
    write_arrays(tmp_path / "bad.index", {**header, "kind": "inverted", "params": {}}, arrays)
    with pytest.raises(FileError, match="inverted"):
        sfumato.search.load(tmp_path / "bad.index")


BITS = sfumato.Bits(codes(6))


@pytest.mark.parametrize(
    ("work", "word"),
    [
        (lambda: sfumato.search.build(BITS, "inverted"), "sketch or exact"),
        (lambda: sfumato.search.build(BITS, "grassmann"), "512 bits"),
        (lambda: sfumato.search.build(BITS, "projector"), "512 bits"),
        (lambda: sfumato.search.build(np.eye(8), "sketch"), "inverted or exact"),
        (lambda: sfumato.search.build(BITS, "exact", "angle"), "angle"),
        (lambda: sfumato.search.build([BITS, np.eye(8)], "exact"), "apart"),
        (lambda: sfumato.search.build([BITS, sfumato.Bits(codes(2, 256))], "exact"), "256 bits"),
        (lambda: sfumato.search.build(BITS).search(sfumato.Bits(codes(2, 256))), "256 bits"),
        (lambda: sfumato.search.build(BITS).search(np.zeros((1, 512))), r"R\^512"),
        (lambda: sfumato.search.build(np.eye(512), "exact").search(BITS), "512 bits"),
        (lambda: sfumato.search.build(BITS).add(np.zeros((1, 512))), r"R\^512"),
        (lambda: sfumato.search.build(BITS, params={"points": None}), "sketch has no 'points'"),
    ],
)
def test_mistakes(work, word):
    with pytest.raises(InputError, match=word):
        work()


def image(seed, count=50, space="sealed-512"):
    features = sfumato.Bits(codes(count, seed=seed))
    return sfumato.ConcealedFeatures(np.zeros((count, 4)), features, space, sfumato.Extractor("sift"))


def test_sealed_images_come_and_go(tmp_path):
    index = index_images({"a.jpg": image(0), "b.jpg": image(1)})
    assert index.kind == "sketch"
    assert add_images(index, {"c.jpg": image(2)}) == 50
    assert votes(index, next(search_images(index, {"q": image(2)}, 1))) == [("c.jpg", 50)]
    assert remove_images(index, ["a.jpg"]) == 50
    index.save(tmp_path / "x.index")
    summary = summarise(tmp_path / "x.index", check=True)
    assert (summary.is_bits, summary.dim, summary.entries, dict(summary.subspaces)) == (True, 512, 100, {})
    assert dict(summary.images) == {"b.jpg": 50, "c.jpg": 50}


def test_an_index_of_no_bits():
    index = sfumato.search.build(sfumato.Bits(codes(0)))
    assert index.search(BITS, 2)[1].tolist() == [[-1, -1]] * 6
    index.add(BITS)
    assert index.search(BITS, 1)[1][:, 0].tolist() == [*range(6)]
    assert index.search(sfumato.Bits(codes(0)), 3)[1].shape == (0, 3)
