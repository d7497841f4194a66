# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import warnings

import h5py
import pytest
from cachetools import LRUCache
from typer.testing import CliRunner

import sfumato
from sfumato.attacks import inputs
from sfumato.attacks.registry import ATTACKS
from sfumato.cli.app import app
from sfumato.cli.attack import read_seeds
from sfumato.concealment import resolve
from sfumato.concealment.decoys import as_rootsift
from sfumato.concealment.encoder import save_encoder
from sfumato.errors import InputError
from sfumato.features.hloc import KIND


@pytest.fixture(scope="module")
def folder(photos, tmp_path_factory):
    """An archive, a second release of it, and the clear features; tests must not write to it."""
    folder = tmp_path_factory.mktemp("attacked")
    for arguments in (
        ("extract", photos, "-o", folder / "clear.h5"),
        ("conceal", "--recipe", "sub-hybrid-2", photos, "-o", folder / "private.sfm"),
        ("conceal", "--recipe", "sub-hybrid-2", photos, "-o", folder / "again.sfm", "--float16"),
    ):
        done = CliRunner().invoke(app, [str(a) for a in arguments] + ["--max-features", "60", "-q"])
        assert done.exit_code == 0, done.output
    sfumato.save_decoys(folder / "decoys.npz", sfumato.load_decoys())
    return folder


@pytest.fixture
def run_here(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, ["attack", *map(str, arguments)])
        assert done.exit_code == code, done.output
        return done

    return run


def test_a_table_of_attacks(run_sfumato, folder):
    done = run_sfumato(
        "attack", folder / "private.sfm", "vertex", "intersection", "decoys", "--clear", folder / "clear.h5",
        "--releases", folder / "again.sfm", "--decoys", folder / "decoys.npz",
    )  # fmt: skip
    head, _, *rows = (line.split() for line in done.stdout.splitlines() if line.strip())
    assert head[:3] == ["attack", "knowledge", "median"]
    assert [row[:2] for row in rows] == [["vertex", "decoys"], ["intersection", "releases"], ["decoys", "decoys"]]
    assert rows[1][:4] == ["intersection", "releases", "+", "decoys"]
    assert float(rows[0][3]) > 90
    assert float(rows[1][5]) > 99
    assert not done.stderr


def test_without_the_clear_ones_confidences_are_told(run_here, folder):
    facts = json.loads(run_here(folder / "private.sfm", "--json", "-q").stdout)
    (vertex,) = facts["attacks"]
    assert vertex["attack"] == "vertex"
    assert vertex["confident"] > 0.8 * vertex["features"]
    assert "median" not in vertex
    assert "with a guess" in run_here(folder / "private.sfm", "-q").stdout


def test_pictures_and_results_are_kept(run_here, folder, tmp_path):
    run_here(folder / "private.sfm", "vertex", "-o", tmp_path / "out", "-q")
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == ["a.png--vertex.png", "attack.json", "deep%2Fb.jpg--vertex.png", "grey.png--vertex.png"]
    assert json.loads((tmp_path / "out" / "attack.json").read_text())["attacks"][0]["attack"] == "vertex"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("vertices",), "did you mean 'vertex'"),
        (("",), "no attack is named ''"),
        (("nearest",), "needs public descriptors"),
        (("--seeds", "x"), "seeds"),
        (("--public", "nowhere.npz"), "no such file"),
        (("--clear", "nowhere.h5"), "nowhere.h5: no such file of features; check the path\n"),
    ],
)
def test_one_line_says_what_is_wrong(run_here, folder, arguments, told):
    done = run_here(folder / "private.sfm", *arguments, "-q", code=1)
    assert told in done.stderr
    assert "Traceback" not in done.output


def test_clear_features_of_other_options_are_named(run_here, photos, folder, tmp_path):
    CliRunner().invoke(app, ["extract", str(photos), "-o", str(tmp_path / "c.h5"), "--max-features", "30", "-q"])
    done = run_here(folder / "private.sfm", "vertex", "--clear", tmp_path / "c.h5", "-q", code=1)
    assert "left out a.png" in done.stderr
    assert "options of sfumato conceal" in done.stderr


@pytest.fixture(scope="module")
def rooted(photos, tmp_path_factory):
    """Clear features at the same keypoints, and decoys, of another kind."""
    folder = tmp_path_factory.mktemp("rooted")
    words = ["extract", photos, "-o", folder / "clear.h5", "--descriptor", "rootsift", "--max-features", "60", "-q"]
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
    sfumato.save_decoys(folder / "decoys.npz", as_rootsift(sfumato.load_decoys()))
    return folder


@pytest.mark.parametrize(
    ("option", "file", "told"),
    [
        ("--clear", "clear.h5", "the clear features are rootsift, the concealed ones sift"),
        ("--public", "decoys.npz", "the public descriptors are rootsift, the features are sift"),
        ("--decoys", "decoys.npz", "the decoys are rootsift, the features are sift"),
    ],
)
def test_another_kind_of_descriptor_is_refused(run_here, folder, rooted, option, file, told):
    done = run_here(folder / "private.sfm", "vertex", option, rooted / file, "-q", code=1)
    assert told in done.stderr
    assert not done.stdout


def test_clear_features_that_do_not_say_what_they_are_are_used_with_a_word(run_here, folder, tmp_path):
    shutil.copy(folder / "clear.h5", tmp_path / "foreign.h5")
    with h5py.File(tmp_path / "foreign.h5", "r+") as file:
        del file.attrs[KIND]
    done = run_here(folder / "private.sfm", "vertex", "--clear", tmp_path / "foreign.h5", "-q")
    assert done.stderr.count("--clear does not record its kind") == 1
    assert "median" in done.stdout
    own = run_here(folder / "private.sfm", "vertex", "--clear", folder / "clear.h5", "-q")
    assert own.stdout == done.stdout
    assert not own.stderr


def test_decoys_that_were_not_used_are_told(run_here, folder, tmp_path):
    known = sfumato.load_decoys()
    sfumato.save_decoys(tmp_path / "others.npz", sfumato.Decoys(known.descriptors[:400], known.extractor, parts=1))
    word = "is not the file the features were concealed with"
    given = (folder / "private.sfm", "vertex", "-o", tmp_path / "out", "-q")
    assert word in run_here(*given, "--decoys", tmp_path / "others.npz").stderr
    kept = json.loads((tmp_path / "out" / "attack.json").read_text())
    assert kept["attacks"][0]["knowledge"] == ["decoys"]
    assert word not in run_here(*given, "--decoys", folder / "decoys.npz").stderr


def test_seeds_are_read():
    assert read_seeds("") == ()
    assert read_seeds("3, 5-7") == (3, 5, 6, 7)
    for wrong in ("-3", "7-", "a", "0-99999999"):
        with pytest.raises(InputError):
            read_seeds(wrong) if wrong != "7-" else read_seeds("7-x")


@pytest.mark.slow
def test_encoded_features_with_their_encoder_and_curves(run_here, photos, folder, tmp_path, make_encoder, monkeypatch):
    save_encoder(tmp_path / "n.safetensors", make_encoder())
    save_encoder(tmp_path / "other.safetensors", make_encoder(1))
    private, known = tmp_path / "p.sfm", sfumato.load_decoys()
    small = sfumato.Decoys(known.descriptors[:400], known.extractor, parts=1)
    sfumato.save_decoys(tmp_path / "public.npz", small)
    recipe = f"ninja:{tmp_path / 'n.safetensors'}"
    concealing = ["conceal", photos, "-o", private, "--recipe", recipe, "-q", "--max-features", "60"]
    assert CliRunner().invoke(app, [str(word) for word in concealing]).exit_code == 0
    given = (private, "--clear", folder / "clear.h5", "--public", tmp_path / "public.npz", "-q")
    out = tmp_path / "out"
    done = run_here(*given, "--encoder", tmp_path / "n.safetensors", "--curves", "-o", out)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()][2:]
    assert names == ["nearest", "nearest-base", "oracle", "oracle-base", "oracle-encoded", "regression"]
    curves = json.loads((out / "curves.json").read_text())
    assert set(curves) == {"paired", "clear database", "encoded database"}
    assert (out / "curves.png").stat().st_size > 1000
    monkeypatch.setattr(resolve, "_by_digits", LRUCache(32))
    done = run_here(*given)
    assert "pass its file with --encoder" in done.stderr
    assert "oracle-base" in done.stdout
    assert "oracle-encoded" not in done.stdout
    for archive, option, message in (
        (private, ("--encoder", tmp_path / "other.safetensors"), "another encoder"),
        (folder / "private.sfm", ("--encoder", tmp_path / "n.safetensors"), "these did not"),
        (private, ("--curves",), "--curves needs --public"),
        (private, ("vertex",), "not for features that went through an encoder"),
        (private, ("density",), "not for features that went through an encoder and were not lifted"),
    ):
        assert message in run_here(archive, *option, "-q", code=1).stderr


def test_where_no_attack_is_possible_it_says_what_is_missing(run_here, photos, tmp_path):
    private = tmp_path / "p.sfm"
    words = ["conceal", photos, "-o", private, "--recipe", "ninja-sift-2.5", "-q", "--max-features", "20"]
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
    done = run_here(private, "-q", "--json", code=1)
    assert json.loads(done.stdout) == {"attacks": [], "left out": {}}
    assert "add --public for nearest" in done.stderr
    assert "sfumato decoys build" in done.stderr


def test_a_sealed_archive_is_attacked_with_the_bundled_decoys(run_here, photos, tmp_path, monkeypatch):
    private, known = tmp_path / "p.sfm", sfumato.load_decoys()
    key = tmp_path / "k"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    words = ["conceal", photos, "-o", private, "--recipe", "sealed-64", "-q", "--max-features", "60"]
    assert CliRunner().invoke(app, [str(word) for word in words], env={"SFUMATO_KEY": str(key)}).exit_code == 0
    few = sfumato.Decoys(known.descriptors[:600], known.extractor, parts=1)
    monkeypatch.setattr(inputs, "bundled_decoys", lambda extractor: few)
    done = run_here(private, "-q")
    assert [line.split()[0] for line in done.stdout.splitlines() if line.strip()][::2] == ["attack", "alignment"]
    assert "the 600 bundled decoys as public descriptors" in done.stderr


def test_attacks_are_explained(run_here):
    lines = [line for line in run_here("--list").stdout.splitlines() if line.strip()]
    assert [line.split()[0] for line in lines[2:]] == list(ATTACKS)
