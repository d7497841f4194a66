# SPDX-License-Identifier: Apache-2.0
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sfumato.cli.app import app
from sfumato.concealment.encoder import load_encoder
from sfumato.training.pairs import DescriptorPairs, save_pairs
from sfumato.types.extractor import Extractor

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


def write_pairs(path: Path, name: str) -> Path:
    """Write pairs of a descriptor of this name."""
    rng = np.random.default_rng(0)
    point = np.abs(rng.normal(size=(200, 128)))
    views = [np.abs(point + 0.2 * rng.normal(size=point.shape)) for _ in range(2)]
    sides = [(view / np.linalg.norm(view, axis=1, keepdims=True)).astype(np.float32) for view in views]
    save_pairs(path, DescriptorPairs(*sides, np.arange(200), np.arange(200) // 20, Extractor(name)))
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.npz", "sift")


def test_an_encoder_is_trained_and_can_be_loaded(run_here, pairs: Path, tmp_path: Path, caplog):
    path, start = tmp_path / "n.safetensors", tmp_path / "start.part"
    few = ("--patches", pairs, "--steps", "5", "--adversary", "decoder", "--start", start, "--output-dim", "32")
    done = run_here("train", "ninja", *few, "--lambda", "0.5", "-o", path)
    assert "encoder for sift, lambda 0.5, against decoder: FPR@95" in done.stdout
    assert "train longer" in caplog.text
    encoder = load_encoder(path)
    assert (encoder.extractor_name, encoder.card["lambda"]) == ("sift", 0.5)
    assert encoder.card["data"].startswith("pairs of pairs.npz")
    assert str(tmp_path) not in json.dumps(dict(encoder.card))
    assert start.is_file()
    again = run_here("train", "ninja", *few, "-o", path, code=1)
    assert "--overwrite" in again.stderr
    done = run_here("train", "ninja", *few, "--lambda", "2.5", "-o", path, "--overwrite", "--json")
    facts = json.loads(done.stdout)
    assert (facts["lambda"], facts["checksum"]) == (2.5, load_encoder(path).checksum)


def test_what_can_not_be_is_told(run_here, pairs: Path, tmp_path: Path):
    command = ("train", "ninja", "--patches", pairs, "-o", tmp_path / "n.safetensors")
    for more, told in (
        (("--adversary", "unett"), "'unet'"),
        (("--adversary", "patch"), "--photos"),
        (("--preset", "big"), "'big'"),
        (("--lambda", "-1"), "privacy"),
        (("--steps", "5", "--minutes", "1"), "--minutes"),
        (("--descriptor", "rootsift"), "rootsift"),
        (("--descriptor", "hardtfeat"), "hardtfeat"),
        (("--descriptor", "rootsit"), "'rootsift'"),
    ):
        assert told in run_here(*command, *more, code=1).stderr
    done = run_here("train", "ninja", "--patches", pairs, "-o", tmp_path / "gone" / "n.safetensors", code=1)
    assert "is not a folder" in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_teaches(run_here):
    assert "Example: sfumato train ninja" in " ".join(run_here("train", "ninja", "--help").stdout.split())


def test_nonsense_is_told_before_anything_is_trained(run_here, pairs: Path, tmp_path: Path):
    few = ("train", "ninja", "--patches", pairs, "--steps", "5", "-o", tmp_path / "n")
    assert "adversary_steps" in run_here(*few, "--adversary-steps", "0", code=1).stderr
    assert "not a folder" in run_here(*few, "--start", tmp_path / "nowhere" / "s.part", code=1).stderr
    assert "--start" in run_here(*few, "--start", tmp_path / "n.part", code=1).stderr
    assert "more numbers" in run_here(*few, "--output-dim", "200", code=1).stderr
    assert not list(tmp_path.iterdir())


def test_the_paper_trains_against_its_own_adversary(run_here, pairs: Path, tmp_path: Path):
    done = run_here("train", "ninja", "--patches", pairs, "--preset", "paper", "-o", tmp_path / "n", code=1)
    assert "unet" in done.stderr


@pytest.mark.parametrize("asked", [("--descriptor", "hardtfeat"), ()])
def test_pairs_of_a_network_need_no_weights(run_here, tmp_path: Path, asked, caplog):
    pairs = write_pairs(tmp_path / "pairs.npz", "hardtfeat-0123abcd")
    few = ("--patches", pairs, "--steps", "3", "--adversary", "decoder", "--output-dim", "8")
    done = run_here("train", "ninja", *few, *asked, "-o", tmp_path / "n.safetensors")
    assert "encoder for hardtfeat, lambda 1" in done.stdout
    encoder = load_encoder(tmp_path / "n.safetensors")
    assert encoder.extractor_name == "hardtfeat-0123abcd"
    assert encoder.card["settings"]["opponents"]["local"] is None


def test_photos_beside_pairs_of_a_network_need_its_weights(run_here, tmp_path: Path, untrained: Path):
    pairs = write_pairs(tmp_path / "pairs.npz", "hardtfeat-0123abcd")
    command = ("train", "ninja", "--patches", pairs, "-o", tmp_path / "n.safetensors")
    assert "weights must be a file" in run_here(*command, "--adversary", "patch", code=1).stderr
    message = run_here(*command, "--weights", untrained, code=1).stderr
    assert "hardtfeat-0123abcd" in message
    assert "weights" in message


def test_pairs_that_do_not_say_what_they_are_pass_for_sift(run_here, tmp_path: Path, caplog):
    few = ("--patches", write_pairs(tmp_path / "pairs.npz", "unknown"), "--steps", "3", "--output-dim", "8")
    done = run_here("train", "ninja", *few, "-o", tmp_path / "n.safetensors")
    assert "encoder for sift" in done.stdout
