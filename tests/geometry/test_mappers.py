# SPDX-License-Identifier: Apache-2.0
import pycolmap
import pytest

from sfumato.errors import InputError
from sfumato.geometry.colmap import write_database
from sfumato.geometry.mappers import (
    DATABASE,
    MapParams,
    _image_names,
    _pipeline_options,
    _progress_ticks,
    run_mapper,
)
from sfumato.geometry.verify import VerifyParams, verify


@pytest.fixture
def work(tmp_path, scene):
    write_database(tmp_path / DATABASE, scene.keypoints, scene.cameras, {})
    return tmp_path


@pytest.mark.parametrize(
    ("guessed", "refine", "fixed"),
    [((), None, 6), (("00.jpg", "01.jpg"), None, 4), ((), True, 0), (("00.jpg",), False, 6)],
)
def test_which_cameras_stay_as_they_are(work, guessed, refine, fixed):
    options = _pipeline_options(work, MapParams(guessed=guessed, refine_intrinsics=refine, seed=7, threads=2))
    assert len(options.constant_cameras) == fixed
    assert options.ba_refine_focal_length == options.ba_refine_extra_params == (fixed < 6)
    assert not options.ba_refine_principal_point
    assert not options.extract_colors
    assert (options.random_seed, options.num_threads) == (7, 2)


def test_a_shared_camera_is_fixed_only_for_all(tmp_path, scene):
    write_database(tmp_path / DATABASE, scene.keypoints, scene.cameras, {}, shared=True)
    assert _pipeline_options(tmp_path, MapParams()).constant_cameras == {1}
    assert _pipeline_options(tmp_path, MapParams(guessed=["03.jpg"])).constant_cameras == set()


def test_names_come_from_the_database(work, scene):
    assert sorted(_image_names(work)) == sorted(scene.keypoints)


def test_ticks_advance_a_wrapped_iterable():
    shown, ended = [], []

    def bar(items, total):
        shown.append(total)
        try:
            for item in items:
                yield item
                shown.append(item)
        finally:
            ended.append(True)

    with _progress_ticks(bar, 3) as tick:
        tick()
        tick()
        assert shown == [3, 0, 1]
    assert ended == [True]
    with _progress_ticks(lambda items, total: items, 1) as tick:
        for _ in range(5):
            tick()


def test_parameters():
    assert MapParams().verify_params == VerifyParams(seed=0)
    assert MapParams(seed=3, threads=2).verify_params == VerifyParams(seed=3)
    assert MapParams(verification=VerifyParams(min_inliers=30)).verify_params.min_inliers == 30
    both = (("incremental", 3), ("global", 3), ("incremental", 4))
    assert MapParams(seed=3, tries=3).runs == both
    assert MapParams(mapper="global", seed=3, tries=3).runs == (("global", 3),)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mapper": "globel"}, "did you mean 'global'"),
        ({"threads": 0}, "threads"),
        ({"seed": -1}, "seed"),
        ({"tries": 0}, "tries"),
    ],
)
def test_wrong_parameters(wrong, message):
    with pytest.raises(InputError, match=message):
        MapParams(**wrong)


def test_options_are_those_of_this_pycolmap():
    assert hasattr(pycolmap.IncrementalPipelineOptions(), "constant_cameras")


def test_a_run_leaves_the_verified_matches_as_they_were(tmp_path, scene):
    """The global mapper estimates the geometries of pairs again: each run has a copy to do so."""
    params = MapParams(guessed=scene.cameras)
    write_database(tmp_path / DATABASE, scene.keypoints, scene.cameras, scene.matches, trusted=False)
    verify(tmp_path / DATABASE)
    before = (tmp_path / DATABASE).read_bytes()
    (model,) = run_mapper(tmp_path, params, "global", 0, lambda items, total: items)
    assert model.num_reg_images() == 6
    assert (tmp_path / DATABASE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [DATABASE]
