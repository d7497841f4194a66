# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import numpy as np
import pytest

from sfumato.training.pairs import DescriptorPairs, load_pairs, pick_evenly


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Two photos of texture and a file that is none."""
    cv2 = pytest.importorskip("cv2")
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        small = rng.integers(0, 255, (30, 40), np.uint8)
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(small, (240, 180), interpolation=cv2.INTER_CUBIC))
    (folder / "broken.jpg").write_text("no photo")
    return folder


def test_pairs_of_photos_are_written_and_a_broken_photo_is_told(run_sfumato, photos: Path, tmp_path: Path):
    path = tmp_path / "pairs.npz"
    done = run_sfumato("train", "pairs", photos, "-o", path, "--most", "100", "--json")
    assert "broken.jpg" in done.stderr
    facts = json.loads(done.stdout)
    pairs = load_pairs(path)
    assert facts["pairs"] == len(pairs) <= 100
    assert facts["photos"] == 2
    again = run_sfumato("train", "pairs", photos, "-o", path, code=1)
    assert "--overwrite" in again.stderr
    run_sfumato("train", "pairs", photos, "-o", path, "--most", "100", "--overwrite", "--workers", "2", "-q")
    assert np.array_equal(load_pairs(path).first, pairs.first)


def test_what_can_not_be_used_is_refused(run_sfumato, photos: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "no images" in run_sfumato("train", "pairs", tmp_path / "empty", "-o", tmp_path / "p.npz", code=1).stderr
    assert "not a folder" in run_sfumato("train", "pairs", photos, "-o", tmp_path / "x" / "p.npz", code=1).stderr
    only_broken = tmp_path / "broken"
    only_broken.mkdir()
    (only_broken / "broken.jpg").write_text("no photo")
    done = run_sfumato("train", "pairs", only_broken, "-o", tmp_path / "p.npz", code=1)
    assert "no point of these photos" in done.stderr
    assert not (tmp_path / "p.npz").exists()


def test_pairs_of_a_map(run_sfumato, photos: Path, tmp_path: Path, monkeypatch):
    rows = np.eye(4, dtype=np.float32)
    calls = []

    def observe_pairs(model, images, params, *, progress):
        calls.append((model, images, params.max_features))
        return DescriptorPairs(rows, rows, np.arange(4), np.zeros(4, int))

    monkeypatch.setattr("sfumato.cli.train.pairs_from_tracks", observe_pairs)
    done = run_sfumato("train", "pairs", photos, "-o", tmp_path / "p.npz", "--model", tmp_path / "0", "--json")
    assert json.loads(done.stdout)["pairs"] == len(load_pairs(tmp_path / "p.npz")) == 4
    assert calls == [(tmp_path / "0", photos, 1000)]
    done = run_sfumato("train", "pairs", photos, photos, "-o", tmp_path / "q.npz", "--model", tmp_path, code=1)
    assert "--model" in done.stderr


def test_evenly_chosen_photos_hold_both_ends():
    paths = [Path(str(number)) for number in range(10)]
    assert pick_evenly(paths, 3) == [Path("0"), Path("4"), Path("9")]
    assert pick_evenly(paths, None) == pick_evenly(paths, 20) == paths
