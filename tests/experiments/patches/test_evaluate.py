# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.auditing.runner import load_records
from sfumato.experiments.patches.evaluate import PatchProtocol, evaluate_patches, patch_table
from sfumato.experiments.patches.sources import PatchSourceParams, open_patches
from sfumato.images.samples import sample_image
from sfumato.training.views import ViewParams

PROTOCOL = PatchProtocol(
    recipes=("raw", "sub-hybrid-2"), pairs=200, queries=30, distractors=100,
    source=PatchSourceParams(views=ViewParams(views=2), points=80),
)  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels[:, :, ::-1], (260, 200)))
    return folder


@pytest.fixture(scope="module")
def measured(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return evaluate_patches(open_patches(photos, PROTOCOL.source), folder, PROTOCOL), folder


def scores_of(record):
    return {score.name: score.value for score in record.scores}


def test_a_record_for_every_recipe_and_distance(measured):
    records, folder = measured
    assert [(one.params["recipe"], one.params["distance"]) for one in records] == [
        ("raw", "p-to-p"), ("sub-hybrid-2", "p-to-s"), ("sub-hybrid-2", "s-to-s"),
    ]  # fmt: skip
    assert len(load_records(folder)) == 3
    raw, one, two = map(scores_of, records)
    for task in ("verification", "matching", "retrieval"):
        assert raw[f"{task}, easy"] > raw[f"{task}, hard"] > raw[f"{task}, tough"], task
        assert raw[task] > one[task] > two[task], task
    assert raw["fpr95"] < one["fpr95"] < two["fpr95"]


def test_what_was_measured_is_not_measured_again(photos, measured, monkeypatch):
    records, folder = measured

    def never(*_, **__):
        raise AssertionError("patches were cut again")

    source = open_patches(photos, PROTOCOL.source)
    monkeypatch.setattr("sfumato.experiments.patches.sources.patches_of_photos", never)
    again = evaluate_patches(source, folder, PROTOCOL)
    assert [scores_of(one) for one in again] == [scores_of(one) for one in records]
    with pytest.raises(AssertionError, match="cut again"):
        evaluate_patches(open_patches(photos, PROTOCOL.source), folder, PROTOCOL, overwrite=True)


def test_nothing_kept_is_a_descriptor(measured):
    for path in measured[1].rglob("*.npz"):
        with np.load(path, allow_pickle=False) as kept:
            assert all(kept[name].ndim <= 1 for name in kept.files), path


def test_the_table_shows_means_and_levels(measured):
    table = patch_table(measured[0])
    assert table.columns[:8] == (
        "descriptor", "recipe", "distance", "seeds", "FPR@95", "verification", "matching", "retrieval",
    )  # fmt: skip
    assert "retrieval tough" in table.columns
    assert len(table.rows) == 3


def test_a_photo_without_points_is_dropped_and_named(tmp_path):
    cv2.imwrite(str(tmp_path / "wall.png"), np.full((60, 60), 99, np.uint8))
    (record,) = evaluate_patches(
        open_patches(tmp_path, PROTOCOL.source), tmp_path / "out", PatchProtocol(recipes=("raw",))
    )
    assert not record.scores
    assert "no patch" in record.dropped[0]


def test_ubc_gives_fpr95_of_its_list(tmp_path):
    """Patches that are copies with a little noise are told apart; pure noise is not."""
    rng = np.random.default_rng(0)
    for name, noise in (("clear", 5), ("lost", 3000)):
        (tmp_path / name).mkdir()
        points = np.stack([cv2.GaussianBlur(rng.normal(128, 300, (64, 64)), (0, 0), 4) for _ in range(128)])
        both = np.repeat(points, 2, axis=0) + noise * rng.normal(size=(256, 64, 64))
        sheet = np.clip(both, 0, 255).astype(np.uint8).reshape(16, 16, 64, 64).transpose(0, 2, 1, 3).reshape(1024, 1024)
        cv2.imwrite(str(tmp_path / name / "patches0000.bmp"), sheet)
        (tmp_path / name / "info.txt").write_text("".join(f"{row // 2} 0\n" for row in range(256)))
        true = [f"{2 * n} {n} 0 {2 * n + 1} {n} 0 0\n" for n in range(128)]
        false = [f"{2 * n} {n} 0 {(2 * n + 7) % 256} {(2 * n + 7) % 256 // 2} 0 0\n" for n in range(128)]
        (tmp_path / name / "m50_128_128_0.txt").write_text("".join(true + false))
    (record,) = evaluate_patches(open_patches(tmp_path), tmp_path / "out", PatchProtocol(recipes=("raw",)))
    scores = scores_of(record)
    assert scores["fpr95, clear"] < 0.02
    assert scores["fpr95, lost"] > 0.5
    assert "matching" not in scores


def test_real_photos(shared_data, tmp_path):
    source = open_patches(shared_data / "photos" / "bsds500" / "val", PatchSourceParams(limit=2, points=150))
    protocol = PatchProtocol(recipes=("raw",), pairs=1000, queries=50, distractors=300)
    (record,) = evaluate_patches(source, tmp_path, protocol)
    scores = scores_of(record)
    for task in ("verification", "matching", "retrieval"):
        assert scores[f"{task}, easy"] > scores[f"{task}, hard"] > scores[f"{task}, tough"] > 0.1
