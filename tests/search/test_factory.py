# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.search.exact import ExactIndex, ExactParams
from sfumato.search.factory import KINDS, _check_params, _kind_class, load_entries, read_arrays, write_arrays


def test_kinds_have_their_names():
    for kind in KINDS:
        assert _kind_class(kind).kind == kind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("invertd",), "did you mean 'inverted'"),
        ((3,), "kind: expected one of"),
        (("exact", "angel"), "did you mean 'angle'"),
        (("exact", "distance", {"thread": 1}), "did you mean 'threads'"),
        (("exact", "distance", {"threads": 0}), "threads"),
        (("exact", "distance", 4), "expected a mapping or ExactParams"),
        (("exact", "distance", None, [1, 1]), "more than once"),
        (("inverted", "distance", {"points": np.zeros((3, 7))}), "expected 4 dimensions"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(InputError, match=message):
        sfumato.search.build(np.eye(2, 4), *arguments)


def test_zero_vectors_have_no_angle():
    with pytest.raises(InputError, match="zero vector"):
        sfumato.search.build(np.zeros((1, 3)), "exact", "angle")


def test_params_may_be_given_ready_made():
    params = ExactParams(threads=1)
    assert _check_params(ExactIndex, params) is params
    assert _check_params(ExactIndex, None) == ExactParams()


@pytest.mark.parametrize("kind", ["exact", "inverted"])
@pytest.mark.parametrize("metric", ["distance", "angle"])
def test_saved_and_loaded_answers_are_the_same(tmp_path, lift_points, kind, metric):
    lifted = lift_points(300, n=16)
    entries = [lifted.code, lifted.points[:50]]
    if metric == "angle":
        entries[0] = sfumato.Subspaces(np.zeros((300, 16)), lifted.code.basis)
    index = sfumato.search.build(entries, kind, metric, ids=np.arange(350) * 3)
    index.remove([3, 6])
    index.save(tmp_path / "x.index")
    again = sfumato.search.load(tmp_path / "x.index")
    assert (again.kind, again.metric, again.dim, len(again)) == (kind, metric, 16, 348)
    for one, other in zip(index.search(lifted.views, 4), again.search(lifted.views, 4), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.add(lifted.points[60:61]).tolist() == [349 * 3 + 1]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("inverted/members 0", lambda array: array + 1000),
        ("inverted/offsets 0", lambda array: array[::-1]),
        ("inverted/codes 0", lambda array: array[:, :-1]),
        ("inverted/centres", lambda array: array[:, 1:]),
        ("inverted/axes", lambda array: array.astype(float)),
        ("entries/alive", lambda array: array + 7),
    ],
)
def test_a_file_whose_numbers_point_beyond_is_refused(tmp_path, lift_points, name, change):
    sfumato.search.build(lift_points(200, n=8).code).save(tmp_path / "x.index")
    header, arrays = read_arrays(tmp_path / "x.index")
    write_arrays(tmp_path / "bad.index", header, {**arrays, name: change(arrays[name])})
    with pytest.raises(FileError, match="this index"):
        sfumato.search.load(tmp_path / "bad.index")


@pytest.mark.parametrize("key", ["kind", "metric", "params", "entries", "settings"])
def test_a_header_without_something_is_refused(tmp_path, key):
    sfumato.search.build(np.eye(3), "exact").save(tmp_path / "x.index")
    header, arrays = read_arrays(tmp_path / "x.index")
    del header[key]
    write_arrays(tmp_path / "bad.index", header, arrays)
    with pytest.raises(FileError, match="used"):
        sfumato.search.load(tmp_path / "bad.index")


def test_entries_are_read_without_the_rest(tmp_path):
    index = sfumato.search.build(np.eye(3), "inverted", "angle", {"filed": 2})
    index.remove([1])
    index.save(tmp_path / "x.index")
    chosen, metric, params, entries = load_entries(tmp_path / "x.index")
    assert (chosen.kind, metric, params.filed, entries.alive_ids().tolist()) == ("inverted", "angle", 2, [0, 2])
    header, arrays = read_arrays(tmp_path / "x.index")
    write_arrays(tmp_path / "bad.index", {**header, "kind": "inverse"}, arrays)
    with pytest.raises(FileError, match="used"):
        load_entries(tmp_path / "bad.index")


def test_descriptors_of_another_kind_are_refused():
    rng = np.random.default_rng(0)

    def features(extractor):
        subspaces = sfumato.Subspaces(rng.standard_normal((3, 8)), rng.standard_normal((3, 2, 8)))
        return sfumato.ConcealedFeatures(np.zeros((3, 4)), subspaces, "random-2", sfumato.Extractor(extractor))

    index = sfumato.search.build(features("sift"), "exact")
    index.search(features("sift"), 1)
    with pytest.raises(InputError, match="rootsift"):
        index.search(features("rootsift"), 1)
    with pytest.raises(InputError, match="rootsift"):
        index.add(features("rootsift"))
