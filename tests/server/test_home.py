# SPDX-License-Identifier: Apache-2.0
"""Positions stay home, over a live server: the whole road, what it sees on the way, stolen keys, and kills."""

import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx2")

import sfumato
from sfumato.client import Client
from sfumato.client.names import NameTable
from sfumato.client.places import Place
from sfumato.client.transport import Transport
from sfumato.device import ReleaseParams
from sfumato.errors import InputError, ServerError
from sfumato.geometry.localization import localize_query
from sfumato.geometry.maps import load_map
from sfumato.server import jobs
from sfumato.server.blobs import evidence_path, matches_path
from sfumato.server.database import Store
from sfumato.store.evidence import load_evidence
from sfumato.store.frames import decode_frame, decode_release, encode_frame, encode_release
from sfumato.types.concealed import Bits, RowTags

STRICT = ReleaseParams(least_rows=0)
"""Tracks of three photos alone."""


@dataclass
class Road:
    """A device that pushed three photos, released, had a map made and asked where it was; and all that it sent."""

    device: Any
    surroundings: Any
    place: Place
    pulled: Path
    query: Any
    own: np.ndarray
    answer: Any
    sent: list[bytes] = field(default_factory=list)
    outcomes: list[Any] = field(default_factory=list)


@pytest.fixture(scope="module")
def client(live_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with Client(live_server.url, live_server.key, names=tmp_path_factory.mktemp("names") / "device.names") as made:
        yield made


@pytest.fixture(scope="module")
def road(live: ModuleType, client: Client, device_key: Path, tmp_path_factory: pytest.TempPathFactory) -> Road:
    folder, surroundings = tmp_path_factory.mktemp("device"), live.make_surroundings(11, hall=250)
    device, sent = live.Device(folder / "a.sfm", device_key.read_bytes(), "road"), list[bytes]()
    device.take(**{f"{name}_jpg": surroundings.photo(x, "hall") for name, x in (("a", 0.0), ("b", 0.5), ("c", 1.0))})
    query, own = device.conceal(surroundings.photo(0.7, "hall"))
    place, stream = client.place("road"), Transport._stream

    def note(self: Transport, *words: Any) -> Any:
        sent.append(repr(words).encode() + b"".join(word for word in words if isinstance(word, bytes)))
        return stream(self, *words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transport, "_stream", note)
        outcomes = [place.push(device.archive), place.release(device.archive), place.push(device.archive)]
        assert place.build_map(mapper="incremental", tries=1).wait().map == 1
        answer = place.localize(query, live.camera(), keypoints=own)
    place.pull(folder / "model")
    return Road(device, surroundings, place, folder / "model", query, own, answer, sent, outcomes)


# --- the whole road


def test_a_push_releases_what_photos_agree_on_and_a_map_is_made_of_it(road: Road, live_server: Any):
    pushed, released, again = road.outcomes
    assert (sorted(pushed.sent), pushed.released) == (["a.jpg", "b.jpg", "c.jpg"], {})
    assert released.new == dict.fromkeys(pushed.sent, 250)
    assert released.bytes > 3 * 250 * 12
    assert (again.sent, again.released, again.bytes) == ([], {}, 0)
    assert rows_at(live_server, road.place) == {name: rows.tolist() for name, rows in road.device.shown().items()}
    facts = road.place.maps()[0].figures
    assert (facts["registered"], facts["points"], facts["features"]) == (3, 250, 3 * 310)


def rows_at(live_server: Any, place: Place) -> dict[str, list[int]]:
    """Rows whose positions a server has, by people's names of the images."""
    with sqlite3.connect(f"file:{live_server.folder / 'server.sqlite'}?mode=ro", uri=True) as database:
        found = database.execute("SELECT name, positions FROM releases WHERE place = ?", (place.id,)).fetchall()
    names = place.names.image_names(place.id)
    rows = {names.get(key, key): decode_release(content, 10**6)[0].tolist() for key, content in found}
    return {name: numbers for name, numbers in rows.items() if name.endswith(".jpg")}


def test_the_pose_is_that_of_the_library_against_the_pulled_map(road: Road, live: ModuleType):
    assert road.answer.pose is not None
    with load_map(road.pulled) as map_:
        expected = localize_query(road.query, live.camera(), map_, map_.names, keypoints=road.own)
    assert np.allclose(road.answer.pose.rotation, expected.pose.rotation, atol=1e-9)
    assert np.allclose(road.answer.pose.translation, expected.pose.translation, atol=1e-9)
    assert (road.answer.inliers, road.answer.matches) == (expected.inliers, expected.matches)


def found_in(content: bytes, positions: np.ndarray) -> int:
    """How many positions (N, 2) are somewhere in bytes, at any offset, in one of the forms that a program writes.

    Forms: float32 and float64, as they are and with COLMAP's pixel centres.
    """
    forms = [(positions + shift).astype(kind) for shift in (0.0, 0.5) for kind in ("<f4", "<f8")]
    starts = np.unique(np.concatenate([form.view("<u8")[:, 0] for form in forms]))
    seen = set[bytes]()
    for offset in range(8):
        words = np.frombuffer(content, "<u8", max(0, len(content) - offset) // 8, offset)
        for at in (8 * np.flatnonzero(np.isin(words, starts)) + offset).tolist():
            seen |= {content[at : at + 8], content[at : at + 16]}
    return int(np.any([[row.tobytes() in seen for row in form] for form in forms], axis=0).sum())


def home_and_away(road: Road) -> tuple[np.ndarray, np.ndarray]:
    """Positions that stayed home, those of the query among them, and positions that were released."""
    shown = road.device.shown()
    home = [np.delete(places, shown[name], axis=0) for name, places in road.device.positions.items()]
    away = [places[shown[name]] for name, places in road.device.positions.items()]
    return np.concatenate([*home, road.own]), np.concatenate(away)


def test_no_position_that_stayed_home_is_in_any_byte_of_the_server_or_of_the_traffic(road: Road, live_server: Any):
    home, away = home_and_away(road)
    assert (len(home), len(away)) == (3 * 60 + 310, 750)
    files = [path for path in live_server.folder.rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files) + live_server.log.read_bytes()
    assert found_in(stored, home) == 0
    assert found_in(b"".join(road.sent), home) == 0
    assert found_in(stored, away) > 0.95 * len(away), "the search finds what is there; a page of SQLite may cut some"
    assert found_in(b"".join(road.sent), away) == len(away)
    assert found_in(stored + home[-1].tobytes(), home) == 1, "and one that is planted"
    texts = [f"{value:.3f}" for value in home[:40].ravel()]
    assert not [text for text in texts if len(text) > 6 and text.encode() in live_server.log.read_bytes()]


def test_what_is_sent_of_a_query_is_codes_alone(road: Road):
    (request,) = [one for one in road.sent if b"/landmarks" in one]
    frame = request[request.index(b"sfumato-features", request.index(b"Content-Type")) :]
    features = decode_frame(frame)
    assert features.code.packed.tobytes() == road.query.code.packed.tobytes()
    assert (features.is_shown.any(), features.tags) == (np.False_, None)


def test_a_map_job_does_not_match_again_what_was_matched_for_evidence(road: Road, live_server: Any):
    store = Store(live_server.folder)
    totals = {job.kind: stage_totals(store, job.id, "match") for job in jobs.list_jobs(store, road.place.id)}
    store.close()
    assert totals == {"evidence": [3], "map": [0]}


def stage_totals(store: Store, job: str, stage: str) -> list[int]:
    """How much there was to do whenever a job came to a stage."""
    events = jobs.events_after(store, job)
    return [event.facts["total"] for event in events if event.kind == "stage" and event.facts["stage"] == stage]


def test_jobs_say_their_kind(road: Road, client: Client):
    assert [(job.state.kind, job.state.state) for job in client.jobs(road.place)] == [
        ("map", "done"),
        ("evidence", "done"),
    ]
    assert [str(job.state) for job in client.jobs(road.place)][1].endswith(", evidence: done")


def test_queries_are_sent_in_the_form_that_their_route_takes(road: Road):
    """With positions to who solves, without to who finds landmarks; else the answer says what to do."""
    path, headers = f"/v1/places/{road.place.id}", {"Content-Type": "application/vnd.sfumato.features.v1"}
    rows = np.arange(len(road.query))
    whole = road.query.without_positions().with_positions(rows, road.own)
    for kind, features, word in (
        ("localize", road.query.without_positions(), "landmarks"), ("landmarks", whole, "leave them out"),
        ("landmarks", road.query, "tags"),
    ):  # fmt: skip
        with pytest.raises(ServerError) as caught:
            road.place.transport.ask("POST", f"{path}/{kind}", content=encode_frame(features), headers=headers)
        assert (caught.value.status, caught.value.code) == (422, "not_valid")
        assert word in str(caught.value)
    with pytest.raises(InputError):
        road.place.localize(road.query)
    sent = road.place.localize(whole, sfumato.Camera("PINHOLE", 640, 480, (500, 500, 320, 240)))
    assert np.allclose(sent.pose.translation, road.answer.pose.translation, atol=1e-6), "the explicit word for it"


# --- two devices with one key


def test_photos_of_a_second_device_let_more_of_the_first_go(
    live: ModuleType, client: Client, device_key: Path, tmp_path: Path, live_server: Any
):
    surroundings, secret = live.make_surroundings(12, hall=150, nook=70), device_key.read_bytes()
    first, second = (live.Device(tmp_path / f"{name}.sfm", secret, "shared") for name in ("first", "second"))
    first.take(
        a_jpg=surroundings.photo(0.0, "hall", "nook"), b_jpg=surroundings.photo(0.4, "hall", "nook"),
        c_jpg=surroundings.photo(0.8, "hall"),
    )  # fmt: skip
    second.take(d_jpg=surroundings.photo(1.2, "hall", "nook"), e_jpg=surroundings.photo(1.6, "hall"))
    place, other = client.place("shared"), Place(client.transport, NameTable(secret, tmp_path / "n"),
                                                 client.place("shared").id, "shared")  # fmt: skip
    place.push(first.archive)
    assert place.release(first.archive, STRICT).new == {"a.jpg": 150, "b.jpg": 150, "c.jpg": 150}
    other.push(second.archive)
    assert other.release(second.archive, STRICT).new == {"d.jpg": 220, "e.jpg": 150}
    more = place.release(first.archive, STRICT)
    assert more.new == {"a.jpg": 70, "b.jpg": 70, "c.jpg": 0}, "the nook, which three photos see by now"
    assert set(more.rows) == {"a.jpg", "b.jpg", "c.jpg"}
    assert place.release(first.archive, STRICT).new == {"a.jpg": 0, "b.jpg": 0, "c.jpg": 0}
    state = place.build_map(mapper="incremental", tries=1).wait()
    assert (state.figures["registered"], state.figures["points"]) == (5, 220)
    store = Store(live_server.folder)
    kinds = {job.number: stage_totals(store, job.id, "match") for job in jobs.list_jobs(store, place.id)}
    store.close()
    assert [kinds[number] for number in sorted(kinds)] == [[3], [7], [0], [0], [0]], "each pair once"


# --- a stolen API key, without the device key


@pytest.fixture
def thief(road: Road, client: Client, live_server: Any) -> Iterator[Client]:
    """A client with a key that may upload at the place, and with another device key."""
    key = client.make_key([f"upload:{road.place.id}"], label="thief")
    with Client(live_server.url, key, secret=np.random.default_rng(9).bytes(32)) as made:
        yield made
    client.revoke_key(key.split("_")[1])


def ask_for_evidence(client: Client, place: str, own: list[str]) -> dict[str, Any]:
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    facts = client.transport.ask("POST", f"/v1/places/{place}/evidence", body={"own": own}, headers=headers)
    until = time.monotonic() + 60
    while facts["ended"] is None and time.monotonic() < until:
        facts = client.transport.ask("GET", f"/v1/jobs/{facts['id']}", params={"wait": 5, "after": 10**6})
    assert facts["state"] == "done", facts
    return dict(facts)


def test_a_stolen_key_gets_matched_rows_of_others_and_no_position(
    road: Road, thief: Client, tmp_path: Path, live_server: Any
):
    ids = {name: road.place.names.image_id(road.place.id, name) for name in ("a.jpg", "b.jpg", "c.jpg")}
    with pytest.raises(ServerError) as caught:
        ask_for_evidence(thief, road.place.id, ["ab" * 16])  # names cannot be guessed, nor listed without ``read``
    assert caught.value.status == 422
    job = ask_for_evidence(thief, road.place.id, [ids["a.jpg"]])
    with open(tmp_path / "evidence", "xb") as file:
        thief.transport.download(f"/v1/places/{road.place.id}/evidence/{job['id']}", file, 2**30)
    content, evidence = (tmp_path / "evidence").read_bytes(), load_evidence(tmp_path / "evidence")
    assert set(evidence.others) == {ids["b.jpg"], ids["c.jpg"]}
    with sfumato.load(road.device.archive) as images:
        for name in ("b.jpg", "c.jpg"):
            shown, rows = evidence.others[ids[name]], road.device.shown()[name]
            assert len(shown.numbers) <= len(rows) + 5, "rows that are matched, some by chance, and no other"
            assert set(rows.tolist()) <= set(shown.numbers.tolist())
            assert shown.code.packed.tobytes() == images[name].code.packed[shown.numbers].tobytes()
    home, away = home_and_away(road)
    assert found_in(content, home) == found_in(content, away) == 0
    assert content == evidence_path(live_server.folder, road.place.id, job["id"]).read_bytes()
    for path in ("", "/images", "/maps"):
        with pytest.raises(ServerError):
            thief.transport.ask("GET", f"/v1/places/{road.place.id}{path}")


def test_rows_that_a_thief_makes_are_believed_by_no_device(road: Road, thief: Client):
    """Copies of a victim's codes with a few bits flipped, with guessed or stolen tags: named, and good for nothing."""
    rng, place = np.random.default_rng(0), road.place
    with sfumato.load(road.device.archive) as images:
        victim = images["a.jpg"]
    guesses = {
        "00" * 16: RowTags(rng.bytes(16).hex(), rng.integers(0, 256, (len(victim), 8), np.uint8)),
        "11" * 16: RowTags(rng.bytes(16).hex(), victim.tags.rows),
    }
    for name, tags in guesses.items():
        packed = victim.code.packed.copy()
        packed[:, :8] ^= rng.integers(0, 2, (len(victim), 8), np.uint8)
        frame = encode_frame(sfumato.ConcealedFeatures(
            victim.keypoints, Bits(packed), victim.recipe, victim.extractor, victim.image_size, tags=tags))  # fmt: skip
        put(thief, place.id, name, frame)
    stolen = encode_frame(sfumato.ConcealedFeatures(
        victim.keypoints, Bits(victim.code.packed ^ 1), victim.recipe, victim.extractor, victim.image_size,
        tags=victim.tags))  # fmt: skip
    with pytest.raises(ServerError) as caught:
        put(thief, place.id, "22" * 16, stolen)
    assert caught.value.code == "second_release"
    outcome = place.release(road.device.archive, STRICT)
    assert (sum(outcome.new.values()), set(outcome.kept_back)) == (0, set(guesses))
    assert all("tags" in reason for reason in outcome.kept_back.values())


def put(client: Client, place: str, name: str, content: bytes, kind: str = "features") -> Any:
    path = f"/v1/places/{place}/images/{name}{'' if kind == 'features' else '/positions'}"
    headers = {"Content-Type": f"application/vnd.sfumato.{kind}.v1"}
    return client.transport.ask("PUT", path, content=content, headers=headers)


def test_a_second_position_of_a_row_is_refused_by_name_and_changes_nothing(road: Road, thief: Client, live_server: Any):
    before = rows_at(live_server, road.place)
    rows, key = road.device.shown()["a.jpg"], road.place.names.image_id(road.place.id, "a.jpg")
    other = road.device.positions["a.jpg"][rows] + 1 / 16
    home = np.setdiff1d(np.arange(310), rows)[:5]
    mixed = np.concatenate([rows[:1], home]), np.concatenate([other[:1], road.device.positions["a.jpg"][home]])
    for content in (encode_release(rows, other), encode_release(*mixed)):
        with pytest.raises(ServerError) as caught:
            put(thief, road.place.id, key, content, "positions")
        assert (caught.value.status, caught.value.code) == (409, "already_released")
    assert rows_at(live_server, road.place) == before


def test_an_image_that_a_thief_spoiled_does_not_keep_back_the_others(
    live: ModuleType, client: Client, device_key: Path, tmp_path: Path, live_server: Any
):
    surroundings = live.make_surroundings(16, hall=120)
    device = live.Device(tmp_path / "a.sfm", device_key.read_bytes(), "spoiled")
    device.take(**{f"{x}_jpg": surroundings.photo(0.5 * x, "hall") for x in range(3)})
    place = client.place("spoiled")
    place.push(device.archive)
    rows = np.arange(180)
    put(client, place.id, place.names.image_id(place.id, "0.jpg"), encode_release(rows, np.ones((180, 2))), "positions")
    with pytest.raises(ServerError) as caught:
        place.release(device.archive)
    assert (caught.value.code, "0.jpg" in str(caught.value)) == ("already_released", True)
    assert "key was misused" in str(caught.value)
    there, shown = rows_at(live_server, place), device.shown()
    assert (there["1.jpg"], there["2.jpg"]) == (shown["1.jpg"].tolist(), shown["2.jpg"].tolist())
    assert there["0.jpg"] == rows.tolist()


# --- kills


def test_a_kill_between_the_release_and_the_sending_loses_nothing_and_doubles_nothing(
    live: ModuleType, client: Client, device_key: Path, tmp_path: Path, live_server: Any
):
    surroundings = live.make_surroundings(13, hall=120)
    device = live.Device(tmp_path / "a.sfm", device_key.read_bytes(), "killed")
    device.take(**{f"{x}_jpg": surroundings.photo(0.5 * x, "hall") for x in range(3)})
    place = client.place("killed")
    place.push(device.archive)
    words = (
        "import os, signal, sys\n"
        "from sfumato.client import Client\n"
        "from sfumato.client.places import Place\n"
        "Place.push = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "url, key, archive, names = sys.argv[1:]\n"
        "Client(url, key, names=names).place('killed').release(archive)\n"
    )
    arguments = [live_server.url, live_server.key, str(device.archive), str(tmp_path / "names")]
    ended = subprocess.run([sys.executable, "-c", words, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert all(len(rows) == 120 for rows in device.shown().values()), "it is written down before it is sent"
    assert not any(rows_at(live_server, place).values())
    outcome = place.push(device.archive)
    assert (outcome.sent, outcome.released) == ([], dict.fromkeys(device.shown(), 120))
    assert rows_at(live_server, place) == {name: rows.tolist() for name, rows in device.shown().items()}
    again = place.release(device.archive)
    assert sum(again.new.values()) == 0
    assert rows_at(live_server, place) == {name: rows.tolist() for name, rows in device.shown().items()}


@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_kills_of_the_process_that_gathers_evidence_cost_nothing(
    live: ModuleType, connect: Callable[..., Any], generous: dict[str, Any], tmp_path: Path, kills: int
):
    surroundings, rng = live.make_surroundings(14, hall=60), np.random.default_rng(kills)
    device = live.Device(tmp_path / "a.sfm", rng.bytes(32), "hall")
    device.take(**{f"{x}_jpg": surroundings.photo(0.12 * x, "hall", alone=30) for x in range(12)})
    with live.start_server(tmp_path / "data", limits={**generous, "attempts": 100}, is_ready=False) as server:
        names = NameTable(device.secret, tmp_path / "names")
        with Client(server.url, server.key, secret=device.secret, names=tmp_path / "names") as client:
            place, store, stages = client.place("hall"), Store(server.folder), []
            place.push(device.archive)
            own = [names.image_id(place.id, name) for name in device.positions]
            headers = {"Idempotency-Key": "the same key"}
            for _ in range(2):  # and again, as after a broken connection
                job = client.transport.ask(
                    "POST", f"/v1/places/{place.id}/evidence", body={"own": own}, headers=headers
                )
            fence = 0
            while len(stages) < kills:
                row = jobs.read_job(store, job["id"])
                if row.has_ended:
                    break
                if row.process and row.fence > fence:
                    time.sleep(float(rng.uniform(0, 0.4)))
                    stages.append(jobs.read_job(store, job["id"]).stage)
                    os.kill(row.process, signal.SIGKILL)
                    fence = row.fence
                time.sleep(0.005)
            ended = connect(server).wait(job["id"])
            assert (ended["state"], ended["kind"], ended["attempt"]) == ("done", "evidence", len(stages) + 1)
            assert len(jobs.list_jobs(store)) == 1
            with open(tmp_path / "evidence", "xb") as file:
                client.transport.download(f"/v1/places/{place.id}/evidence/{job['id']}", file, 2**30)
            assert len(load_evidence(tmp_path / "evidence").claims) == 66
            assert sum(place.release(device.archive).new.values()) == 12 * 60
            check_rights(server.folder)
            store.close()


def check_rights(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o077, path


# --- matches that are kept


def test_matches_that_cannot_be_used_are_made_again(
    live: ModuleType, client: Client, device_key: Path, tmp_path: Path, live_server: Any
):
    surroundings = live.make_surroundings(15, hall=80)
    device = live.Device(tmp_path / "a.sfm", device_key.read_bytes(), "damaged")
    device.take(**{f"{x}_jpg": surroundings.photo(0.5 * x, "hall") for x in range(3)})
    place, store = client.place("damaged"), Store(live_server.folder)
    place.push(device.archive)
    place.release(device.archive)
    kept = matches_path(live_server.folder, place.id)
    good = kept.read_bytes()
    kept.write_bytes(good[: len(good) // 2])
    state = place.build_map(mapper="incremental", tries=1).wait()
    assert (state.figures["registered"], state.figures["pairs"]) == (3, 3)
    assert kept.read_bytes() == good, "what is kept is good again"
    with sfumato.load(device.archive) as images:
        key, frame = place.names.image_id(place.id, "0.jpg"), encode_frame(images["0.jpg"])
    place.transport.ask("PUT", f"/v1/places/{place.id}/images/{key}", content=frame, params={"focal_px": "510"},
                        headers={"Content-Type": "application/vnd.sfumato.features.v1"})  # fmt: skip
    job = place.build_map(mapper="incremental", tries=1)
    assert job.wait().figures["registered"] == 3
    assert stage_totals(store, job.state.id, "match") == [3], "of an image with another focal length all anew"
    assert not re.search("Traceback", live_server.log.read_text())
    store.close()


def test_evidence_of_a_place_says_so_where_the_key_may_not_ask(road: Road, client: Client, live_server: Any):
    key = client.make_key([f"read:{road.place.id}", f"map:{road.place.id}"])
    with Client(live_server.url, key) as other, pytest.raises(ServerError) as caught:
        other.place(id=road.place.id).release(road.device.archive)
    assert caught.value.code == "no_scope"
    assert "upload" in str(caught.value)
