# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import sfumato
from sfumato.cli.app import app
from sfumato.cli.map import CandidateOptions, _warn_of_guesses
from sfumato.device import localize_photos
from sfumato.errors import InputError
from sfumato.experiments import make_room, read_posed_folder, save_room
from sfumato.geometry.cameras import pose_error, read_poses, write_cameras
from sfumato.geometry.localization import LocalizeParams
from sfumato.geometry.mapping import MapOutcome
from sfumato.geometry.maps import save_landmarks
from sfumato.geometry.model import read_model
from sfumato.geometry.statistics import statistics_of
from sfumato.publish import _select_points, _write_public
from sfumato.types.scene import Camera


@pytest.fixture
def run_here(monkeypatch):
    """Run the command in this process, which is quicker."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def folder(places, place, tmp_path_factory):
    """A map, its public points, an archive of queries and their cameras; tests must not write to it."""
    folder = tmp_path_factory.mktemp("place")
    places.write_model(place, folder / "model")
    with sfumato.load(place.archive(folder / "private.sfm", places.VIEWS, seed=50)) as archive:
        save_landmarks(folder / "model", archive)
    place.archive(folder / "query.sfm", places.QUERIES)
    write_cameras(folder / "cameras.txt", dict.fromkeys(places.QUERIES, place.camera))
    model = read_model(folder / "model")
    points = [(name, _select_points(name, place.features[name], model)) for name in places.VIEWS]
    _write_public(folder / "public-points.sqlite", points)
    return folder


def command(folder, *more):
    return ("localize", folder / "query.sfm", "--map", folder / "model", *more)


def test_queries_get_poses_against_either_map(run_sfumato, run_here, folder, place, tmp_path):
    for run, extra in ((run_sfumato, ()), (run_here, ("--public", folder / "public-points.sqlite"))):
        path = tmp_path / f"poses{len(extra)}.txt"
        done = run(*command(folder, "--cameras", folder / "cameras.txt", "-o", path, *extra))
        assert done.stdout.startswith("2 of 2 queries localized (median ")
        assert done.stdout.rstrip().endswith(str(path))
        assert done.stderr == ""
        found = read_poses(path)
        assert all(pose_error(found[name], place.poses[name])[0] < 0.02 for name in found)
        content = json.loads(path.with_suffix(".json").read_text())
        assert content["map"] == ("public points" if extra else "concealed")
    assert [line.split()[0] for line in path.read_text().splitlines()] == ["query/0.jpg", "query/1.jpg"]


def test_candidates_cameras_and_reasons_are_told(run_here, folder, tmp_path):
    (tmp_path / "pairs.txt").write_text("query/0.jpg db/a.jpg\nquery/0.jpg db/gone.jpg\nquery/0.jpg db/b.jpg\n")
    done = run_here(*command(folder, "--pairs", tmp_path / "pairs.txt", "-o", tmp_path / "poses.txt", "--json"))
    facts = json.loads(done.stdout)
    assert (facts["queries"], facts["localized"], facts["cameras guessed"]) == (2, 1, 2)
    assert facts["candidates not in the map"] == 1
    assert facts["not localized"] == {"query/1.jpg": "no image of the map to compare with"}
    assert "no pose for query/1.jpg: no image of the map" in done.stderr
    assert json.loads((tmp_path / "poses.json").read_text())["queries"]["query/0.jpg"]["candidates"] == 2
    assert list(read_poses(tmp_path / "poses.txt")) == ["query/0.jpg"]


def test_the_same_seed_gives_the_same_file(run_here, folder, tmp_path):
    for name in ("one.txt", "two.txt"):
        run_here(*command(folder, "-o", tmp_path / name, "--seed", 4, "--threads", 1))
    assert (tmp_path / "one.txt").read_bytes() == (tmp_path / "two.txt").read_bytes()


def test_more_inliers_than_there_are_can_not_be_had(run_here, folder, tmp_path):
    done = run_here(*command(folder, "-o", tmp_path / "poses.txt", "--min-inliers", 3000), code=1)
    assert "nothing was localized, 0 of 2 queries" in done.stdout
    assert "too few matches" in done.stderr
    assert read_poses(tmp_path / "poses.txt") == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cameras", "none.txt"], "none.txt: no such file"),
        (["--pairs", "none.txt"], "none.txt: no such file"),
        (["--pairs", "none.txt", "--retrieval", "3"], "give one of the two"),
        (["--codebook", "none.npz"], "--codebook is for --retrieval"),
        (["--retrieval", "0"], "votes:0"),
        (["--retrieval", "2"], "dimensions"),
        (["--public", "none.h5"], "no such file"),
        (["--max-error", "0"], "max_error_px"),
        (["--min-inliers", "1"], "min_inliers"),
    ],
)
def test_mistakes(run_here, folder, tmp_path, arguments, message):
    done = run_here(*command(folder, "-o", tmp_path / "poses.txt", *arguments), code=1)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def mine(folder, tmp_path):
    """A copy of everything, to which a test may write."""
    shutil.copytree(folder, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.parametrize(
    "output",
    ["query.sfm", "cameras.txt", "public-points.sqlite", "pairs.txt", "model/images.bin", "model/points3D.bin"],
)
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_nothing_that_is_read_is_ever_overwritten(run_here, mine, output, more):
    (mine / "pairs.txt").write_text("query/0.jpg db/a.jpg\n")
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    given = (
        "--cameras",
        mine / "cameras.txt",
        "--public",
        mine / "public-points.sqlite",
        "--pairs",
        mine / "pairs.txt",
    )
    done = run_here(*command(mine, *given, "-o", mine / output, *more), code=1)
    assert "cannot write" in done.stderr
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


def test_only_poses_are_replaced_and_only_if_asked(run_here, mine):
    arguments = command(mine, "--cameras", mine / "cameras.txt", "-o", mine / "poses.txt")
    (mine / "poses.json").write_text('{"mine": 1}')
    for more, message in (((), "exists"), (("--overwrite",), "is not a table of localized queries")):
        assert message in run_here(*arguments, *more, code=1).stderr
    assert not (mine / "poses.txt").exists()
    (mine / "poses.json").unlink()
    run_here(*arguments)
    assert "exists" in run_here(*arguments, code=1).stderr
    run_here(*arguments, "--overwrite")
    archive = command(mine, "-o", mine / "private.sfm", "--overwrite")  # not read, and not poses
    assert "is not a list of poses" in run_here(*archive, code=1).stderr


def test_a_wrong_focal_length_is_told(run_here, folder, places, tmp_path):
    wrong = Camera("PINHOLE", 640, 480, (250.0, 250.0, 320.0, 240.0))
    write_cameras(tmp_path / "wrong.txt", dict.fromkeys(places.QUERIES, wrong))
    done = run_here(*command(folder, "--cameras", tmp_path / "wrong.txt", "-o", tmp_path / "poses.txt"))
    assert "2 cameras in doubt, their poses may be far off" in done.stdout
    assert done.stderr.count("px instead of 250 explains more") == 2


def test_cameras_marked_as_guesses_are_not_believed(run_here, folder, place, places, tmp_path):
    wrong = Camera("PINHOLE", 640, 480, (250.0, 250.0, 320.0, 240.0))
    cameras = {places.QUERIES[0]: place.camera, places.QUERIES[1]: wrong}
    write_cameras(tmp_path / "c.txt", cameras, [places.QUERIES[1]])
    done = run_here(*command(folder, "--cameras", tmp_path / "c.txt"))
    assert "1 camera guessed from the image size" in done.stdout
    assert "in doubt" not in done.stdout
    assert "no camera is given" not in done.stderr
    write_cameras(tmp_path / "c.txt", {"0.jpg": wrong}, ["0.jpg"])
    assert "is of a query" in run_here(*command(folder, "--cameras", tmp_path / "c.txt"), code=1).stderr


def test_a_map_tells_of_guesses_in_a_list_and_of_others(tmp_path, capsys):
    outcome = MapOutcome(folder=None, statistics=statistics_of(None, 3), guessed=frozenset("ab"))
    _warn_of_guesses(outcome, tmp_path / "cameras.txt")
    told = capsys.readouterr().err
    assert told.startswith("cameras: 2 of 3 are marked as guesses in ")
    assert "--with-cameras" not in told
    _warn_of_guesses(outcome, None)
    message = capsys.readouterr().err
    assert all(option in message for option in ("--cameras", "--shared-camera", "--photos", "--with-cameras"))
    _warn_of_guesses(replace(outcome, guessed=frozenset()), tmp_path / "cameras.txt")
    assert capsys.readouterr().err == ""


def test_cameras_of_other_names(run_here, folder, place, tmp_path):
    write_cameras(tmp_path / "c.txt", {"0.jpg": place.camera})
    done = run_here(*command(folder, "--cameras", tmp_path / "c.txt", "-o", tmp_path / "poses.txt"), code=1)
    assert "none of the 1 cameras is of a query" in done.stderr
    write_cameras(tmp_path / "c.txt", {"query/0.jpg": place.camera, "query/1.jpeg": place.camera})
    done = run_here(*command(folder, "--cameras", tmp_path / "c.txt", "-o", tmp_path / "poses.txt"))
    assert "no camera is given for 'query/1.jpg' (did you mean 'query/1.jpeg'?): guessed" in done.stderr
    assert "1 camera guessed from the image size" in done.stdout


def test_names_with_spaces_cost_themselves_only(run_here, folder, place, places, tmp_path):
    hidden = place.concealed(places.QUERIES)
    sfumato.save(tmp_path / "q.sfm", {"a b.jpg": hidden["query/0.jpg"], "c.jpg": hidden["query/1.jpg"]})
    done = run_here("localize", tmp_path / "q.sfm", "--map", folder / "model", "-o", tmp_path / "poses.txt", code=1)
    assert "1 of 2 queries localized" in done.stdout
    assert "1 left out because of their names" in done.stdout
    assert "no pose for a b.jpg: left out" in done.stderr
    assert "do not rename and conceal them again" in done.stderr


def test_a_map_that_is_none(run_here, folder, tmp_path):
    done = run_here("localize", folder / "query.sfm", "--map", tmp_path, "-o", tmp_path / "p.txt", code=1)
    assert "holds no COLMAP model" in done.stderr


def test_a_damaged_query_costs_itself_only_and_the_exit_code_tells(run_here, folder, tmp_path):
    content = bytearray((folder / "query.sfm").read_bytes())
    with sfumato.load(folder / "query.sfm") as archive:
        raw = archive["query/0.jpg"].code.origin.tobytes()
    content[content.index(raw[:64])] ^= 1
    (tmp_path / "damaged.sfm").write_bytes(content)
    done = run_here(
        "localize", tmp_path / "damaged.sfm", "--map", folder / "model", "-o", tmp_path / "poses.txt", code=1
    )
    assert "1 of 2 queries localized" in done.stdout
    assert "1 unreadable" in done.stdout
    assert list(read_poses(tmp_path / "poses.txt")) == ["query/1.jpg"]


def test_defaults_are_those_of_the_library(run_here, folder):
    shown = run_here("localize", "--help").stdout
    for word in ("--cameras", "--public", "--pairs", "--retrieval", "--min-inliers", "--seed", "Example"):
        assert word in shown
    assert LocalizeParams().max_error_px == 12
    assert CandidateOptions().choose() == "exhaustive"
    assert CandidateOptions(retrieval=5).choose() == "votes:5"
    with pytest.raises(InputError, match=r"--pairs.*--retrieval"):
        CandidateOptions(pairs=folder / "pairs.txt", retrieval=5).choose()


@pytest.mark.slow
def test_photos_are_localized_on_the_device_of_the_map(run_sfumato, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_room(make_room(None, np.random.default_rng(0), views=4, width=320, height=240), "room")
    write_cameras("cameras.txt", read_posed_folder("room").cameras)
    (tmp_path / "photo.png").write_bytes((tmp_path / "room/images/view-0003.png").read_bytes())
    (tmp_path / "room/images/view-0003.png").unlink()
    (tmp_path / "other.key").write_bytes(os.urandom(32))
    (tmp_path / "other.key").chmod(0o600)
    run_sfumato("conceal", "room/images", "-o", "private.sfm", "--max-features", 700)
    run_sfumato("map", "private.sfm", "--cameras", "cameras.txt", "-o", "model")
    done = run_sfumato("localize", "photo.png", "model")
    assert "1 of 1 query localized" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("photo.png 0.")
    facts = json.loads(run_sfumato("localize", "photo.png", "--map", "model", "--json").stdout)
    assert (len(facts["poses"]["photo.png"]), facts["cameras guessed"]) == (7, 1)
    run_sfumato("localize", "photo.png", "model", "-o", "poses.txt")
    assert set(read_poses("poses.txt")) == {"photo.png"}
    (tmp_path / "my photo.png").write_bytes((tmp_path / "photo.png").read_bytes())
    done = run_sfumato("localize", "my photo.png", "model")
    assert (done.stderr, done.stdout.splitlines()[-1].startswith("my photo.png 0.")) == ("", True)
    told = run_sfumato("localize", "my photo.png", "model", "-o", "mine.txt", code=1).stderr
    assert "warning: 'my photo.png'" in told  # no list can hold the name
    write_cameras("guess.txt", sfumato.infer_cameras("photo.png").cameras, ["photo.png"])
    assert localize_photos("photo.png", "model", "guess.txt").guessed == ["photo.png"]
    wrong = run_sfumato("localize", "photo.png", "model", "--secret-file", "other.key", code=1).stderr
    with sfumato.load("private.sfm") as archive:
        assert archive.header("view-0000.png").recipe.links[-1].checksum in wrong
    run_sfumato("conceal", "photo.png", "-o", "query.sfm", "--max-features", 700, "--secret-file", "other.key")
    told = run_sfumato("localize", "query.sfm", "model", code=1).stderr
    assert "different device keys" in told
    for arguments in (("model", "--map", "model"), (), ("model", "--place", "hall"), ("model", "--secret-file", "x")):
        run_sfumato("localize", "query.sfm", *arguments, code=1)
    run_sfumato("localize", "photo.png", "model", "--public", "points.h5", code=1)
