# SPDX-License-Identifier: Apache-2.0
"""Commands of devices whose positions stay home: push releases, map releases more, localize sends codes alone."""

import json
import shutil
import sqlite3

import cv2
import numpy as np
import pytest

pytest.importorskip("httpx2")

from sfumato.cli.service.connect import pushed_path
from sfumato.cli.service.maps import recall_conditions
from sfumato.client.names import NameTable
from sfumato.errors import FileError
from sfumato.geometry.cameras import pose_error, read_poses, write_cameras


@pytest.fixture
def device(live, at_server, device_key, request, monkeypatch):
    """A device that pushed three photos of a hall to a place before, from an archive where push keeps it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    name = f"hall of {request.node.name}"
    path = pushed_path(NameTable().place_id(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    made = live.Device(path, device_key.read_bytes(), name)
    hall = live.make_surroundings(21, hall=120)
    made.take(a_jpg=hall.photo(0.0, "hall"), b_jpg=hall.photo(0.5, "hall"), c_jpg=hall.photo(1.0, "hall"))
    return made


@pytest.fixture
def masks(tmp_path):
    """Masks that keep all of one photo at home."""
    (tmp_path / "masks").mkdir()
    cv2.imwrite(str(tmp_path / "masks" / "a.jpg.png"), np.zeros((480, 640), np.uint8))
    return tmp_path / "masks"


def counts(device):
    return {name: len(rows) for name, rows in device.shown().items()}


def test_a_push_releases_and_says_how_much(run_sfumato, at_server, device):
    done = run_sfumato("push", device.archive, "--place", device.place)
    assert done.stdout.startswith("3 images sent (")
    assert "; 360 positions left, 360 of 540 in all (66.7%) of 3 photos; 3 of 3 pairs proven (" in done.stdout
    facts = json.loads(run_sfumato("push", device.archive, "--place", device.place, "--json").stdout)
    assert (facts["sent"], facts["released"]["new"], facts["released"]["released"]) == ([], 0, 360)
    assert counts(device) == {"a.jpg": 120, "b.jpg": 120, "c.jpg": 120}
    lines = run_sfumato("jobs", "--place", device.place).stdout.splitlines()
    assert [line.partition(", ")[2] for line in lines] == [f"evidence: done ({device.place})"] * 2
    facts = json.loads(run_sfumato("jobs", "--place", device.place, "--json").stdout)
    assert [job["kind"] for job in facts["jobs"]] == ["evidence"] * 2


def test_without_a_release_nothing_leaves_and_no_map_is_made(run_sfumato, at_server, device):
    run_sfumato("push", device.archive, "--place", device.place, "--no-release")
    assert sum(counts(device).values()) == 0
    done = run_sfumato("map", "--place", device.place, code=1)
    assert "no position" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sum(counts(device).values()) == 0, "nor does a map let anything go"


def test_conditions_of_a_release_are_remembered(run_sfumato, at_server, device, masks):
    """What lies behind a mask stays home also when later commands do not name it."""
    run_sfumato("push", device.archive, "--place", device.place, "--never", masks, "--limit", "0.7")
    assert counts(device) == {"a.jpg": 0, "b.jpg": 120, "c.jpg": 120}
    run_sfumato("push", device.archive, "--place", device.place)
    done = run_sfumato("map", "--place", device.place, code=1)  # of two photos there is none
    assert "0 positions left, 240 of 540" in done.stderr
    assert counts(device)["a.jpg"] == 0
    conditions = recall_conditions(device.archive)
    assert (conditions.limit, conditions.never, conditions.rule) == (0.7, masks, "tracks")
    run_sfumato("push", device.archive, "--place", device.place, "--limit", "0.8")
    assert counts(device)["a.jpg"] == 0, "one of them is named, and the other goes on"
    shutil.rmtree(masks)
    assert str(masks) in run_sfumato("map", "--place", device.place, code=1).stderr, "it does not go on without"
    others = masks.with_name("others")
    others.mkdir()
    cv2.imwrite(str(others / "a.jpg.png"), np.full((480, 640), 255, np.uint8))
    run_sfumato("push", device.archive, "--place", device.place, "--never", others)
    assert counts(device)["a.jpg"] == 120, "until another is named"
    assert recall_conditions(device.archive).limit == 0.8


def test_conditions_that_cannot_be_read_are_an_error(device):
    path = device.archive.with_name(f"{device.archive.name}.release")
    assert recall_conditions(device.archive) is None
    for text in ("", "{", "[]", '{"rule": "tracks"}', '{"rule": "tracks", "limit": "x", "never": null}'):
        path.write_text(text)
        with pytest.raises(FileError):
            recall_conditions(device.archive)
    path.write_text("null")
    assert recall_conditions(device.archive) is None


def test_a_release_that_the_limit_keeps_back_ends_with_an_exit_code(run_sfumato, at_server, device):
    done = run_sfumato("push", device.archive, "--place", device.place, "--limit", "0.5", code=1)
    assert done.stderr.count("--limit") == 3
    assert sum(counts(device).values()) == 0


def test_queries_whose_positions_stay_home_are_localized_as_here(
    run_sfumato, at_server, live, device, tmp_path, monkeypatch
):
    run_sfumato("push", device.archive, "--place", device.place)
    run_sfumato("map", "--place", device.place, "--mapper", "incremental", "-o", tmp_path / "model")
    queries = live.Device(tmp_path / "queries.sfm", device.secret, device.place)
    hall = live.make_surroundings(21, hall=120)
    queries.take(q_jpg=hall.photo(0.3, "hall"), r_jpg=hall.photo(0.8, "hall"))
    write_cameras(tmp_path / "cameras.txt", dict.fromkeys(("q.jpg", "r.jpg"), live.camera()))
    cameras = ("--cameras", tmp_path / "cameras.txt")
    here = run_sfumato("localize", queries.archive, tmp_path / "model", *cameras, "-o", tmp_path / "here.txt")
    key = run_sfumato("server", "key", "create", "landmarks", "read", "--place", device.place).stdout.strip()
    monkeypatch.setenv("SFUMATO_API_KEY", key)
    there = run_sfumato("localize", queries.archive, "--place", device.place, *cameras, "-o", tmp_path / "there.txt")
    assert there.stdout.replace("there.txt", "here.txt") == here.stdout
    poses = [read_poses(tmp_path / name) for name in ("here.txt", "there.txt")]
    assert poses[0].keys() == poses[1].keys() == {"q.jpg", "r.jpg"}
    assert all(max(pose_error(poses[0][name], poses[1][name])) < 1e-6 for name in poses[0])
    (tmp_path / "queries.sfm.positions").unlink()
    errors = run_sfumato("localize", queries.archive, "--place", device.place, *cameras, code=1).stderr
    assert "stay on its device" in errors


def test_the_doctor_counts_released_positions(run_sfumato, at_server, device, data):
    run_sfumato("push", device.archive, "--place", device.place)
    place = NameTable().place_id(device.place)
    with sqlite3.connect(at_server.folder / "server.sqlite") as live, sqlite3.connect(data / "copy") as copy:
        live.backup(copy)
    (data / "copy").replace(data / "server.sqlite")
    shutil.copytree(at_server.folder / "frames" / place, data / "frames" / place, dirs_exist_ok=True)
    (data / "matches" / "feedfeedfeed").mkdir(parents=True)
    done = run_sfumato("server", "doctor", "--data", data)
    assert "matches of a place without images" in done.stderr
    for damage in ("positions = substr(positions, 1, 120)", "positions = zeroblob(1440)", "positions = x'00'"):
        with sqlite3.connect(data / "server.sqlite") as database:
            database.execute(f"UPDATE releases SET {damage} WHERE place = ?", (place,))
        errors = run_sfumato("server", "doctor", "--data", data, code=1).stderr
        assert errors.count("problem: ") == 3
        assert "positions" in errors
