# SPDX-License-Identifier: Apache-2.0
import csv
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

import sfumato
from sfumato.cli.app import app

KEY = np.random.default_rng(1).bytes(32)


@pytest.fixture
def run(monkeypatch):
    """Run the command in this process, which is quicker."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, ["index", *(str(argument) for argument in arguments)])
        assert done.exit_code == code, done.output
        return done

    return run


def image(seed, noise=0.0, count=40):
    points = np.random.default_rng(seed).standard_normal((count, 16))
    rng = np.random.default_rng(seed + 100)
    subspaces = sfumato.Subspaces(
        points + noise * rng.standard_normal(points.shape), rng.standard_normal((count, 2, 16))
    )
    return sfumato.ConcealedFeatures(np.zeros((count, 4)), subspaces, "random-2", sfumato.Extractor("made-up"))


@pytest.fixture
def folder(tmp_path):
    sfumato.save(tmp_path / "private.sfm", {f"db/{i}.jpg": image(i) for i in range(4)})
    sfumato.save(tmp_path / "more.sfm", {"db/9.jpg": image(9)})
    sfumato.save(tmp_path / "query.sfm", {"q/2.jpg": image(2, 0.01), "q/9.jpg": image(9, 0.01)})
    return tmp_path


@pytest.mark.parametrize("kind", ["inverted", "exact"])
def test_build_and_search(run, folder, kind):
    done = run("build", folder / "private.sfm", "-o", folder / "x.index", "--kind", kind)
    assert done.stdout.startswith(f"160 features of 4 images, {kind}, ")
    done = run("search", folder / "x.index", folder / "query.sfm", "-k", 3, "-o", folder / "x.csv")
    assert "q/2.jpg: nearest to db/2.jpg (40)" in done.stdout
    assert f"80 features of 2 images searched: {folder / 'x.csv'}" in done.stdout
    rows = list(csv.DictReader((folder / "x.csv").read_text().splitlines()))
    assert len(rows) == 80 * 3
    assert (rows[3]["query"], rows[3]["feature"], rows[3]["rank"]) == ("q/2.jpg", "1", "1")
    assert (rows[3]["image"], rows[3]["image feature"]) == ("db/2.jpg", "1")


def test_facts_for_programs(run, folder):
    facts = json.loads(run("build", folder / "private.sfm", "-o", folder / "x.index", "--json").stdout)
    assert (facts["kind"], facts["entries"], facts["images"], facts["dimensions"]) == ("inverted", 160, 4, 16)
    facts = json.loads(run("search", folder / "x.index", folder / "query.sfm", "--effort", 1, "--json").stdout)
    assert facts["queries"]["q/2.jpg"] == {"db/2.jpg": 40}
    assert (facts["features"], facts["looked at"], facts["without answer"]) == (80, 80 * 160, 0)


def test_add_and_remove(run, folder):
    run("build", folder / "private.sfm", "-o", folder / "x.index")
    assert "40 features added, 200 in all" in run("add", folder / "x.index", folder / "more.sfm").stdout
    found = run("search", folder / "x.index", folder / "query.sfm", "--effort", 1).stdout
    assert "q/9.jpg: nearest to db/9.jpg (40)" in found
    assert "40 features removed, 160 left" in run("remove", folder / "x.index", "db/9.jpg").stdout
    assert "db/9.jpg (" not in run("search", folder / "x.index", folder / "query.sfm").stdout
    before = (folder / "x.index").read_bytes()
    assert "did you mean" in run("remove", folder / "x.index", "db/7.jpg", code=1).stderr
    assert (folder / "x.index").read_bytes() == before


def test_sealed_archives(run, tmp_path):
    rng = np.random.default_rng(0)
    drawn = np.abs(rng.standard_normal((3, 40, 128)))
    rows = dict(zip(("a.jpg", "b.jpg", "c.jpg"), drawn / np.linalg.norm(drawn, axis=2, keepdims=True), strict=True))

    def save(path, names, noise=0.0):
        features = {
            name: sfumato.Features(np.ones((40, 4)), rows[name] + noise, sfumato.Extractor("sift")) for name in names
        }
        sealed = {name: sfumato.conceal(each, "sealed-512", secret=KEY) for name, each in features.items()}
        sfumato.save(tmp_path / path, sealed)

    save("private.sfm", ["a.jpg", "b.jpg"])
    save("more.sfm", ["c.jpg"])
    save("query.sfm", ["b.jpg", "c.jpg"], 0.001)
    index = tmp_path / "x.index"
    done = run("build", tmp_path / "private.sfm", "-o", index, "--json")
    facts = json.loads(done.stdout)
    assert (facts["kind"], facts["entries"], facts["bits"]) == ("sketch", 80, 512)
    run("add", index, tmp_path / "more.sfm")
    shown = run("search", index, tmp_path / "query.sfm", "-k", 2, "-o", tmp_path / "x.csv").stdout
    assert "b.jpg: nearest to b.jpg (40)" in shown
    assert "c.jpg: nearest to c.jpg (40)" in shown
    first = next(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert first["distance"].isdigit()
    run("remove", index, "c.jpg")
    assert "c.jpg (" not in run("search", index, tmp_path / "query.sfm").stdout
    run("build", tmp_path / "private.sfm", "-o", index, "--kind", "exact", "--overwrite")
    assert "sketch or exact" in run(
        "build", tmp_path / "private.sfm", "-o", tmp_path / "y", "--kind", "inverted", code=1
    ).stderr  # fmt: skip
    sfumato.save(tmp_path / "lifted.sfm", {"a.jpg": image(0)})
    assert run("search", index, tmp_path / "lifted.sfm", code=1).stderr.startswith("error: queries")


@pytest.mark.slow
def test_those_who_add_at_once_take_turns(run, folder):
    run("build", folder / "private.sfm", "-o", folder / "x.index")
    for i in range(10, 13):
        sfumato.save(folder / f"{i}.sfm", {f"db/{i}.jpg": image(i)})
    command = [sys.executable, "-m", "sfumato", "index", "add", str(folder / "x.index")]
    started = [subprocess.Popen([*command, str(folder / f"{i}.sfm")]) for i in range(10, 13)]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    assert len(sfumato.search.load(folder / "x.index")) == 7 * 40


def test_mistakes(run, folder):
    archive, index = folder / "private.sfm", folder / "x.index"
    run("build", archive, "-o", index)
    (folder / "bad.index").write_bytes(index.read_bytes()[:-9])
    for arguments, message in (
        (("build", archive, "-o", index), "exists"),
        (("build", archive, "-o", archive, "--overwrite"), "is read by this command"),
        (("build", archive, "-o", folder / "y", "--kind", "exactly"), "did you mean 'exact'"),
        (("build", archive, "-o", folder / "y", "--kind", "exact", "--points", archive), "--points"),
        (("build", folder / "none.h5", "-o", folder / "y"), "none.h5"),
        (("search", folder / "bad.index", archive), "damaged"),
        (("search", archive, archive), "index build"),
        (("search", index, folder / "query.sfm", "-k", 0), "k: expected"),
        (("search", index, folder / "query.sfm", "--effort", 3), "effort"),
        (("add", index, archive), "is in the index already"),
    ):
        done = run(*arguments, code=1)
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
    assert not (folder / "y").exists()
    run("build", archive, "-o", index, "--overwrite")


def test_bundled_points_make_the_cells_of_sift(run, tmp_path):
    rng = np.random.default_rng(0)
    subspaces = sfumato.Subspaces(np.abs(rng.standard_normal((30, 128))), rng.standard_normal((30, 2, 128)))
    features = sfumato.ConcealedFeatures(np.zeros((30, 4)), subspaces, "random-2", sfumato.Extractor("sift"))
    sfumato.save(tmp_path / "sift.sfm", {"a.jpg": features})
    run("build", tmp_path / "sift.sfm", "-o", tmp_path / "x.index")
    norms = np.linalg.norm(sfumato.search.load(tmp_path / "x.index").centres, axis=1)
    assert (norms < 1.01).all(), "means of decoys, not of these"


def test_help_teaches(run):
    for command in ("build", "search", "add", "remove"):
        assert f"Example: sfumato index {command}" in run(command, "--help").stdout
