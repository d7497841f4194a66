# SPDX-License-Identifier: Apache-2.0
import json
import struct

import numpy as np
import pytest

from sfumato.concealment.faces import conceal_embeddings
from sfumato.errors import InputError
from sfumato.faces.compare import Threshold
from sfumato.faces.decide import verify_probe
from sfumato.faces.gallery import Gallery
from sfumato.faces.third_party import judge, pack_probe, pack_template, serve


class Pipe:
    """A line whose other side has said what it wants to say."""

    def __init__(self, *messages):
        self.waiting, self.sent = list(messages), []

    def recv_bytes(self, maxlength=None):
        if not self.waiting:
            raise EOFError
        message = self.waiting.pop(0)
        if len(message) > maxlength:
            raise OSError("bad message length")
        return message

    def send_bytes(self, buf):
        self.sent.append(buf)


@pytest.fixture
def gallery(photos):
    threshold = Threshold(
        comparison="s-to-s", distance=0.6, wanted_rate=0.01, measured_rate=0.01, impostor_pairs=1000, people=40
    )
    return Gallery(conceal_embeddings(photos(range(3)), "random-2"), {}, (threshold,))


@pytest.fixture
def probe(photos):
    return conceal_embeddings(photos(range(1), seed=5), "random-2")


def test_the_decision_is_that_of_verify_and_nothing_names_anybody(gallery, probe):
    messages = pack_probe(probe), pack_template(gallery, "p0_0")
    told = judge(*messages)
    wanted = verify_probe(probe, gallery, "p0_0")
    assert (told["accepted"], told["distance"]) == (wanted.accepted, wanted.distance)
    assert told["accepted"]
    assert not judge(messages[0], pack_template(gallery, "p1_0"))["accepted"]
    assert not any(b"p0_0" in message for message in messages)


def test_both_sides_are_told_the_decision_and_nothing_else(gallery, probe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, template = pack_probe(probe), pack_template(gallery, "p0_0")
    device, server = Pipe(good, b"nonsense", good), Pipe(template, template, template)
    assert serve(device, server) == 3
    first, second, third = (json.loads(one) for one in server.sent)
    assert device.sent == server.sent
    assert set(first) == {"accepted", "distance", "threshold"}
    assert first == third
    assert set(second) == {"error"}
    assert list(tmp_path.iterdir()) == []


def test_a_message_that_is_too_long_ends_it():
    assert serve(Pipe(bytes(2**24 + 1)), Pipe(b"")) == 0


def _with_header(message, old, new):
    """A message with another header, its length told rightly."""
    (length,) = struct.unpack_from("<I", message)
    header = message[4 : 4 + length].replace(old, new)
    assert new in header
    return struct.pack("<I", len(header)) + header + message[4 + length :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda message: b"",
        lambda message: message[:-4],
        lambda message: message + b"1234",
        lambda message: struct.pack("<I", 2**32 - 1) + message[4:],
        lambda message: message.replace(b'"dim": 2', b'"dim": 3'),
        lambda message: message.replace(b'"dim": 2', b'"dim": 0'),
        lambda message: _with_header(message, b'"dim": 2', b'"dim": Infinity'),
        lambda message: _with_header(message, b'"dim": 2', b'"dim": 1e400'),
        lambda message: _with_header(message, b'"ambient": 64', b'"ambient": -1e999'),
        lambda message: _with_header(message, b'"ambient": 64', b'"ambient": NaN'),
        lambda message: message[:-4] + np.float32(np.nan).tobytes(),
        lambda message: struct.pack("<I", 2) + b"[]",
    ],
)
def test_damaged_messages_are_refused(gallery, probe, damage):
    with pytest.raises(InputError):
        judge(damage(pack_probe(probe)), pack_template(gallery, "p0_0"))


def test_what_is_not_a_pair_is_refused(gallery, photos, probe):
    with pytest.raises(InputError, match="no threshold"):
        judge(pack_probe(probe), pack_probe(probe))
    other = conceal_embeddings(photos(range(1)), "random-3")
    with pytest.raises(InputError, match="random-3"):
        judge(pack_probe(other), pack_template(gallery, "p0_0"))
    with pytest.raises(InputError, match="one template"):
        pack_probe(conceal_embeddings(photos(range(2)), "random-2"))
