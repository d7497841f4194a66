# SPDX-License-Identifier: Apache-2.0
"""Releases against a server that lies: what it shows is forged, doubled or broken, and no position leaves."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx2")

import sfumato
from sfumato.client import places
from sfumato.client.names import NameTable
from sfumato.client.places import Place
from sfumato.device import ReleaseParams
from sfumato.errors import FileError, ServerError
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.store.evidence import ClaimedRows, Evidence, gather_evidence, save_evidence
from sfumato.store.frames import decode_release
from sfumato.types.concealed import Bits, RowTags

JOB, SPARE = "ab" * 16, ("cd" * 16, "ef" * 16)
STRICT = ReleaseParams(least_rows=0)
"""Tracks of three photos alone."""


@dataclass
class Liar:
    """A server that shows what a test gives it, and writes down what is sent."""

    evidence: bytes = b""
    url: str = "http://liar.example"
    sent: dict[str, bytes] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)

    def ask(self, method: str, path: str, *, body: Any = None, content: bytes | None = None, **_: Any) -> Any:
        if path.endswith("/images:missing"):
            return {"missing": [], "conflicting": [], "released": self.released}
        if path.endswith("/positions"):
            assert (method, body) == ("PUT", None)
            self.sent[path.split("/")[-2]] = content or b""
            return {}
        assert path.endswith("/evidence") or path == f"/v1/jobs/{JOB}"
        facts = {"id": JOB, "number": 1, "place": "00" * 16, "kind": "evidence", "state": "done", "stage": "publish"}
        return {**facts, "done": 1, "total": 1, "reason": "", "figures": {}}

    def download(self, path: str, file: Any, most: int) -> None:
        if len(self.evidence) > most:
            raise ServerError(f"more than {most} bytes", code="strange_answer")
        file.write(self.evidence)


@dataclass
class Scenario:
    """A photo ``a.jpg`` of a device, two photos of another one, and what an honest server shows the first of them."""

    device: Any
    place: Place
    liar: Liar
    honest: Evidence
    other: Any
    ids: dict[str, str]
    folder: Path

    def file(self, evidence: Evidence) -> bytes:
        save_evidence(self.folder / "evidence", evidence)
        return (self.folder / "evidence").read_bytes()

    def release(self, shown: Evidence | bytes, params: ReleaseParams | None = None) -> Any:
        self.liar.evidence = shown if isinstance(shown, bytes) else self.file(shown)
        return self.place.release(self.device.archive, params, secret=self.device.secret)

    def with_others(self, **others: ClaimedRows) -> Evidence:
        ids = {self.ids[word]: rows for word, rows in others.items()}
        return replace(self.honest, others={**self.honest.others, **ids})

    def others(self) -> dict[str, ClaimedRows]:
        """Rows of the other photos, by their short names."""
        return {word: self.honest.others[self.ids[word]] for word in ("b", "c")}


def matched(images: dict[str, Any]) -> dict[tuple[str, str], Any]:
    names = sorted(images)
    pairs = [(one, two) for at, one in enumerate(names) for two in names[at + 1 :]]
    return {pair: sfumato.match(*(images[name] for name in pair)).indices.astype(np.int64) for pair in pairs}


@pytest.fixture
def scenario(live: Any, tmp_path: Path) -> Scenario:
    """The two see a hall; ``a`` and ``b`` a nook too, which ``c`` does not."""
    surroundings, secret = live.make_surroundings(3, hall=120, nook=60), np.random.default_rng(5).bytes(32)
    device, other = (live.Device(tmp_path / name, secret, "house") for name in ("mine.sfm", "other.sfm"))
    device.take(a_jpg=surroundings.photo(0.0, "hall", "nook"))
    other.take(b_jpg=surroundings.photo(0.5, "hall", "nook"), c_jpg=surroundings.photo(1.0, "hall"))
    liar, names = Liar(), NameTable(secret, tmp_path / "names")
    place = Place(liar, names, names.place_id("house"), "house")  # type: ignore[arg-type]
    ids = {name[0]: names.image_id(place.id, name) for name in ("a.jpg", "b.jpg", "c.jpg")}
    ids |= dict(zip(("x", "y"), SPARE, strict=True))
    with sfumato.load(device.archive) as mine, sfumato.load(other.archive) as others:
        images = {ids[name[0]]: archive[name] for archive in (mine, others) for name in archive}
    honest = gather_evidence(iter(matched(images).items()), images, [ids["a"]])
    return Scenario(device, place, liar, honest, other, ids, tmp_path)


def test_honest_evidence_releases_what_three_photos_see_once(scenario: Scenario, files_below: Callable[..., Any]):
    outcome = scenario.release(scenario.honest, STRICT)
    assert outcome.new == {"a.jpg": 120}, "the hall, and neither the nook nor what it alone sees"
    ((key, body),) = scenario.liar.sent.items()
    assert key == scenario.ids["a"]
    rows, positions = decode_release(body, 240)
    assert np.array_equal(positions, scenario.device.positions["a.jpg"][rows])
    before = files_below(scenario.folder)
    assert scenario.release(scenario.honest, STRICT).new == {"a.jpg": 0}, "a replay gets nothing more"
    assert files_below(scenario.folder)["mine.sfm"] == before["mine.sfm"]


@pytest.mark.parametrize(("count", "is_sent"), [(0, True), (120, False), (119, True), (240, True)])
def test_positions_are_sent_unless_the_server_has_as_many(scenario: Scenario, count: int, is_sent: bool):
    """It may have others: of another copy of the archive, or of nobody who has the key."""
    scenario.release(scenario.honest, STRICT)
    scenario.liar.sent.clear()
    scenario.liar.released = {scenario.ids["a"]: count}
    assert scenario.place.push(scenario.device.archive).released == ({"a.jpg": 120} if is_sent else {})
    assert bool(scenario.liar.sent) == is_sent


def flip(rows: ClaimedRows, count: int | None = None) -> ClaimedRows:
    """Rows of which one bit is another; of the first ``count``."""
    packed = rows.code.packed.copy()
    packed[:count, 0] ^= 1
    return replace(rows, code=Bits(packed))


def lies(scenario: Scenario) -> dict[str, Evidence]:
    """Evidence of the right form of which not enough is so."""
    honest, ids, others = scenario.honest, scenario.ids, scenario.others()
    rng = np.random.default_rng(0)
    with sfumato.load(scenario.device.archive) as images:
        own = images["a.jpg"]
    everything = np.arange(len(own))
    same = np.stack([everything, everything], axis=1)
    own_rows = ClaimedRows(everything, own.code, own.tags, len(own))
    tags = [RowTags(rng.bytes(16).hex(), rng.integers(0, 256, (len(own), 8), np.uint8)) for _ in range(2)]
    made_up = [ClaimedRows(everything, own.code, guess, len(own)) for guess in tags]
    shuffled = {
        pair: np.column_stack([rows[:, 0], rng.permutation(rows[:, 1])]) for pair, rows in honest.claims.items()
    }
    circle = {(ids["a"], ids["x"]): same, (ids["a"], ids["y"]): same, (ids["x"], ids["y"]): same}
    to_b = honest.claims[scenario_pair(scenario, "a", "b")]
    twice = {(ids["a"], ids["b"]): to_b, (ids["a"], ids["x"]): to_b, (ids["b"], ids["x"]): same[np.unique(to_b[:, 1])]}
    moved = {name: replace(rows, numbers=rows.numbers + 1, count=rows.count + 1) for name, rows in others.items()}
    return {
        "all bits flipped": scenario.with_others(**{name: flip(rows) for name, rows in others.items()}),
        "one bit flipped": scenario.with_others(**{name: flip(rows, 1) for name, rows in others.items()}),
        "rows with other numbers": scenario.with_others(**moved),
        "tags of each other": scenario.with_others(
            b=others["b"], c=replace(others["c"], tags=RowTags(others["b"].tags.photo, others["c"].tags.rows))
        ),
        "made-up rows": Evidence(circle, {ids["x"]: made_up[0], ids["y"]: made_up[1]}),
        "own rows under other ids": Evidence(circle, {ids["x"]: own_rows, ids["y"]: own_rows}),
        "one photo under two ids": Evidence(twice, {ids["b"]: others["b"], ids["x"]: others["b"]}),
        "matches of any rows": replace(honest, claims=shuffled),
        "nothing of the others": replace(honest, others={}),
        "two photos alone": Evidence({(ids["a"], ids["b"]): to_b}, {ids["b"]: others["b"]}),
    }  # fmt: skip


def scenario_pair(scenario: Scenario, *words: str) -> tuple[str, str]:
    first, second = sorted(scenario.ids[word] for word in words)
    return first, second


LIES = ("all bits flipped", "one bit flipped", "rows with other numbers", "tags of each other", "made-up rows",
        "own rows under other ids", "one photo under two ids", "matches of any rows", "nothing of the others",
        "two photos alone")  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_gets_no_position(scenario: Scenario, lie: str):
    before = scenario.device.archive.read_bytes()
    told = lies(scenario)
    assert set(told) == set(LIES)
    outcome = scenario.release(told[lie])
    assert sum(outcome.new.values()) == 0
    assert scenario.liar.sent == {}
    assert scenario.device.archive.read_bytes() == before
    if lie in ("all bits flipped", "one bit flipped", "rows with other numbers", "made-up rows"):
        assert len(outcome.kept_back) >= 2, "whose tags are wrong is named"


def test_rows_of_another_place_get_no_position(scenario: Scenario, live: Any):
    """Real photos under the same device key, sealed for another place, of which a server is sent bits too."""
    elsewhere = live.Device(scenario.folder / "cellar.sfm", scenario.device.secret, "cellar")
    surroundings = live.make_surroundings(3, hall=120, nook=60)
    elsewhere.take(b_jpg=surroundings.photo(0.5, "hall"), c_jpg=surroundings.photo(1.0, "hall"))
    shown = {}
    with sfumato.load(elsewhere.archive) as images:
        for word in ("b", "c"):
            image, numbers = images[f"{word}.jpg"], np.arange(100)
            tags = RowTags(image.tags.photo, image.tags.rows[numbers])
            shown[word] = ClaimedRows(numbers, image.code[numbers], tags, len(image))
    same = np.stack([np.arange(100)] * 2, axis=1)
    pairs = [scenario_pair(scenario, *words) for words in (("a", "b"), ("a", "c"), ("b", "c"))]
    outcome = scenario.release(Evidence(dict.fromkeys(pairs, same), {scenario.ids[w]: r for w, r in shown.items()}))
    assert (sum(outcome.new.values()), len(outcome.kept_back), scenario.liar.sent) == (0, 2, {})


def test_a_photo_that_is_shown_twice_makes_no_three_of_two(scenario: Scenario):
    """What ``a`` and ``b`` alone see would be seen by three if ``b`` came under another id as well."""
    ids, honest = scenario.ids, scenario.honest
    claims = {tuple(sorted(pair)): rows for pair, rows in honest.claims.items()}
    for word in ("a", "c"):
        first, second = scenario_pair(scenario, word, "b")
        rows = honest.claims[(first, second)]
        renamed = (ids[word], ids["x"]) if first == ids[word] else (ids["x"], ids[word])
        claims[renamed] = rows
    shown = {**honest.others, ids["x"]: honest.others[ids["b"]]}
    outcome = scenario.release(Evidence(claims, shown), STRICT)
    assert outcome.new == {"a.jpg": 120}


def test_a_server_that_asks_for_nearly_all_gets_nothing_new(scenario: Scenario):
    outcome = scenario.release(scenario.honest, replace(STRICT, most_share=0.4))
    assert (outcome.new, scenario.liar.sent) == ({"a.jpg": 0}, {})
    assert "--limit" in outcome.kept_back["a.jpg"]


def test_how_many_rows_others_have_is_not_believed(scenario: Scenario):
    """A count is in no tag, and memory is taken by it."""
    others = {key: replace(rows, count=10**8) for key, rows in scenario.honest.others.items()}
    tracemalloc.start()
    assert scenario.release(replace(scenario.honest, others=others), STRICT).new == {"a.jpg": 120}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**8


# --- wrong forms


def forms(scenario: Scenario) -> dict[str, bytes]:
    """Files that are no evidence."""
    honest, path = scenario.file(scenario.honest), scenario.folder / "evidence"
    arrays, facts = load_checkpoint(path)

    def changed(**changes: Any) -> bytes:
        save_checkpoint(path, {**arrays, **changes}, facts)
        return path.read_bytes()

    def named(**names: str) -> bytes:
        images = [names.get(name, name) for name in facts["images"]]
        save_checkpoint(path, arrays, {**facts, "images": images})
        return path.read_bytes()

    size = (2**40).to_bytes(8, "little")
    pairs, others = arrays["pairs"], arrays["others"]
    return {
        "nothing": b"",
        "half of it": honest[: len(honest) // 2],
        "without its end": honest[:-1],
        "a picture": b"\xff\xd8\xff\xe0" + bytes(1000),
        "JSON": json.dumps({"pairs": []}).encode(),
        "a giant header": size + honest[8:],
        "changed": honest[:-9] + bytes(9),
        "floats": changed(claims=arrays["claims"].astype("<f4")),
        "giant counts": changed(others=np.column_stack([others[:, :2], np.full(len(others), 2**31 - 1)]).astype("<i4")),
        "more than there is": changed(pairs=np.column_stack([pairs[:, :2], np.full(len(pairs), 2**30)]).astype("<i4")),
        "a pair of one image": changed(pairs=np.column_stack([pairs[:, 0], pairs[:, 0], pairs[:, 2]]).astype("<i4")),
        "no tags": changed(tags=np.zeros((0, 8), np.uint8)),
        "names of people": named(**{scenario.ids["b"]: "a.jpg"}),
        "empty names": named(**{scenario.ids["b"]: ""}),
    }


FORMS = ("nothing", "half of it", "without its end", "a picture", "JSON", "a giant header", "changed", "floats",
         "giant counts", "more than there is", "a pair of one image", "no tags", "names of people",
         "empty names")  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_evidence_is_refused_with_a_reason(scenario: Scenario, form: str):
    before = scenario.device.archive.read_bytes()
    shown = forms(scenario)
    assert set(shown) == set(FORMS)
    with pytest.raises((FileError, ServerError)) as caught:
        scenario.release(shown[form])
    assert str(caught.value)
    assert scenario.device.archive.read_bytes() == before
    assert scenario.liar.sent == {}


def test_evidence_without_end_is_not_read_to_its_end(scenario: Scenario, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(places, "LARGEST_EVIDENCE", 5000)
    with pytest.raises(ServerError) as caught:
        scenario.release(scenario.honest)
    assert "5000" in str(caught.value)
    assert scenario.liar.sent == {}


def test_a_download_that_goes_on_is_broken_off(scripted: Any):
    """Of a gigabyte nothing is written but what is allowed."""
    from sfumato.client.transport import Transport

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(10_000):
            try:
                handler.wfile.write(bytes(2**16))
            except OSError:
                return

    class Counter:
        total = 0

        def write(self, chunk: bytes) -> None:
            self.total += len(chunk)

    scripted.answers, file = [drip], Counter()
    transport = Transport(scripted.url, scripted.key)
    with pytest.raises(ServerError) as caught:
        transport.download("/v1/places/aaaaaaaa/evidence/x", file, 2**20)  # type: ignore[arg-type]
    transport.close()
    assert caught.value.code == "strange_answer"
    assert file.total <= 2**20


# --- landmarks


@pytest.mark.parametrize(
    "change",
    [{"rows": [0, 500]}, {"rows": [-1, 0]}, {"landmarks": [0, 9]}, {"positions": [[0, 0, None]]}, {"rows": None},
     {"positions": [[0, 0, float("nan")], [0, 0, 1]]}, {"distances": [1]}, {"rows": [2**80, 1]}, {"candidates": "x"}],
)  # fmt: skip
def test_landmarks_that_cannot_be_are_refused(scenario: Scenario, live: Any, change: dict[str, Any]):
    facts = {"rows": [0, 1], "landmarks": [0, 1], "positions": [[0, 0, 5], [1, 0, 5]], "distances": [3, 4],
             "candidates": 2}  # fmt: skip
    query, positions = scenario.device.conceal(live.make_surroundings(3).photo(0.2, "hall"))
    requests = []

    def answer(method: str, path: str, *, content: bytes, **_: Any) -> Any:
        requests.append(content)
        return {**facts, **change}

    scenario.liar.ask = answer  # type: ignore[method-assign]
    with pytest.raises((ServerError, sfumato.errors.InputError)):
        scenario.place.localize(query, live.camera(), keypoints=positions)
    assert positions[:, 0].tobytes()[:8] not in requests[0]
    assert sfumato.store.decode_frame(requests[0]).tags is None, "tags would say which photo it is"
