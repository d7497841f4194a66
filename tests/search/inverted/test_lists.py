# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.search.entries import Entries, read_blocks
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import Axes


@pytest.fixture
def made(lift_points):
    given = lift_points(40, n=8).subspaces
    axes = Axes.of(given.origin, linear=False)
    cells = np.random.default_rng(0).integers(0, 6, (40, 3)).astype(np.int32)

    def part(first, last):
        inside = slice(first, last)
        return InvertedLists.of(first, cells[inside], axes, given.origin[inside], given.basis[inside], 6)

    entries = Entries(8)
    entries.add(read_blocks(given, "x"))
    return part, entries


def test_two_runs_joined_are_one_made_at_once(made):
    part, _ = made
    joined, whole = part(0, 15).joined(part(15, 40)), part(0, 40)
    for name in ("start", "dim"):
        assert getattr(joined, name) == getattr(whole, name)
    for name in ("offsets", "members"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    for name in ("coarse", "fine"):
        apart = getattr(joined, name)[:, 12:].astype(int) - getattr(whole, name)[:, 12:]
        assert np.abs(apart).max() <= 1, "products of other shapes round differently"


def test_only_neighbours_of_like_size_join(made):
    part, _ = made
    assert part(0, 20).joins(part(20, 40))
    assert not part(0, 35).joins(part(35, 40))
    assert not part(0, 10).joins(part(20, 40))


def test_a_part_of_a_file_is_checked(made):
    part, entries = made
    good = part(0, 40)
    InvertedLists.checked(0, good.offsets, good.members, good.coarse, good.fine, entries, 6)
    codes = good.coarse, good.fine
    wrong = [
        (1, good.offsets, good.members, codes, 6),
        (99, good.offsets, good.members, codes, 6),
        (0, good.offsets, good.members, codes, 7),
        (0, good.offsets, good.members - 1, codes, 6),
        (0, good.offsets, good.members + 1, codes, 6),
        (0, good.offsets + 1, good.members, codes, 6),
        (0, good.offsets, good.members.astype(np.int64), codes, 6),
        (0, good.offsets, good.members, (good.coarse, good.fine[:, 1:]), 6),
        (0, good.offsets, good.members, (good.coarse[1:], good.fine), 6),
        (0, good.offsets, good.members, (good.fine, good.fine), 6),
        (0, np.array([0, 5, 3, 120, 120, 120, 120]), good.members, codes, 6),
        (0, np.array([0, 2**63 - 1, -5, 120, 120, 120, 120]), good.members, codes, 6),  # differences overflow
    ]
    for start, offsets, members, given, count in wrong:
        with pytest.raises(FileError):
            InvertedLists.checked(start, offsets, members, *given, entries, count)
