# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.search.descriptors import (
    DescriptorProtocol,
    descriptor_search_table,
    draw_recall,
    evaluate_descriptors,
    make_data,
)
from sfumato.training.pairs import DescriptorPairs
from sfumato.types.extractor import Extractor

METHODS = ("exact", "grassmann", "projector flat", "projector ivf")
PROTOCOL = DescriptorProtocol(
    methods=METHODS, efforts=(0.01, 0.2), recipe="random-2", entries=400, queries=60, alone=3, seed=4
)


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    first = rng.uniform(size=(500, 128)).astype(np.float32) ** 3
    second = first + 0.02 * rng.normal(size=first.shape).astype(np.float32)
    first, second = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, second))
    points = np.arange(500)
    points[1] = 0  # two pairs of one point
    return DescriptorPairs(first, second, points, np.zeros(500, np.int32), Extractor("sift"))


@pytest.fixture(scope="module")
def measured(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("descriptors")
    return folder, evaluate_descriptors(pairs, folder, PROTOCOL)


def scores(record):
    return {score.name: score.value for score in record.scores}


def test_queries_are_other_views_of_entries(pairs):
    data = make_data(pairs, PROTOCOL)
    assert (len(data.entries), data.entries.dim, len(data.queries)) == (400, 2, 60)
    index_of_first = [0, *range(2, 401)]  # one entry for each point
    assert np.array_equal(data.queries, pairs.second[index_of_first][data.truth])
    lifted = make_data(pairs, DescriptorProtocol(recipe="random-2", kind_of_queries="subspaces", queries=5))
    assert lifted.queries.dim == 2


def test_exact_search_has_full_recall_and_others_less(measured):
    records = measured[1]
    assert [(r.params["method"], r.params["effort"]) for r in records] == [
        (name, effort) for name in METHODS for effort in ((None,) if name == "exact" else (0.01, 0.2))
    ]
    exact = scores(records[0])
    assert (exact["recall@1"], exact["recall@10"]) == (1, 1)
    assert exact["truth@1"] > 0.95
    for few, many in zip(records[1::2], records[2::2], strict=True):
        assert scores(few)["recall@10"] < scores(many)["recall@10"] <= 1
        assert scores(few)["compared"] < scores(many)["compared"] <= 0.21
        assert scores(few)["queries a second"] > 0
        assert scores(few)["queries a second, alone"] > 0
    assert scores(records[4])["recall@1"] > 0.9


def test_no_descriptor_is_kept(measured, pairs):
    folder = measured[0]
    sizes = [members[name].shape for path in folder.rglob("*.npz") for members in [np.load(path)] for name in members]
    assert sizes
    assert all(128 not in shape for shape in sizes)


def test_what_was_measured_is_kept(measured, pairs):
    folder, records = measured
    again = evaluate_descriptors(pairs, folder, PROTOCOL)
    assert [one.to_json() for one in again] == [one.to_json() for one in records]


def test_tables_and_figures(measured, tmp_path):
    assert "| projector ivf | 0.2 | 400 |" in descriptor_search_table(measured[1]).to_markdown()
    assert all(path.exists() for path in draw_recall(measured[1], tmp_path / "d"))


@pytest.mark.parametrize(
    "wrong", [{"methods": ()}, {"queries": 0}, {"entries": 0}, {"efforts": (2.0,)}, {"kind_of_queries": "lines"}]
)
def test_protocols_that_can_not_be(wrong):
    with pytest.raises(InputError):
        DescriptorProtocol(**wrong)
