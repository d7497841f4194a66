# SPDX-License-Identifier: Apache-2.0
"""Test vectors of the wire format (docs/reference/wire.md), for programs in other languages: the package agrees.

Here is also a second program that makes them, after the document and without the package: the document is enough. All
rows are generated, and the key is public. To write files that are missing, or new texts of errors:

    python tests/store/test_vectors.py --update
"""

import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from sfumato.concealment.keys import key_for_place, key_for_rows
from sfumato.concealment.rows import make_tags, photo_name, row_order, to_grid
from sfumato.concealment.seal import make_seal
from sfumato.errors import FrameError
from sfumato.features.local import LocalParams, extractor_of
from sfumato.store.evidence import ClaimedRows, Evidence, load_evidence, save_evidence
from sfumato.store.frames import (
    decode_frame,
    decode_release,
    encode_frame,
    encode_release,
    frame_digest,
    read_header,
)
from sfumato.types.clear import Features
from sfumato.types.concealed import Bits, Code, ConcealedFeatures, Points, RowTags, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "vectors"
HOW = "Meant? Then: python tests/store/test_vectors.py --update"

KEY = hashlib.sha256(b"sfumato test vectors: this key is public and protects nobody").digest()
PLACE = "kitchen"
BITS, WIDTH, BANDWIDTH = 512, 128, 0.235
SHOWN = 8
EDGE = 1e-5
SIZE = (640, 480)
PHOTO = hashlib.sha256(b"sfumato test photo").hexdigest()[:32]
POSITIONS = ((12.5, 8.25), (300.125, 8.25), (17.0, 401.5))
SETTINGS: dict[str, Any] = {
    "contrast_threshold": 0.02, "corner_quality": 0.0001, "descriptor": "sift", "edge_threshold": 10.0,
    "extractor": "colmap", "max_features": 16384, "max_image_size": 3200, "octave_layers": 3, "patch_scale": 6.0,
    "precise_upscale": True, "sigma": 1.6, "weights": None,
}  # fmt: skip


# ---------------------------------------------------------------- what the package makes


def histograms() -> list[list[int]]:
    """Three rows of 128 bytes that look like SIFT's to a program."""
    return [list(hashlib.shake_256(b"sfumato test row %d" % row).digest(WIDTH)) for row in range(len(POSITIONS))]


def unit_rows() -> np.ndarray:
    rows = np.array(histograms(), np.float64)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def seal_vectors() -> dict[str, Any]:
    place_key = key_for_place(KEY, PLACE)
    seal, rows = make_seal(place_key, WIDTH, BITS, BANDWIDTH), unit_rows()
    return {
        "version": 1,
        "bits": BITS,
        "width": WIDTH,
        "bandwidth": BANDWIDTH,
        "key": KEY.hex(),
        "key_fingerprint": make_seal(KEY, WIDTH, BITS, BANDWIDTH).checksum[:12],
        "place": PLACE,
        "place_key": place_key.hex(),
        "place_fingerprint": seal.checksum[:12],
        "directions": [[float(one).hex() for one in row] for row in seal.directions[:SHOWN]],
        "phases": [float(one).hex() for one in seal.phases[:SHOWN]],
        "histograms": histograms(),
        "rows": [[float(one).hex() for one in row] for row in rows],
        "codes": [row.tobytes().hex() for row in seal(rows).packed],
    }


def sealed(count: int, settings: dict[str, Any] | None = None) -> ConcealedFeatures:
    seal = make_seal(key_for_place(KEY, PLACE), WIDTH, BITS, BANDWIDTH)
    links = Recipe.of(f"sealed-512@{seal.checksum[:12]}").links
    code = Bits(seal(unit_rows()[:count]).packed)
    extractor = Extractor("sift", SETTINGS if settings is None else settings)
    return ConcealedFeatures(keypoints(count), code, Recipe(links=links, keyed=True), extractor, SIZE)


def at_home(settings: dict[str, Any] | None = None) -> ConcealedFeatures:
    """Sealed features whose positions stay home, with tags."""
    image = sealed(len(POSITIONS), settings).without_positions()
    assert isinstance(image.code, Bits)
    return replace(image, tags=make_tags(key_for_place(KEY, PLACE), PHOTO, image.code))


def lifted(recipe: str, count: int = 2, size: tuple[int, int] | None = None) -> ConcealedFeatures:
    """Subspaces and points whose numbers are the same in any arithmetic."""
    axes = np.eye(8, dtype=np.float32)
    dim, starts = Recipe.of(recipe).dim, range(count)
    origin = np.array([0.5 * axes[row] - 0.25 * axes[7 - row] for row in starts], np.float32).reshape(count, 8)
    basis = np.array([axes[row + 2 : row + 2 + dim] for row in starts], np.float32).reshape(count, dim, 8)
    code: Code = Subspaces(origin, basis) if dim else Points(origin)
    return ConcealedFeatures(keypoints(count), code, recipe, Extractor("sift"), size)


def keypoints(count: int) -> np.ndarray:
    return np.array([(*place, 1, 0) for place in POSITIONS[:count]], np.float32).reshape(count, 4)


def good_frames() -> dict[str, tuple[ConcealedFeatures, str]]:
    """The good frames by the names of their files: features and what their numbers are sent as."""
    return {
        "sealed-0.bin": (sealed(0), "float32"),
        "sealed-1.bin": (sealed(1), "float32"),
        "sealed-3.bin": (sealed(3), "float32"),
        "home-3.bin": (at_home(), "float32"),
        "query-3.bin": (sealed(3).without_positions(), "float32"),
        "lifted-float32.bin": (lifted("random-2"), "float32"),
        "lifted-float16.bin": (lifted("random-2"), "float16"),
        "points.bin": (lifted("ninja:made@0123456789ab"), "float32"),
        "query-lifted.bin": (lifted("random-2").without_positions(), "float32"),
    }


def describe(name: str, features: ConcealedFeatures, dtype: str) -> dict[str, Any]:
    frame, code = encode_frame(features, dtype=dtype), features.code
    if isinstance(code, Bits):
        arrays: dict[str, Any] = {"bits": [row.tobytes().hex() for row in code.packed]}
    else:
        arrays = {"origin": code.origin.tolist()} | ({"basis": code.basis.tolist()} if code.dim else {})
    if features.tags is not None:
        arrays |= {"photo": features.tags.photo, "tags": [row.tobytes().hex() for row in features.tags.rows]}
    if features.is_shown.all():
        arrays |= {"positions": features.keypoints[:, :2].tolist()}
    return {
        "file": name,
        "bytes": len(frame),
        "digest": frame_digest(frame),
        "dtype": "bits" if "bits" in arrays else dtype,
        "count": len(features),
        "image_size": features.image_size,
        "recipe": features.recipe.to_json(),
        "extractor": features.extractor.to_json(),
        **arrays,
    }


# ---------------------------------------------------------------- rows, releases and evidence


ORDERED = 16
"""Rows of the longer order."""
PLACES = ((12.53, 8.25), (300.125, 8.28125), (-0.4375, 401.46875))
"""Positions before they are put on the grid: two of them lie halfway between two of its points."""
OWN, OTHERS = "00" * 16, ("11" * 16, "22" * 16)


def row_vectors() -> dict[str, Any]:
    key, clear = key_for_place(KEY, PLACE), np.hstack([np.array(PLACES), [[2.5, 90.0], [3.0, 0.0], [4.0, 359.5]]])
    clear = clear.astype(np.float32)
    return {
        "place_key": key.hex(),
        "rows_key": key_for_rows(key).hex(),
        "keypoints": [[float(one).hex() for one in row] for row in clear],
        "photo": photo_name(key, Features(clear, unit_rows())),
        "orders": [
            {"photo": PHOTO, "count": count, "order": row_order(key, PHOTO, count).tolist()} for count in (3, ORDERED)
        ],
        "grid": [[float(one).hex() for one in row] for row in to_grid(clear)],
    }


def release_vectors() -> list[dict[str, Any]]:
    """Releases of rows of an image of three, good ones and broken ones."""
    whole, places = np.arange(3), np.array(POSITIONS)
    good = {"no row": whole[:0], "one row": whole[2:], "two rows": whole[::2], "all rows": whole}
    bodies = {word: encode_release(rows, places[rows]) for word, rows in good.items()}
    row = {number: bodies["all rows"][12 * number :][:12] for number in range(3)}
    bodies |= {
        "cut": bodies["all rows"][:-1],
        "descending rows": row[2] + row[0],
        "a row twice": row[1] + row[1],
        "a row beyond the count": struct.pack("<I2f", 3, 1.0, 2.0),
        "the largest row": struct.pack("<I2f", 2**32 - 1, 1.0, 2.0),
        "not a number": struct.pack("<I2f", 1, math.nan, 2.0),
        "infinite": struct.pack("<I2f", 1, 1.0, -math.inf),
    }
    listed = []
    for word, body in bodies.items():
        entry: dict[str, Any] = {"release": word, "count": 3, "body": body.hex()}
        try:
            rows, positions = decode_release(body, 3)
            entry |= {"rows": rows.tolist(), "positions": positions.tolist()}
        except FrameError as problem:
            entry |= {"code": problem.code, "text": str(problem)}
        listed.append(entry)
    return listed


def made_evidence() -> Evidence:
    """Of an image of a device, and two of another one: one shows two of its three rows, the other a single one."""
    tags = at_home().tags
    code = at_home().code
    assert tags is not None
    assert isinstance(code, Bits)
    shown = {}
    for name, rows in zip(OTHERS, ([0, 2], [1]), strict=True):
        numbers = np.array(rows)
        photo = hashlib.sha256(name.encode()).hexdigest()[:32]
        made = make_tags(key_for_place(KEY, PLACE), photo, code)
        shown[name] = ClaimedRows(numbers, code[numbers], RowTags(photo, made.rows[numbers]), 3)
    claims = {(OWN, OTHERS[0]): [[0, 0], [2, 2]], (OWN, OTHERS[1]): [[1, 1]], OTHERS: [[2, 1]]}
    return Evidence({pair: np.array(rows) for pair, rows in claims.items()}, shown)  # type: ignore[misc]


def evidence_file() -> bytes:
    with TemporaryDirectory() as folder:
        save_evidence(Path(folder) / "evidence", made_evidence())
        return (Path(folder) / "evidence").read_bytes()


# ---------------------------------------------------------------- broken frames


def parts(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """The values of the header of a frame, and its payload."""
    end = 64 + struct.unpack_from("<I", frame, 20)[0]
    return json.loads(frame[64:end]), frame[end:]


def plain(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def padded(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % 64)


def join(text: bytes, payload: bytes, *, version: int = 1, **lengths: int) -> bytes:
    """A frame of a text and a payload, with a right digest; and with right lengths, unless others are given."""
    text = padded(text, b" ")
    digest = hashlib.blake2b(text + payload, digest_size=32, person=b"sfumato-wire").digest()
    header_bytes, payload_bytes = lengths.get("header_bytes", len(text)), lengths.get("payload_bytes", len(payload))
    head = struct.pack("<16sIIQ32s", b"sfumato-features", version, header_bytes, payload_bytes, digest)
    return head + text + payload


def changed(features: ConcealedFeatures, **changes: Any) -> bytes:
    """The frame of features with other values in its header, and what its digest should be."""
    values, payload = parts(encode_frame(features))
    return join(plain({**values, **changes}), payload)


def with_array(features: ConcealedFeatures, row: int, entry: list[Any]) -> bytes:
    arrays = parts(encode_frame(features))[0]["arrays"]
    return changed(features, arrays=[*arrays[:row], entry, *arrays[row + 1 :]])


def with_number(features: ConcealedFeatures, at: int, number: float) -> bytes:
    """The frame of features with another float32 in its payload."""
    values, payload = parts(encode_frame(features))
    return join(plain(values), payload[:at] + struct.pack("<f", number) + payload[at + 4 :])


def recipe_text(recipe: str, **more: Any) -> str:
    return Recipe(links=Recipe.of(recipe).links, **more).to_json()


def broken_frames() -> dict[str, bytes]:
    """Frames with one fault each, by what the fault is."""
    return dict([*broken_heads(), *broken_headers(), *broken_contents(), *broken_payloads()])


def broken_heads() -> Iterator[tuple[str, bytes]]:
    good = encode_frame(sealed(1, settings={}))
    values, payload = parts(good)
    text = plain(values)
    yield "nothing", b""
    yield "a picture", b"\x89PNG\r\n\x1a\n" + bytes(120)
    yield "an archive", b"SQLite format 3\0" + bytes(120)
    yield "other magic", b"sfumato-template" + good[16:]
    yield "cut in the first bytes", good[:63]
    yield "cut in the header", good[:300]
    yield "cut in the payload", good[:-64]
    yield "one byte less", good[:-1]
    yield "one byte more", good + b"\0"
    yield "version 0", join(text, payload, version=0)
    yield "version 2", join(text, payload, version=2)
    yield "header of length 0", join(text, payload, header_bytes=0)
    yield "header of odd length", join(text, payload, header_bytes=len(text))
    yield "header over the limit", join(text, payload, header_bytes=65_600)
    yield "payload of odd length", join(text, payload, payload_bytes=len(payload) - 1)
    yield "payload over the limit", join(text, payload, payload_bytes=2**64 - 64)
    yield "payload of another length", join(text, payload, payload_bytes=len(payload) + 64)
    yield "payload with a block more", join(text, payload + bytes(64))
    yield "digest", good[:40] + bytes([good[40] ^ 1]) + good[41:]
    yield "bit of a code", good[:-1] + bytes([good[-1] ^ 1])


def broken_headers() -> Iterator[tuple[str, bytes]]:
    features = sealed(1, settings={})
    values, payload = parts(encode_frame(features))
    text = plain(values)
    yield "header not ASCII", join(text.replace(b"sift", b"s\xc3\xaft"), payload)
    yield "header not JSON", join(text[:-1], payload)
    yield "header nested", join(b"[" * 640, payload)
    yield "header a list", join(plain(list(values)), payload)
    yield "key missing", join(plain({key: values[key] for key in values if key != "image_size"}), payload)
    yield "key unknown", changed(features, name="desk.jpg")
    yield "key twice", join(text.replace(b'"count":1', b'"count":1,"count":1'), payload)
    yield (
        "keys in another order",
        join(json.dumps(dict(reversed(values.items())), separators=(",", ":")).encode(), payload),
    )
    yield "space in the header", join(text.replace(b'"count":1', b'"count": 1'), payload)
    yield "header with 64 spaces more", join(padded(text, b" ") + b" " * 64, payload)
    yield "header filled with zeros", join(padded(text, b"\0"), payload)
    yield "count a truth value", join(text.replace(b"[1,", b"[true,").replace(b'"count":1', b'"count":true'), payload)
    yield "count with a point", join(text.replace(b'"count":1', b'"count":1.0'), payload)
    yield "count a text", changed(features, count="1")
    yield "count negative", changed(features, count=-1)
    yield "count over the limit", changed(features, count=2**31)
    yield "count of eleven digits", changed(features, count=10**10)
    yield "count of other arrays", changed(features, count=2)
    yield "image size 0", changed(features, image_size=[0, 480])
    yield "image size a truth value", changed(features, image_size=[True, 480])
    yield "image size of three", changed(features, image_size=[640, 480, 3])


def broken_contents() -> Iterator[tuple[str, bytes]]:
    bits, spaces = sealed(1, settings={}), lifted("random-2")
    recipe = bits.recipe.to_json()
    yield "recipe of another form", changed(bits, recipe=recipe.replace(":", ": ", 1))
    yield "recipe of an unknown kind", changed(bits, recipe=recipe.replace("sealed", "seeled"))
    yield "recipe not JSON", changed(bits, recipe="sealed-512")
    yield "extractor of another form", changed(bits, extractor='{"settings":{},"name":"sift"}')
    yield "clear descriptors", changed(lifted("ninja:made@0123456789ab"), recipe=recipe_text("raw"))
    yield "points of a lifting", changed(lifted("ninja:made@0123456789ab"), recipe=recipe_text("random-2"))
    yield "evaluation seed", changed(bits, recipe=recipe.replace('"evaluation_seed":null', '"evaluation_seed":7'))
    yield "seal of another length", changed(bits, recipe=recipe.replace("512", "256"))
    yield "bits of a lifting", changed(bits, recipe=recipe_text("ninja-sift-1.0"))
    yield "numbers of a seal", changed(lifted("ninja:made@0123456789ab"), recipe=recipe.replace("512", "8"))
    yield "subspaces of another dimension", changed(spaces, recipe=recipe_text("random-3"))
    yield "sizes and angles", with_array(bits, 0, ["positions", "<f4", [1, 4]])
    yield "positions of another type", with_array(bits, 0, ["positions", "<f2", [1, 2]])
    yield "origin of an unknown type", with_array(spaces, 1, ["origin", ">f4", [2, 8]])
    yield "basis of another type", with_array(spaces, 2, ["basis", "<f2", [2, 2, 8]])
    yield "basis of another width", with_array(spaces, 2, ["basis", "<f4", [2, 2, 9]])
    yield "array unknown", with_array(bits, 1, ["descriptors", "|u1", [1, 64]])
    yield "array too many", with_array(bits, 2, ["scores", "<f4", [1]])
    yield "array not a list", changed(bits, arrays=[3, {}])
    yield from broken_homes()


def broken_homes() -> Iterator[tuple[str, bytes]]:
    home = at_home(settings={})
    arrays = parts(encode_frame(home))[0]["arrays"]
    yield "tags of another width", with_array(home, 2, ["tags", "|u1", [3, 4]])
    yield "tags of fewer rows", with_array(home, 2, ["tags", "|u1", [2, 8]])
    yield "photo of another length", with_array(home, 1, ["photo", "|u1", [8]])
    yield "tags without a photo", changed(home, arrays=[arrays[0], arrays[2]])
    yield "positions and tags", changed(home, arrays=[["positions", "<f4", [3, 2]], *arrays])
    yield "tags of points", changed(home, arrays=[["origin", "<f4", [3, 16]], *arrays[1:]])


def broken_payloads() -> Iterator[tuple[str, bytes]]:
    bits, spaces, points = sealed(3, settings={}), lifted("random-2"), lifted("ninja:made@0123456789ab")
    origin, basis = 64, 128
    yield "position not a number", with_number(bits, 0, math.nan)
    yield "padding not zero", with_number(bits, 24, 1.0)
    yield "point infinite", with_number(points, origin, math.inf)
    yield "origin not orthogonal", with_number(spaces, origin + 4 * 2, 0.1)
    yield "basis not of norm 1", with_number(spaces, basis + 4 * 2, 1.1)
    yield "basis not orthogonal", with_number(spaces, basis + 4 * 3, 0.1)


def refusal(frame: bytes) -> FrameError | None:
    try:
        decode_frame(frame)
    except FrameError as error:
        return error
    return None


# ---------------------------------------------------------------- files


def as_text(values: Any) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode("ascii")


@cache
def files() -> dict[str, bytes]:
    """Every file of the vectors."""
    frames = good_frames()
    content = {name: encode_frame(features, dtype=dtype) for name, (features, dtype) in frames.items()}
    listed, start, broken = [], 0, broken_frames()
    for name, frame in broken.items():
        error = refusal(frame)
        code, text = ("", "") if error is None else (error.code, str(error))
        listed.append({"fault": name, "start": start, "bytes": len(frame), "code": code, "text": text})
        start += len(frame)
    return content | {
        "seal.json": as_text(seal_vectors()),
        "frames.json": as_text([describe(name, *made) for name, made in frames.items()]),
        "rows.json": as_text(row_vectors()),
        "releases.json": as_text(release_vectors()),
        "evidence.safetensors": evidence_file(),
        "broken.json": as_text(listed),
        "broken.bin": b"".join(broken.values()),
    }


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_bytes())


def broken_of_the_files() -> list[dict[str, Any]]:
    content = (FOLDER / "broken.bin").read_bytes()
    return [entry | {"frame": content[entry["start"] :][: entry["bytes"]]} for entry in read("broken.json")]


def test_the_package_makes_these_files():
    """Exactly so, but for the last digit of directions, which machines may differ in."""
    for name, made in files().items():
        there = (FOLDER / name).read_bytes()
        if name == "seal.json":
            compare_seals(json.loads(made), json.loads(there))
        else:
            assert made == there, f"{name}: {HOW}"


def compare_seals(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for key in ("directions", "phases"):
        numbers = [np.array([float.fromhex(one) for one in np.ravel(values.pop(key))]) for values in (ours, theirs)]
        np.testing.assert_allclose(*numbers, rtol=2e-7)
    assert ours == theirs, HOW


def test_there_is_no_other_file():
    assert {path.name for path in FOLDER.iterdir()} == set(files())


def test_good_frames_are_read_and_written_again():
    for entry in read("frames.json"):
        frame = (FOLDER / entry["file"]).read_bytes()
        features = decode_frame(frame)
        assert (len(features), features.has_frames) == (entry["count"], False)
        assert features.is_shown.all() == ("positions" in entry)
        assert features.keypoints[features.is_shown][:, :2].tolist() == entry.get("positions", [])
        assert (features.tags is not None) == ("tags" in entry)
        assert read_header(frame).digest == frame_digest(frame) == entry["digest"]
        assert encode_frame(features, dtype=entry["dtype"]) == frame


def test_releases_are_read_and_written_again():
    for entry in read("releases.json"):
        body = bytes.fromhex(entry["body"])
        if "code" in entry:
            with pytest.raises(FrameError) as caught:
                decode_release(body, entry["count"])
            assert (caught.value.code, str(caught.value)) == ("bad_release", entry["text"]), HOW
        else:
            rows, positions = decode_release(body, entry["count"])
            assert (rows.tolist(), positions.tolist()) == (entry["rows"], entry["positions"])
            assert encode_release(rows, positions) == body


def test_the_evidence_is_read_as_it_was_made():
    evidence, made = load_evidence(FOLDER / "evidence.safetensors"), made_evidence()
    assert {pair: rows.tolist() for pair, rows in evidence.claims.items()} == {
        pair: rows.tolist() for pair, rows in made.claims.items()
    }
    assert evidence.others.keys() == made.others.keys()
    for name, rows in evidence.others.items():
        assert (rows.numbers.tolist(), rows.tags.photo) == (
            made.others[name].numbers.tolist(),
            made.others[name].tags.photo,
        )


def test_every_broken_frame_is_refused_with_its_code_and_text():
    broken = broken_of_the_files()
    for entry in broken:
        error = refusal(entry["frame"])
        assert error is not None, entry["fault"]
        assert (error.code, str(error)) == (entry["code"], entry["text"]), f"{entry['fault']}: {HOW}"
    codes = {entry["code"] for entry in broken}
    assert codes == {"not_a_frame", "other_version", "too_large", "clear_features", "bad_frame"}


def test_texts_say_what_to_run_on_the_device():
    for entry in read("broken.json"):
        if entry["code"] in ("not_a_frame", "clear_features"):
            assert "on the device" in entry["text"] or "there, for example" in entry["text"], entry["text"]
        assert len(entry["text"]) < 300


def test_faults_of_headers_are_seen_before_the_payload_comes():
    """What is wrong with lengths and headers needs no array."""
    late = {
        "cut in the payload",
        "one byte less",
        "one byte more",
        "payload with a block more",
        "digest",
        "bit of a code",
    }
    late |= {name for name, _ in broken_payloads()}
    for entry in broken_of_the_files():
        frame = entry["frame"]
        end = 64 + struct.unpack_from("<I", frame, 20)[0] if len(frame) >= 64 else len(frame)
        if entry["fault"] in late - {"payload with a block more"}:
            assert read_header(frame[:end]).count in (1, 2, 3)
        else:
            with pytest.raises(FrameError):
                read_header(frame[:end])


# ---------------------------------------------------------------- a second program, after the document


def hash_keyed(text: bytes, key: bytes, person: bytes, size: int) -> bytes:
    hashed = hashlib.blake2b(key, digest_size=32).digest()
    return hashlib.blake2b(text, key=hashed, person=person, digest_size=size).digest()


def units(seed: bytes, purpose: bytes, count: int) -> list[float]:
    drawn = hashlib.shake_256(seed + purpose).digest(4 * count)
    return [(number + 0.5) / 2**32 for (number,) in struct.iter_unpack("<I", drawn)]


def to_float32(number: float) -> float:
    value: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return value


def seal_by_the_document(key: bytes, row: list[float]) -> tuple[str, list[list[float]], list[float], bytes, float]:
    """Fingerprint, directions, phases, the code of a row, and how near a cosine comes to 0."""
    seed = hash_keyed(b"512 bits of 128 numbers, bandwidth 0.235000", key, b"sfumato seal 2", 64)
    count = BITS * WIDTH
    drawn = hashlib.shake_256(seed + b"directions").digest(2 * count)
    normal = [NormalDist().inv_cdf((number + 0.5) / 2**16) for (number,) in struct.iter_unpack("<H", drawn)]
    flat = [to_float32(one / BANDWIDTH) for one in normal]
    directions = [flat[start : start + WIDTH] for start in range(0, count, WIDTH)]
    phases = [to_float32(2 * math.pi * one) for one in units(seed, b"phases", BITS)]
    cosines = [
        math.cos(math.fsum(a * x for a, x in zip(direction, row, strict=True)) + phase)
        for direction, phase in zip(directions, phases, strict=True)
    ]
    code = bytes(sum((cosines[8 * byte + bit] >= 0) << (7 - bit) for bit in range(8)) for byte in range(BITS // 8))
    name = hashlib.shake_256(seed + b"name").hexdigest(6)
    return name, directions, phases, code, min(map(abs, cosines))


def frame_by_the_document(entry: dict[str, Any]) -> bytes:
    """A frame of its description in frames.json."""
    count, letter, kind = entry["count"], {"float16": "e"}.get(entry["dtype"], "f"), {"float16": "<f2"}
    arrays, blobs = list[list[Any]](), list[bytes]()
    if "positions" in entry:
        arrays.append(["positions", "<f4", [count, 2]])
        blobs.append(b"".join(struct.pack("<2f", *place) for place in entry["positions"]))
    if "bits" in entry:
        arrays.append(["bits", "|u1", [count, 64]])
        blobs.append(bytes.fromhex("".join(entry["bits"])))
    if "tags" in entry:
        arrays += [["photo", "|u1", [16]], ["tags", "|u1", [count, 8]]]
        blobs += [bytes.fromhex(entry["photo"]), bytes.fromhex("".join(entry["tags"]))]
    for name in ("origin", "basis"):
        if name in entry:
            values = np.array(entry[name])
            arrays.append([name, kind.get(entry["dtype"], "<f4"), list(values.shape)])
            blobs.append(struct.pack(f"<{values.size}{letter}", *values.ravel()))
    header = {"arrays": arrays, **{key: entry[key] for key in ("count", "extractor", "image_size", "recipe")}}
    return join(plain(header), b"".join(padded(blob, b"\0") for blob in blobs))


def test_the_document_is_enough_for_seals():
    known = read("seal.json")
    place_key = hash_keyed(PLACE.encode(), bytes.fromhex(known["key"]), b"sfumato place", 32)
    assert place_key.hex() == known["place_key"]
    for histogram, row, code in zip(known["histograms"], known["rows"], known["codes"], strict=True):
        norm = math.sqrt(sum(one * one for one in histogram))
        rounded = [to_float32(one / norm) for one in histogram]
        assert [one.hex() for one in rounded] == row
        name, directions, phases, made, margin = seal_by_the_document(place_key, rounded)
        assert name == known["place_fingerprint"]
        assert margin > EDGE
        assert made.hex() == code
        shown = [[float.fromhex(one) for one in direction] for direction in known["directions"]]
        np.testing.assert_allclose(directions[:SHOWN], shown, rtol=2e-7)
        np.testing.assert_allclose(phases[:SHOWN], [float.fromhex(one) for one in known["phases"]], rtol=2e-7)


def test_the_document_is_enough_for_frames():
    for entry in read("frames.json"):
        assert frame_by_the_document(entry) == (FOLDER / entry["file"]).read_bytes(), entry["file"]


def test_the_document_is_enough_for_tags():
    """A tag is of the photo, the number of the row in four bytes, and its bits; under a key of its own."""
    rows_key = rows_key_of_the_document()
    (entry,) = [entry for entry in read("frames.json") if "tags" in entry]
    for number, (bits, tag) in enumerate(zip(entry["bits"], entry["tags"], strict=True)):
        text = bytes.fromhex(entry["photo"]) + struct.pack("<I", number) + bytes.fromhex(bits)
        assert hashlib.blake2b(text, key=rows_key, person=b"sfumato row", digest_size=8).hexdigest() == tag


def rows_key_of_the_document() -> bytes:
    place_key = hash_keyed(PLACE.encode(), KEY, b"sfumato place", 32)
    return hash_keyed(b"", place_key, b"sfumato rows", 32)


def test_the_document_is_enough_for_rows():
    known, key = read("rows.json"), rows_key_of_the_document()
    assert key.hex() == known["rows_key"]
    keypoints = [[float.fromhex(one) for one in row] for row in known["keypoints"]]
    descriptors = [[float.fromhex(one) for one in row] for row in read("seal.json")["rows"]]
    text = b"".join(struct.pack(f"<{len(row)}f", *row) for row in (*descriptors, *keypoints))
    name = hashlib.blake2b(text, key=key, person=b"sfumato photo", digest_size=16)
    assert name.hexdigest() == known["photo"]
    for entry in known["orders"]:
        drawn = hashlib.shake_256(key + b"order" + bytes.fromhex(entry["photo"])).digest(8 * entry["count"])
        numbers = [number for (number,) in struct.iter_unpack("<Q", drawn)]
        assert sorted(range(entry["count"]), key=numbers.__getitem__) == entry["order"]
    grid = [[round(16 * one) / 16 for one in row[:2]] for row in keypoints]
    assert grid == [[float.fromhex(one) for one in row] for row in known["grid"]]


def test_the_document_is_enough_for_releases():
    for entry in read("releases.json"):
        if "rows" in entry:
            pairs = zip(entry["rows"], entry["positions"], strict=True)
            assert b"".join(struct.pack("<I2f", row, *place) for row, place in pairs).hex() == entry["body"]


def test_the_document_is_enough_for_evidence():
    """Of a file: eight bytes, a header in JSON, and the arrays where it says."""
    content, key = (FOLDER / "evidence.safetensors").read_bytes(), rows_key_of_the_document()
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8 : 8 + length])
    facts = json.loads(header.pop("__metadata__")["sfumato"])
    assert facts == {"images": [OWN, *OTHERS], "kind": "evidence of matches"}
    kinds = {"I32": "<i4", "U32": "<u4", "U8": "|u1"}
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        data = content[8 + length + first : 8 + length + last]
        arrays[name] = np.frombuffer(data, kinds[entry["dtype"]]).reshape(entry["shape"])
    assert set(arrays) == {"pairs", "claims", "others", "photos", "numbers", "bits", "tags"}
    assert arrays["pairs"].tolist() == [[0, 1, 2], [0, 2, 1], [1, 2, 1]]
    assert arrays["claims"].tolist() == [[0, 0], [2, 2], [1, 1], [2, 1]]
    assert arrays["others"].tolist() == [[1, 2, 3], [2, 1, 3]]
    start = 0
    for (_, count, _), photo in zip(arrays["others"].tolist(), arrays["photos"], strict=True):
        for row in range(start, start + count):
            text = photo.tobytes() + struct.pack("<I", arrays["numbers"][row]) + arrays["bits"][row].tobytes()
            tag = hashlib.blake2b(text, key=key, person=b"sfumato row", digest_size=8).digest()
            assert tag == arrays["tags"][row].tobytes()
        start += count
    assert start == len(arrays["numbers"]) == 3


def test_the_codes_of_the_frames_are_those_of_the_seal():
    codes, frames = read("seal.json")["codes"], {entry["file"]: entry for entry in read("frames.json")}
    for count in (0, 1, 3):
        assert frames[f"sealed-{count}.bin"]["bits"] == codes[:count]


def test_the_document_shows_the_texts_of_today():
    text = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    assert extractor_of(LocalParams()).to_json() == Extractor("sift", SETTINGS).to_json()
    recipe = Recipe(links=Recipe.of("sealed-512@0123456789ab").links, keyed=True)
    for shown in (extractor_of(LocalParams()).to_json(), recipe.to_json()):
        assert f"{shown}\n" in text


def test_the_document_shows_every_file():
    text = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in files())


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(HOW)
    FOLDER.mkdir(exist_ok=True)
    for file_name, file_content in files().items():
        (FOLDER / file_name).write_bytes(file_content)
