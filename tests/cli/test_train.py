# SPDX-License-Identifier: Apache-2.0
import json

import cv2
import pytest
from typer.testing import CliRunner

from sfumato.cli.app import app
from sfumato.concealment.encoder import save_encoder
from sfumato.images.samples import sample_image
from sfumato.inversion.load import open_inverter
from sfumato.inversion.patches import load_inverter
from sfumato.training.inverter import InverterTrainParams

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("coffee", "chelsea"):
        assert cv2.imwrite(str(folder / f"{name}.png"), sample_image(name).pixels[:170, :180, ::-1])
    return folder


@pytest.fixture
def run_here():
    def run(*arguments, code=0):
        done = CliRunner().invoke(app, ["train", "inverter", *map(str, arguments)])
        assert done.exit_code == code, done.output
        return done

    return run


def test_an_inverter_is_trained_checked_and_used(run_here, pictures, tmp_path):
    output = tmp_path / "a.safetensors"
    few = ("--steps", 2, "--refine-steps", 1, "--max-features", 60)
    done = run_here(pictures, "-o", output, *few, "--check", pictures)
    assert done.stdout.startswith("patch inverter for raw sift from 2 photos")
    assert "patch network: step 2, loss " in done.stderr
    assert "train longer" in done.stderr
    figures = load_inverter(output).made["figures with 1000 features"]
    assert {"ssim", "ssim_deviation", "floor_ssim", "ssim_rgb"} <= set(figures)
    assert "--overwrite" in run_here(pictures, "-o", output, *few, code=1).stderr
    seen = CliRunner().invoke(
        app, ["invert", str(pictures / "coffee.png"), "-o", str(tmp_path / "s.png"), "--inverter", str(output)]
    )
    assert seen.exit_code == 0


def test_an_inverter_for_a_recipe(run_here, pictures, tmp_path):
    output = tmp_path / "a.safetensors"
    done = run_here(
        pictures, "-o", output, "--recipe", "sub-hybrid-2", "--steps", 1, "--max-features", 40, "--json", "-q"
    )  # fmt: skip
    assert json.loads(done.stdout)["output"] == str(output)
    loaded = load_inverter(output)
    assert (loaded.recipe, loaded.input_dim) == ("sub-hybrid-2", 384)
    seen = CliRunner().invoke(
        app, ["invert", str(pictures / "coffee.png"), "-o", str(tmp_path / "s.png"), "--inverter", str(output)]
    )
    assert "sub-hybrid-2" in seen.stdout


def test_the_networks_of_the_papers(run_here, pictures, tmp_path, monkeypatch):
    called = {}

    class Result:
        @staticmethod
        def facts():
            return {"steps": 3}

    def train(settings, photos, output, *, concealer, progress, resume):
        called.update(settings=settings, photos=photos, concealer=concealer)
        output.write_bytes(b"")
        return Result

    monkeypatch.setattr("sfumato.cli.train.train_image_inverter", train)
    run_here(
        pictures, "-o", tmp_path / "a.safetensors", "--architecture", "uresnet", "--recipe", "random-2", "--steps", 3
    )
    settings = called["settings"]
    assert (settings.architecture, settings.steps, settings.local.max_features) == ("uresnet", 3, 1000)
    assert len(called["photos"]) == 2
    assert called["concealer"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--architecture", "unett"], "'unet'"),
        (["--minutes", "0"], "minutes"),
        (["--recipe", "sub-hybrd-2"], "sub-hybrid"),
        (["--decoys", "none.npz", "--recipe", "sub-hybrid-2"], "no such file"),
        (["--start", "none.safetensors"], "no such file"),
        (["--descriptor", "hardtfeat"], "weights must be a file"),
    ],
)
def test_mistakes(run_here, pictures, tmp_path, arguments, message):
    done = run_here(pictures, "-o", tmp_path / "a.safetensors", *arguments, code=1)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("architecture", ["patch", "unet"])
def test_nothing_to_resume(run_here, pictures, tmp_path, monkeypatch, architecture):
    output = tmp_path / "a.safetensors"
    output.write_bytes(b"finished")
    call = (pictures, "-o", output, "--architecture", architecture, "--resume")
    assert "--overwrite" in run_here(*call, code=1).stderr
    assert output.read_bytes() == b"finished"
    name = "a.safetensors.patch.part" if architecture == "patch" else "a.safetensors.part"
    (tmp_path / name).write_bytes(b"not a state")
    monkeypatch.setattr("sfumato.images.read.read_image", lambda *_: pytest.fail("a photo was read"))
    assert name in run_here(*call, code=1).stderr


def test_help_teaches(run_here, pictures, tmp_path):
    shown = run_here("--help").stdout
    for word in ("--architecture", "--recipe", "--minutes", "--resume", "Example", str(InverterTrainParams().minutes)):
        assert word in shown
    assert "not a folder" in run_here(pictures, "-o", tmp_path / "no" / "a.safetensors", code=1).stderr


@pytest.mark.parametrize("architecture", ["patch", pytest.param("unet", marks=pytest.mark.slow)])
def test_an_inverter_for_an_encoder(run_here, pictures, tmp_path, make_encoder, architecture):
    save_encoder(tmp_path / "n.safetensors", make_encoder())
    output, recipe = tmp_path / "a.safetensors", f"ninja:{tmp_path / 'n.safetensors'}"
    run_here(
        pictures, "-o", output, "--recipe", recipe, "--steps", 2, "--max-features", 40, "-q",
        "--architecture", architecture,
    )  # fmt: skip
    loaded = open_inverter(output)
    assert loaded.recipe.startswith("ninja:n@")
    assert loaded.input_dim == 128
    arguments = ["invert", str(pictures / "coffee.png"), "-o", str(tmp_path / "s.png"), "--inverter", str(output)]
    seen = CliRunner().invoke(app, [*arguments, "--encoder", str(tmp_path / "n.safetensors")])
    assert seen.exit_code == 0, seen.output
    assert "ninja:n@" in seen.stdout


def test_an_inverter_of_keypoints_alone(run_here, pictures, tmp_path):
    path, photo = tmp_path / "blind.safetensors", next(pictures.glob("*.png"))
    few = ("--steps", "2", "--refine-steps", "1", "--max-features", "60", "--keypoints-only")
    assert "patch inverter for keypoints of sift" in run_here(pictures, "-o", path, *few).stdout
    wrong = run_here(pictures, "-o", tmp_path / "x.safetensors", "--recipe", "random-2", *few, code=1)
    assert "--keypoints-only" in wrong.stderr
    given = ["invert", str(photo), "-o", str(tmp_path / "seen.png"), "--max-features", "60"]
    for more, code in ((["--inverter", str(path)], 0), (["--keypoints-only"], 0),
                       (["--keypoints-only", "--inverter", str(path)], 1)):  # fmt: skip
        assert CliRunner().invoke(app, [*given, *more]).exit_code == code
