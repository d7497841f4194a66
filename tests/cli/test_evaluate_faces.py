# SPDX-License-Identifier: Apache-2.0
import csv
import json

import numpy as np
import pytest


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files of made-up people: pairs, other people with labels, and a list of names."""
    folder = tmp_path_factory.mktemp("faces")
    rng = np.random.default_rng(0)
    people = np.arange(30)
    centres = rng.normal(size=(30, 48))
    rows = np.repeat(centres, 3, axis=0) + 0.4 * rng.normal(size=(90, 48))
    names = [f"person{number}_{photo:04d}" for number in people for photo in (1, 2, 3)]
    np.savez(
        folder / "pairs.npz", embedding=rows.astype(np.float32), name=names, same=np.arange(60) < 30,
        fold=np.tile(people % 3, 2), left=np.tile(3 * people, 2), right=np.r_[3 * people + 1, (3 * people + 4) % 90],
    )  # fmt: skip
    kinds = np.arange(300) % 2
    others = rng.normal(size=(300, 48)) + 5 * np.eye(1, 48) * (2 * kinds[:, None] - 1)
    np.savez(folder / "others.npz", embedding=others.astype(np.float32), gender=kinds)
    np.savez(folder / "aged.npz", embedding=others.astype(np.float32), gender=kinds, age=np.where(kinds, 70, 9))
    lines = [f"person{number} 1 2" for number in people[:10]]
    lines += [f"person{number} 1 person{number + 1} 1" for number in people[:10]]
    (folder / "pairs.txt").write_text("\n".join(["2 5", *lines[:5], *lines[10:15], *lines[5:10], *lines[15:]]) + "\n")
    return folder


def test_faces_then_attributes_then_the_one_against_the_other(run_sfumato, made, tmp_path):
    out = tmp_path / "out"
    call = ("evaluate", "faces", made / "pairs.npz", "--recipes", "raw,hybrid-2", "-o", out)
    done = run_sfumato(*call, "--decoys", made / "others.npz", "--decoy-count", "100")
    assert "3 records" in done.stdout
    with (out / "faces.csv").open() as file:
        rows = {(row["recipe"], row["distance"]): row for row in csv.DictReader(file)}
    assert float(rows["raw", "p-to-p"]["accuracy"]) > 0.95
    call = ("evaluate", "attributes", made / "others.npz", "--recipes", "raw,hybrid-2", "--attribute", "gender")
    sizes = ("--decoy-faces", "50", "--attacker-faces", "150", "--attacked-faces", "100")
    done = run_sfumato(*call, *sizes, "-o", out, "--json")
    records = json.loads(done.stdout)
    assert {record["params"]["recipe"] for record in records} == {"raw", "hybrid-2"}
    drawn = {path.name for path in out.glob("*.png")}
    assert drawn == {"faces.png", "attributes.png", "faces-balance.png"}


def test_seals_and_ages(run_sfumato, made, tmp_path):
    call = ("evaluate", "faces", made / "pairs.npz", "--recipes", "raw,sealed-256:1", "-o", tmp_path)
    done = run_sfumato(*call, "--strangers", "2000")
    assert "TAR at FAR 0.01" in done.stdout
    with (tmp_path / "faces.csv").open() as file:
        rows = {row["recipe"]: row for row in csv.DictReader(file)}
    assert float(rows["sealed-256:1"]["accepted without the key"]) <= 0.01
    call = ("evaluate", "attributes", made / "aged.npz", "--recipes", "raw,sealed-256:1", "--attribute", "gender,age")
    sizes = ("--decoy-faces", "50", "--attacker-faces", "150", "--attacked-faces", "100", "-o", tmp_path)
    records = json.loads(run_sfumato(*call, *sizes, "--json").stdout)
    assert len(records) == 6
    raw = [record for record in records if record["params"]["recipe"] == "raw"]
    scores = [{score["name"]: score["value"] for score in record["scores"]} for record in raw]
    assert scores[0]["majority"] == scores[1]["majority"]  # ages of 9 and 70 are two groups, as the two kinds are
    call = ("evaluate", "protection", made / "pairs.npz", "--recipes", "raw,sealed-256:1", "-o", tmp_path)
    assert "3 records" in run_sfumato(*call).stdout
    assert (tmp_path / "protection.png").exists()


def test_releases_and_protection(run_sfumato, made, tmp_path):
    decoys = ("--decoys", made / "others.npz", "--decoy-count", "100", "-o", tmp_path, "--recipes", "hybrid-2")
    done = run_sfumato("evaluate", "releases", made / "pairs.npz", "--count", "1,2", *decoys)
    assert "5 records" in done.stdout
    done = run_sfumato("evaluate", "protection", made / "pairs.npz", *decoys, "--json")
    assert json.loads(done.stdout)[0]["task"] == "protection"


def test_a_list_of_names(run_sfumato, made, tmp_path):
    call = ("evaluate", "faces", made / "pairs.txt", "--recipes", "raw,random-2", "-o", tmp_path)
    done = run_sfumato(*call, "--embeddings", made / "pairs.npz", "--json")
    assert len(json.loads(done.stdout)) == 3
    assert "--embeddings" in run_sfumato(*call, code=1).stderr


def test_refusals_are_one_line(run_sfumato, made, tmp_path):
    out = ("-o", tmp_path)
    done = run_sfumato("evaluate", "faces", made / "pairs.npz", "--recipes", "hybrid-2", *out, code=1)
    assert done.stderr.startswith("error: hybrid-2 needs decoys")
    assert "--network" in run_sfumato("evaluate", "faces", made / "agedb_30.bin", *out, code=1).stderr
    done = run_sfumato("evaluate", "attributes", made / "others.npz", "--attribute", "age", *out, code=1)
    assert "no list 'age'; give the labels as a list of that name" in done.stderr
    done = run_sfumato("evaluate", "faces", made / "others.npz", *out, code=1)
    assert "no list 'left'; pairs are an npz file with the lists left, right" in done.stderr
    for command in ("faces", "releases", "protection"):
        call = ("evaluate", command, made / "pairs.npz", "--decoys", made / "pairs.npz", "--decoy-count", "90")
        assert "is among the decoys" in run_sfumato(*call, "--recipes", "hybrid-2", *out, code=1).stderr
    done = run_sfumato("evaluate", "releases", made / "pairs.npz", "--count", "many", *out, code=1)
    assert "--count" in done.stderr


@pytest.mark.parametrize("command", ["faces", "attributes", "releases", "protection"])
def test_help_teaches(run_sfumato, command):
    assert f"Example: sfumato evaluate {command}" in run_sfumato("evaluate", command, "--help").stdout
