# SPDX-License-Identifier: Apache-2.0
import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfumato.attacks.encoded import load_decoder
from sfumato.cli.app import app
from sfumato.concealment.encoder import save_encoder

pytest.importorskip("torch")


@pytest.fixture
def run_here(monkeypatch):
    """Run the command in this process, which is quicker."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return done

    return run


def test_a_decoder_is_trained_and_can_be_loaded(run_here, photos: Path, tmp_path: Path, caplog):
    path = tmp_path / "d.safetensors"
    few = ("--steps", "20", "--hidden", "16")
    done = run_here("train", "decoder", photos, "-o", path, "--recipe", "sub-hybrid-2", *few)
    assert "decoder for sub-hybrid-2 sift from 4 photos" in done.stdout
    assert "broken.jpg" in caplog.text
    decoder = load_decoder(path)
    assert decoder.layout.form == "search"
    assert decoder.facts["recipe"] == "sub-hybrid-2"
    assert decoder.facts["extractor"] == "sift"
    again = run_here("train", "decoder", photos, "-o", path, *few, code=1)
    assert "--overwrite" in again.stderr
    done = run_here(
        "train",
        "decoder",
        photos,
        "-o",
        path,
        "--recipe",
        "random-2",
        "--form",
        "direct",
        *few,
        "--overwrite",
        "--json",
    )
    assert json.loads(done.stdout)["steps"] == 20
    assert load_decoder(path).layout.form == "direct"


def test_what_can_not_be_is_told(run_here, photos: Path, tmp_path: Path):
    done = run_here("train", "decoder", photos, "-o", tmp_path / "gone" / "d.safetensors", code=1)
    assert "is not a folder" in done.stderr
    done = run_here("train", "decoder", photos, "-o", tmp_path / "d.safetensors", "--form", "guess", code=1)
    assert "form" in done.stderr
    done = run_here("train", "decoder", photos, "-o", tmp_path / "d.safetensors", "--recipe", "random-3x", code=1)
    assert "random-3x" in done.stderr
    done = run_here("train", "decoder", photos, "-o", tmp_path / "d.safetensors", "--recipe", "default", code=1)
    assert "--recipe default" in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_teaches(run_here):
    assert "Example: sfumato train decoder" in " ".join(run_here("train", "decoder", "--help").stdout.split())


def test_a_decoder_for_an_encoder(run_here, photos: Path, tmp_path: Path, make_encoder):
    save_encoder(tmp_path / "n.safetensors", make_encoder(dims=(128, 64)))
    path, recipe = tmp_path / "d.safetensors", f"ninja:{tmp_path / 'n.safetensors'}"
    run_here("train", "decoder", photos, "-o", path, "--recipe", recipe, "--steps", "20", "--hidden", "16")
    decoder = load_decoder(path)
    assert (decoder.layout.n_in, decoder.layout.m, decoder.layout.n_out) == (64, 0, 128)
    assert str(decoder.facts["recipe"]).startswith("ninja:n@")
