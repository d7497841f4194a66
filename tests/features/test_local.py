# SPDX-License-Identifier: Apache-2.0
import os
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import sfumato
from sfumato.errors import FileError, ImageError, InputError, load_pycolmap
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.features import local
from sfumato.features.local import DESCRIPTORS, LocalParams, extract
from sfumato.features.networks import NETWORKS
from sfumato.features.sources import open_source
from sfumato.images.homography import warp_points
from sfumato.images.read import to_grey
from sfumato.images.samples import sample_image
from sfumato.types.clear import Image


def blob(x, y, sigma=4.0, size=(200, 180)):
    """A Gaussian spot whose centre is known to a fraction of a pixel; the first pixel's centre is (0, 0)."""
    across, down = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    light = np.exp(-((across - x) ** 2 + (down - y) ** 2) / (2 * sigma**2))
    return np.rint(30 + 200 * light).astype(np.uint8)


@pytest.fixture(scope="module")
def astronaut():
    return extract(sample_image("astronaut"))


def test_rows_of_a_large_picture_are_in_order_of_position_too():
    large = cv2.resize(sample_image("coffee").pixels, None, fx=3, fy=3)
    found = extract(Image(large), max_image_size=700, max_features=900)
    assert np.array_equal(local.order_by_position(found.keypoints), np.arange(len(found)))


def test_a_photo_gives_features(astronaut):
    assert len(astronaut) > 800
    assert astronaut.descriptors.shape == (len(astronaut), 128)
    assert astronaut.descriptors.dtype == astronaut.keypoints.dtype == np.float32
    assert np.abs(np.linalg.norm(astronaut.descriptors.astype(float), axis=1) - 1).max() < 1e-6
    assert astronaut.image_size == (512, 512)
    x, y, sigma, angle = astronaut.keypoints.T
    assert min(x.min(), y.min()) > -1
    assert max(x.max(), y.max()) < 512
    assert (sigma > 0.5).all()
    assert (angle >= 0).all()
    assert (angle <= 360).all()


def test_the_extractor_tells_every_setting(astronaut):
    assert astronaut.extractor.name == "sift"
    assert astronaut.extractor.settings == asdict(LocalParams())
    assert set(astronaut.extractor.settings) >= {"max_features", "contrast_threshold", "precise_upscale"}
    changed = extract(blob(90, 90), descriptor="rootsift", max_features=5, contrast_threshold=0.02).extractor
    assert changed.name == "rootsift"
    assert changed.settings["max_features"] == 5
    assert changed.settings["contrast_threshold"] == 0.02
    assert sfumato.Extractor.from_json(changed.to_json()) == changed


def test_files_images_and_arrays_give_the_same(tmp_path):
    image = sample_image("coins")
    assert cv2.imwrite(str(tmp_path / "coins.png"), image.pixels)
    found = [
        extract(image),
        extract(image.pixels),
        extract(tmp_path / "coins.png"),
        extract(str(tmp_path / "coins.png")),
    ]
    for other in found[1:]:
        assert (other.keypoints == found[0].keypoints).all()
        assert (other.descriptors == found[0].descriptors).all()
    assert sfumato.extract is extract


def test_arrays_are_red_green_blue():
    image = sample_image("coffee")
    assert (extract(image.pixels).descriptors == extract(to_grey(image)).descriptors).all()
    swapped = np.ascontiguousarray(image.pixels[:, :, ::-1])
    assert len(extract(swapped)) != len(extract(image.pixels))


def test_it_is_what_opencv_says():
    """The same rows as OpenCV's own, keypoint for keypoint."""
    astronaut = extract(sample_image("astronaut"), extractor="opencv")
    sift = cv2.SIFT_create(0, contrastThreshold=0.02, enable_precise_upscale=True)
    points, rows = sift.detectAndCompute(to_grey(sample_image("astronaut")), None)
    theirs = {
        tuple(np.float32([*p.pt, p.size / 2, p.angle]).tolist()): row / np.linalg.norm(row)
        for p, row in zip(points, rows, strict=True)
    }
    assert len(theirs) == len(astronaut)
    for point, row in zip(astronaut.keypoints, astronaut.descriptors, strict=True):
        assert np.abs(theirs[tuple(point.tolist())] - row).max() < 1e-6


def test_it_is_what_colmap_says(tmp_path):
    """The rows that COLMAP itself writes into its database, keypoint for keypoint."""
    pycolmap = load_pycolmap()
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "grey.png"), to_grey(sample_image("astronaut")))
    options = pycolmap.FeatureExtractionOptions(use_gpu=False, num_threads=1)
    pycolmap.extract_features(
        tmp_path / "colmap.db", tmp_path / "photos", extraction_options=options, device=pycolmap.Device.cpu
    )
    ((_, theirs),) = open_source(tmp_path / "colmap.db")
    ours = extract(sample_image("astronaut"), descriptor="rootsift")
    order, other = (np.lexsort(side.keypoints[:, [3, 0, 1]].T) for side in (ours, theirs))
    assert np.abs(ours.keypoints[order] - theirs.keypoints[other]).max() < 1e-2
    assert np.abs(ours.descriptors[order] - theirs.descriptors[other]).max() < 1e-6


def test_rootsift_is_the_root_of_sift():
    astronaut, root = (
        extract(sample_image("astronaut"), extractor="opencv", descriptor=kind) for kind in ("sift", "rootsift")
    )
    assert root.extractor.name == "rootsift"
    assert (root.keypoints == astronaut.keypoints).all()
    expected = np.sqrt(astronaut.descriptors.astype(float))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(root.descriptors - expected).max() < 1e-6
    assert np.abs(np.linalg.norm(root.descriptors.astype(float), axis=1) - 1).max() < 1e-6
    hellinger = np.sqrt(astronaut.descriptors[0] / astronaut.descriptors[0].sum())
    assert np.abs(root.descriptors[0] - hellinger).max() < 1e-6


# ---------------------------------------------------------------- where keypoints are


@pytest.mark.parametrize(("x", "y"), [(90.3, 110.7), (50.0, 60.0), (120.5, 40.25)])
def test_a_spot_is_found_where_it_is(x, y):
    for extractor in ("colmap", "opencv"):
        found = extract(blob(x, y), extractor=extractor)
        nearest = found.keypoints[np.linalg.norm(found.keypoints[:, :2] - [x, y], axis=1).argmin()]
        assert np.abs(nearest[:2] - [x, y]).max() < 0.06
        assert 0.7 < nearest[2] / 4.0 < 1.4, "sigma is in pixels, not OpenCV's diameter"


def test_without_precise_upscale_there_is_a_quarter_of_a_pixel():
    """OpenCV's default; the flag must stay on."""
    assert LocalParams().precise_upscale
    found = extract(blob(90.3, 110.7), extractor="opencv", precise_upscale=False).keypoints[:, :2]
    offsets = np.abs(found - np.float32([90.3, 110.7]) - 0.25).max(axis=1)
    assert offsets.min() < 0.06


def test_the_angle_turns_clockwise_as_opencv_counts():
    """A step that grows brighter to the right has the angle 0; to the bottom 90."""
    ramp = np.tile(np.linspace(0, 60, 200), (200, 1))
    spot = blob(100, 100, 6, (200, 200)).astype(float) * 0.7
    for extractor, (step, angle) in product(("colmap", "opencv"), ((ramp, 0), (ramp.T, 90))):
        keypoints = extract(np.rint(spot + step).astype(np.uint8), extractor=extractor).keypoints
        middle = keypoints[np.linalg.norm(keypoints[:, :2] - 100, axis=1) < 3]
        turned = (middle[:, 3] - angle + 180) % 360 - 180
        assert np.abs(turned).min() < 10


# ---------------------------------------------------------------- how many, in which order


@pytest.mark.parametrize("extractor", ["colmap", "opencv"])
def test_the_largest_scales_are_kept_and_no_more_than_wanted(extractor):
    image = sample_image("astronaut")
    all_features = extract(image, extractor=extractor)
    for count in (1, 100, 777, len(all_features) + 5):
        fewer = extract(image, extractor=extractor, max_features=count)
        assert len(fewer) == min(count, len(all_features))
        smallest = np.sort(all_features.keypoints[:, 2])[-len(fewer)]
        assert fewer.keypoints[:, 2].min() > 0.9 * smallest  # COLMAP drops whole levels of its pyramid itself


def test_ties_are_cut_in_one_way():
    """The same spot many times over has the same scale everywhere."""
    tiles = np.tile(blob(40, 40, 4, (80, 80)), (4, 4))
    for count in (1, 3, 7):
        first, again = (extract(tiles, extractor="opencv", max_features=count) for _ in range(2))
        assert len(first) == count
        assert (first.keypoints == again.keypoints).all()


def test_the_order_of_rows_says_nothing_that_positions_do_not(astronaut):
    x, y = astronaut.keypoints[:, :2].T
    assert (np.diff(y) >= 0).all()
    assert abs(np.corrcoef(np.arange(len(x)), astronaut.keypoints[:, 2])[0, 1]) < 0.3


def test_a_large_picture_is_made_smaller_first():
    x, y = 301.2, 150.6
    large, small = (extract(blob(x, y, 8, (600, 400)), max_image_size=size) for size in (600, 300))
    for found in (large, small):
        assert found.image_size == (600, 400)
        distances = np.linalg.norm(found.keypoints[:, :2] - [x, y], axis=1)
        assert distances.min() < 0.2
        assert 0.7 < found.keypoints[distances.argmin(), 2] / 8.0 < 1.4


def test_the_number_of_opencv_threads_changes_nothing():
    before = cv2.getNumThreads()
    astronaut = extract(sample_image("astronaut"), extractor="opencv")
    try:
        for count in (1, 2, 4):
            cv2.setNumThreads(count)
            again = extract(sample_image("astronaut"), extractor="opencv")
            assert (again.keypoints == astronaut.keypoints).all()
            assert (again.descriptors == astronaut.descriptors).all()
    finally:
        cv2.setNumThreads(before)


# ---------------------------------------------------------------- odd pictures


@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 5), (1, 300), (300, 1), (2, 7), (12, 12), (1, 1, 3), (5, 3, 3), (64, 64)]
)
def test_pictures_without_features_give_none(shape):
    found = extract(np.full(shape, 128, np.uint8))
    assert len(found) == 0
    assert found.keypoints.shape == (0, 4)
    assert found.descriptors.shape == (0, 128)
    assert found.image_size == (shape[1], shape[0])


@settings(max_examples=40)
@given(arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40))))
def test_any_small_picture_works(pixels):
    found = extract(pixels, contrast_threshold=0.0)
    assert np.isfinite(found.descriptors).all()
    assert len(found) == 0 or np.abs(np.linalg.norm(found.descriptors, axis=1) - 1).max() < 1e-5


def test_a_descriptor_of_nothing_is_dropped(monkeypatch):
    def detect(grey, params):
        rows = np.eye(3, 128, dtype=np.float32)
        rows[1] = 0
        return local.Detection(grey, np.arange(12, dtype=np.float32).reshape(3, 4), rows)

    monkeypatch.setitem(local.DETECTORS, "colmap", detect)
    for descriptor in sorted(set(DESCRIPTORS) - set(NETWORKS)):
        found = extract(np.zeros((9, 9), np.uint8), descriptor=descriptor)
        assert found.keypoints[:, 0].tolist() == [0, 8]


def test_a_very_long_picture_is_read():
    assert len(extract(np.zeros((3, 40_000), np.uint8))) == 0


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4), np.uint8), 7, None]
)
def test_what_is_no_picture_is_told(wrong):
    with pytest.raises(InputError):
        extract(wrong)


def test_a_file_that_is_no_picture_is_named(tmp_path):
    (tmp_path / "broken.jpg").write_text("no picture")
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        extract(tmp_path / "broken.jpg")


def test_running_out_of_memory_is_told_as_such(monkeypatch):
    class Hungry:
        def detectAndCompute(self, *_):
            problem = cv2.error("Failed to allocate")
            problem.code = -4
            raise problem

    monkeypatch.setattr(cv2, "SIFT", type("SIFT", (), {"create": staticmethod(lambda **_: Hungry())}))
    with pytest.raises(MemoryError):
        extract(np.zeros((9, 9), np.uint8), extractor="opencv")


# ---------------------------------------------------------------- settings


def test_a_misspelt_setting_suggests_the_nearest():
    for attempt in (
        lambda: LocalParams(max_feature=3),
        lambda: extract(blob(90, 90), max_feature=3),
        lambda: extract(blob(90, 90), LocalParams(), max_feature=3),
        lambda: replace(LocalParams(), max_feature=3),
    ):
        with pytest.raises(InputError, match="'max_features'"):
            attempt()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("descriptor", "rotsift"), ("extractor", "colmpa"), ("descriptor", None), ("descriptor", ["sift"]),
        ("max_features", 0),
        ("max_features", 2.5), ("max_features", True), ("contrast_threshold", -1), ("contrast_threshold", float("nan")),
        ("corner_quality", 2), ("patch_scale", 0), ("weights", "x.pth"), ("weights", 3), ("weights", b"x"),
        ("edge_threshold", 0), ("sigma", 0), ("sigma", "1.6"), ("octave_layers", 0), ("precise_upscale", 1),
    ],
)  # fmt: skip
def test_settings_are_checked(name, value):
    with pytest.raises(InputError, match=f"{name} must be"):
        LocalParams(**{name: value})


def test_all_wrong_settings_are_told_at_once():
    with pytest.raises(InputError, match="max_features"):
        LocalParams(max_features=0, sigma=-1, descriptor="rootsfit")


def test_params_and_settings_go_together():
    params = LocalParams(max_features=50, descriptor="rootsift")
    found = extract(sample_image("coins"), params, max_features=20)
    assert len(found) == 20
    assert found.extractor.name == "rootsift"
    assert params.max_features == 50
    with pytest.raises(InputError, match="LocalParams"):
        extract(blob(90, 90), {"max_features": 3})
    with pytest.raises(TypeError):
        LocalParams("dog")


def test_settings_reach_colmap_and_opencv():
    image = sample_image("coins")
    for extractor in ("colmap", "opencv"):
        count = partial(lambda **changed: len(extract(image, **changed)), extractor=extractor)
        assert count(contrast_threshold=0.1) < count() < count(contrast_threshold=0.01)
        assert count(edge_threshold=3) < count()
        assert count(octave_layers=5) != count()
    assert count(sigma=2.5) != count()


def test_the_repr_shows_no_values(astronaut):
    assert repr(astronaut) == f"Features({len(astronaut)} x 128 sift, clear)"


# ---------------------------------------------------------------- Harris


def test_harris_corners_are_described_by_sift():
    image = sample_image("coins")
    found = extract(image, extractor="harris")
    assert len(found) > 200
    assert found.extractor.name == "sift"
    assert found.extractor.settings["extractor"] == "harris"
    assert np.abs(np.linalg.norm(found.descriptors.astype(float), axis=1) - 1).max() < 1e-6
    root = extract(image, extractor="harris", descriptor="rootsift")
    assert (root.keypoints == found.keypoints).all()
    fewer = extract(image, extractor="harris", max_features=50)
    assert len(fewer) == 50
    assert {tuple(row) for row in fewer.keypoints.tolist()} <= {tuple(row) for row in found.keypoints.tolist()}
    assert len(extract(image, extractor="harris", corner_quality=0.1)) < len(found)
    assert len(extract(np.full((90, 90), 7, np.uint8), extractor="harris")) == 0


def test_harris_corners_match_after_the_picture_turned():
    """Right place, right scale, right angle: else SIFT of a turned picture would be another."""
    grey = to_grey(sample_image("coffee"))
    height = grey.shape[0]
    before, after = extract(grey, extractor="harris"), extract(np.ascontiguousarray(np.rot90(grey)), extractor="harris")
    similarity = before.descriptors @ after.descriptors.T
    best, back = similarity.argmax(axis=1), similarity.argmax(axis=0)
    mutual = np.flatnonzero(back[best] == np.arange(len(before)))
    x, y, sigma, angle = before.keypoints[mutual].T
    seen = after.keypoints[best[mutual]]
    width = grey.shape[1]
    right = np.linalg.norm(seen[:, :2] - np.stack([y, width - 1 - x], 1), axis=1) < 2
    assert height != width
    assert right.mean() > 0.85
    assert (np.abs((seen[right, 3] - angle[right] + 90 + 180) % 360 - 180) < 20).mean() > 0.95
    assert (seen[right, 2] == sigma[right]).mean() > 0.95


# ---------------------------------------------------------------- networks


def test_a_network_describes_the_same_keypoints(untrained, astronaut):
    found = extract(sample_image("astronaut"), descriptor="hardtfeat", weights=untrained())
    assert (found.keypoints == astronaut.keypoints).all()
    assert found.descriptors.shape == (len(astronaut), 128)
    assert found.descriptors.dtype == np.float32
    assert np.abs(np.linalg.norm(found.descriptors.astype(float), axis=1) - 1).max() < 1e-6
    again = extract(sample_image("astronaut"), descriptor="hardtfeat", weights=untrained())
    assert (again.descriptors == found.descriptors).all()


def test_weights_are_told_by_their_checksum_and_never_by_their_place(untrained):
    image = sample_image("coins")
    first = extract(image, descriptor="hardtfeat", weights=untrained(), max_features=20).extractor
    second = extract(image, descriptor="hardtfeat", weights=str(untrained(seed=1)), max_features=20).extractor
    assert first.settings["weights"] != second.settings["weights"]
    assert first.name == f"hardtfeat-{first.settings['weights']}"
    assert not first.matches(second)
    assert first.settings["descriptor"] == "hardtfeat"
    assert first.settings["patch_scale"] == 6.0
    assert str(untrained().parent) not in first.to_json()
    nothing = extract(np.zeros((50, 50), np.uint8), descriptor="hardtfeat", weights=untrained())
    assert len(nothing) == 0
    assert nothing.descriptors.shape == (0, 128)
    assert nothing.extractor.matches(first)


def test_the_patch_scale_and_the_extractor_matter(untrained):
    image = sample_image("coins")
    chosen = {"descriptor": "hardtfeat", "weights": untrained(), "max_features": 30}
    narrow, wide = extract(image, **chosen), extract(image, patch_scale=12, **chosen)
    assert wide.extractor.settings["patch_scale"] == 12
    assert (narrow.keypoints == wide.keypoints).all()
    assert np.abs(narrow.descriptors - wide.descriptors).max() > 0.01
    corners = extract(image, extractor="harris", **chosen)
    assert (corners.keypoints == extract(image, extractor="harris", max_features=30).keypoints).all()


def test_a_network_without_a_file_is_told_before_anything_else():
    with pytest.raises(InputError, match="download"):
        LocalParams(descriptor="hardtfeat")
    with pytest.raises(InputError, match="sift"):
        LocalParams(weights="x.pth")
    with pytest.raises(FileError, match=r"none\.pth"):
        extract(np.zeros((9, 9), np.uint8), descriptor="hardtfeat", weights="none.pth")


@pytest.mark.slow
def test_the_trained_network_finds_more_than_sift():
    """On graf 1-2, mutual nearest, 3 px; see docs/results/method.md."""
    data = Path(os.environ.get("SFUMATO_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    weights = data.parent / "weights" / "hardtfeat.safetensors"
    if not (data / "homography" / "v_graf").is_dir() or not weights.is_file():
        pytest.skip("needs homography/v_graf and the weights of hardtfeat: set SFUMATO_DATA")
    pytest.importorskip("kornia.feature")
    graf = read_homography_folder(data / "homography" / "v_graf")[0]
    shares = {}
    for setting in ({"descriptor": "sift"}, {"descriptor": "hardtfeat", "weights": weights}):
        first, second = (extract(path, max_features=1000, **setting) for path in graf.paths[:2])
        similarity = first.descriptors @ second.descriptors.T
        best = similarity.argmax(axis=1)
        mutual = np.flatnonzero(similarity.argmax(axis=0)[best] == np.arange(len(first)))
        expected = warp_points(graf.homographies[0], first.keypoints[mutual, :2])
        error = np.linalg.norm(expected - second.keypoints[best[mutual], :2], axis=1)
        shares[setting["descriptor"]] = (error <= 3).mean()
    assert shares["sift"] > 0.6
    assert shares["hardtfeat"] > shares["sift"] - 0.01


def test_rotated_photos_are_described_upright(tmp_path):
    """The same photo stored upright, and lying with a note that says so, gives the same features."""
    pillow = pytest.importorskip("PIL.Image")
    upright = sample_image("coins").pixels
    exif = pillow.Exif()
    exif[0x112] = 6
    pillow.fromarray(np.ascontiguousarray(np.rot90(upright))).save(tmp_path / "lying.png", exif=exif)
    found, expected = extract(tmp_path / "lying.png"), extract(Image(upright))
    assert found.image_size == expected.image_size
    assert (found.keypoints == expected.keypoints).all()
