# SPDX-License-Identifier: Apache-2.0
import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest

import sfumato
from sfumato.concealment.resolve import remember
from sfumato.errors import EvaluationOnlyWarning, InputError, VoidDistanceWarning
from sfumato.experiments.data.folders import read_posed_folder
from sfumato.geometry.cameras import pose_error
from sfumato.geometry.localization import (
    Localization,
    LocalizeParams,
    _estimate_pose,
    _log_false_poses,
    find_landmarks,
    localize_query,
    solve_pose,
)
from sfumato.geometry.mapping import map_keypoints
from sfumato.geometry.maps import Map
from sfumato.geometry.model import read_model
from sfumato.types.concealed import ConcealedFeatures, PublicPoints, Subspaces
from sfumato.types.scene import Camera, Matches


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def model(places, place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    places.write_model(place, folder)
    return read_model(folder)


def concealed_map(places, place, model, recipe="random-2"):
    hidden = place.concealed(places.VIEWS, recipe, seed=100)
    return Map(model, {n: f.take(model.sight(n).keypoints) for n, f in hidden.items()}, is_public=False)


def public_map(places, place, model):
    points = {
        name: PublicPoints(
            model.numbers[model.sight(name).landmarks],
            place.features[name].descriptors[model.sight(name).keypoints],
            place.features[name].extractor,
        )
        for name in places.VIEWS
    }
    return Map(model, points, is_public=True)


@pytest.fixture(scope="module")
def maps(places, place, model):
    return {"concealed": concealed_map(places, place, model), "public": public_map(places, place, model)}


def random_sight(rng, matches, keypoints):
    """Wrong matches: keypoints at random places, each with several landmarks of a cloud of points."""
    at = rng.uniform(0, [640, 480], (keypoints, 2))
    rows, landmarks = rng.integers(keypoints, size=matches), rng.integers(300, size=matches)
    cloud = rng.uniform([-3, -2, 5], [3, 2, 9], (300, 3))
    return at[rows], cloud[landmarks], (rows, landmarks)


@pytest.mark.parametrize("free_focal", [False, True])
def test_wrong_matches_alone_give_no_pose_that_is_better_than_chance(place, free_focal):
    """With many matches a pose has dozens of inliers though all are wrong: their number alone says little."""
    most = 0
    for seed in range(2):
        places_px, positions, pairs = random_sight(np.random.default_rng(seed), 4000, 800)
        found = _estimate_pose(places_px, positions, place.camera, seed=seed, free_focal=free_focal)
        most = max(most, found.inliers)
        alarms, chance = _log_false_poses(found, places_px, positions, pairs, free_focal=free_focal)
        assert alarms > 0
        assert chance > 1
    assert most > 15


def test_a_right_pose_is_better_than_chance_however_many_matches_are_wrong(place, places):
    rng = np.random.default_rng(1)
    pixels = places.project(place.points, place.poses["query/0.jpg"], place.camera)
    right = np.flatnonzero(((pixels > 0) & (pixels < (640, 480))).all(axis=1))[:40]
    at, positions, (rows, landmarks) = random_sight(rng, 400, 400)
    at, positions = np.concatenate([at, pixels[right]]), np.concatenate([positions, place.points[right]])
    pairs = np.concatenate([rows, 400 + np.arange(40)]), np.concatenate([landmarks, 300 + np.arange(40)])
    found = _estimate_pose(at, positions, place.camera)
    alarms, _ = _log_false_poses(found, at, positions, pairs)
    assert found.inliers >= 40
    assert pose_error(found.pose, place.poses["query/0.jpg"])[0] < 0.2
    assert alarms < -10


def test_one_keypoint_that_is_matched_with_everything_counts_once(place, places):
    """Many landmarks in one spot are no evidence: a pose is made of different keypoints."""
    pixels = places.project(place.points, place.poses["query/0.jpg"], place.camera)
    right = np.flatnonzero(((pixels > 0) & (pixels < (640, 480))).all(axis=1))[:6]
    at, positions = np.repeat(pixels[right], 10, axis=0), np.repeat(place.points[right], 10, axis=0)
    positions = positions + 0.001 * np.random.default_rng(0).normal(size=positions.shape)
    pairs = np.repeat(np.arange(6), 10), np.arange(60)
    found = _estimate_pose(at, positions, place.camera)
    assert found.inliers == 60
    assert _log_false_poses(found, at, positions, pairs)[0] > -2


def test_a_query_of_another_place_has_no_pose(maps, place, places):
    """Thousands of wrong matches: without the question of chance some would be poses."""
    other = places.make_place(seed=9, count=2500)
    query = other.concealed(["query/0.jpg"], "random-2")["query/0.jpg"]
    unasked = LocalizeParams(max_false_alarms=np.inf, min_inliers=8, max_error_px=40.0)
    found = localize_query(query, place.camera, maps["concealed"], maps["concealed"].names, unasked)
    assert found.pose is not None
    asked = replace(unasked, max_false_alarms=0.01)
    found = localize_query(query, place.camera, maps["concealed"], maps["concealed"].names, asked)
    assert found.pose is None
    assert "no better than chance" in found.reason


@pytest.mark.parametrize(
    ("kind", "recipe"), [("concealed", "random-2"), ("public", "random-2"), ("public", "random-16")]
)
def test_queries_are_found_where_they_were_taken(maps, place, places, kind, recipe):
    for name, query in place.concealed(places.QUERIES, recipe).items():
        found = localize_query(query, place.camera, maps[kind], maps[kind].names)
        assert found.reason == ""
        metres, degrees = pose_error(found.pose, place.poses[name])
        assert metres < 0.02
        assert degrees < 0.2
        seen = set(place.seen[name].tolist()) - {-1}
        assert 0.8 * len(seen) < found.inliers <= found.matches
        assert found.candidates == maps[kind].names


def test_matches_are_the_mutual_nearest_of_each_image_by_definition(maps, place, places, model):
    """Point to subspace and subspace to subspace: the same as the definition in float64, image by image."""
    from sfumato.subspace.reference import squared_distances

    [query] = place.concealed(places.QUERIES[:1]).values()
    query = query.take(np.arange(120))
    for map_ in maps.values():
        found = find_landmarks(query, map_, map_.names[:2], LocalizeParams(ratio=1.0))
        expected = set()
        for name in map_.names[:2]:
            side = map_.view(name).side
            table = squared_distances(query.code, side.subspaces)
            for row, other in enumerate(table.argmin(axis=1)):
                if table[:, other].argmin() == row:
                    expected.add((row, *map_.positions[int(model.sight(name).landmarks[other])].tolist()))
        assert {(row, *place) for row, place in pairs_of(found)} == expected
        assert (np.diff(found.rows) >= 0).all()


def pairs_of(found):
    """Rows of a query, and where the points are that they are matched with."""
    return list(zip(found.rows.tolist(), map(tuple, found.positions[found.landmarks].tolist()), strict=True))


def test_a_keypoint_may_vote_for_several_points_each_once(maps, place, places):
    map_ = maps["concealed"]
    [query] = place.concealed(places.QUERIES[:1]).values()
    one = find_landmarks(query, map_, map_.names[:1])
    again = find_landmarks(query, map_, (map_.names[0], map_.names[0]))
    every = find_landmarks(query, map_, map_.names)
    assert pairs_of(one) == pairs_of(again)
    pairs = pairs_of(every)
    assert len(pairs) == len(set(pairs)) > len(one)
    assert len(set(every.rows.tolist())) < len(pairs), "clutter votes differently in every image"


def test_landmarks_are_found_without_positions_and_the_pose_is_solved_with_them(maps, place, places):
    """The first step sees codes alone; the second gives the pose of both at once."""
    [query] = place.concealed(places.QUERIES[:1]).values()
    for map_ in maps.values():
        found = find_landmarks(query.without_positions(), map_, map_.names)
        whole = localize_query(query, place.camera, map_, map_.names)
        solved = solve_pose(found, query.keypoints, place.camera)
        assert (solved.inliers, solved.matches, solved.candidates) == (whole.inliers, whole.matches, whole.candidates)
        assert np.array_equal(solved.pose.rotation, whole.pose.rotation)
        assert np.array_equal(solved.pose.translation, whole.pose.translation)


def test_a_query_whose_positions_stay_home_is_localized_with_them_and_refused_without(maps, place, places):
    [query] = place.concealed(places.QUERIES[:1]).values()
    map_, home = maps["concealed"], query.without_positions()
    with pytest.raises(InputError, match="positions"):
        localize_query(home, place.camera, map_, map_.names)
    found = localize_query(home, place.camera, map_, map_.names, keypoints=query.keypoints[:, :2])
    assert found.inliers == localize_query(query, place.camera, map_, map_.names).inliers > 20
    matches = find_landmarks(home, map_, map_.names)
    with pytest.raises(InputError, match="lacks"):
        solve_pose(matches, query.keypoints[: int(matches.rows.max())], place.camera)


def test_the_nearest_landmarks_are_kept(maps, place, places):
    [query] = place.concealed(places.QUERIES[:1]).values()
    found = find_landmarks(query, maps["concealed"], maps["concealed"].names)
    few = found.nearest(40)
    assert len(few) == 40
    assert len(few.positions) <= 40
    assert set(pairs_of(few)) <= set(pairs_of(found))
    assert few.distances.max() <= np.sort(found.distances)[40]


def test_the_same_seed_gives_the_same_pose(maps, place, places):
    [query] = place.concealed(places.QUERIES[:1]).values()
    first, second = (localize_query(query, place.camera, maps["public"], maps["public"].names) for _ in range(2))
    assert np.array_equal(first.pose.rotation, second.pose.rotation)
    assert np.array_equal(first.pose.translation, second.pose.translation)


def test_half_a_pixel_is_added_for_colmap(maps, place, places, model):
    """With exact keypoints in our convention the pose is exact; half a pixel off, it is not."""
    pose = place.poses["query/0.jpg"]
    visible = places.project(model.landmarks.positions, pose, place.camera)
    for shift, good in ((0.0, True), (0.5, False)):
        keypoints = np.column_stack([visible - 0.5 + shift, np.ones((len(visible), 2))])
        words = np.random.default_rng(0).standard_normal((len(visible), 32))
        basis = np.random.default_rng(1).standard_normal((len(visible), 2, 32))
        sight = {"db/a.jpg": PublicPoints(model.numbers[model.sight("db/a.jpg").landmarks],
                                          words[model.sight("db/a.jpg").landmarks])}  # fmt: skip
        query = ConcealedFeatures(keypoints, Subspaces(words, basis), "random-2")
        found = localize_query(query, place.camera, Map(model, sight, is_public=True), ["db/a.jpg"])
        metres, degrees = pose_error(found.pose, pose)
        assert (metres < 1e-3 and degrees < 1e-2) == good


def test_results_that_are_no_pose(maps, place, places):
    map_, [query] = maps["public"], place.concealed(places.QUERIES[:1]).values()
    nothing = query.take(np.zeros(0, np.int64))
    few = query.take(np.arange(6))
    for features, candidates, reason in (
        (nothing, map_.names, "the query has no features"),
        (query, [], "no image of the map to compare with"),
        (query, ["nowhere.jpg"], "no image of the map to compare with"),
        (few, map_.names[:1], "too few matches: "),
    ):
        found = localize_query(features, place.camera, map_, candidates)
        assert found.pose is None
        assert found.reason.startswith(reason)
    assert repr(found).startswith("Localized(not localized: too few matches")


@pytest.mark.parametrize("seed", range(6))
def test_no_pose_comes_out_of_wrong_matches(maps, place, places, seed):
    """hloc would report the nearest database image here; COLMAP alone, a pose with a few inliers."""
    [query] = place.concealed(places.QUERIES[:1]).values()
    rng = np.random.default_rng(seed)
    shuffled = ConcealedFeatures(
        np.column_stack([rng.uniform(0, [640, 480], (len(query), 2)), query.keypoints[:, 2:]]),
        query.code, query.recipe, query.extractor, query.image_size,
    )  # fmt: skip
    found = localize_query(shuffled, place.camera, maps["public"], maps["public"].names)
    assert found.pose is None
    assert found.matches > 150
    assert found.reason.startswith(("too few inliers", "no pose"))


def test_wrong_matches_among_right_ones_do_not_matter(maps, place, places):
    [query] = place.concealed(places.QUERIES[:1]).values()
    keypoints, rng = query.keypoints.copy(), np.random.default_rng(0)
    wrong = rng.permutation(len(query))[: len(query) // 2]
    keypoints[wrong, :2] = rng.uniform(0, [640, 480], (len(wrong), 2))
    found = localize_query(
        ConcealedFeatures(keypoints, query.code, query.recipe, query.extractor),
        place.camera, maps["public"], maps["public"].names,
    )  # fmt: skip
    assert pose_error(found.pose, place.poses["query/0.jpg"])[0] < 0.05


def test_a_guessed_camera_gets_its_focal_length_estimated(maps, place, places):
    [query] = place.concealed(places.QUERIES[:1]).values()
    guess = Camera("SIMPLE_RADIAL", 640, 480, (768.0, 320.0, 240.0, 0.0))
    found = localize_query(query, guess, maps["public"], maps["public"].names, guessed_camera=True)
    metres, degrees = pose_error(found.pose, place.poses["query/0.jpg"])
    assert metres < 0.3
    assert degrees < 1
    trusted = localize_query(query, guess, maps["public"], maps["public"].names)
    assert trusted.inliers < found.inliers


def test_what_can_not_be_compared_is_told(maps, place, places):
    map_, [query] = maps["public"], place.concealed(places.QUERIES[:1]).values()
    rows = {"keypoints": query.keypoints, "code": query.code}
    other = ConcealedFeatures(**rows, recipe=query.recipe, extractor=sfumato.Extractor("superpoint"))
    with pytest.raises(InputError, match="superpoint"):
        localize_query(other, place.camera, map_, map_.names)
    encoded = ConcealedFeatures(**rows, recipe="ninja-small+random-2", extractor=query.extractor)
    with pytest.raises(InputError, match="ninja-small"):
        localize_query(encoded, place.camera, map_, map_.names)
    large = Camera("PINHOLE", 1280, 960, (1000, 1000, 640, 480))
    with pytest.raises(InputError, match="1280"):
        localize_query(query, large, map_, map_.names)


def test_distances_that_say_nothing_are_warned_about(place, places, model, monkeypatch):
    nothing = Matches(np.zeros((0, 2), np.int32), np.zeros(0))
    monkeypatch.setattr("sfumato.geometry.localization.match_prepared", lambda *sides: nothing)
    map_ = concealed_map(places, place, model, "random-16")
    [query] = place.concealed(places.QUERIES[:1], "random-16").values()
    with pytest.warns(VoidDistanceWarning):
        localize_query(query, place.camera, map_, map_.names[:1])


def test_an_image_of_the_map_that_can_not_be_read_is_named(maps, place, places, model):
    source = {"db/a.jpg": PublicPoints([10**6], np.ones((1, 32))), **{
        name: PublicPoints(model.numbers[model.sight(name).landmarks],
                           place.features[name].descriptors[model.sight(name).keypoints])
        for name in places.VIEWS[1:]}}  # fmt: skip
    map_, [query] = Map(model, source, is_public=True), place.concealed(places.QUERIES[:1]).values()
    found = localize_query(query, place.camera, map_, map_.names)
    assert found.pose is not None
    assert list(map_.damaged) == ["db/a.jpg"]


@pytest.mark.parametrize(
    "wrong",
    [{"max_error_px": 0}, {"max_error_px": np.nan}, {"min_inliers": 3}, {"min_inliers": 2.5}, {"seed": -1},
     {"ratio": 2}, {"threads": 0}],
)  # fmt: skip
def test_wrong_parameters(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        LocalizeParams(**wrong)


def test_text_forms_show_no_pose(place):
    text = repr(Localization(place.poses["db/a.jpg"], 5, 9, ("a",)))
    assert text == "Localized(localized, 5 inliers of 9 matches)"


@pytest.fixture(scope="module")
def fountain(shared_data, tmp_path_factory):
    """Three photos of a fountain mapped from their surveyed poses, and a fourth to localize; clear features of all."""
    posed = read_posed_folder(shared_data / "posed" / "fountain-P11")
    names = posed.names[3:7]
    clear = {name: sfumato.extract(posed.paths[name], max_features=1500) for name in names}
    views = [name for name in names if name != names[1]]
    matches = {
        pair: sfumato.match(clear[pair[0]].descriptors, clear[pair[1]].descriptors)
        for pair in itertools.combinations(views, 2)
    }
    keypoints = {name: clear[name].keypoints for name in views}
    folder = tmp_path_factory.mktemp("fountain") / "model"
    outcome = map_keypoints(
        keypoints, posed.cameras, matches, folder, poses={name: posed.poses[name] for name in views}
    )
    assert outcome.reason == ""
    return posed, clear, names[1], read_model(folder)


@pytest.mark.parametrize(("recipe", "is_public"), [
    pytest.param("sub-hybrid-16", True, marks=pytest.mark.slow), ("sub-hybrid-2", False),
])  # fmt: skip
def test_a_photo_is_localized_to_centimetres(fountain, recipe, is_public):
    posed, clear, name, model = fountain
    decoys = sfumato.load_decoys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        hidden = {
            one: sfumato.conceal(features, recipe, decoys, evaluation_seed=row)
            for row, (one, features) in enumerate(clear.items())
            if one == name or not is_public
        }
    sights = {one: model.sight(one) for one in model.names}
    if is_public:
        source = {
            one: PublicPoints(model.numbers[s.landmarks], clear[one].descriptors[s.keypoints], clear[one].extractor)
            for one, s in sights.items()
        }
    else:
        source = {one: hidden[one].take(s.keypoints) for one, s in sights.items()}
    map_ = Map(model, source, is_public=is_public)
    found = localize_query(hidden[name], posed.cameras[name], map_, map_.names)
    metres, degrees = pose_error(found.pose, posed.poses[name])
    assert metres < 0.03
    assert degrees < 0.2
    assert found.inliers > 150


def test_encoded_features_are_localized_among_their_own_kind(places, place, model, make_encoder):
    width = next(iter(place.features.values())).descriptors.shape[1]
    own, other = (f"ninja:x@{remember(make_encoder(s, dims=(width, width))).checksum[:12]}" for s in (0, 1))
    hidden = {n: sfumato.conceal(place.features[n], own) for n in (*places.VIEWS, *places.QUERIES)}
    rows = {n: hidden[n].take(model.sight(n).keypoints) for n in places.VIEWS}
    map_, query = Map(model, rows, is_public=False), places.QUERIES[0]
    found = localize_query(hidden[query], place.camera, map_, map_.names)
    assert pose_error(found.pose, place.poses[query])[0] < 0.02
    with pytest.raises(InputError, match="live"):
        localize_query(sfumato.conceal(place.features[query], other), place.camera, map_, map_.names)
    with pytest.raises(InputError, match="ninja"):
        localize_query(place.concealed([query])[query], place.camera, map_, map_.names)
    public = public_map(places, place, model)
    with pytest.raises(InputError, match="without --public"):
        localize_query(hidden[query], place.camera, public, public.names)
