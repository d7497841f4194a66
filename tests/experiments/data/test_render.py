# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.data.render import Surface, _unproject, cast, intrinsics, project, render
from sfumato.experiments.data.room import look_at
from sfumato.types.scene import Camera, Pose

CAMERA = Camera("PINHOLE", 160, 120, (150.0, 155.0, 83.2, 57.6))


def picture_of(width, height, blobs=(), sigma=4.0):
    """Dark, with bright Gaussian blobs at the given texels."""
    down, across = np.mgrid[:height, :width]
    grey = np.zeros((height, width))
    for x, y in blobs:
        grey += 200 * np.exp(-((across - x) ** 2 + (down - y) ** 2) / (2 * sigma**2))
    return np.repeat(grey[:, :, None], 3, axis=2)


def upright(picture, *, size=2.0, ahead=3.0, turn=0.0):
    """A board across the line of sight of a camera at the origin that looks along x, turned by some degrees."""
    width, height = picture.shape[1], picture.shape[0]
    angle = np.deg2rad(turn)
    across = size * np.array([np.sin(angle), -np.cos(angle), 0.0])
    down = np.array([0, 0, -size * height / width])
    return Surface(np.array([ahead, 0, 0]) - across / 2 - down / 2, across, down, picture)


def centre_of(grey, near, reach):
    """The centre of what is bright around a point, by its moments."""
    left, top = (int(value) for value in np.rint(near) - reach)
    patch = grey[top : top + 2 * reach + 1, left : left + 2 * reach + 1].astype(float)
    down, across = np.mgrid[top : top + patch.shape[0], left : left + patch.shape[1]]
    return np.array([(patch * across).sum(), (patch * down).sum()]) / patch.sum()


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_a_texel_for_each_pixel_gives_the_picture_itself(samples):
    """Half a pixel too many anywhere would shift it."""
    picture = np.random.default_rng(0).integers(0, 256, (30, 40, 3)).astype(np.float32)
    surface = Surface(np.zeros(3), np.array([40.0, 0, 0]), np.array([0, 30.0, 0]), picture)
    camera = Camera("PINHOLE", 40, 30, (7.0, 7.0, 0.0, 0.0))
    colours, depth = render([surface], camera, Pose(np.eye(3), np.array([0, 0, 7.0])), samples)
    assert np.allclose(depth, 7, atol=1e-5)
    if samples % 2:
        assert np.allclose(colours[1:-1, 1:-1].mean(), picture[1:-1, 1:-1].mean(), atol=1)
    if samples == 1:
        assert np.allclose(colours, picture, atol=1e-3)


@pytest.mark.parametrize("turn", [0.0, 35.0, -55.0])
@pytest.mark.parametrize("texels", [100, 300, 800])
def test_a_point_of_the_picture_is_where_projection_says(turn, texels):
    blobs = np.array([[0.25, 0.3], [0.6, 0.7], [0.731, 0.249]]) * texels + 0.37
    surface = upright(picture_of(texels, texels, blobs, sigma=texels / 80), turn=turn)
    pose = look_at([0, 0, 0], [1, 0.02, -0.03], roll=4)
    colours, _ = render([surface], CAMERA, pose)
    expected = project(CAMERA, pose, surface.at(blobs))[0] - 0.5
    for point in expected:
        assert np.linalg.norm(centre_of(colours[:, :, 1], point, 8) - point) < 0.05  # of which 0.03 is perspective


def test_projection_is_that_of_colmap():
    cv2 = pytest.importorskip("cv2")  # before pycolmap: both carry a zlib
    assert cv2
    pycolmap = pytest.importorskip("pycolmap")
    rng = np.random.default_rng(1)
    pose = look_at([0.3, -0.2, 1.1], [2, 0.5, 0.7], roll=11)
    world = pose.center + rng.uniform(0.5, 3, (50, 3)) * (1, 0.4, 0.3)
    seen, depth = project(CAMERA, pose, world)
    camera = pycolmap.Camera(model=CAMERA.model, width=CAMERA.width, height=CAMERA.height, params=list(CAMERA.params))
    rigid = pycolmap.Rigid3d(pycolmap.Rotation3d(pose.rotation), pose.translation)
    inside = np.array([rigid * point for point in world])
    assert np.allclose(depth, inside[:, 2])
    assert (depth > 0).all()
    assert np.allclose(seen, [camera.img_from_cam(point) for point in inside])
    assert np.allclose(_unproject(CAMERA, pose, seen, depth), world)
    assert np.allclose(intrinsics(CAMERA), camera.calibration_matrix())


def test_depth_is_that_of_the_plane():
    surface = upright(picture_of(8, 8), size=10, turn=40)
    pose = look_at([0, 0, 0], [1, 0, 0])
    colours, depth = render([surface], CAMERA, pose)
    assert np.isfinite(depth).all()
    assert (colours == 0).all()
    points = np.random.default_rng(0).uniform(0, 1, (40, 2)) * (CAMERA.width, CAMERA.height)
    along = cast([surface], CAMERA, pose, points)
    normal = np.cross(surface.across, surface.down)
    assert np.abs((_unproject(CAMERA, pose, points, along) - surface.corner) @ normal).max() < 1e-9
    down, across = np.mgrid[: CAMERA.height, : CAMERA.width] + 0.5
    everywhere = cast([surface], CAMERA, pose, np.stack([across.ravel(), down.ravel()], axis=1))
    assert np.allclose(everywhere.reshape(depth.shape), depth, rtol=1e-6)


def test_the_nearer_one_is_seen_whatever_the_order():
    pose = look_at([0, 0, 0], [1, 0, 0])
    far = upright(np.full((8, 8, 3), 50.0), size=20, ahead=4)
    near = upright(np.full((8, 8, 3), 200.0), size=0.8, ahead=2)
    for surfaces in ([far, near], [near, far]):
        colours, depth = render(surfaces, CAMERA, pose)
        assert np.allclose(np.unique(depth), [2, 4])
        assert np.allclose(colours[depth == 4][0], 50)
        assert np.allclose(colours[58, 83], 200)


def test_what_is_behind_or_edge_on_is_not_seen():
    pose = look_at([0, 0, 0], [1, 0, 0])
    white = np.full((8, 8, 3), 255.0)
    edge_on = Surface(np.array([2.0, 0, 1]), np.array([1.0, 0, 0]), np.array([0, 0, -2.0]), white)
    for surfaces in ([], [upright(white, ahead=-3)], [edge_on], [upright(white, ahead=3, size=0.001, turn=89.9)]):
        colours, depth = render(surfaces, CAMERA, pose)
        assert colours.shape == (120, 160, 3)
        assert (colours[:2] == 0).all()
        assert np.isinf(depth[:2]).all()
        assert np.isinf(cast(surfaces, CAMERA, pose, [[80.0, 3.0]])).all()
    assert np.isnan(project(CAMERA, pose, [[-1.0, 0, 0]])[0]).all()
    assert cast([edge_on], CAMERA, pose, np.zeros((0, 2))).shape == (0,)


def test_a_floor_that_runs_under_the_camera_is_seen_to_its_end():
    floor = Surface(np.array([-5.0, 5, -1]), np.array([10.0, 0, 0]), np.array([0, -10.0, 0]), np.full((9, 9, 3), 9.0))
    _, depth = render([floor], CAMERA, look_at([0, 0, 0], [1, 0, 0]))
    assert np.isinf(depth[:57]).all()
    assert np.isfinite(depth[-1]).all()
    assert depth[-1, 80] == pytest.approx(155.0 / (119.5 - 57.6))


def test_fine_textures_become_grey_not_moire():
    board = np.indices((2000, 2000)).sum(axis=0) % 2 * 255.0
    surface = upright(np.repeat(board[:, :, None], 3, axis=2), turn=30)
    colours, depth = render([surface], CAMERA, look_at([0, 0, 0], [1, 0, 0]))
    inner = np.isfinite(depth)
    inner &= np.roll(inner, 3, 0) & np.roll(inner, -3, 0) & np.roll(inner, 3, 1) & np.roll(inner, -3, 1)
    assert inner.sum() > 1000
    assert abs(colours[inner].mean() - 127.5) < 1
    assert colours[inner].std() < 2


def test_levels_cover_the_same_rectangle():
    surface = upright(picture_of(301, 97, [(200.0, 30.0)], sigma=9))
    assert len(surface.levels) > 3
    for level in surface.levels[:3]:
        scale = np.array([301 / level.shape[1], 97 / level.shape[0]])
        centre = centre_of(level[:, :, 0], (np.array([200.5, 30.5]) / scale) - 0.5, 10 if level.shape[0] > 40 else 5)
        assert np.allclose((centre + 0.5) * scale - 0.5, [200, 30], atol=0.3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"across": np.zeros(3)}, "across and down"),
        ({"across": np.array([0, 0, 2.0])}, "across and down"),
        ({"picture": np.zeros((0, 4, 3))}, "picture"),
        ({"picture": np.zeros((4, 4))}, "picture"),
        ({"corner": np.array([0, np.nan, 0])}, "corner"),
    ],
)
def test_what_is_no_rectangle_is_refused(parts, message):
    good = {"corner": np.zeros(3), "across": np.array([1.0, 0, 0]), "down": np.array([0, 0, -1.0])}
    with pytest.raises(InputError, match=message):
        Surface(**{**good, "picture": np.zeros((4, 4, 3)), **parts})


def test_only_pinhole_cameras():
    with pytest.raises(InputError, match="only PINHOLE"):
        render([], Camera("SIMPLE_RADIAL", 8, 8, (8.0, 4.0, 4.0, 0.1)), look_at([0, 0, 0], [1, 0, 0]))


def test_text_form_shows_no_place():
    assert repr(upright(picture_of(9, 5))) == "Surface(9 x 5 pixels)"
