# SPDX-License-Identifier: Apache-2.0
import json

import cv2
import numpy as np
import pytest

from sfumato.images.samples import sample_image
from sfumato.training.pairs import DescriptorPairs, save_pairs
from sfumato.types.extractor import Extractor


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    rng = np.random.default_rng(0)
    own = rng.uniform(0, 80, size=(6, 3, 30))
    image = np.einsum("pnk,pki->pni", rng.uniform(size=(6, 20, 3)), own).reshape(120, 6, 5).astype(np.uint8)
    path = tmp_path_factory.mktemp("faces") / "faces.npz"
    np.savez(path, image=image, subject=np.repeat(np.arange(6), 20))
    return path


def test_faces(run_sfumato, faces, tmp_path):
    command = ("evaluate", "search", faces, "--dataset", "yale", "--splits", 2, "--images", 8, "--candidates", "2",
               "--methods", "exact,grassmann quantile,projector flat", "-o", tmp_path)  # fmt: skip
    done = run_sfumato(*command)
    assert "3 records" in done.stdout
    assert {"search-yale.md", "search-yale.csv", "search-yale.png"} <= {path.name for path in tmp_path.iterdir()}
    told = json.loads(run_sfumato(*command, "--json").stdout)
    assert [record["params"]["method"] for record in told] == ["exact", "grassmann quantile", "projector flat"]
    assert told[0]["seed"] == 0


def test_photos(run_sfumato, tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("coffee", "chelsea"):
        small = cv2.resize(sample_image(name).pixels, (80, 60))
        cv2.imwrite(str(tmp_path / "photos" / f"{name}.png"), small[:, :, ::-1])
    done = run_sfumato("evaluate", "search", tmp_path / "photos", "--dataset", "repatch", "--candidates", "10",
                       "--methods", "exact,grassmann quantile", "-o", tmp_path / "out", "-q")  # fmt: skip
    assert "2 records" in done.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"search-repatch-ssim.png", "search-repatch-photos.png", "search-repatch.md"} <= names


def test_descriptors_of_photos(run_sfumato, tmp_path):
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.png"), sample_image("coffee").pixels[:200, :200, ::-1])
    done = run_sfumato("evaluate", "search", tmp_path / "photos", "--recipe", "random-2", "--queries", 20, "--efforts",
                       "0.1", "--methods", "exact,projector flat", "-o", tmp_path / "out", "-q")  # fmt: skip
    assert "2 records" in done.stdout
    assert (tmp_path / "out" / "search-descriptors.png").exists()


def test_descriptors_of_a_network(run_sfumato, tmp_path):
    """A file of pairs says what it holds: nothing has to be described again."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((60, 32)).astype(np.float32)
    second = first + rng.normal(0, 0.1, first.shape).astype(np.float32)
    pairs = DescriptorPairs(first, second, np.arange(60), np.zeros(60, np.int64), Extractor("hardtfeat-x"))
    save_pairs(tmp_path / "pairs.npz", pairs)
    done = run_sfumato("evaluate", "search", tmp_path / "pairs.npz", "--recipe", "random-2", "--queries", 20,
                       "--efforts", "0.5", "--methods", "exact", "-o", tmp_path / "out", "-q")  # fmt: skip
    assert "1 record" in done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dataset", "yael"], "'yale'"),
        (["--dataset", "yale"], "yale:"),
        (["--candidates", "five", "--dataset", "yale"], "--candidates"),
        (["--methods", "exakt", "--dataset", "yale"], "'exact'"),
        (["--efforts", "much"], "--efforts"),
        (["--dataset", "repatch", "nowhere"], "nowhere"),
    ],
)
def test_what_is_refused(run_sfumato, tmp_path, more, message):
    assert message in run_sfumato("evaluate", "search", "-o", tmp_path, *more, code=1).stderr


def test_a_crop_is_a_width_and_a_height(run_sfumato, faces, tmp_path):
    done = run_sfumato("evaluate", "search", faces, "--dataset", "yale", "--crop", "19", "-o", tmp_path, code=1)
    assert "--crop" in done.stderr


def test_help_teaches(run_sfumato):
    shown = run_sfumato("evaluate", "search", "--help").stdout
    for word in ("--dataset", "--candidates", "--efforts", "--crop", "Example", "repatch"):
        assert word in shown
