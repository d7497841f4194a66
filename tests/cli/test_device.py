# SPDX-License-Identifier: Apache-2.0
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import sfumato
from sfumato.cli.app import app
from sfumato.concealment.encoder import save_encoder
from sfumato.concealment.seal import make_seal
from sfumato.device.conceal import ConcealRun
from sfumato.features.local import extract
from sfumato.geometry.cameras import read_cameras, read_marked_cameras

LIFTED = ("--recipe", "sub-hybrid-2")


def test_a_folder_with_good_broken_and_empty_photos(run_sfumato, photos, tmp_path):
    done = run_sfumato("conceal", photos, "-o", tmp_path / "p.sfm", "--recipe", "sub-hybrid-2")
    assert "skipped broken.jpg" in done.stderr
    assert "no features in grey.png" in done.stderr
    assert "3 images concealed with sub-hybrid-2, 1 without features, 1 unreadable" in done.stdout
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert set(archive) == {"a.png", "deep/b.jpg", "grey.png"}
        clear, hidden = extract(photos / "a.png"), archive["a.png"]
        assert np.array_equal(hidden.keypoints, clear.keypoints)
        assert hidden.extractor.settings["contrast_threshold"] == 0.02
        assert hidden.extractor.settings["max_features"] == 16_384
        distances = sfumato.squared_distances(clear.descriptors[:50], hidden.code[:50])
        assert np.diag(distances).max() < 1e-10
        assert np.median(distances) > 0.1


def test_again_skips_and_overwrite_redoes(run_sfumato, photos, tmp_path):
    path = tmp_path / "p.sfm"
    run_sfumato("conceal", *LIFTED, photos, "-o", path)
    before = path.read_bytes()
    facts = json.loads(run_sfumato("conceal", *LIFTED, photos, "-o", path, "--json").stdout)
    assert (facts["images"], facts["skipped"]) == (0, 3)
    with sfumato.load(path) as archive:
        first = archive["a.png"].code.origin
    run_sfumato("conceal", *LIFTED, photos, "-o", path, "--overwrite")
    with sfumato.load(path) as archive:
        assert not np.allclose(archive["a.png"].code.origin, first)
    assert path.read_bytes() != before
    assert "--overwrite" in run_sfumato("conceal", photos, "-o", path, "--recipe", "random-2", code=1).stderr


def test_settings_reach_the_features(run_sfumato, photos, tmp_path):
    path = tmp_path / "p.sfm"
    run_sfumato("conceal", *LIFTED, photos / "a.png", "-o", path, "--max-features", 50, "--contrast-threshold", 0.01,
                "--recipe", "random-3", "--float16")  # fmt: skip
    with sfumato.load(path) as archive:
        hidden = archive["a.png"]
        assert len(hidden) == 50
        assert hidden.code.dim == 3
        assert hidden.extractor.settings["contrast_threshold"] == 0.01
        assert archive.summary().images[0].dtype == "float16"


def test_secret_and_seed(run_sfumato, photos, tmp_path):
    key = tmp_path / "key"
    assert (
        "urandom" in run_sfumato("conceal", *LIFTED, photos, "-o", tmp_path / "x", "--secret-file", key, code=1).stderr
    )
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    origins = []
    for name in ("1", "2"):
        run_sfumato("conceal", *LIFTED, photos / "a.png", "-o", tmp_path / name, "--secret-file", key)
        with sfumato.load(tmp_path / name) as archive:
            assert archive["a.png"].recipe.keyed
            origins.append(archive["a.png"].code.origin)
    np.testing.assert_allclose(origins[0], origins[1], atol=1e-6)
    warned = run_sfumato("conceal", *LIFTED, photos / "a.png", "-o", tmp_path / "3", "--evaluation-seed", 4)
    assert "protects nobody" in warned.stderr
    assert "evaluation seed" in run_sfumato("inspect", tmp_path / "3").stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (["--recipe", "sub-hybird-2"], "did you mean 'sub-hybrid-2'"), (["--recipe", "raw"], "cannot be archived"),
    (["--recipe", "random-1"], "meets a sphere"), (["--descriptor", "sitf"], "sift"),
    (["--max-features", "0"], "max_features"), (["--extractor", "haris"], "did you mean 'harris'"),
    (["--descriptor", "hardtfeat"], "--weights"), (["--weights", "w.pth"], "sift is not a network"),
    (["--descriptor", "hardtfeat", "--weights", "none.pth"], "none.pth are not there"),
    (["--recipe", "sub-hybrid-2", "--decoys", "none.npz"], "no such file"),
    (["--decoys", "none.npz"], "--decoys"),
])  # fmt: skip
def test_mistakes(run_sfumato, photos, tmp_path, arguments, message):
    assert message in run_sfumato("conceal", photos, "-o", tmp_path / "p.sfm", *arguments, code=1).stderr
    assert not (tmp_path / "p.sfm").exists()


def test_nothing_to_read(run_sfumato, photos, tmp_path):
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "missing", photos / "broken.jpg", photos / "notes.txt"):
        assert run_sfumato("conceal", source, "-o", tmp_path / "p.sfm", code=1).stderr.startswith("error: ")
        assert not (tmp_path / "p.sfm").exists()


@pytest.mark.slow
def test_interrupted_work_goes_on_where_it_stopped(run_sfumato, tmp_path):
    import cv2

    folder = tmp_path / "many"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        noise = cv2.resize(rng.integers(0, 255, (45, 60), dtype=np.uint8), (480, 360), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number:03}.png"), noise)
    run_sfumato("conceal", *LIFTED, folder / "000.png", "-o", tmp_path / "one.sfm")
    several = 4 * (tmp_path / "one.sfm").stat().st_size  # less might be an image that is not yet complete
    output = tmp_path / "p.sfm"
    command = [
        sys.executable,
        "-m",
        "sfumato",
        "conceal",
        "--recipe",
        "sub-hybrid-2",
        str(folder),
        "-o",
        str(output),
        "--workers",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(4000):
        sizes = [file.stat().st_size for file in tmp_path.glob("p.sfm*-wal")]
        if sum(sizes) > several or process.poll() is not None:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    if process.returncode == 0:
        pytest.skip("the machine was too fast to be interrupted")
    assert process.returncode == 130
    assert "run the same command again" in errors
    with sfumato.load(output) as archive:
        assert 0 < len(archive) < 20
    facts = json.loads(run_sfumato("conceal", *LIFTED, folder, "-o", output, "--json").stdout)
    assert facts["skipped"] > 0
    assert facts["skipped"] + facts["images"] == 20
    with sfumato.load(output) as archive:
        assert len(archive) == 20


def test_labels_of_images(run_sfumato, photos, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("a.png,person\ndeep/b.jpg,cup\ngrey.png,wall\nbroken.jpg,none\n")
    run_sfumato("decoys", "build", photos, "-o", tmp_path / "d.npz", "--size", 64, "--labels", table)
    arguments = ("--recipe", "hybrid-labels-2", "--decoys", tmp_path / "d.npz")
    run_sfumato("conceal", photos, "-o", tmp_path / "p.sfm", *arguments, "--labels", table)
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert archive["a.png"].recipe.kind == "hybrid-labels"
    assert "needs labels" in run_sfumato("conceal", photos, "-o", tmp_path / "q.sfm", *arguments, code=1).stderr


def test_names_that_no_archive_takes_do_not_stop_the_others(run_sfumato, photos, tmp_path):
    deep = tmp_path / "in"
    for _ in range(6):
        deep = deep / ("x" * 200)
    deep.mkdir(parents=True)
    (deep / "far.png").write_bytes((photos / "a.png").read_bytes())
    (tmp_path / "in" / "near.png").write_bytes((photos / "grey.png").read_bytes())
    done = run_sfumato("conceal", *LIFTED, tmp_path / "in", "-o", tmp_path / "p.sfm")
    assert "at most 1024" in done.stderr
    assert "1 unreadable" in done.stdout


def test_names_that_lists_can_not_hold_are_told_before(run_sfumato, photos, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("my photo.png", "#1.png", "plain.png"):
        (tmp_path / "in" / name).write_bytes((photos / "a.png").read_bytes())
    done = run_sfumato("conceal", *LIFTED, tmp_path / "in", "-o", tmp_path / "a.sfm", "--max-features", 20)
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: '#1.png', 'my photo.png': because of spaces")
    assert "a second lifting reveals the first" in line
    assert "of 3 images concealed" in done.stdout
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    for recipe in ("sealed-64", "random-2"):  # under a key the same descriptor gives the same each time
        given = ("--recipe", recipe, "--secret-file", key, "-o", tmp_path / f"{recipe}.sfm")
        (line,) = run_sfumato("conceal", tmp_path / "in", *given, "--max-features", 20).stderr.splitlines()
        assert "give the photos other names first" in line
        assert "lifting" not in line


def test_rootsift_has_bundled_decoys_too(run_sfumato, photos, tmp_path):
    run_sfumato("conceal", *LIFTED, photos / "a.png", "-o", tmp_path / "p.sfm", "--descriptor", "rootsift")
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert archive["a.png"].extractor.name == "rootsift"
        assert archive["a.png"].recipe.decoys != sfumato.load_decoys().checksum


def test_another_extractor(run_sfumato, photos, tmp_path):
    run_sfumato(
        "conceal",
        "--recipe",
        "sub-hybrid-2",
        photos / "a.png",
        "-o",
        tmp_path / "p.sfm",
        "--extractor",
        "harris",
        "--max-features",
        50,
    )
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert archive["a.png"].extractor.settings["extractor"] == "harris"
        clear = extract(photos / "a.png", extractor="harris", max_features=50)
        assert np.array_equal(archive["a.png"].keypoints, clear.keypoints)


def run_here(*arguments, code=0):
    """Run the command in this process, which is quicker."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


def test_an_encoder_from_photos_to_matches(photos, tmp_path, make_encoder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "n.safetensors", make_encoder())
    path = tmp_path / "p.sfm"
    arguments = ("conceal", photos, "-o", path, "--recipe", "ninja:n.safetensors", "--max-features", 200)
    done = run_here(*arguments)
    assert "3 images concealed with ninja:n@" in done.stdout
    facts = json.loads(run_here(*arguments, "--json").stdout)
    assert (facts["images"], facts["skipped"]) == (0, 3)
    assert facts["recipe"].startswith("ninja:n@")
    shown = run_here("inspect", path).stdout
    for expected in (facts["recipe"], "points of an encoder's space R^128", "none: an encoder gives"):
        assert expected in shown
    shown = run_here("inspect", tmp_path / "n.safetensors").stdout
    for expected in (facts["recipe"], "encoder", "128 - 256 - 128", "sift"):
        assert expected in shown
    run_here("match", path, "--exhaustive", "-o", tmp_path / "m.h5")
    done = run_here("conceal", photos, "-o", path, "--recipe", "random-2", "--max-features", 200, code=1)
    assert f"begun with {facts['recipe']}" in done.stderr


def test_an_encoder_that_is_not_there(photos, tmp_path):
    for recipe, message in (("ninja:n.safetensors", "n.safetensors: the encoder of the recipe cannot be read"),
                            ("ninja-none", "no encoder ninja-none comes with the package")):  # fmt: skip
        done = run_here("conceal", photos, "-o", tmp_path / "p.sfm", "--recipe", recipe, code=1)
        assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_sealed_photos_of_one_key_match_and_of_another_do_not(run_sfumato, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_KEY", str(tmp_path / "keys" / "mine.key"))
    sealed = ("conceal", photos / "a.png", "--recipe", "sealed-128", "--max-features", "200")
    done = run_sfumato(*sealed, "-o", tmp_path / "one.sfm")
    key = tmp_path / "keys" / "mine.key"
    assert "made a device key" in done.stderr
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    done = run_sfumato(*sealed, "-o", tmp_path / "two.sfm")
    assert "device key" not in done.stderr
    with sfumato.load(tmp_path / "one.sfm") as one, sfumato.load(tmp_path / "two.sfm") as two:
        assert np.array_equal(one["a.png"].code.packed, two["a.png"].code.packed)
    assert (
        "the device key gives the same descriptor the same bits" in run_sfumato("inspect", tmp_path / "one.sfm").stdout
    )
    (tmp_path / "other.key").write_bytes(os.urandom(32))
    more = ("--secret-file", tmp_path / "other.key", "-o", tmp_path / "one.sfm")
    told = run_sfumato(*sealed, *more, code=1).stderr
    assert "was begun with" in told
    given = make_seal((tmp_path / "other.key").read_bytes(), 128, 128).checksum[:12]
    assert f"the given device key, fingerprint {given} for 128 numbers" in told
    assert "the key it was begun with" in told
    named = ("--recipe", "sealed-128@0123456789ab", "--secret-file", tmp_path / "other.key")
    told = run_sfumato("conceal", photos, *named, "-o", tmp_path / "new.sfm", code=1).stderr
    assert f"whose fingerprint is {given} for 128 numbers" in told


def test_a_recipe_with_a_guarantee_says_what_it_spends(photos, tmp_path, run_sfumato):
    output = tmp_path / "private.sfm"
    given = ("conceal", photos, "-o", output, "--recipe", "subset-3:eps=2.50", "--max-features", "40", "-q")
    done = run_sfumato(*given)
    assert "concealed with subset-3:eps=2.5," in done.stdout
    assert "privacy spent: eps 2.5 per release of a descriptor; over all releases" in done.stdout
    shown = run_sfumato("inspect", output)
    assert "100 per photo (40 features of 1 image)" in shown.stdout
    assert "dimension 2 in R^128" in shown.stdout
    with sfumato.load(output) as archive:
        assert {len(archive[name]) for name in archive} == {0, 40}
    seeded = run_sfumato(*given, "--overwrite", "--evaluation-seed", "1")
    assert "privacy spent: no guarantee: the draws can be repeated" in seeded.stdout
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    refused = run_sfumato(*given, "--overwrite", "--secret-file", key, code=1)
    assert "leave the secret out" in refused.stderr


def test_chains_are_concealed_matched_and_inspected(photos, tmp_path, run_sfumato):
    output = tmp_path / "private.sfm"
    recipe = "compress-24+sub-hybrid-2-generated"
    run_sfumato("conceal", photos, "-o", output, "--recipe", recipe, "--max-features", "40", "-q")
    shown = run_sfumato("inspect", output).stdout
    assert "compress-24@" in shown
    assert "+sub-hybrid-2-generated" in shown
    assert "dimension 2 in R^24" in shown
    assert "privacy spent" not in shown
    run_sfumato("match", output, "-o", tmp_path / "matches.h5", "--exhaustive", "-q")


def test_descriptors_of_another_width_are_sealed_by_default(tmp_path, run_sfumato):
    import h5py

    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "sp.h5", "w") as file:
        rows = rng.standard_normal((256, 30))
        file["a.jpg/keypoints"] = rng.uniform(0, 600, (30, 2))
        file["a.jpg/descriptors"] = (rows / np.linalg.norm(rows, axis=0)).astype(np.float32)
        file["a.jpg/image_size"] = np.array([640, 480])
    arguments = ("conceal", tmp_path / "sp.h5", "-o", tmp_path / "sp.sfm", "--extractor", "superpoint")
    facts = json.loads(run_sfumato(*arguments, "--json").stdout)
    with sfumato.load(tmp_path / "sp.sfm") as archive:
        assert str(archive["a.jpg"].recipe) == facts["recipe"]
    assert "1 images already there" in run_sfumato(*arguments).stdout


def test_no_key_is_made_for_what_can_not_be_done(photos, tmp_path, monkeypatch, run_sfumato):
    key, output = tmp_path / "keys" / "mine.key", tmp_path / "p.sfm"
    monkeypatch.setenv("SFUMATO_KEY", str(key))
    for source, place in ((tmp_path / "nonexist", output), (photos, tmp_path / "no" / "p.sfm"),
                          (photos / "broken.jpg", output)):  # fmt: skip
        run_sfumato("conceal", source, "-o", place, code=1)
        assert not key.exists()
    run_sfumato("conceal", photos / "a.png", "-o", output, "--max-features", 20)
    key.unlink()
    done = run_sfumato("conceal", photos, "-o", output, "--max-features", 20, code=1)
    assert "its device key is missing" in done.stderr
    assert not key.exists()


def test_copies_of_a_photo_are_counted_as_releases(photos, tmp_path, run_sfumato):
    (tmp_path / "in").mkdir()
    for name in ("one.png", "two.png"):
        (tmp_path / "in" / name).write_bytes((photos / "a.png").read_bytes())
    (tmp_path / "in" / "other.jpg").write_bytes((photos / "deep" / "b.jpg").read_bytes())
    given = ("conceal", tmp_path / "in", "-o", tmp_path / "p.sfm", "--recipe", "subset-4:eps=10")
    done = run_sfumato(*given, "--max-features", 50)
    for shown in (done.stdout, run_sfumato("inspect", tmp_path / "p.sfm").stdout):
        assert "eps 10 per release of a descriptor" in shown
        assert "up to 20 per descriptor and 1000 per photo (100 features of 2 images that share keypoints)" in shown
        assert "--overwrite replaced" in shown
        assert "released once" not in shown


def test_a_very_large_eps_is_an_ordinary_number(photos, tmp_path, run_sfumato):
    given = ("conceal", photos / "a.png", "-o", tmp_path / "p.sfm", "--max-features", 10)
    assert "eps 999 per release of a descriptor" in run_sfumato(*given, "--recipe", "subset-4:eps=999").stdout


def test_a_wide_seal_warns_in_a_line(photos, tmp_path, run_sfumato):
    given = ("conceal", photos / "a.png", "-o", tmp_path / "p.sfm", "--max-features", 10)
    done = run_sfumato(*given, "--recipe", "sealed-64:9.9")
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: recipe sealed-64:9.9: ")


def test_the_help_explains_the_default():
    shown = " ".join(run_here("conceal", "--help").output.replace("│", " ").split())
    assert "default is sealed-512: a 512-bit code made with your device key" in shown


def test_places_of_one_device_key_do_not_match(photos, tmp_path, run_sfumato):
    (tmp_path / "k.key").write_bytes(os.urandom(32))
    (tmp_path / "k.key").chmod(0o600)
    few = ("--max-features", 60, "--secret-file", tmp_path / "k.key", "--recipe", "sealed-64")
    made = {}
    for name, place in (("a", "kitchen"), ("b", "kitchen"), ("c", "hall"), ("d", None)):
        path = tmp_path / f"{name}.sfm"
        run_sfumato("conceal", photos / "a.png", "-o", path, *few, *(("--place", place) if place else ()))
        made[name] = json.loads(run_sfumato("inspect", path, "--json").stdout)["recipe"]
    assert made["a"] == made["b"]
    assert len(set(made.values())) == 3
    done = run_sfumato(
        "conceal", photos / "a.png", "-o", tmp_path / "e.sfm", "--place", "hall", "--recipe", "random-2", code=1
    )
    assert "--place" in done.stderr


def test_cameras_go_with_the_archive_and_inspect_says_so(run_sfumato, photos, tmp_path, write_photo):
    import cv2

    write_photo(tmp_path / "a.jpg", cv2.imread(str(photos / "a.png"), cv2.IMREAD_GRAYSCALE), 28)
    path = tmp_path / "p.sfm"
    done = run_sfumato("conceal", tmp_path / "a.jpg", "-o", path, "--with-cameras")
    assert "focal lengths of 1" in done.stdout
    assert "focal lengths of 1 of 1 images" in run_sfumato("inspect", path).stdout
    facts = json.loads(run_sfumato("conceal", tmp_path / "a.jpg", "-o", path, "--overwrite", "--json").stdout)
    assert "focal lengths" not in facts
    assert json.loads(run_sfumato("inspect", path, "--json").stdout)["cameras"] == "none"


def test_a_repeated_run_counts_the_focal_lengths_that_are_there(run_sfumato, photos, tmp_path, write_photo):
    import cv2

    write_photo(tmp_path / "a.jpg", cv2.imread(str(photos / "a.png"), cv2.IMREAD_GRAYSCALE), 28)
    command = ("conceal", tmp_path / "a.jpg", "-o", tmp_path / "p.sfm", "--with-cameras")
    run_sfumato(*command)
    assert "1 images already there, focal lengths of 1 in the archive" in run_sfumato(*command).stdout


@pytest.mark.parametrize("finished", [0, 1])
def test_what_is_kept_after_an_interruption_is_told(photos, tmp_path, monkeypatch, finished):
    """Only where an image was finished is there anything to go on with."""
    output, wrapped = tmp_path / "p.sfm", ConcealRun._conceal
    calls = []

    def stop(run, name, features):
        calls.append(name)
        if len(calls) > finished:
            raise KeyboardInterrupt
        return wrapped(run, name, features)

    monkeypatch.setattr(ConcealRun, "_conceal", stop)
    done = CliRunner().invoke(app, ["conceal", str(photos), "-o", str(output)])
    assert done.exit_code == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.sfm", "p.sfm.positions"] * finished
    assert ("run the same command again" in done.stderr) == bool(finished)
    assert ("nothing was written" in done.stderr) == (not finished)


def test_a_list_of_cameras_from_photos_and_from_an_archive(run_sfumato, photos, tmp_path, write_photo):
    import cv2

    (tmp_path / "mine").mkdir()
    pixels = cv2.imread(str(photos / "a.png"), cv2.IMREAD_GRAYSCALE)
    write_photo(tmp_path / "mine" / "a.jpg", pixels, 28)
    write_photo(tmp_path / "mine" / "b.jpg", pixels)
    (tmp_path / "mine" / "broken.jpg").write_text("no photo")
    done = run_sfumato("cameras", tmp_path / "mine", "-o", tmp_path / "cameras.txt")
    assert "2 cameras, focal lengths of 1 known, 1 guessed" in done.stdout
    assert "no camera for broken.jpg" in done.stderr
    assert "--refine-intrinsics" in done.stderr
    assert "adjusts the marked guesses" in done.stderr
    cameras, guessed = read_marked_cameras(tmp_path / "cameras.txt")
    assert guessed == {"b.jpg"}
    assert cameras["b.jpg"].params[0] == 1.2 * max(pixels.shape)
    assert cameras["a.jpg"].params[0] != cameras["b.jpg"].params[0]
    private = tmp_path / "p.sfm"
    run_sfumato("conceal", tmp_path / "mine", "-o", private, "--with-cameras")
    assert "exists" in run_sfumato("cameras", private, "-o", tmp_path / "cameras.txt", code=1).stderr
    done = run_sfumato("cameras", private, "-o", tmp_path / "cameras.txt", "--overwrite", "--json")
    assert json.loads(done.stdout)["focal lengths guessed"] == 1
    assert read_cameras(tmp_path / "cameras.txt") == cameras
    before = private.read_bytes()
    run_sfumato("cameras", tmp_path / "mine", "-o", private, "--overwrite", code=1)
    assert private.read_bytes() == before


def test_again_with_other_settings_is_an_error_and_not_nothing(run_sfumato, photos, tmp_path):
    path = tmp_path / "p.sfm"
    run_sfumato("conceal", photos / "a.png", "-o", path, "--max-features", 60)
    done = run_sfumato("conceal", photos / "a.png", "-o", path, "--max-features", 50, code=1)
    assert "max_features 60 and not 50" in done.stderr
    assert "1 images already there" in run_sfumato("conceal", photos / "a.png", "-o", path, "--max-features", 60).stdout
