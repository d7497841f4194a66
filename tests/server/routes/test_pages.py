# SPDX-License-Identifier: Apache-2.0
"""The page without a browser: sign-in and cookies, forms and their token, scopes, escaping, and static files."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from sfumato.server import access, blobs, jobs, places
from sfumato.server.app import make_app
from sfumato.server.database import Store
from sfumato.server.engines import Engines
from sfumato.server.foreman import Foreman
from sfumato.server.limits import Limits
from sfumato.server.map_job import POINT
from sfumato.server.routes import admin_pages, drawing, html, pages
from sfumato.server.routes import jobs as job_routes
from sfumato.server.service import COOKIE, Service
from sfumato.store.frames import decode_frame, encode_frame
from sfumato.types.concealed import Bits, ConcealedFeatures, RowTags
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

PLACE, OTHER, IMAGE = "0123456789abcdef", "feedfeedfeed", "ab" * 16
EVERYTHING = ["admin", "metrics", *(f"{verb}:*" for verb in access.VERBS)]
FIGURES = {"points": 3, "registered": 2, "images": 2, "reprojection error px": 0.5, "doubt": ["<b>doubt</b>"]}


def features(count: int = 30, seed: int = 0) -> ConcealedFeatures:
    rng = np.random.default_rng(seed)
    keypoints = np.zeros((count, 4))
    keypoints[:, :2] = rng.uniform(0, 400, (count, 2))
    bits = Bits(rng.integers(0, 256, (count, 64), dtype=np.uint8))
    recipe = Recipe.of("sealed-512@0123456789ab")
    return ConcealedFeatures(keypoints, bits, recipe, Extractor("sift"), (640, 480))


def fill(store: Store) -> None:
    """Two places, an image, and a map of three points, as rows and files."""
    for place in (PLACE, OTHER):
        places.make_place(store, place, 10)
    frame = encode_frame(features())
    row, digest = decode_frame(frame), hashlib.sha256(frame).hexdigest()
    path = blobs.frame_path(store.folder, PLACE, digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(frame)
    places.add_image(store, PLACE, IMAGE, digest, len(frame), row, 10)
    with store.write() as connection:
        places.publish_map(connection, PLACE, "cd" * 16, FIGURES, "00" * 32, make_current=True)
    points = np.zeros(3, POINT)
    part = blobs.map_path(store.folder, PLACE, "cd" * 16, blobs.POINTS)
    part.parent.mkdir(parents=True)
    part.write_bytes(points.tobytes())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    store, limits = Store(tmp_path / "data"), Limits(least_free_bytes=0)
    fill(store)
    yield Service(store, limits, Engines(store.folder, limits), Foreman(store, limits, None))
    store.close()


@pytest.fixture
def visitor(service: Service) -> TestClient:
    """A browser without a sign-in; it starts no engines, and follows no redirect."""
    return TestClient(make_app(service), follow_redirects=False, raise_server_exceptions=False)


@pytest.fixture(autouse=True)
def new_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "sign_in_failures", type(pages.sign_in_failures)(0.001, 5))


def sign_in(visitor: TestClient, service: Service, scopes: list[str]) -> str:
    """Sign in with a new key; return the token of forms."""
    key = access.make_key(service.store, scopes)
    assert visitor.post("/login", data={"key": key}).status_code == 303
    session = access.session_of(service.store, visitor.cookies[COOKIE])
    assert session is not None
    return session.form


@pytest.fixture
def token(visitor: TestClient, service: Service) -> str:
    return sign_in(visitor, service, EVERYTHING)


def new_job(service: Service, key: str = "12345678") -> jobs.Job:
    return jobs.submit(service.store, PLACE, {"images": [IMAGE]}, key, 100, 100)[0]


ADDRESSES = ("/", f"/places/{PLACE}", f"/places/{PLACE}/images/{IMAGE}", f"/places/{PLACE}/remove", "/jobs", "/keys",
             "/limits", "/docs")  # fmt: skip


class Reader(HTMLParser):
    """What a content policy would refuse in a page, and every address in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.addresses: list[str] = []
        self.tokens = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.wrong += [f"{tag} {name}" for name in facts if name == "style" or name.startswith("on")]
        self.wrong += [tag] if tag in ("style", "iframe", "object", "base") else []
        self.wrong += ["script"] if tag == "script" and not facts.get("src") else []
        self.addresses += [facts[name] or "" for name in ("href", "src", "action") if name in facts]
        self.tokens += facts.get("name") == "token"


# --- the sign-in


@pytest.mark.parametrize("path", [*ADDRESSES, "/jobs/" + "0" * 32])
def test_a_page_sends_visitors_to_the_sign_in(visitor: TestClient, path: str):
    answer = visitor.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"] == ("/login" if path == "/" else f"/login?next={path}")


@pytest.mark.parametrize("is_secure", [False, True])
def test_the_cookie_is_closed_to_scripts_and_other_sites(service: Service, is_secure: bool):
    service.is_secure = is_secure
    visitor = TestClient(make_app(service), follow_redirects=False)
    answer = visitor.post(
        "/login", data={"key": access.make_key(service.store, EVERYTHING), "next": f"/places/{PLACE}"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, f"/places/{PLACE}")
    words = {word.strip().lower() for word in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={8 * 3600}"} <= words
    assert ("secure" in words) == is_secure


def test_a_wrong_key_is_refused_and_many_of_them_slowed(visitor: TestClient, service: Service):
    right = access.make_key(service.store, ["localize:*"])
    for key in ("", "nonsense", right[:-1] + ("0" if right[-1] != "0" else "1"), "sfm_" + "é" * 20, "a" * 60_000):
        answer = visitor.post("/login", data={"key": key})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert key not in answer.text or not key
    slow = visitor.post("/login", data={"key": "nonsense"})
    assert slow.status_code == 429
    assert int(slow.headers["retry-after"]) > 0
    assert visitor.post("/login", data={"key": right}).status_code == 303  # nobody is locked out by others


def test_a_sign_in_from_another_site_is_refused(visitor: TestClient, service: Service):
    key = access.make_key(service.store, EVERYTHING)
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 303)):
        assert visitor.post("/login", data={"key": key}, headers={"Sec-Fetch-Site": site}).status_code == status


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "/a?b=c", "javascript:alert(1)", "/ä", "x"]
)
def test_a_sign_in_leads_to_this_server_only(visitor: TestClient, service: Service, target: str):
    key = access.make_key(service.store, EVERYTHING)
    assert visitor.post("/login", data={"key": key, "next": target}).headers["location"] == "/"


def test_a_sign_out_ends_the_session_on_the_server(visitor: TestClient, token: str):
    cookie = visitor.cookies[COOKIE]
    assert visitor.post("/logout").status_code == 415
    assert visitor.post("/logout", data={"token": "no"}).status_code == 403
    assert visitor.get("/").status_code == 200
    assert visitor.post("/logout", data={"token": token}).status_code == 303
    visitor.cookies.set(COOKIE, cookie)
    assert visitor.get("/").status_code == 303


def test_a_revoked_key_ends_its_sign_in(visitor: TestClient, service: Service, token: str):
    mine = access.list_keys(service.store)[0]["id"]
    assert visitor.post(f"/keys/{mine}/revoke", data={"token": token}).status_code == 303
    assert visitor.get("/keys").headers["location"].startswith("/login")


# --- what every page keeps to


def test_pages_keep_to_the_policy(visitor: TestClient, service: Service, token: str):
    for path in (*ADDRESSES, f"/jobs/{new_job(service).id}", "/places/00000000", "/login"):
        answer = visitor.get(path)
        assert answer.headers["content-type"].startswith("text/html"), path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["cache-control"] == "no-store"
        reader = Reader(answer.text)
        assert not reader.wrong, path
        assert all(address.startswith(("/", "#")) for address in reader.addresses), path
        assert not any(address.startswith("//") for address in reader.addresses), path
        assert len(re.findall('method="post"', answer.text)) == reader.tokens + (path == "/login"), path


def test_forms_need_their_token(visitor: TestClient, service: Service, token: str):
    job = new_job(service)
    for path in ("/keys", "/keys/aaaaaaaa/revoke", f"/places/{PLACE}/maps", f"/places/{PLACE}/maps/1/current",
                 f"/places/{PLACE}/remove", f"/jobs/{job.id}/cancel", "/logout"):  # fmt: skip
        for data in ({"x": "1"}, {"token": ""}, {"token": token[:-1]}, {"token": token + "é"}):
            assert visitor.post(path, data=data).status_code == 403, path
        assert visitor.post(path, json={"token": token}).status_code == 415
    assert not jobs.read_job(service.store, job.id).is_cancelled


def test_the_cookie_alone_changes_nothing_through_the_api(visitor: TestClient, token: str):
    assert visitor.get("/v1/places").status_code == 200
    assert visitor.put("/v1/places/aaaaaaaa").status_code == 401
    assert visitor.put("/v1/places/aaaaaaaa", headers={"X-Form-Token": token}).status_code == 201


def test_large_and_broken_forms_are_refused(visitor: TestClient):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert visitor.post("/login", content=b"key=" + b"a" * 70_000, headers=form).status_code == 413
    assert visitor.post("/login", content=b"\xff\xfe", headers=form).status_code == 422
    assert visitor.post("/login", content=b"&".join([b"a=1"] * 500), headers=form).status_code == 422
    assert visitor.post("/login", content=b"key=%ff", headers=form).status_code == 422


# --- scopes


def test_a_place_of_others_is_not_there(visitor: TestClient, service: Service):
    sign_in(visitor, service, [f"read:{OTHER}"])
    assert visitor.get(f"/places/{OTHER}").status_code == 200
    hidden = visitor.get(f"/places/{PLACE}")
    assert hidden.status_code == 404
    assert hidden.text == visitor.get("/places/" + PLACE[::-1]).text.replace(PLACE[::-1], PLACE)
    assert visitor.get(f"/places/{PLACE}/images/{IMAGE}").status_code == 404
    assert visitor.get(f"/jobs/{new_job(service).id}").status_code == 404
    home = visitor.get("/").text
    assert OTHER in home
    assert PLACE not in home
    assert 'href="/keys"' not in home
    assert visitor.get("/keys").status_code == 403


def test_a_key_that_cannot_read_is_told_so(visitor: TestClient, service: Service):
    form = sign_in(visitor, service, [f"localize:{PLACE}"])
    assert PLACE not in visitor.get("/").text
    assert visitor.get(f"/places/{PLACE}").status_code == 403
    assert visitor.post(f"/places/{PLACE}/maps", data={"token": form}).status_code == 403
    assert visitor.post(f"/jobs/{new_job(service).id}/cancel", data={"token": form}).status_code == 403
    assert visitor.post("/keys", data={"token": form, "scope": "admin"}).status_code == 403


@pytest.mark.parametrize(
    "path", ["/places/nothex", f"/places/{PLACE}/images/../x", "/jobs/1", f"/places/{PLACE}?map=9", "/nothing"]
)
def test_an_address_that_is_not_there_is_a_page(visitor: TestClient, token: str, path: str):
    answer = visitor.get(path, headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


def test_a_program_gets_a_problem_for_an_address_that_is_not_there(visitor: TestClient):
    for path, accept in (("/nothing", "*/*"), ("/v1/nothing", "text/html")):
        answer = visitor.get(path, headers={"Accept": accept})
        assert answer.status_code == 404
        assert answer.json()["code"] == "http_404"


def test_dots_need_the_scope_of_the_frame(visitor: TestClient, service: Service, token: str):
    path = f"/places/{PLACE}/images/{IMAGE}"
    text = visitor.get(path).text
    assert text.count("h0") == 30
    assert 'viewBox="0 0 640 480"' in text
    assert "0123456789ab" in text
    sign_in(visitor, service, [f"read:{PLACE}"])
    without = visitor.get(path)
    assert without.status_code == 200
    assert "<svg" not in without.text


def test_cameras_need_their_scope(visitor: TestClient, service: Service, token: str):
    cameras = f"/v1/places/{PLACE}/maps/1/cameras"
    assert cameras in visitor.get(f"/places/{PLACE}").text
    sign_in(visitor, service, [f"read:{PLACE}"])
    text = visitor.get(f"/places/{PLACE}?map=1").text
    assert cameras not in text
    assert f"/v1/places/{PLACE}/maps/1/points" in text
    assert f'action="/places/{PLACE}/maps"' not in text
    assert visitor.get(f"/v1/places/{PLACE}/maps/1/points").content == bytes(48)


# --- text from outside


def test_text_from_outside_is_escaped(visitor: TestClient, service: Service, token: str):
    evil = "<script>alert(1)</script>\"'>"
    access.make_key(service.store, ["localize:*"], label=evil)
    job = new_job(service)
    claim = jobs.claim(service.store, 30, 3)
    assert claim is not None
    jobs.finish(service.store, job.id, claim.fence, jobs.FAILED, evil)
    for path in ("/keys", f"/jobs/{job.id}", f"/places/{PLACE}", "/login?next=" + evil):
        text = visitor.get(path).text
        assert "<script>alert" not in text
        assert "<b>doubt" not in text
    assert "&lt;script&gt;" in visitor.get("/keys").text
    assert "&lt;b&gt;doubt" in visitor.get(f"/places/{PLACE}").text


# --- maps, jobs and keys


def test_a_map_form_that_is_sent_twice_makes_one_job(visitor: TestClient, service: Service, token: str):
    data = {"token": token, "request_key": "abcdefghij"}
    answers = [visitor.post(f"/places/{PLACE}/maps", data=data) for _ in range(2)]
    assert {answer.headers["location"] for answer in answers} == {
        f"/jobs/{job.id}" for job in jobs.list_jobs(service.store, PLACE)
    }
    nothing = visitor.post(f"/places/{OTHER}/maps", data=data)
    assert nothing.status_code == 409
    assert nothing.headers["content-type"].startswith("text/html")


def test_a_stream_of_events_ends_with_its_key(visitor: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_routes, "KEY_SECONDS", 0)
    key = access.make_key(service.store, [f"read:{PLACE}"])
    stop = Timer(20, lambda: setattr(service, "is_stopping", True))  # the job itself never ends
    for timer in (stop, Timer(0.5, lambda: access.revoke_key(service.store, key.split("_")[1]))):
        timer.start()
    answer = visitor.get(f"/v1/jobs/{new_job(service).id}/events", headers={"Authorization": f"Bearer {key}"})
    stop.cancel()
    assert answer.status_code == 200
    assert not service.is_stopping


def test_another_map_can_be_made_current(visitor: TestClient, service: Service, token: str):
    with service.store.write() as connection:
        places.publish_map(connection, PLACE, "ef" * 16, FIGURES, "00" * 32, make_current=True)
    action = f"/places/{PLACE}/maps/1/current"
    assert action not in visitor.get(f"/places/{PLACE}?map=2").text
    assert action in visitor.get(f"/places/{PLACE}?map=1").text
    assert visitor.post(action, data={"token": token}).headers["location"] == f"/places/{PLACE}"
    assert [one.number for one in places.list_maps(service.store, PLACE) if one.is_current] == [1]
    assert visitor.post(action.replace("/1/", "/7/"), data={"token": token}).status_code == 404
    form = sign_in(visitor, service, [f"read:{PLACE}"])
    assert action.replace("/1/", "/2/") not in visitor.get(f"/places/{PLACE}?map=2").text
    assert visitor.post(action, data={"token": form}).status_code == 403


def test_a_job_shows_its_stages(visitor: TestClient, service: Service, token: str):
    job = new_job(service)
    page = f"/jobs/{job.id}"
    assert "http-equiv=" in visitor.get(page).text  # it reloads without a script
    claim = jobs.claim(service.store, 30, 3)
    assert claim is not None
    jobs.report(service.store, job.id, claim.fence, "match", 3, 10)
    text = visitor.get(page).text
    assert 'id="stage-collect" max="1" value="1"' in text
    assert 'id="stage-match" max="10" value="3"' in text
    assert 'id="stage-map" max="1" value="0"' in text
    assert f'data-events="/v1/jobs/{job.id}/events" data-last="4"' in text
    assert set(jobs.STAGES) == set(pages.STAGES)
    assert visitor.post(f"{page}/cancel", data={"token": token}).headers["location"] == page
    jobs.end_cancelled(service.store, job.id, claim.fence)
    text = visitor.get(page).text
    assert "data-events" not in text
    assert "/cancel" not in text
    assert visitor.post(f"{page}/cancel", data={"token": token}).status_code == 409


def test_a_job_that_gathers_evidence_shows_its_own_stages(visitor: TestClient, service: Service, token: str):
    request = {"kind": jobs.EVIDENCE_JOB, "images": [IMAGE], "own": [IMAGE], "pairs": "auto"}
    job, _ = jobs.submit(service.store, PLACE, request, "evidence key", 100, 100)
    claim = jobs.claim(service.store, 30, 3)
    assert claim is not None
    jobs.report(service.store, job.id, claim.fence, "match", 3, 10)
    text = visitor.get(f"/jobs/{job.id}").text
    assert re.findall(r'data-stage="(\w+)"', text) == ["collect", "match", "publish"]
    assert "Evidence of 1 image" in text
    assert "matches images for a device" in visitor.get(f"/places/{PLACE}").text
    assert re.search(r"</a> evidence <span", visitor.get("/jobs").text)
    jobs.finish(service.store, job.id, claim.fence, jobs.DONE, "", lambda _: {
        "map": None, "figures": {"pairs": 12, "matches": 3456, "images": 1, "bytes": 2**20}})  # fmt: skip
    text = visitor.get(f"/jobs/{job.id}").text
    assert "3,456" in text
    assert "No map came out" not in text
    again, _ = jobs.submit(service.store, PLACE, request, "another key", 100, 100)
    form = sign_in(visitor, service, [f"upload:{PLACE}"])
    assert f"/jobs/{again.id}/cancel" in visitor.get(f"/jobs/{again.id}").text
    assert visitor.post(f"/jobs/{again.id}/cancel", data={"token": form}).status_code == 303
    assert visitor.get(f"/jobs/{new_job(service).id}").status_code == 403, "of a map it may not know more"


def test_an_image_shows_the_dots_that_were_released_and_says_of_how_many(
    visitor: TestClient, service: Service, token: str
):
    home = features(count=30, seed=4).without_positions()
    tags = RowTags("5e" * 16, np.zeros((30, 8), np.uint8))
    home, name = (
        ConcealedFeatures(home.keypoints, home.code, home.recipe, home.extractor, home.image_size, tags=tags),
        "ba" * 16,
    )
    frame = encode_frame(home)
    digest = hashlib.sha256(frame).hexdigest()
    path = blobs.frame_path(service.data, PLACE, digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(frame)
    places.add_image(service.store, PLACE, name, digest, len(frame), home, 10)
    text = visitor.get(f"/places/{PLACE}/images/{name}").text
    assert 'd=""' in text
    assert "the positions of 0 of 30 features" in text
    places.release(service.store, PLACE, name, np.array([3, 9]), np.array([[10.5, 20], [30, 40]], np.float32))
    text = visitor.get(f"/places/{PLACE}/images/{name}").text
    assert 'd="M10.5 20.0h0M30.0 40.0h0"' in text
    assert "the positions of 2 of 30 features" in text
    assert drawing.OUTLINES not in text
    assert drawing.OUTLINES in visitor.get(f"/places/{PLACE}/images/{IMAGE}").text, "that one came with all of them"
    assert re.search(r'<td class="n">30</td><td class="n">2</td>', visitor.get(f"/places/{PLACE}").text)


def test_keys_for_every_verb_can_be_made_on_the_page():
    assert set(admin_pages.VERB_WORDS) == set(access.VERBS)


def test_jobs_are_listed_with_earlier_ones(visitor: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "LISTED_JOBS", 10)
    for number in range(12):
        new_job(service, f"request {number}")
        jobs.submit(service.store, OTHER, {"images": []}, f"request {number}", 100, 100)
    sign_in(visitor, service, [f"read:{PLACE}"])
    assert 'href="/jobs"' in visitor.get("/").text
    first = visitor.get("/jobs").text
    numbers = [int(number) for number in re.findall(r">Job (\d+)<", first)]
    assert numbers == list(range(23, 4, -2))
    assert OTHER not in first
    more = re.findall(r'"(/jobs\?before=\d+)"', first)
    assert more == ["/jobs?before=5"]
    second = visitor.get(more[0]).text
    assert [int(number) for number in re.findall(r">Job (\d+)<", second)] == [3, 1]
    assert "before=" not in second
    sign_in(visitor, service, ["localize:*"])
    assert PLACE not in visitor.get("/jobs").text


def test_a_place_is_removed_after_a_question(visitor: TestClient, service: Service, token: str):
    page, long = f"/places/{PLACE}", "ab" * 20
    places.make_place(service.store, long, 10)
    assert long in visitor.get(f"/places/{long}").text
    assert f'href="{page}/remove"' in visitor.get(page).text
    job = new_job(service)
    assert PLACE in visitor.get(f"{page}/remove").text
    assert places.read_place(service.store, PLACE).images == 1  # to look removes nothing
    assert visitor.post(f"{page}/remove", data={"token": token}).headers["location"] == "/"
    assert visitor.get(page).status_code == 404
    assert not (service.data / blobs.FOLDER / PLACE).exists()
    with pytest.raises(places.Missing):
        jobs.read_job(service.store, job.id)
    assert visitor.post(f"{page}/remove", data={"token": token}).status_code == 404
    form = sign_in(visitor, service, [f"{verb}:*" for verb in access.VERBS])
    assert "/remove" not in visitor.get(f"/places/{OTHER}").text
    assert visitor.get(f"/places/{OTHER}/remove").status_code == 403
    assert visitor.post(f"/places/{OTHER}/remove", data={"token": form}).status_code == 403
    sign_in(visitor, service, ["admin"])
    home = visitor.get("/").text
    assert f'href="/places/{OTHER}/remove"' in home  # who may not read a place may remove it
    assert f'href="/places/{OTHER}"' not in home


def test_the_first_page_lists_the_newest_places(visitor: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "LISTED_PLACES", 3)
    for number in range(8):
        places.make_place(service.store, f"{number:016x}", 100)
    sign_in(visitor, service, ["read:*"])
    text = visitor.get("/").text
    assert re.findall(r'href="/places/([0-9a-f]+)"', text) == [f"{number:016x}" for number in (7, 6, 5)]
    assert "7 more places" in text
    sign_in(visitor, service, [f"read:{PLACE}"])
    text = visitor.get("/").text
    assert re.findall(r'href="/places/([0-9a-f]+)"', text) == [PLACE]
    assert "more place" not in text


def test_a_new_key_is_shown_once_and_has_its_scopes(visitor: TestClient, service: Service, token: str):
    data: dict[str, Any] = {
        "token": token,
        "scope": ["read", "localize"],
        "place": PLACE,
        "days": "1",
        "label": "phone",
    }
    answer = visitor.post("/keys", data=data)
    (key,) = re.findall(r"sfm_[a-z2-7]{8}_\S{43}_[0-9a-f]{6}", answer.text)
    grant = access.grant_of(service.store, key)
    assert grant is not None
    assert grant.scopes == {f"read:{PLACE}", f"localize:{PLACE}"}
    assert key not in visitor.get("/keys").text
    assert access.list_keys(service.store)[0]["expires"] is not None
    for wrong in ({"scope": []}, {"place": "all"}, {"days": "7"}, {"label": "x" * 200}):
        assert visitor.post("/keys", data=data | wrong).status_code == 422
    assert visitor.post(f"/keys/{grant.key}/revoke", data={"token": token}).status_code == 303
    assert access.grant_of(service.store, key) is None
    assert visitor.post("/keys/aaaaaaaa/revoke", data={"token": token}).status_code == 404


def test_every_limit_has_words(visitor: TestClient, token: str):
    names = {limit.name for limit in fields(Limits)}
    assert set(admin_pages.LIMIT_WORDS) == names
    text = visitor.get("/limits").text
    assert all(f"<code>{name}</code>" in text for name in names)


# --- the API's description


def test_pages_are_not_in_the_description_of_the_api(visitor: TestClient, service: Service, token: str):
    for path in visitor.get("/openapi.json").json()["paths"]:
        assert path.startswith("/v1/") or path in ("/livez", "/readyz", "/metrics")
    key = access.make_key(service.store, [f"localize:{PLACE}"])
    stranger = TestClient(make_app(service))
    assert stranger.get("/openapi.json", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    refusal = stranger.get("/openapi.json")
    assert (refusal.status_code, refusal.headers["content-type"]) == (401, "application/problem+json")


# --- static files


def test_static_files_are_a_closed_list(visitor: TestClient):
    answer = visitor.get("/static/page.css")
    assert answer.headers["content-type"].startswith("text/css")
    again = visitor.get("/static/page.css", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("../app.py", "..%2fapp.py", "vendor", "", "/etc/passwd", "%00"):
        assert visitor.get(f"/static/{path}").status_code == 404, path


def test_vendored_files_are_the_published_ones():
    table = json.loads((html.STATIC / "vendored.json").read_text())["vendored"]
    listed = {name: digest for entry in table for name, digest in entry["files"].items()}
    present = {name for name in html.static_files() if name.startswith("vendor/")}
    assert present == set(listed)
    assert {name: html.static_files()[name][2] for name in listed} == listed
    for entry in table:
        assert entry["version"] in next(iter(entry["files"]))
        assert any(name.endswith("/LICENSE") for name in entry["files"])


def test_our_files_name_no_other_origin():
    own = [entry[0] for name, entry in html.static_files().items() if not name.startswith("vendor/")]
    for path in [*own, *sorted(html.TEMPLATES.iterdir())]:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), path


def test_templates_name_static_files_that_are_there():
    texts = [path.read_text() for path in html.TEMPLATES.iterdir()]
    names = {name for text in texts for name in re.findall(r'"/static/([^"]+)"', text)}
    assert names
    assert names <= set(html.static_files())


# --- drawings


def test_drawings_show_what_a_frame_holds():
    many = features(drawing.MOST_DOTS + 1000)
    dots = drawing.draw_dots(many)
    assert (dots.shown, dots.total) == (drawing.MOST_DOTS, len(many))
    assert re.fullmatch(r"(M[\d.]+ [\d.]+h0)+", dots.path)
    nothing = features(0)
    assert drawing.draw_dots(nothing).path == ""
    assert drawing.first_bits(nothing) is None
    block = drawing.first_bits(features(5))
    assert block is not None
    assert (block.width, block.height) == (drawing.BLOCK_BITS, 5)
    packed = features(5).code.packed
    assert block.shown == int(np.unpackbits(packed, axis=1)[:, : drawing.BLOCK_BITS].sum())


@pytest.mark.parametrize("recipe", ["sealed-512", "sub-hybrid-2", "ninja:mine@0123456789ab"])
def test_every_recipe_has_its_threat(recipe: str):
    assert drawing.threat_sentence(Recipe.of(recipe)).endswith((".",))
