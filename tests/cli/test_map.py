# SPDX-License-Identifier: Apache-2.0
import json
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pycolmap
import pytest
import typer

import sfumato
from sfumato.cli.map import MapOptions, map_, report
from sfumato.errors import EvaluationOnlyWarning, FileError, InputError, SfumatoError
from sfumato.geometry.cameras import write_cameras
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import LARGEST_EXHAUSTIVE, MapOutcome, OtherModel
from sfumato.geometry.maps import load_map
from sfumato.geometry.model_folder import CODES, MAP_FILES, MODEL_FILES, PUBLIC_POINTS
from sfumato.geometry.statistics import MapStatistics
from sfumato.images.read import read_focal_lengths
from sfumato.types.scene import Camera

CAMERA = Camera("PINHOLE", 640, 480, (800.0, 800.0, 320.0, 240.0))
NAMES = [f"db/{i}.jpg" for i in range(5)]


def make_archive(path, images=5, points=150, size=(640, 480), seed=0):
    """Concealed features of points around which cameras stand; each point has a descriptor of its own."""
    rng = np.random.default_rng(seed)
    world, descriptors = rng.uniform(-1.6, 1.6, (points, 3)), rng.standard_normal((points, 32))
    hidden = {}
    for number in range(images):
        turn = 0.25 * number
        rotation = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
        local = world @ rotation.T + np.array([0, 0.1 * (-1) ** number, 8])
        places = 800 * local[:, :2] / local[:, 2:] + (319.5, 239.5) + 0.2 * rng.standard_normal((points, 2))
        noisy = descriptors + 0.05 * rng.standard_normal(descriptors.shape)
        unit = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
        features = sfumato.Features(np.column_stack([places, np.ones((points, 2))]), unit, image_size=size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            hidden[f"db/{number}.jpg"] = sfumato.conceal(features, "random-2", evaluation_seed=number)
    sfumato.save(path, hidden)
    return path


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_archive(tmp_path_factory.mktemp("map") / "private.sfm")


@pytest.fixture(scope="module")
def cameras(archive):
    path = archive.with_name("cameras.txt")
    write_cameras(path, dict.fromkeys([*NAMES, "more.jpg"], CAMERA))
    return path


@pytest.fixture(scope="module")
def mapped(run_sfumato, archive, cameras):
    """The folder of a model, and what the command said."""
    folder = archive.parent / "mapped" / "model"
    folder.parent.mkdir()
    return folder, run_sfumato("map", archive, "--cameras", cameras, "-o", folder)


@pytest.fixture(scope="module")
def matches(run_sfumato, archive):
    path = archive.with_name("matches.h5")
    run_sfumato("match", archive, "--exhaustive", "-o", path)
    return path


def test_a_map_is_drawn_and_only_a_picture_is_replaced(run_sfumato, archive, cameras, tmp_path):
    make = ("map", archive, "--cameras", cameras, "-o", tmp_path / "model", "--picture")
    assert ".svg" in run_sfumato(*make, tmp_path / "map.txt", code=1).stderr
    run_sfumato(*make, tmp_path / "map.png")
    drawn = (tmp_path / "map.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert "exists" in run_sfumato(*make, tmp_path / "map.png", code=1).stderr
    run_sfumato(*make, tmp_path / "map.png", "--overwrite")
    mine = b"\x89PNG of my own"
    (tmp_path / "notes.png").write_bytes(mine)
    assert "picture" in run_sfumato(*make, tmp_path / "notes.png", "--overwrite", code=1).stderr
    assert (tmp_path / "notes.png").read_bytes() == mine
    assert "within" in run_sfumato(*make, tmp_path / "model/map.png", "--overwrite", code=1).stderr


def test_an_archive_becomes_a_model_with_landmarks(mapped):
    folder, done = mapped
    assert done.stdout.startswith("5 of 5 images registered, ")
    assert "doubt" not in done.stdout
    assert done.stdout.strip().endswith(f": {folder}")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    assert {path.name for path in folder.iterdir()} == MAP_FILES - {PUBLIC_POINTS, CODES}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    made = pycolmap.Reconstruction(str(folder))
    assert made.num_reg_images() == 5
    assert all(list(camera.params) == list(CAMERA.params) for camera in made.cameras.values())
    with sfumato.load(folder / "landmarks.sfm") as landmarks:
        assert list(landmarks) == NAMES
        assert sum(len(landmarks[name]) for name in NAMES) == made.compute_num_observations()


def test_no_descriptor_of_any_kind_is_in_the_model(mapped, archive):
    with sfumato.load(archive) as opened:
        rows = [opened[name].code for name in NAMES]
    for file in MODEL_FILES:
        content = (mapped[0] / file).read_bytes()
        for subspaces in rows:
            for array in (subspaces.origin, subspaces.basis):
                assert array[0].tobytes()[:16] not in content
                assert array[0].astype(np.float64).tobytes()[:16] not in content


def test_matches_made_before_give_the_same_bytes(run_sfumato, archive, cameras, matches, mapped, tmp_path):
    options = ("--cameras", cameras, "--matches", matches, "--seed", 0, "--json")
    facts = json.loads(run_sfumato("map", archive, *options, "-o", tmp_path / "model").stdout)
    assert (facts["registered"], facts["images"], facts["pairs"], facts["verified pairs"]) == (5, 5, 10, 10)
    assert facts["inliers"] > 0.8 * facts["matches"]
    assert facts["guessed cameras"] == 0
    assert (facts["reason"], facts["unregistered"], facts["other models"], facts["doubt"]) == ("", [], [], [])
    assert [run["mapper"] for run in facts["runs"]] == ["incremental", "global"]
    assert facts["reprojection error px"] < 0.5
    for file in MODEL_FILES:
        assert (tmp_path / "model" / file).read_bytes() == (mapped[0] / file).read_bytes()


def test_without_cameras_it_guesses_and_says_so(archive, tmp_path, capsys):
    map_(archive, tmp_path / "model", options=MapOptions(shared_camera=True, mapper="global"))
    assert "of 5 guessed as 1.2 times the longer side" in capsys.readouterr().err
    made = pycolmap.Reconstruction(str(tmp_path / "model"))
    assert made.num_cameras() == 1
    assert made.cameras[1].focal_length != 768


def test_photos_are_asked_for_their_focal_length(archive, tmp_path, photos, capsys):
    (tmp_path / "photos" / "db").mkdir(parents=True)
    for name in NAMES[:2]:
        (tmp_path / "photos" / name).write_bytes((photos / "deep" / "b.jpg").read_bytes())
    map_(archive, tmp_path / "model", photos=tmp_path / "photos")
    errors = capsys.readouterr().err
    assert errors.count("no focal length of db/") == 3
    assert "guessed" in errors
    with pytest.raises(InputError, match="the two"):
        map_(archive, tmp_path / "other", photos=tmp_path, cameras=tmp_path)


def test_photos_may_be_links(tmp_path, photos):
    """As conceal follows them."""
    (tmp_path / "linked" / "db").mkdir(parents=True)
    for name in NAMES:
        (tmp_path / "linked" / name).symlink_to(photos / "deep" / "b.jpg")
    lengths, problems = read_focal_lengths(tmp_path / "linked", dict.fromkeys(NAMES, (640, 480)))
    assert not problems
    assert set(lengths) <= set(NAMES)


def test_names_that_lead_elsewhere_are_left_out(archive, cameras, tmp_path, capsys):
    with sfumato.load(archive) as opened:
        sfumato.save(tmp_path / "b.sfm", {**{name: opened[name] for name in NAMES}, "../a.jpg": opened[NAMES[0]]})
    with pytest.raises(typer.Exit):
        map_(tmp_path / "b.sfm", tmp_path / "model", cameras)
    told = capsys.readouterr()
    assert "skipped ../a.jpg: no map can hold this name: it leaves its folder" in told.err
    assert told.out.startswith("5 of 5 images registered")


def test_a_wrong_focal_length_is_told(archive, tmp_path, capsys):
    wrong = Camera("PINHOLE", 640, 480, (400.0, 400.0, 320.0, 240.0))
    write_cameras(tmp_path / "wrong.txt", dict.fromkeys(NAMES, wrong))
    map_(archive, tmp_path / "model", tmp_path / "wrong.txt")
    told = capsys.readouterr()
    assert "of 5 images do not fit" in told.err
    assert "the map is in doubt" in told.out
    map_(archive, tmp_path / "other", tmp_path / "wrong.txt", as_json=True)
    assert "do not fit" in json.loads(capsys.readouterr().out)["doubt"][-1]


@pytest.mark.slow
def test_a_separate_map_is_told_and_kept(archive, cameras, tmp_path, capsys):
    """Two places in one archive: both can be opened, and queries localized against either."""
    elsewhere = make_archive(tmp_path / "other.sfm", images=3, points=100, seed=5)
    with sfumato.load(archive) as first, sfumato.load(elsewhere) as second:
        both = {**{name: first[name] for name in NAMES}, **{f"other/{name}": second[name] for name in second}}
        sfumato.save(tmp_path / "both.sfm", both)
    write_cameras(tmp_path / "both.txt", dict.fromkeys(both, CAMERA))
    map_(tmp_path / "both.sfm", tmp_path / "model", tmp_path / "both.txt")
    told, other = capsys.readouterr(), tmp_path / "model" / "others" / "1"
    assert "a separate map of 3 images" in told.err
    assert "; 1 separate map of 3 images beside it" in told.out
    assert "doubt" not in told.out + told.err
    with load_map(other) as opened:
        assert len(opened) == 3
    map_(
        tmp_path / "both.sfm",
        tmp_path / "model",
        tmp_path / "both.txt",
        options=MapOptions(overwrite=True),
        as_json=True,
    )
    facts = json.loads(capsys.readouterr().out)
    (model,) = facts["other models"]
    assert (model["images"], model["folder"], model["doubt"]) == (3, str(other), [])


def test_a_separate_map_in_doubt_is_told(tmp_path, capsys):
    other = OtherModel(tmp_path / "others" / "1", 3, 6, doubt=("an image sees 6 of its points in the mean",))
    outcome = MapOutcome(folder=tmp_path, statistics=MapStatistics(images=8, registered=5), other_models=(other,))
    report(outcome, tmp_path, as_json=False)
    told = capsys.readouterr()
    assert f"separate map 1 in doubt: {other.doubt[0]}" in told.err
    assert "beside it, 1 of them in doubt: " in told.out
    assert "the map is in doubt" not in told.out
    report(outcome, tmp_path, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["doubt"], facts["other models"][0]["doubt"]) == ([], list(other.doubt))


def test_the_time_includes_the_matching(archive, cameras, tmp_path, capsys, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr("sfumato.geometry.mapping.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    map_(archive, tmp_path / "model", cameras)  # the clock is read before and after, and twice within for the mapping
    assert "300.0 s)" in capsys.readouterr().out


def test_a_map_that_is_there_is_refused(archive, cameras, mapped, tmp_path):
    shutil.copytree(mapped[0], tmp_path / "model")
    before = (tmp_path / "model" / "images.bin").stat().st_ino
    with pytest.raises(FileError, match="--overwrite"):  # before it is seen that there is no archive
        map_(tmp_path / "none.sfm", tmp_path / "model", cameras)
    assert (tmp_path / "model" / "images.bin").stat().st_ino == before
    map_(archive, tmp_path / "model", cameras, options=MapOptions(overwrite=True))
    assert (tmp_path / "model" / "images.bin").stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_can_not_be_mapped_has_a_reason_and_an_exit_code(run_sfumato, tmp_path):
    one = make_archive(tmp_path / "one.sfm", images=1)
    done = run_sfumato("map", one, "-o", tmp_path / "model", code=1)
    assert done.stdout == "no map: a map needs two images or more, there is one\n"
    facts = json.loads(run_sfumato("map", one, "-o", tmp_path / "model", "--json", code=1).stdout)
    assert facts["output"] is None
    assert "two images" in facts["reason"]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("matched", [False, True])
def test_a_damaged_image_is_named_and_the_others_are_mapped(archive, cameras, matches, tmp_path, capsys, matched):
    with sfumato.load(archive) as opened:
        raw = opened["db/4.jpg"].code.origin.tobytes()
    content = bytearray(archive.read_bytes())
    content[content.index(raw[:64])] ^= 1
    (tmp_path / "b.sfm").write_bytes(content)
    with pytest.raises(typer.Exit) as ended:
        map_(tmp_path / "b.sfm", tmp_path / "model", cameras, matches=matches if matched else None)
    assert ended.value.exit_code == 1
    told = capsys.readouterr()
    assert "skipped db/4.jpg: cannot read image" in told.err
    assert told.out.startswith("4 of 4 images registered")


def test_matches_of_other_features_are_refused(cameras, matches, tmp_path):
    other = make_archive(tmp_path / "other.sfm", points=140)
    with pytest.raises(FileError, match="holds matches"):
        map_(other, tmp_path / "model", cameras, matches=matches)


def test_matches_of_unknown_images_are_refused(run_sfumato, archive, cameras, matches, tmp_path):
    theirs, ours = tmp_path / "theirs.h5", shutil.copy(matches, tmp_path / "ours.h5")
    with h5py.File(theirs, "w") as file:
        file["stranger.jpg/other.jpg/matches0"] = np.zeros(3, np.int16)
        file["stranger.jpg/other.jpg/matching_scores0"] = np.ones(3, np.float16)
    with h5py.File(ours, "r+") as file:
        first = next(iter(file))
        file.move(f"{first}/{next(iter(file[first]))}", f"{first}/stranger.jpg")
    for path in (theirs, ours):
        done = run_sfumato("map", archive, "--cameras", cameras, "--matches", path, "-o", tmp_path / "map", code=1)
        assert "stranger.jpg" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_many_images_need_a_list_of_pairs(tmp_path):
    hidden = sfumato.ConcealedFeatures(
        np.zeros((1, 4)), sfumato.Subspaces(np.ones((1, 8)), np.eye(8)[None, :2]), "random-2", image_size=(9, 9)
    )
    count = LARGEST_EXHAUSTIVE + 1
    sfumato.save(tmp_path / "a.sfm", {f"{i}.jpg": hidden for i in range(count)})
    with pytest.raises(InputError, match=f"{count} images.*--matches"):
        map_(tmp_path / "a.sfm", tmp_path / "model")


def test_an_archive_that_does_not_say_how_large_its_images_are(tmp_path):
    sizeless = make_archive(tmp_path / "a.sfm", images=2, size=None)
    with pytest.raises(InputError, match=r"'db/0.jpg'"):
        map_(sizeless, tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": Path("none.txt")}, "none.txt: no such file"),
        ({"matches": Path("none.h5")}, "no such match file"),
        ({"options": MapOptions(mapper="globe")}, "did you mean 'global'"),
        ({"options": MapOptions(seed=-1)}, "seed"),
        ({"photos": Path("none")}, "not a folder of photos"),
    ],
)
def test_mistakes(archive, tmp_path, options, message):
    with pytest.raises(SfumatoError, match=message):
        map_(archive, tmp_path / "model", **options)
    assert not [*tmp_path.iterdir()]


def test_cameras_of_another_size_or_image(archive, tmp_path):
    path = tmp_path / "cameras.txt"
    write_cameras(path, dict.fromkeys(NAMES, Camera("PINHOLE", 480, 640, (800.0, 800.0, 240.0, 320.0))))
    with pytest.raises(InputError, match=r"'db/0.jpg'"):
        map_(archive, tmp_path / "model", path)
    write_cameras(path, dict.fromkeys(NAMES[:3], CAMERA))
    with pytest.raises(InputError, match="2 of 5 images"):
        map_(archive, tmp_path / "model", path)


BLOCKED = """
import signal, sys
from sfumato.cli import main
from sfumato.geometry import mapping

def wait(reconstruction, folder):
    real(reconstruction, folder)
    sys.stderr.write("written\\n")
    sys.stderr.flush()
    signal.pause()
real, mapping.write_model = mapping.write_model, wait
main()
"""


def test_ctrl_c_leaves_nothing_half_written(archive, cameras, tmp_path):
    output = tmp_path / "model"
    command = [sys.executable, "-c", BLOCKED, "map", archive, "--cameras", cameras, "-o", output]
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "written\n"
    assert len([*tmp_path.iterdir()]) == 1  # what is made beside its place
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=100)[1]
    assert process.returncode == 130
    assert "nothing was written" in errors
    assert "Traceback" not in errors
    assert not [*tmp_path.iterdir()]


def test_defaults_are_those_of_the_library(run_sfumato):
    shown = run_sfumato("map", "--help").stdout
    for word in ("--cameras", "--matches", "--photos", "--mapper", "--refine-intrinsics", "--shared-camera", "Example"):
        assert word in shown
    assert MapParams().mapper in shown
