# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: headless Chromium, a live server, and a guard on every request and message."""

import contextlib
import hashlib
import json
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sfumato.store.frames import MEDIA_TYPE, encode_frame
from sfumato.types.concealed import Bits, ConcealedFeatures
from sfumato.types.extractor import Extractor

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = shutil.which(os.environ.get("SFUMATO_CHROMIUM", "chromium"))
if CHROMIUM is None:
    pytest.skip("needs Chromium: apt install chromium, or set SFUMATO_CHROMIUM", allow_module_level=True)

FLAGS = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox", "--disable-dev-shm-usage"]
PLACE, MAP = "b0" * 8, "c1" * 16
NAMES = [hashlib.sha256(bytes([number])).hexdigest()[:32] for number in range(4)]
SECONDS = 30_000.0
BACKGROUND = np.array([0x14, 0x17, 0x1C])


def features(seed: int, count: int = 400) -> ConcealedFeatures:
    rng = np.random.default_rng(seed)
    keypoints = np.zeros((count, 4))
    keypoints[:, :2] = rng.uniform(0, (640, 480), (count, 2))
    bits = Bits(rng.integers(0, 256, (count, 64), dtype=np.uint8))
    return ConcealedFeatures(keypoints, bits, "sealed-512@0123456789ab", Extractor("sift"), (640, 480))


def call(server: Any, method: str, path: str, body: bytes = b"", kind: str = MEDIA_TYPE) -> bytes:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": kind}
    request = urllib.request.Request(server.url + path, body or None, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        content: bytes = answer.read()
        return content


def publish(server: Any) -> None:
    """Put a map of a box of points, and four cameras before it, where a job would."""
    from sfumato.server import blobs, places
    from sfumato.server.database import Store
    from sfumato.server.map_job import POINT

    rng, points = np.random.default_rng(1), np.zeros(2000, POINT)
    points["position"] = rng.uniform(-1, 1, (2000, 3))
    points["track"] = rng.integers(2, 9, 2000)
    cameras = {
        name: {"rotation": np.eye(3).tolist(), "center": [number - 1.5, 0.0, -4.0]} for number, name in enumerate(NAMES)
    }
    store = Store(server.folder)
    try:
        for part, content in ((blobs.POINTS, points.tobytes()), (blobs.CAMERAS, json.dumps(cameras).encode())):
            path = blobs.map_path(server.folder, PLACE, MAP, part)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        facts = {"points": 2000, "registered": 4, "images": 4, "reprojection error px": 0.5, "doubt": []}
        with store.write() as connection:
            places.publish_map(connection, PLACE, MAP, facts, "00" * 32, make_current=True)
    finally:
        store.close()


@pytest.fixture(scope="module")
def server(live_server: Any) -> Iterator[Any]:
    """A live server with a place of four images and a map; after it, as it was: the map is none for engines."""
    call(live_server, "PUT", f"/v1/places/{PLACE}")
    for number, name in enumerate(NAMES):
        call(live_server, "PUT", f"/v1/places/{PLACE}/images/{name}", encode_frame(features(number)))
    publish(live_server)
    yield live_server
    call(live_server, "DELETE", f"/v1/places/{PLACE}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, server: Any) -> Callable[..., Any]:
    """Open a page that is guarded: no request leaves the server, no policy is broken, no script fails."""

    @contextlib.contextmanager
    def open_page(*, width: int = 1280, expected: str = "", **options: Any) -> Iterator[Any]:
        wrong: list[str] = []
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        context.set_default_timeout(SECONDS)

        def guard(route: Any) -> None:
            if route.request.url.startswith(server.url + "/"):
                route.continue_()
            else:
                wrong.append(f"request to {route.request.url}")
                route.abort()

        context.route("**/*", guard)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        sign_in(page, server)
        yield page
        context.close()
        assert not [line for line in wrong if not expected or expected not in line]

    return open_page


def sign_in(page: Any, server: Any) -> None:
    page.goto(server.url + "/")
    page.fill("#key", server.key)
    page.press("#key", "Enter")
    page.wait_for_url(server.url + "/")


def pixels(page: Any) -> np.ndarray:
    import cv2

    content = np.frombuffer(page.locator("#map").screenshot(), np.uint8)
    picture: np.ndarray = cv2.imdecode(content, cv2.IMREAD_COLOR)[:, :, ::-1]
    return picture


def open_map(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/places/{PLACE}")
    page.wait_for_selector("#map[data-drawn]")


ADDRESSES = ("/", f"/places/{PLACE}", f"/places/{PLACE}/images/{NAMES[0]}", f"/places/{PLACE}/remove", "/jobs", "/keys",
             "/limits")  # fmt: skip


def test_a_person_signs_in_and_out(visit: Any, server: Any):
    with visit() as page:
        assert page.locator("h1").inner_text() == "Places"
        cookies = page.context.cookies()
        assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(server.url + "/login")
        page.goto(server.url + "/keys")
        assert page.url == server.url + "/login?next=/keys"


@pytest.mark.slow
def test_a_job_is_watched_live(visit: Any, server: Any):
    with visit() as page:
        loads: list[str] = []
        page.goto(f"{server.url}/places/{PLACE}")
        page.on("framenavigated", lambda frame: loads.append(frame.url))
        page.get_by_role("button", name="Make a new map").click()
        page.wait_for_selector("#stages")
        snapshots: list[str] = []
        with contextlib.suppress(playwright.Error):  # the page is loaded anew when the job has ended
            while page.locator("#stages[data-events]").count():
                bars = page.evaluate("[...document.querySelectorAll('progress')].map(bar => bar.value / bar.max)")
                snapshots += [str(bars)] if not snapshots or snapshots[-1] != str(bars) else []
                page.wait_for_timeout(30)
        page.wait_for_selector("h1 .word.done")
        assert len(snapshots) > 2  # bars move between two loads: the form's answer, and the end
        assert len(loads) == 2
        assert page.locator("progress").evaluate_all("bars => bars.every(bar => bar.value === bar.max)")


@pytest.mark.slow
def test_the_map_is_drawn_and_turned_by_keys(visit: Any, server: Any):
    with visit() as page:
        open_map(page, server)
        before = pixels(page)
        is_drawn = np.abs(before.astype(int) - BACKGROUND).max(axis=2) > 40
        assert 0.005 < is_drawn.mean() < 0.6
        height, width = (side // 4 for side in is_drawn.shape)
        middle = is_drawn[height:-height, width:-width]
        assert middle.mean() > 0.02  # the points are in the middle
        is_camera = (np.abs(before.astype(int) - [0xE8, 0x82, 0x5D]) < 40).all(axis=2)
        assert is_camera.sum() > 20
        page.focus("#map")
        for key in ("ArrowRight", "ArrowUp", "+"):
            count = page.get_attribute("#map", "data-drawn")
            page.keyboard.press(key)
            page.wait_for_selector(f'#map:not([data-drawn="{count}"])')
        turned = pixels(page)
        assert (np.abs(turned.astype(int) - before) > 40).any(axis=2).mean() > 0.005
        page.get_by_role("button", name="Reset the view").click()
        page.wait_for_timeout(300)
        page.evaluate("document.activeElement.blur()")
        assert (np.abs(pixels(page).astype(int) - before) > 40).any(axis=2).mean() < 0.003


@pytest.mark.slow
def test_a_browser_without_3d_says_so(visit: Any, server: Any):
    with visit(expected="WebGL") as page:
        page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
        page.goto(f"{server.url}/places/{PLACE}")
        page.locator("#map-state", has_text="WebGL").wait_for()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_small_screen_needs_no_scrolling_sideways(visit: Any, server: Any, scheme: str):
    with visit(width=360, color_scheme=scheme) as page:
        open_map(page, server)
        for path in (*ADDRESSES, "/docs", "/login"):
            page.goto(server.url + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path


FOCUS = """(() => {
    const one = document.activeElement, style = getComputedStyle(one);
    return [one.dataset.number, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1];
})()"""
"""The element that has the focus, and whether an outline shows it."""


@pytest.mark.slow
def test_the_keyboard_reaches_everything(visit: Any, server: Any):
    reachable = "a[href], button, input:not([type=hidden]), select, summary, canvas[tabindex]"
    with visit() as page:
        for path in ADDRESSES:
            page.goto(server.url + path)
            everything = page.locator(reachable).evaluate_all(
                "all => all.filter(one => one.checkVisibility()).map((one, i) => (one.dataset.number = i))"
            )
            reached = set()
            for _ in range(len(everything) + 1):
                page.keyboard.press("Tab")
                facts = page.evaluate(FOCUS)
                assert facts[0] is None or facts[1], f"{path}: no outline around {facts[0]}"
                reached.add(facts[0])
            assert {str(number) for number in everything} <= reached, path


@pytest.mark.slow
def test_the_api_is_described_and_tried(visit: Any, server: Any):
    with visit() as page:
        page.goto(server.url + "/docs")
        page.locator(".opblock", has_text="/v1/about").first.locator(".opblock-summary-control").click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table .response-col_status", has_text="200").wait_for()


@pytest.mark.slow
def test_the_page_does_without_scripts(visit: Any, server: Any):
    with visit(java_script_enabled=False) as page:
        page.goto(server.url + "/keys")
        page.fill("#label", "<i>phone</i>")
        page.get_by_role("button", name="Make the key").click()
        key = page.locator(".secret").inner_text()
        assert key.startswith("sfm_")
        assert key not in server.log.read_text()
        page.goto(f"{server.url}/places/{PLACE}/images/{NAMES[1]}")
        assert page.locator("svg.dots path").get_attribute("d").count("h0") == 400
