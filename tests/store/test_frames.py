# SPDX-License-Identifier: Apache-2.0
"""Frames on the wire: what goes in comes out, nothing clear goes in, and no bytes do harm.

Every rule of docs/reference/wire.md is broken once in test_vectors.py, with the code and the text of its error.
"""

import copy
import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sfumato
from sfumato.errors import FrameError, InputError, SfumatoError
from sfumato.store import frames
from sfumato.store.frames import FrameLimits, decode_frame, encode_frame, frame_digest, read_header
from sfumato.types.concealed import Bits, ConcealedFeatures, Points, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

FLOAT16_LOSS = 1e-3
MOST_GROWTH, MOST_TIMES = 4 * 2**20, 8
"""Memory that reading takes at most: four megabytes, with what numpy loads at first use, and so many times the bytes
that are there."""

numbers = st.floats(-1e6, 1e6, width=32)
sizes = st.none() | st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1))
words = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=12)
settings_of = st.dictionaries(
    words, words | st.integers(-(2**53), 2**53) | st.booleans() | st.none() | numbers, max_size=4
)
extractors = st.builds(Extractor, words, settings_of)


@st.composite
def concealed(draw: Any, kind: str) -> ConcealedFeatures:
    """Features of a kind of payload: bits, subspaces or points."""
    count, seed = draw(st.integers(0, 9)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    keypoints = np.concatenate((draw(hnp.arrays(np.float32, (count, 2), elements=numbers)), rng.random((count, 2))), 1)
    keyed = draw(st.booleans())
    if kind == "bits":
        width = draw(st.sampled_from([32, 64, 512]))
        code: Any = Bits(draw(hnp.arrays(np.uint8, (count, width // 8))))
        recipe = f"sealed-{width}@0123456789ab"
    elif kind == "points":
        width = draw(st.integers(1, 40))
        code, recipe = Points(rng.standard_normal((count, width))), f"compress-{width}"
    else:
        width = draw(st.integers(3, 40))
        dim = draw(st.integers(1, 3))
        code = Subspaces(rng.standard_normal((count, width)), rng.standard_normal((count, dim, width)))
        recipe = f"random-{dim}"
    links = Recipe.of(recipe).links
    focal = draw(st.none() | st.floats(1, 1e6))
    return ConcealedFeatures(keypoints, code, Recipe(links=links, keyed=keyed), draw(extractors), draw(sizes), focal)


def as_sent(features: ConcealedFeatures) -> ConcealedFeatures:
    """What of features goes over the wire."""
    return replace(features.positions_only(), focal_px=None)


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("kind", ["bits", "points", "subspaces"])
def test_features_come_back_bit_for_bit(same: Any, kind: str):
    @given(concealed(kind))
    def check(image: ConcealedFeatures) -> None:
        frame = encode_frame(image)
        back = decode_frame(frame)
        same(back, as_sent(image))
        assert encode_frame(back) == frame
        assert not back.has_frames

    check()


@pytest.mark.parametrize("kind", ["points", "subspaces"])
def test_half_numbers_come_back_nearly(kind: str):
    @given(concealed(kind))
    def check(image: ConcealedFeatures) -> None:
        frame = encode_frame(image, dtype="float16")
        assert len(frame) <= len(encode_frame(image))
        back, clear = decode_frame(frame).subspaces, image.subspaces
        assert type(back) is type(clear)
        scale = 1 + np.linalg.norm(clear.origin, axis=1)[:, None]
        assert (np.abs(back.origin - clear.origin) <= FLOAT16_LOSS * scale).all()
        assert (np.abs(back.basis - clear.basis) <= 2 * FLOAT16_LOSS).all()

    check()


def test_bits_are_sent_as_bits_whatever_is_asked(sealed: Callable[..., ConcealedFeatures]):
    assert encode_frame(sealed(), dtype="float16") == encode_frame(sealed(), dtype="bits") == encode_frame(sealed())


def test_the_same_features_give_the_same_bytes(features: Callable[..., ConcealedFeatures]):
    image = features(count=7)
    turned = np.asfortranarray(image.keypoints)
    again = replace(image, keypoints=turned, code=Subspaces(image.code.origin.copy(), image.code.basis.copy()))
    assert encode_frame(again) == encode_frame(image)


def test_rows_keep_their_order(sealed: Callable[..., ConcealedFeatures], same: Any):
    image = sealed(count=50)
    order = np.random.default_rng(1).permutation(50)
    mixed = replace(image, keypoints=image.keypoints[order], code=image.code[order])
    same(decode_frame(encode_frame(mixed)), mixed)


def test_a_frame_has_no_sizes_angles_or_cameras(features: Callable[..., ConcealedFeatures]):
    image = features(count=3)
    marked = image.keypoints.copy()
    marked[:, 2], marked[:, 3] = 3.140625, 77.7
    frame = encode_frame(replace(image, keypoints=marked, focal_px=1234.5678))
    for number in (3.140625, 77.7, 1234.5678):
        assert np.float32(number).tobytes() not in frame
        assert np.float64(number).tobytes() not in frame
        assert str(number).encode() not in frame
    assert frame == encode_frame(as_sent(image))


def test_an_archive_and_a_frame_hold_the_same(sealed: Callable[..., ConcealedFeatures], same: Any, tmp_path: Any):
    sfumato.save(tmp_path / "a.sfm", {"a.jpg": sealed()})
    with sfumato.load(tmp_path / "a.sfm") as archive:
        same(decode_frame(encode_frame(archive["a.jpg"])), sealed())


def test_sizes_are_the_documented_ones(sealed: Callable[..., ConcealedFeatures], features: Any):
    for image, dtype, expected in (
        (sealed(count=2000, bits=512), "float32", 144_000),
        (features(count=2000, dim=0, ambient_dim=128, recipe="ninja-sift-1.0"), "float32", 1_040_000),
        (features(count=2000, dim=0, ambient_dim=128, recipe="ninja-sift-1.0"), "float16", 528_000),
        (features(count=2000, ambient_dim=128), "float32", 3_088_000),
        (features(count=2000, ambient_dim=128), "float16", 1_552_000),
    ):
        frame = encode_frame(image, dtype=dtype)
        header = read_header(frame)
        assert (header.payload_bytes, header.frame_bytes) == (expected, len(frame))


# ---------------------------------------------------------------- what is not sent


def refusal(call: Callable[[], object]) -> str:
    """The code with which something is refused."""
    with pytest.raises(FrameError) as caught:
        call()
    return caught.value.code


def test_clear_features_are_refused_by_type():
    clear = sfumato.Features(np.zeros((2, 4)), np.eye(2, 128), Extractor("sift"))
    for value in (clear, clear.descriptors, b"", None):
        with pytest.raises(FrameError, match="sfumato conceal") as caught:
            encode_frame(value)  # type: ignore[arg-type]
        assert caught.value.code == "clear_features"


@pytest.mark.parametrize(
    ("recipe", "advice"),
    [(Recipe("raw"), "sfumato conceal"), (Recipe("compress-16", evaluation_seed=3), "--evaluation-seed")],
)
def test_what_protects_nobody_is_refused(features: Any, recipe: Recipe, advice: str):
    image = features(dim=0, recipe=recipe)
    with pytest.raises(FrameError, match=advice) as caught:
        encode_frame(image)
    assert caught.value.code == "clear_features"
    assert "on the device" in str(caught.value) or "stay on the device" in str(caught.value)


def test_what_cannot_be_sent_is_refused(features: Any, sealed: Any):
    image = features()
    large = replace(image, code=Subspaces(image.code.origin * 1e6, image.code.basis))
    wordy = sealed(extractor=Extractor("sift", {f"{number}": "x" * 4000 for number in range(9)}))
    assert refusal(lambda: encode_frame(image, dtype="bits")) == "bad_frame"
    assert refusal(lambda: encode_frame(image, dtype="float64")) == "bad_frame"
    assert refusal(lambda: encode_frame(large, dtype="float16")) == "bad_frame"
    assert refusal(lambda: encode_frame(wordy)) == "bad_frame"


def test_limits_are_those_of_both_ends(sealed: Any):
    image = sealed(count=5)
    frame = encode_frame(image)
    header = read_header(frame)
    for limits in (
        FrameLimits(features=4),
        FrameLimits(frame_bytes=len(frame) - 1),
        FrameLimits(header_bytes=len(header.text) - 1),
    ):
        assert refusal(lambda: encode_frame(image, limits=limits)) == "too_large"  # noqa: B023
        assert refusal(lambda: decode_frame(frame, limits=limits)) == "too_large"  # noqa: B023
        assert refusal(lambda: read_header(frame[: 64 + len(header.text)], limits=limits)) == "too_large"  # noqa: B023
    shorter = FrameLimits(frame_bytes=len(frame))  # bytes that are there count, and not only those that it declares
    assert refusal(lambda: decode_frame(frame + b"\0", limits=shorter)) == "too_large"
    assert refusal(lambda: decode_frame(bytes(len(frame) + 1), limits=shorter)) == "too_large"
    with pytest.raises(InputError, match="65536"):
        FrameLimits(header_bytes=65_537)
    exact = FrameLimits(features=5, frame_bytes=len(frame), header_bytes=len(header.text))
    assert encode_frame(image, limits=exact) == frame
    assert len(decode_frame(frame, limits=exact)) == 5


def test_the_document_has_the_limits():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    limits = FrameLimits()
    assert f"| `header_bytes` | {limits.header_bytes:,}" in text
    assert f"| `features` | {limits.features:,}" in text
    assert f"| `frame_bytes` | {limits.frame_bytes // 2**20} MiB" in text


# ---------------------------------------------------------------- what is read


def test_a_header_needs_no_payload(sealed: Any):
    frame = encode_frame(sealed(count=4))
    header = read_header(frame)
    assert read_header(frame[: 64 + len(header.text)]) == header
    assert (header.count, header.ambient_dim, header.dtype, header.image_size) == (4, 64, "bits", (640, 480))
    assert header.digest == frame_digest(frame)
    assert str(header.recipe) == "sealed-64@0123456789ab"


def test_other_buffers_are_read_and_copied(sealed: Any, same: Any):
    frame = encode_frame(sealed())
    box = bytearray(b"??" + frame)
    for data in (memoryview(frame), bytearray(frame), np.frombuffer(frame, "<u4"), memoryview(box)[2:]):
        same(decode_frame(data), sealed())  # type: ignore[arg-type]
    back = decode_frame(memoryview(box)[2:])
    box[:] = bytes(len(box))
    same(back, sealed())


@pytest.mark.parametrize("value", [None, "sfumato-features", 3, [1, 2], memoryview(bytes(300))[::2]])
def test_what_is_not_bytes_is_refused(value: Any):
    assert refusal(lambda: decode_frame(value)) == "not_a_frame"
    assert refusal(lambda: read_header(value)) == "not_a_frame"


def test_an_error_keeps_its_code_on_the_way_to_another_process():
    error = copy.copy(FrameError("why", "too_large"))
    assert (str(error), error.code) == ("why", "too_large")
    assert isinstance(error, InputError)


# ---------------------------------------------------------------- what is hostile


def join(text: bytes, payload: bytes) -> bytes:
    """A frame of any header and payload, with right lengths and a right digest."""
    text = text.ljust(len(text) + -len(text) % 64)
    payload = payload.ljust(len(payload) + -len(payload) % 64, b"\0")
    return reseal(frames.PREFIX.pack(frames.MAGIC, 1, len(text), len(payload), bytes(32)) + text + payload)


def reseal(data: bytes) -> bytes:
    """Bytes with a right digest."""
    return data[:32] + bytes.fromhex(frame_digest(data)) + data[64:]


def split(frame: bytes) -> tuple[bytes, bytes]:
    end = 64 + int.from_bytes(frame[20:24], "little")
    return frame[64:end], frame[end:]


def growth_of(call: Callable[[], object]) -> int:
    """The most memory that a call takes, in bytes; refusals count too."""
    tracemalloc.start()
    try:
        call()
    except FrameError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("count", [100_000, 2**31 - 1, 2**31, 2**32, 9_999_999_999])
def test_declared_sizes_take_no_memory(sealed: Any, count: int):
    """A header that declares what is not there is refused before anything is made of it."""
    values = json.loads(split(encode_frame(sealed(bits=512)))[0])
    arrays = [["positions", "<f4", [count, 2]], ["bits", "|u1", [count, 64]]]
    text = json.dumps(values | {"arrays": arrays, "count": count}, sort_keys=True, separators=(",", ":")).encode()
    frame = join(text, b"")
    right = frame[:24] + (72 * count + -8 * count % 64).to_bytes(8, "little") + frame[32:]
    for data in (frame, right):
        assert growth_of(lambda: decode_frame(data)) < MOST_GROWTH  # noqa: B023
        assert refusal(lambda: decode_frame(data)) in ("bad_frame", "too_large")  # noqa: B023


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 65_536, b'{"a":' * 13_107, b"[[],[],", b'{"count":' + b"9" * 5000, b'"' + b"\\u0041" * 10_000,
        b"[" + b"[]," * 21_000 + b"0]", b"{" + b",".join(b'"%d":0' % number for number in range(6000)) + b"}",
        b"NaN", b"null", b"", b"\xff" * 64, b"\0" * 64,
    ],
    ids=lambda text: text[:8].hex(),
)  # fmt: skip
def test_hostile_headers_are_refused(text: bytes):
    frame = join(text, b"")
    assert refusal(lambda: decode_frame(frame)) == "bad_frame"
    assert growth_of(lambda: decode_frame(frame)) < 2 * MOST_GROWTH


NUMBER = re.compile(rb"(?<=[\[,:])\d+(?=[,\]}])")
"""Numbers of a header, and none of its texts, whose quotes have a backslash."""


@pytest.mark.parametrize("form", ["{}.0", "{}e0", "true", "null", "-{}", '"{}"', "0{}", "[{}]", "{}00000000000"])
def test_numbers_have_one_form(features: Any, form: str):
    """Also where a number is 1, which Python takes for true."""
    image = features(count=1, dim=1, ambient_dim=1, image_size=(1, 1), extractor=Extractor("sift"))
    text, payload = split(encode_frame(image))
    start = text.index(b'"recipe"')
    places = [found for found in NUMBER.finditer(text) if found.start() < start]
    assert len(places) == 10
    for found in places:
        other = text[: found.start()] + form.format(found[0].decode()).encode() + text[found.end() :]
        assert refusal(lambda: decode_frame(join(other.rstrip(), payload))) == "bad_frame"  # noqa: B023


def test_texts_of_errors_are_short(sealed: Any):
    """Whoever makes a frame can put long names into it."""
    values = json.loads(split(encode_frame(sealed()))[0])
    long = Recipe.of(f"ninja:{'x' * 30_000}").to_json()
    text = json.dumps(values | {"recipe": long}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(FrameError) as caught:
        decode_frame(join(text, b""))
    assert len(str(caught.value)) < 1100


def test_large_frames_take_a_small_multiple_of_their_bytes(features: Any, sealed: Any):
    lifted = features(count=2000, ambient_dim=128)
    for image, dtype in ((sealed(count=20_000, bits=512), "float32"), (lifted, "float32"), (lifted, "float16")):
        frame = encode_frame(image, dtype=dtype)
        assert growth_of(lambda: decode_frame(frame)) < MOST_GROWTH + MOST_TIMES * len(frame)  # noqa: B023


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_truncations_are_refused(sealed: Any, features: Any, step: int):
    for image in (sealed(count=300), features(count=20, ambient_dim=32)):
        frame = encode_frame(image)
        assert len(frame) > 4096
        for size in [*range(0, 4097, step), len(frame) - 1]:
            assert refusal(lambda: decode_frame(frame[:size])) in ("bad_frame", "not_a_frame")  # noqa: B023


class Fuzzer:
    """Changes frames at random and reads them; counts what happened."""

    def __init__(self, images: list[ConcealedFeatures], mutate: Any, same: Any) -> None:
        self.cases = [
            (image, dtype, encode_frame(image, dtype=dtype)) for image in images for dtype in self.types(image)
        ]
        self.mutate, self.same = mutate, same
        self.outcome: Counter[str] = Counter()

    @staticmethod
    def types(image: ConcealedFeatures) -> tuple[str, ...]:
        return ("float32",) if isinstance(image.code, Bits) else ("float32", "float16")

    def change(self, frame: bytes, kind: int, rng: np.random.Generator) -> bytes:
        """Bytes changed anywhere, with and without a right digest; or only in the header, or only in the payload."""
        if kind < 2:
            data = self.mutate(frame, rng)
            return reseal(data) if kind and len(data) >= 64 else data
        text, payload = split(frame)
        return join(self.mutate(text, rng), payload) if kind == 2 else join(text, self.mutate(payload, rng))

    def run(self, seeds: range) -> None:
        tracemalloc.start()
        try:
            for seed in seeds:
                rng = np.random.default_rng(seed)
                image, dtype, frame = self.cases[seed % len(self.cases)]
                kind = int(rng.integers(4))
                self.read(image, dtype, frame, self.change(frame, kind, rng), is_sealed=kind == 0, seed=seed)
        finally:
            tracemalloc.stop()

    def read(
        self, image: ConcealedFeatures, dtype: str, frame: bytes, data: bytes, *, is_sealed: bool, seed: int
    ) -> None:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        try:
            back = decode_frame(data)
        except FrameError as error:
            self.outcome[error.code] += 1
            back = None
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < MOST_GROWTH + MOST_TIMES * len(data), f"seed {seed}: memory"
        if back is None:
            return
        if is_sealed:  # without a right digest only the frame itself is taken
            assert data == frame, f"seed {seed}: another frame was taken"
        if data == frame:
            self.same(back, decode_frame(frame))
            self.outcome["equal"] += 1
        else:
            again, is_exact = encode_frame(back, dtype=dtype), dtype == "float32" and back.code.dim == 0
            assert again == data or not is_exact, f"seed {seed}: two forms of one frame"
            assert split(again)[0] == split(data)[0], f"seed {seed}: two forms of one header"
            self.outcome["another"] += 1


@pytest.fixture
def fuzzer(sealed: Any, features: Any, mutate: Any, same: Any) -> Fuzzer:
    points = features(dim=0, recipe="compress-16")
    return Fuzzer([sealed(), sealed(count=40, bits=512), features(), points], mutate, same)


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_changed_frames_are_refused_or_valid_and_never_more(fuzzer: Fuzzer, number: int):
    """Any other exception than FrameError ends this test."""
    fuzzer.run(range(number))
    assert fuzzer.outcome.total() == number
    assert fuzzer.outcome["bad_frame"] > number / 3
    assert fuzzer.outcome["not_a_frame"] > number / 30
    assert fuzzer.outcome["another"] > number / 30


def test_the_fuzzer_sees_what_is_taken_wrongly(fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch):
    class Any_(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    monkeypatch.setattr(frames, "frame_digest", lambda data: Any_())
    with pytest.raises(AssertionError, match="another"):
        fuzzer.run(range(300))


def test_only_errors_of_the_package_leave_it():
    assert issubclass(FrameError, SfumatoError)
