# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

import sfumato
from sfumato.concealment.decoys import load_decoys
from sfumato.features.local import LocalParams

LIFTED = ("--recipe", "sub-hybrid-2")


def test_build_from_photos_and_use_it(run_sfumato, photos, tmp_path):
    path = tmp_path / "decoys.safetensors"
    done = run_sfumato("decoys", "build", photos, "-o", path, "--size", 128, "--parts", 4, "--contrast-threshold", 0.02)
    assert "128 decoys in 4 parts" in done.stdout
    assert "skipped broken.jpg" in done.stderr
    assert sfumato.load_decoys(path).extractor.name == "sift"
    run_sfumato("conceal", *LIFTED, photos / "a.png", "-o", tmp_path / "p.sfm", "--decoys", path)
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert archive["a.png"].recipe.decoys == sfumato.load_decoys(path).checksum
    assert "already there" in run_sfumato("decoys", "build", photos, "-o", path, "--size", 9, code=1).stderr


def test_labels_from_a_table(run_sfumato, photos, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("a.png,person\ndeep/b.jpg,cup\ngrey.png,wall\n")
    path = tmp_path / "decoys.safetensors"
    run_sfumato("decoys", "build", photos, "-o", path, "--size", 64, "--labels", table)
    assert set(np.unique(sfumato.load_decoys(path).labels)) == {"person", "cup"}
    table.write_text("a.png,person\n")
    again = tmp_path / "other.npz"
    assert (
        "no label for 2 images"
        in run_sfumato("decoys", "build", photos, "-o", again, "--size", 64, "--labels", table, code=1).stderr
    )
    table.write_text("a.png\n")
    assert "line 1" in run_sfumato("decoys", "build", photos, "-o", again, "--labels", table, code=1).stderr


def test_too_few_descriptors_and_wrong_places(run_sfumato, photos, tmp_path):
    assert (
        "distinct descriptors"
        in run_sfumato("decoys", "build", photos, "-o", tmp_path / "d.npz", "--size", 10**6, code=1).stderr
    )
    assert "not a folder" in run_sfumato("decoys", "build", photos, "-o", tmp_path / "no" / "d.npz", code=1).stderr


def test_an_interrupted_build_goes_on(run_sfumato, photos, tmp_path):
    path, command = tmp_path / "d.npz", ("decoys", "build", photos, "-o", tmp_path / "d.npz", "--extractor", "opencv")

    def stop(_, items, __):
        yield next(iter(items))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sfumato.build_photo_decoys([photos], path, size=64, local=LocalParams(), extractor="opencv", progress=stop)
    assert "--overwrite" in run_sfumato(*command, "--size", 65, code=1).stderr
    assert "(1 read before)" in run_sfumato(*command, "--size", 64).stdout
    assert not list(tmp_path.glob("*.part"))


def test_json(run_sfumato, photos, tmp_path):
    facts = json.loads(run_sfumato("decoys", "build", photos, "-o", tmp_path / "d.npz", "--size", 64, "--json").stdout)
    assert facts["decoys"] == 64
    assert facts["unreadable"].keys() == {"broken.jpg"}


def test_decoys_of_a_network(run_sfumato, photos, untrained, tmp_path):
    """Built with a file of weights, used with the same, refused with SIFT."""
    path, network = tmp_path / "d.npz", ("--descriptor", "hardtfeat", "--weights", untrained, "--max-features", 80)
    run_sfumato("decoys", "build", photos, "-o", path, "--size", 64, "--parts", 4, *network)
    decoys = sfumato.load_decoys(path)
    assert decoys.extractor.name == f"hardtfeat-{decoys.extractor.settings['weights']}"
    assert decoys.extractor.settings["max_features"] == 80
    run_sfumato("conceal", *LIFTED, photos / "a.png", "-o", tmp_path / "p.sfm", *network, "--decoys", path)
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert archive["a.png"].extractor.name == decoys.extractor.name
        assert len(archive["a.png"]) == 80
        assert archive["a.png"].recipe.decoys == decoys.checksum
    other = run_sfumato("conceal", *LIFTED, photos / "a.png", "-o", tmp_path / "q.sfm", "--decoys", path, code=1)
    assert "these decoys are hardtfeat-" in other.stderr
    assert not (tmp_path / "q.sfm").exists()


def test_a_public_set_holds_real_descriptors(run_sfumato, photos, tmp_path):
    path = tmp_path / "public.safetensors"
    run_sfumato("decoys", "build", photos, "-o", path, "--size", 50, "--drawn")
    public = sfumato.load_decoys(path)
    real = sfumato.extract(photos / "a.png").descriptors
    assert len(public) == 50
    assert any((row == real).all(axis=1).any() for row in public.descriptors)
    labelled = run_sfumato("decoys", "build", photos, "-o", tmp_path / "x", "--drawn", "--labels", path, code=1)
    assert "--drawn" in labelled.stderr


def test_decoys_are_made_of_faces(run_sfumato, tmp_path):
    rows = np.random.default_rng(0).normal(size=(30, 16))
    np.savez(tmp_path / "faces.npz", embedding=rows, gender=np.arange(30, dtype=np.uint8) % 2)
    path = tmp_path / "decoys.safetensors"
    command = ("decoys", "build", "--faces", tmp_path / "faces.npz", "-o", path, "--overwrite")
    done = run_sfumato(*command, "--extractor", "arcface", "--label-column", "gender")
    assert done.stdout.startswith("30 decoys in 16 parts from 30 faces (arcface): ")
    decoys = sfumato.load_decoys(path)
    assert decoys.extractor.name == "arcface"
    assert sorted(decoys.labels.tolist()) == ["0"] * 15 + ["1"] * 15
    assert np.allclose(np.linalg.norm(decoys.descriptors, axis=1), 1, atol=1e-6)
    assert json.loads(run_sfumato(*command, "--size", 5, "--drawn", "--json").stdout)["decoys"] == 5


def test_faces_and_photos_are_not_mixed(run_sfumato, tmp_path):
    (tmp_path / "f.csv").write_text("a,1,0\n")
    out = ("-o", tmp_path / "decoys.safetensors")
    faces = ("--faces", tmp_path / "f.csv")
    assert "--faces" in run_sfumato("decoys", "build", *out, code=1).stderr
    assert "--faces" in run_sfumato("decoys", "build", tmp_path, *faces, *out, code=1).stderr
    assert "--drawn" in run_sfumato(
        "decoys", "build", *faces, *out, "--drawn", "--label-column", "x", code=1
    ).stderr  # fmt: skip
    assert "--label-column" in run_sfumato(
        "decoys", "build", tmp_path, *out, "--label-column", "x", code=1
    ).stderr  # fmt: skip
    assert "--labels" in run_sfumato("decoys", "build", *faces, *out, "--label-column", "x", code=1).stderr


def test_the_least_alike_faces_are_taken(run_sfumato, tmp_path):
    np.savez(tmp_path / "faces.npz", embedding=np.random.default_rng(0).normal(size=(60, 16)))
    output = tmp_path / "spread.safetensors"
    faces = ("--faces", tmp_path / "faces.npz")
    run_sfumato("decoys", "build", *faces, "--size", 20, "--spread", "--parts", 2, "-o", output)
    assert len(load_decoys(output)) == 20
    done = run_sfumato("decoys", "build", *faces, "--spread", "-o", tmp_path / "no.npz", code=1)
    assert "--spread" in done.stderr
