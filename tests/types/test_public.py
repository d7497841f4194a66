# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.types.concealed import PublicPoints
from sfumato.types.extractor import Extractor


def test_values_are_checked_detached_and_read_only():
    descriptors = np.eye(3, 8)
    made = PublicPoints([5, 7, 5], descriptors, Extractor("sift"))
    descriptors[:] = 0
    assert len(made) == 3
    assert made.descriptors.dtype == np.float32
    assert made.points.dtype == np.int64
    assert made.descriptors.sum() == 3
    with pytest.raises(ValueError, match="read-only"):
        made.descriptors[0, 0] = 1


def test_text_forms_show_no_values():
    assert repr(PublicPoints([5], np.full((1, 4), 0.12345))) == "PublicPoints(1 x 4 unknown, published)"


def test_none_is_valid():
    assert len(PublicPoints(np.zeros(0, np.int64), np.zeros((0, 8)))) == 0


@pytest.mark.parametrize(
    ("points", "descriptors", "message"),
    [
        ([-1], np.eye(1, 8), "points"),
        ([1.5], np.eye(1, 8), "points"),
        ([1, 2], np.eye(1, 8), "descriptors"),
        ([1], np.full((1, 8), np.nan), "not finite"),
        ([1], np.zeros((1, 0)), "at least one dimension"),
    ],
)
def test_mistakes(points, descriptors, message):
    with pytest.raises(InputError, match=message):
        PublicPoints(points, descriptors)


def test_an_extractor_is_asked_for():
    with pytest.raises(InputError, match="extractor"):
        PublicPoints([1], np.eye(1, 8), "sift")


def test_it_is_no_relative_of_the_clear_and_concealed_types():
    from sfumato.types.clear import Features
    from sfumato.types.concealed import ConcealedFeatures

    assert PublicPoints.__mro__[1:] == (object,)
    assert not issubclass(PublicPoints, Features | ConcealedFeatures)
