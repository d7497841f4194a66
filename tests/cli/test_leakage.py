# SPDX-License-Identifier: Apache-2.0
import json

import cv2
import pytest

from sfumato.attacks.registry import single_attacks
from sfumato.cli.evaluate_leakage import PROTOCOL, RECIPES
from sfumato.images.samples import sample_image


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels[:, :, ::-1], (200, 140)))
    return folder


@pytest.mark.slow
def test_from_photos_to_a_table_and_pictures(run_sfumato, photos, tmp_path):
    call = ("evaluate", "leakage", photos, "-o", tmp_path / "out", "--max-features", "80")
    done = run_sfumato(*call, "--recipes", "raw,sub-hybrid-2", "--attacks", "vertex,nearest")
    assert "5 records" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "leakage", "leakage-sift.csv", "leakage-sift.md", "leakage-sift.png", "leakage-sift.svg",
        "leakage-sift-sub-hybrid-2.jpg",
    }  # fmt: skip
    again = run_sfumato(*call, "--recipes", "sub-hybrid-2", "--attacks", "vertex", "--json", "--workers", "1")
    records = {one["params"]["attack"]: one for one in json.loads(again.stdout)}
    scores = {score["name"]: score["value"] for score in records["vertex"]["scores"]}
    assert scores["within 0.02"] > 0.8
    assert scores["leakage"] > 0.7


def test_one_photo_of_many(run_sfumato, photos, tmp_path):
    call = ("evaluate", "leakage", photos, "-o", tmp_path, "--recipes", "raw", "--limit", "1", "--max-features", "40")
    records = json.loads(run_sfumato(*call, "--json").stdout)
    assert {score["samples"] for record in records for score in record["scores"]} == {1}


def test_what_is_wrong_is_told(run_sfumato, photos, tmp_path):
    done = run_sfumato("evaluate", "leakage", photos, "-o", tmp_path, "--attacks", "vertexx", code=1)
    assert "vertex" in done.stderr
    done = run_sfumato("evaluate", "leakage", photos, "-o", tmp_path, "--workers", "0", code=1)
    assert "workers: expected 1 or more" in done.stderr
    done = run_sfumato("evaluate", "leakage", photos, "-o", tmp_path, "--models", tmp_path / "gone", code=1)
    assert "no such folder" in done.stderr
    done = run_sfumato("evaluate", "leakage", photos, "-o", tmp_path, "--descriptor", "rootsift", code=1)
    assert "no inverter for clear rootsift" in done.stderr


def test_help_teaches(run_sfumato):
    told = run_sfumato("evaluate", "leakage", "--help").stdout
    assert "Example: sfumato evaluate leakage" in told
    told = " ".join(told.replace("│", " ").split())
    assert "'sfumato attack --list' explains them" in told
    assert "direct is an inverter trained" in told
    explained = {line.split()[0] for line in run_sfumato("attack", "--list").stdout.splitlines() if line.strip()}
    assert {one.name for one in single_attacks().values()} <= explained


def test_the_default_recipe_is_measured_where_nobody_chooses():
    assert "default" in RECIPES
    assert set(PROTOCOL.recipes) < set(RECIPES)
