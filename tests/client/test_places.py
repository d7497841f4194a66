# SPDX-License-Identifier: Apache-2.0
"""Places of a live server: pushed, mapped, localized and pulled, with the library's own results."""

import contextlib
import dataclasses
import sqlite3
import threading
import time

import numpy as np
import pytest

pytest.importorskip("httpx2")

import sfumato
from sfumato.client import Client
from sfumato.client.names import NameTable
from sfumato.client.transport import RetryParams
from sfumato.client.uploads import frame_of
from sfumato.errors import EvaluationOnlyWarning, FileError, FrameError, InputError, ServerError
from sfumato.geometry.localization import Localization, LocalizeParams
from sfumato.geometry.maps import load_map
from sfumato.geometry.queries import localize
from sfumato.types.scene import Camera

MARKERS = ("Küche", "attic", "Dr Smith", "bedroom", ".jpg")
"""Parts of names that people chose: places, photos."""


@pytest.fixture
def place(client, request):
    return client.place(f"place of {request.node.name}")


@pytest.fixture
def mapped(live_server, mapped_place):
    with Client(live_server.url, live_server.key) as client:
        yield client.place(mapped_place)


def rows_of(live_server, place):
    with sqlite3.connect(f"file:{live_server.folder / 'server.sqlite'}?mode=ro", uri=True) as database:
        return database.execute("SELECT name, camera, focal_px FROM images WHERE place = ?", (place.id,)).fetchall()


# --- uploads


def test_a_push_sends_what_is_missing_and_goes_on(place, scene, tmp_path):
    first = dict(list(scene.images.items())[:1])
    outcome = place.push(first)
    assert (outcome.sent, outcome.present, outcome.is_new_place) == (list(first), [], True)
    sfumato.save(tmp_path / "a.sfm", scene.images)
    bars = []
    again = place.push(tmp_path / "a.sfm", progress=lambda items: bars.extend(items) or bars)
    assert (sorted(again.sent), again.present) == (sorted(set(scene.images) - set(first)), list(first))
    assert bars == again.sent
    assert again.bytes > 2 * 90 * 64
    with sfumato.load(tmp_path / "a.sfm") as archive:
        assert place.push(archive).sent == []
    assert place.read().images == 3


def test_another_release_of_a_known_name_is_refused_by_its_name(place, scene, live):
    place.push(scene.images)
    names = list(scene.images)
    other = {names[0]: scene.images[names[1]], "new.jpg": scene.query}
    with pytest.raises(ServerError, match="Küche") as caught:
        place.push(other)
    assert (caught.value.status, caught.value.code) == (409, "already_released")
    assert place.read().images == 3, "nothing was sent"


def test_a_second_release_and_another_key_are_refused_by_their_names(place, scene, live):
    names = list(scene.images)
    place.push({names[0]: scene.images[names[0]]})
    with pytest.raises(ServerError, match="garden") as caught:
        place.push({"garden.jpg": next(iter(live.make_scene(7).images.values()))})
    assert caught.value.code == "space_mismatch"
    twin = scene.images[names[0]]
    twin = dataclasses.replace(twin, code=sfumato.Bits(twin.code.packed[::-1].copy()))
    with pytest.raises(ServerError, match="garden") as caught:
        place.push({"garden.jpg": twin})
    assert caught.value.code == "second_release"


def test_focal_lengths_go_along_only_where_the_archive_has_them(place, scene, live_server):
    names = list(scene.images)
    images = {**scene.images, names[0]: dataclasses.replace(scene.images[names[0]], focal_px=512.5)}
    place.push(images, {names[1]: scene.camera})
    facts = {name: (camera, focal) for name, camera, focal in rows_of(live_server, place)}
    ids = [place.names.image_id(place.id, name) for name in names]
    assert facts[ids[0]] == (None, 512.5)
    assert facts[ids[1]] == ("PINHOLE,640,480,500.0,500.0,320.0,240.0", None)
    assert facts[ids[2]] == (None, None)


def test_a_damaged_image_is_named_and_the_others_go(place, scene, tmp_path):
    sfumato.save(tmp_path / "a.sfm", scene.images)
    with sqlite3.connect(tmp_path / "a.sfm") as database:
        database.execute("UPDATE image SET code = zeroblob(length(code)) WHERE name = '3.jpg'")
    outcome = place.push(tmp_path / "a.sfm")
    assert list(outcome.unreadable) == ["3.jpg"]
    assert len(outcome.sent) == 2


def test_a_place_is_made_only_by_those_who_may(client, scene, live_server):
    key = client.make_key(["upload:*"], label="uploads")
    with Client(live_server.url, key) as other, pytest.raises(ServerError) as caught:
        other.place("nobody made this").push(scene.images)
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    assert "nobody made this" in str(caught.value)
    assert f"place create id:{client.place('nobody made this').id}" in str(caught.value)
    client.revoke_key(key.split("_")[1])
    with Client(live_server.url, key) as other, pytest.raises(ServerError) as caught:
        other.about()
    assert caught.value.status == 401
    assert next(row for row in client.list_keys() if row["label"] == "uploads")["revoked"]


def test_uploads_go_two_at_a_time_and_are_told_in_their_order(place, scene):
    names, under_way, most = [f"{number}.jpg" for number in range(6)], set(), []
    send, first = place.transport.ask, threading.Event()

    def ask(method, path, **words):
        if method != "PUT" or "/images/" not in path:
            return send(method, path, **words)
        under_way.add(path)
        most.append(len(under_way))
        if len(most) == 1:
            assert first.wait(10), "the second upload goes while the first is under way"
        first.set()
        under_way.remove(path)
        return {}

    place.transport.ask = ask
    outcome = place.push(dict.fromkeys(reversed(names), scene.query))
    assert outcome.sent == names
    assert max(most) == 2
    assert outcome.bytes == 6 * len(frame_of("a", scene.query))


def test_ctrl_c_waits_for_no_upload(place, scene):
    end = threading.Event()

    def stop(items):
        yield from list(items)[:1]
        raise KeyboardInterrupt

    place.prepare()
    send = place.transport.ask
    place.transport.ask = lambda method, path, **words: end.wait(60) if method == "PUT" else send(method, path, **words)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        place.push(scene.images, progress=stop)
    assert time.monotonic() - started < 20
    end.set()


# --- what never leaves


@pytest.fixture
def silent(scripted):
    """A client of a server that must not be asked."""
    scripted.answers = [(500, {}, {})]
    with Client(scripted.url, scripted.key) as client:
        yield client.place("kitchen")
    assert scripted.requests == []


def test_clear_features_are_refused_before_anything_is_sent(silent, scene):
    clear = sfumato.Features(np.zeros((3, 4)), np.ones((3, 128)))
    for call in (
        lambda: silent.localize(clear),
        lambda: silent.push({"a.jpg": scene.query, "b.jpg": clear}),
        lambda: silent.localize_archive({"a.jpg": scene.query, "b.jpg": clear}),
        lambda: silent.push(clear),
        lambda: silent.localize(clear.descriptors),
        lambda: silent.localize(b"bytes"),
    ):
        with pytest.raises(TypeError):
            call()


def test_what_protects_nobody_is_refused_before_anything_is_sent(silent):
    points = sfumato.Features(np.random.default_rng(0).random((9, 4)), np.eye(128)[:9])
    with pytest.warns(EvaluationOnlyWarning):
        weak = sfumato.conceal(points, "random-2", evaluation_seed=3)
    for call in (lambda: silent.push({"a.jpg": weak}), lambda: silent.localize(weak)):
        with pytest.raises(FrameError) as caught:
            call()
        assert caught.value.code == "clear_features"


def test_a_device_key_is_never_sent(silent, device_key):
    with pytest.raises(InputError):
        silent.push(device_key)


def test_settings_that_a_server_does_not_take_are_refused(silent, scene):
    with pytest.raises(InputError, match="ratio"):
        silent.localize(scene.query, params=LocalizeParams(ratio=0.5))
    with pytest.raises(InputError):
        silent.localize(scene.query, Camera("PINHOLE", 640, 480, (1.0,)))


def test_no_name_and_no_key_is_in_any_byte_of_the_server(mapped, scene, live_server, device_key):
    mapped.localize(scene.query)
    words = [marker.encode() for marker in MARKERS] + [live_server.key[13:56].encode()]
    words += [device_key.read_bytes(), scene.secret, mapped.names._key]
    places = [path for path in live_server.folder.rglob("*") if path.is_file()]
    assert len(places) > 8
    for path in (*places, live_server.log):
        content = path.read_bytes()
        assert not [word for word in words if word in content], path
    assert any(mapped.id.encode() in path.read_bytes() for path in places), "the search finds what is there"


# --- maps and queries


def test_a_map_is_the_library_s(mapped, scene, tmp_path):
    """The server knows ids alone, so the library gets the same: files are equal to the byte."""
    ids = {mapped.names.image_id(mapped.id, name): features for name, features in scene.images.items()}
    sfumato.save(tmp_path / "a.sfm", ids)
    outcome = sfumato.build_map(tmp_path / "a.sfm", None, tmp_path / "library", dict.fromkeys(ids, scene.camera))
    nameless = dataclasses.replace(mapped, names=NameTable(path=tmp_path / "empty.names"))
    summary = nameless.pull(tmp_path / "server")
    assert summary.figures["registered"] == outcome.statistics.registered == 3
    for name in ("cameras.bin", "images.bin", "points3D.bin"):
        assert (tmp_path / "server" / name).read_bytes() == (tmp_path / "library" / name).read_bytes()


def test_a_map_that_was_pulled_has_names_and_gives_the_same_poses(mapped, scene, tmp_path):
    assert mapped.pull(tmp_path / "model").is_current
    with load_map(tmp_path / "model") as map_:
        assert map_.names == tuple(sorted(scene.images))
        assert map_._mapped_codes() is not None
    sfumato.save(tmp_path / "q.sfm", {"q.jpg": scene.query})
    found = localize(tmp_path / "q.sfm", tmp_path / "model", {"q.jpg": scene.camera}).results["q.jpg"]
    answer = mapped.localize(scene.query, scene.camera)
    assert isinstance(answer, Localization)
    assert (answer.inliers, answer.matches, len(answer.candidates)) == (found.inliers, found.matches, 3)
    assert np.allclose(answer.pose.rotation, found.pose.rotation, atol=1e-9)
    assert np.allclose(answer.pose.translation, found.pose.translation, atol=1e-9)
    with pytest.raises(FileError):
        mapped.pull(tmp_path / "model")
    mapped.pull(tmp_path / "model", 1, overwrite=True)
    with pytest.raises(ServerError):
        mapped.pull(tmp_path / "other", 9)


def test_a_query_without_a_pose_is_an_answer(mapped, live):
    stranger = live.make_scene(3).query
    with pytest.raises(ServerError) as caught:
        mapped.localize(stranger)
    assert caught.value.code == "space_mismatch"
    names = list(live.make_scene(0).images)
    part = live.make_scene(0).images[names[0]]
    few = dataclasses.replace(part, keypoints=part.keypoints[:5], code=part.code[:5])
    answer = mapped.localize(few)
    assert answer.pose is None
    assert answer.reason


def test_queries_of_an_archive_become_localizations(mapped, scene, tmp_path):
    images = {"a b.jpg": scene.query, "q.jpg": dataclasses.replace(scene.query, focal_px=500.0), "r.jpg": scene.query}
    outcome = mapped.localize_archive(images, {"r.jpg": scene.camera}, listable=True)
    assert set(outcome.poses) == {"q.jpg", "r.jpg"}
    assert list(outcome.unlisted) == ["a b.jpg"]
    assert (outcome.from_archive, outcome.guessed) == (["q.jpg"], [])
    assert mapped.localize_archive({"q.jpg": scene.query}).guessed == ["q.jpg"]
    with pytest.raises(InputError):
        mapped.localize_archive(images, {"other.jpg": scene.camera})
    with pytest.raises(InputError):
        mapped.localize_archive(images, {"q.jpg": Camera("PINHOLE", 64, 48, (50, 50, 32, 24))})


def test_what_there_is_has_people_s_names(mapped, live_server, mapped_place):
    with Client(live_server.url, live_server.key) as client:
        named = {one.id: one.name for one in client.places()}
        assert named[mapped.id] == mapped_place
        states = [job.state for job in client.jobs(mapped)]
        assert states[-1].place_name == mapped_place
        assert client.place(id=mapped.id).title == mapped_place
        assert client.problems() == []
        assert client.about()["clear_modules"] == []
    assert [one.number for one in mapped.maps()][-1] == 1


def test_the_same_request_is_the_same_job_and_can_be_cancelled(place, scene):
    place.push(scene.images)
    first, second = place.build_map(request_key="k" * 16), place.build_map(request_key="k" * 16)
    assert first.state.id == second.state.id
    first.cancel()
    with pytest.raises(ServerError) as caught:
        second.wait()
    assert caught.value.code == "job_cancelled"
    place.delete()
    with pytest.raises(ServerError) as caught:
        place.read()
    assert caught.value.status == 404


def test_jobs_of_one_place_that_wait_have_a_limit(place, scene, live_server):
    waits, made = [], []
    place.push(scene.images)
    retries = RetryParams(attempts=2)
    with Client(live_server.url, live_server.key, sleep=waits.append, retries=retries) as client:
        most = int(client.about()["limits"]["jobs_of_place"])
        eager = client.place(place.name)

        def hurry():
            for _ in range(most + 4):
                made.append(eager.build_map(mapper="global"))

        with pytest.raises(ServerError) as caught:
            hurry()
        for job in made:
            with contextlib.suppress(ServerError):  # it has ended
                job.cancel()
    assert (caught.value.status, caught.value.code, caught.value.retry) == (429, "queue_full", True)
    assert waits == [30.0]
    assert len(made) >= most


def test_a_place_has_a_name_or_an_id(client):
    for words in ({}, {"name": "a", "id": "0" * 32}, {"id": "../keys"}, {"id": "XYZ"}, {"name": " "}):
        with pytest.raises(InputError):
            client.place(**words)
    assert client.place(id="0123abcd").id == "0123abcd"


@pytest.mark.parametrize("facts", [3, [], {}, {"items": 3}, {"items": [3]}, {"items": [{}]}])
def test_strange_answers_are_refused(scripted, scene, facts):
    scripted.answers = [(200, facts, {})]
    with Client(scripted.url, scripted.key) as client:
        place = client.place("kitchen")
        for call in (client.places, client.jobs, place.maps, lambda: place.localize(scene.query), place.read):
            with pytest.raises(ServerError) as caught:
                call()
            assert caught.value.code == "strange_answer"
