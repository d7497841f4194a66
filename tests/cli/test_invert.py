# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from sfumato.cli.app import app
from sfumato.cli.invert import write_picture
from sfumato.errors import FileError
from sfumato.features.local import extract
from sfumato.images.read import read_image
from sfumato.training import concealers as readback
from sfumato.training.concealers import concealer_of


@pytest.fixture
def run_here():
    def run(*arguments, code=0):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return done

    return run


WITHOUT_TORCH = """
import sys
sys.modules.update(torch=None, kornia=None)  # importing them fails, as where they are not installed
from sfumato.cli import main
main()
"""


def test_a_photo_is_seen_without_torch(photos, tmp_path):
    words = ["invert", photos / "a.png", "-o", tmp_path / "seen.png", "--side-by-side"]
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "sift features, raw" in done.stdout
    assert "structural similarity 0." in done.stdout
    both, photo = read_image(tmp_path / "seen.png").pixels, read_image(photos / "a.png").pixels
    assert both.shape == (300, 600, 3)
    np.testing.assert_array_equal(both[:, :300], photo)
    assert [path.name for path in tmp_path.iterdir()] == ["seen.png"]


def test_grey_and_json(run_here, photos, tmp_path):
    done = run_here("invert", photos / "a.png", "-o", tmp_path / "s.png", "--grey", "--json", "--max-features", 200)
    facts = json.loads(done.stdout)
    assert facts["features"] == 200
    assert 0 < facts["ssim"] < 1
    pixels = read_image(tmp_path / "s.png").pixels
    assert pixels.ndim == 2 or (pixels[:, :, 0] == pixels[:, :, 1]).all()


def test_a_photo_without_features(run_here, photos, tmp_path):
    assert run_here("invert", photos / "grey.png", "-o", tmp_path / "s.jpg").stdout.startswith("0 sift features")
    assert (tmp_path / "s.jpg").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.png", "-o", "seen.txt"], ".png or .jpg"),
        (["a.png", "-o", "nowhere/seen.png"], "cannot be written"),
        (["broken.jpg", "-o", "seen.png"], "not an image"),
        (["a.png", "-o", "seen.png", "--descriptor", "rootsift"], "is for sift, these descriptors are rootsift"),
        (["a.png", "-o", "seen.png", "--inverter", "a.png"], "a.png"),
        (["a.png", "-o", "seen.png", "--max-features", "0"], "max_features"),
    ],
)
def test_mistakes(run_here, photos, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    paths = [photos / word if (photos / word).is_file() else word for word in arguments]
    done = run_here("invert", *paths, code=1)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_concealers_repeat_themselves_and_draw_anew(photos):
    features = extract(photos / "a.png", max_features=20)
    assert concealer_of("raw", None, 0) is None
    for recipe in ("random-2", "sub-hybrid-2"):
        one, other = concealer_of(recipe, None, 3), concealer_of(recipe, None, 3)
        first, second = one(features), one(features)
        np.testing.assert_array_equal(other(features).code.basis, first.code.basis)
        assert not np.array_equal(second.code.basis, first.code.basis)


def test_what_is_sealed_is_read_back_for_an_inverter(photos, monkeypatch):
    monkeypatch.setattr(readback, "LARGEST_PUBLIC", 1500)
    features = extract(photos / "a.png", max_features=80)
    one, other = concealer_of("sealed-64", None, 3), concealer_of("sealed-64", None, 3)
    first = one(features).code
    assert (first.dim, first.ambient_dim) == (0, 128)
    np.testing.assert_array_equal(other(features).code.origin, first.origin)
    assert not np.array_equal(one(features).code.origin, first.origin), "the next key"


def test_a_picture_replaces_what_was_there(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("old")
    write_picture(path, np.full((4, 5, 3), 0.5, np.float32), np.zeros((4, 5), np.uint8))
    assert cv2.imread(str(path)).shape == (4, 10, 3)
    with pytest.raises(FileError, match="written as"):
        write_picture(tmp_path / "a.gif", np.zeros((4, 5, 3), np.float32))
