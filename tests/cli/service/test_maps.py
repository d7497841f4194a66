# SPDX-License-Identifier: Apache-2.0
"""sfumato map and localize with a server: the same words, files and exit codes as without."""

import json
import re

import pytest

pytest.importorskip("httpx2")

from sfumato.cli.service.connect import MapServerOptions
from sfumato.client import Client
from sfumato.geometry.cameras import pose_error, read_poses
from sfumato.geometry.mapping import MapOutcome, outcome_facts
from sfumato.geometry.statistics import statistics_of


def test_a_map_by_a_server_is_told_as_one_made_here(run_sfumato, at_server, archive, tmp_path):
    run_sfumato("push", archive, "--place", "hall")
    there = run_sfumato(
        "map", "--server", at_server.url, "--place", "hall", "-o", tmp_path / "there", "--mapper", "incremental"
    )
    shape = r"3 of 3 images registered, \d+ points \(track length [\d.]+, reprojection error [\d.]+ px, [\d.]+ s\)"
    assert re.match(shape, there.stdout)
    assert there.stdout.rstrip().endswith(str(tmp_path / "there"))
    assert (tmp_path / "there" / "landmarks.sfm").is_file()
    assert "3 of 3 images guessed" in there.stderr


def test_facts_of_a_map_are_the_same_and_nothing_of_the_server_is_in_them(
    run_sfumato, at_server, mapped_place, archive, monkeypatch
):
    run_sfumato("push", archive, "--place", "empty hall")
    with Client(at_server.url, at_server.key) as client:
        figures = dict(client.place(mapped_place).maps()[0].figures)
    figures |= {"unregistered": ["3.jpg"], "reason": "too little", "unreadable": {}, "other models": [
        {"folder": str(at_server.folder / "work/model/others/1"), "images": 2, "points": 9, "doubt": []}]}  # fmt: skip
    monkeypatch.setattr("sfumato.cli.service.maps.wait_for_map", lambda job, quiet: (figures, None))
    done = run_sfumato("map", "--place", "empty hall", "--json", code=1)
    facts = json.loads(done.stdout)
    here = outcome_facts(MapOutcome(folder=None, statistics=statistics_of(None, 3)))
    assert set(facts) >= {*here, "output"}
    assert facts["output"] is None
    assert str(at_server.folder) not in done.stdout + done.stderr
    assert facts["other models"][0]["folder"] == "others/1"
    text = run_sfumato("map", "--place", "empty hall", code=1).stdout
    assert text == "no map: too little\n"


def test_detached_jobs_are_queued_and_followed(run_sfumato, at_server, archive, scene):
    run_sfumato("push", archive, "--place", "yard")
    facts = json.loads(run_sfumato("map", "--place", "yard", "--detach", "--mapper", "global", "--json").stdout)
    assert facts["state"] in ("queued", "running")
    done = run_sfumato("jobs", "--cancel", facts["job"])
    assert done.stdout.startswith(f"job {facts['job']}, map: ")
    assert f"job {facts['job']}, map: cancelled" in run_sfumato("jobs", "--place", "yard", "--follow").stdout


def test_localize_writes_the_same_files(run_sfumato, at_server, mapped_place, query, scene, tmp_path):
    run_sfumato("pull", "--place", mapped_place, "-o", tmp_path / "model")
    cameras = ("--cameras", tmp_path / "cameras.txt")
    here = run_sfumato("localize", query, tmp_path / "model", *cameras, "-o", tmp_path / "here.txt")
    there = run_sfumato("localize", query, "--place", mapped_place, *cameras, "-o", tmp_path / "there.txt")
    assert there.stdout.replace("there.txt", "here.txt") == here.stdout
    assert there.stderr == here.stderr == ""
    assert json.loads((tmp_path / "here.json").read_text()) == json.loads((tmp_path / "there.json").read_text())
    first, second = (read_poses(tmp_path / name)["q.jpg"] for name in ("here.txt", "there.txt"))
    assert max(pose_error(first, second)) < 1e-9
    taken = run_sfumato("localize", query, "--place", mapped_place, "-o", tmp_path / "there.txt", code=1)
    assert "--overwrite" in taken.stderr
    shown = run_sfumato("localize", query, "--server", at_server.url, "--place", mapped_place).stdout
    assert "# name qw qx qy qz tx ty tz" in shown
    assert "1 camera guessed" in shown


def test_a_query_that_is_not_localized_has_its_exit_code(run_sfumato, at_server, mapped_place, query, tmp_path):
    words = ("--place", mapped_place, "--min-inliers", "5000", "-o", tmp_path / "p.txt")
    done = run_sfumato("localize", query, *words, code=1)
    assert "nothing was localized, 0 of 1 query" in done.stdout
    assert "no pose for q.jpg" in done.stderr
    assert read_poses(tmp_path / "p.txt") == {}


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("map", "x.sfm", "--place", "p"), "ARCHIVE"),
        (("map", "--cameras", "c.txt"), "--cameras"),
        (("map", "--threads", "4"), "--threads"),
        (("map", "--picture", "x.png"), "--picture"),
        (("map", "--detach", "-o", "model"), "--detach"),
        (("map",), "--place"),
        (("localize", "query.sfm", "model"), "MAP"),
        (("localize", "query.sfm", "--public", "p.sqlite"), "--public"),
        (("localize", "query.sfm", "--ratio", "0.5", "--place", "p"), "ratio"),
        (("localize", "query.sfm", "--recipe", "random-2", "--place", "p"), "--recipe"),
        (("localize", "query.sfm"), "--place"),
    ],
)
def test_what_a_server_does_not_take_is_refused(run_sfumato, at_server, query, tmp_path, words, option):
    errors = run_sfumato(*words, "--server", at_server.url, cwd=tmp_path, code=1).stderr
    assert errors.startswith("error: ")
    assert option in errors


def test_an_unknown_place_is_told_by_its_name(run_sfumato, at_server, query):
    for words in (("map", "--place", "nowhere land"), ("localize", query, "--place", "nowhere land")):
        assert "nowhere land" in run_sfumato(*words, code=1).stderr


def test_options_of_servers_need_one(run_sfumato, no_server, archive, tmp_path):
    for option in (["--place", "x"], ["--detach"], ["--pairs", "votes:3"], ["--allow-http"]):
        assert option[0] in run_sfumato("map", archive, "-o", tmp_path / "m", *option, code=1).stderr
    assert "archive" in run_sfumato("map", code=2).stderr
    assert "--server" in run_sfumato("localize", archive, code=1).stderr


def test_an_archive_and_a_place_are_one_too_many_where_the_environment_has_a_server(
    run_sfumato, at_server, archive, tmp_path
):
    errors = run_sfumato("map", archive, "--place", "x", "-o", tmp_path / "m", code=1).stderr
    assert errors.startswith("error: --place is for the server of $SFUMATO_SERVER")
    assert "sfumato push" in errors


def test_a_server_in_the_environment_changes_nothing_for_maps_on_disk(at_server):
    options = MapServerOptions()
    assert options.is_meant(has_no_other=True)
    assert not options.is_meant(has_no_other=False)
    options.refuse()


@pytest.mark.slow
def test_photos_are_pushed_mapped_and_localized_as_here(run_sfumato, at_server, small_room, tmp_path):
    words = ("--max-features", "800", "--extractor", "opencv")
    run_sfumato("push", small_room / "images", "--place", "room", *words)
    assert "5 of 5 images registered" in run_sfumato("map", "--place", "room", "-o", tmp_path / "model").stdout
    photo = sorted((small_room / "images").iterdir())[2]
    there = run_sfumato("localize", photo, "--place", "room", "-o", tmp_path / "there.txt", "--with-cameras")
    here = run_sfumato("localize", photo, tmp_path / "model", "--place", "room", "-o", tmp_path / "here.txt")
    assert there.stdout.replace("there.txt", "here.txt") == here.stdout
    first, second = (read_poses(tmp_path / name)[photo.name] for name in ("here.txt", "there.txt"))
    assert max(pose_error(first, second)) < 0.01  # positions that stay home are kept in sixteenths of a pixel
    words = ("--send-positions", "--with-cameras", "-o", tmp_path / "sent.txt")
    run_sfumato("localize", photo, "--place", "room", *words)
    assert max(pose_error(first, read_poses(tmp_path / "sent.txt")[photo.name])) < 1e-6
