# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.types.clear import Embeddings, people_of
from sfumato.types.extractor import Extractor


def test_rows_are_scaled_to_unit_norm_and_unit_rows_stay_to_the_last_bit():
    rows = np.random.default_rng(0).normal(size=(5, 16))
    made = Embeddings(rows, tuple("abcde"), Extractor("arcface"))
    assert np.abs(np.linalg.norm(made.values, axis=1) - 1).max() < 1e-6
    assert np.array_equal(Embeddings(made.values, made.names).values, made.values)
    assert not made.values.flags.writeable


def test_rows_without_names_are_named_by_number():
    assert Embeddings(np.eye(3)).names == ("0", "1", "2")
    assert len(Embeddings(np.zeros((0, 4)))) == 0


def test_rows_are_selected_with_their_names():
    made = Embeddings(np.eye(4), tuple("abcd"), Extractor("arcface"))
    assert made[[2, 0]].names == ("c", "a")
    assert made[1:1].values.shape == (0, 4)
    assert made[made.values[:, 3] == 1].extractor.name == "arcface"


@pytest.mark.parametrize(
    ("values", "names", "words"),
    [
        (np.zeros((2, 4)), (), "no direction"),
        (np.full((1, 4), np.nan), (), "not finite"),
        (np.eye(3), ("a",), "3 rows have 1 names"),
        (np.eye(1, 3), ("a\x1b[31m",), "printable"),
        (np.eye(3)[0], (), "shape"),
        (np.zeros((0, 0)), (), "one dimension"),
    ],
)
def test_what_is_no_embedding_is_refused(values, names, words):
    with pytest.raises(InputError, match=words):
        Embeddings(values, names)


def test_the_repr_shows_no_value():
    assert repr(Embeddings(np.eye(2, 3), ("secret person", "b"))) == "Embeddings(2 x 3 unknown, clear)"


def test_numbers_behind_a_name_are_left_out():
    assert people_of(["A_B_0001", "A_B_0002", "x-3", "12", "_7"]) == ("A_B", "A_B", "x", "12", "_7")
