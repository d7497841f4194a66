# SPDX-License-Identifier: Apache-2.0
"""Third party between a device and a server: gets a template from each side, sends a decision, keeps nothing.

The mitigation that section 5 of the paper names for repeated authentication: a server that never sees a probe cannot
intersect probes. Messages are bytes, a header of JSON and float32, never pickles. Never imports the clear types: both
templates are concealed.
"""

import json
import struct
from typing import Any, Protocol

import numpy as np

from sfumato.errors import InputError, SfumatoError
from sfumato.faces.compare import SUBSPACE, Threshold, pair_distances
from sfumato.faces.gallery import Gallery, refuse_unprotected
from sfumato.types.concealed import ConcealedTemplates, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

LONGEST = 2**24
"""Bytes of a message: a template of dimension 1000 in 4096 dimensions."""

LENGTH = struct.Struct("<I")
SOMEBODY = "somebody"
"""The third party does not learn the id."""


class Connection(Protocol):
    """A connection to one side, such as an end of a ``multiprocessing.Pipe``."""

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Return the next message; EOFError if there will be none."""

    def send_bytes(self, buf: bytes) -> None:
        """Send a message."""


def pack_probe(probe: ConcealedTemplates) -> bytes:
    """Return the message of the device: one concealed probe, without its name."""
    return _pack(probe, None)


def pack_template(gallery: Gallery, person: str) -> bytes:
    """Return the message of the server: the template of an id, without the id, and the threshold."""
    return _pack(gallery.template(person), gallery.threshold(SUBSPACE))


def judge(from_device: bytes, from_server: bytes) -> dict[str, Any]:
    """Return what both sides receive: ``accepted``, the ``distance`` and the ``threshold``.

    Raises InputError for messages without a template, or of different kinds.
    """
    (probe, _), (template, threshold) = _unpack(from_device), _unpack(from_server)
    if threshold is None:
        raise InputError("the server sent no threshold")
    if probe.recipe.identity != template.recipe.identity or not probe.extractor.matches(template.extractor):
        raise InputError(f"a probe of {probe!r} cannot be compared with {template!r}")
    distance = float(pair_distances(probe, template, [0], [0])[0])
    return {"accepted": threshold.accepts(distance), "distance": distance, "threshold": threshold.distance}


def serve(device: Connection, server: Connection) -> int:
    """Answer questions until a side hangs up; return their number. Nothing is written, logged or kept."""
    answered = 0
    while True:
        try:
            answer = _answer(device.recv_bytes(LONGEST), server.recv_bytes(LONGEST))
            for connection in (device, server):
                connection.send_bytes(answer)
        except (EOFError, OSError):
            return answered
        answered += 1


def _answer(from_device: bytes, from_server: bytes) -> bytes:
    try:
        answer = judge(from_device, from_server)
    except SfumatoError as problem:
        answer = {"error": str(problem)}
    return json.dumps(answer).encode("ascii")


def _pack(templates: ConcealedTemplates, threshold: Threshold | None) -> bytes:
    if len(templates) != 1:
        raise InputError(f"a message holds one template, not {len(templates)}")
    refuse_unprotected(templates.recipe)
    subspaces = templates.subspaces
    header = {
        "dim": subspaces.dim,
        "ambient": subspaces.ambient_dim,
        "recipe": templates.recipe.to_json(),
        "extractor": templates.extractor.to_json(),
        "threshold": None if threshold is None else threshold.to_dict(),
    }
    text = json.dumps(header).encode("ascii")
    rows = np.concatenate([subspaces.origin[:, None], subspaces.basis], axis=1).astype("<f4")
    return LENGTH.pack(len(text)) + text + rows.tobytes()


def _unpack(message: bytes) -> tuple[ConcealedTemplates, Threshold | None]:
    """Return the template and the threshold of a message; anything else is an InputError."""
    try:
        (length,) = LENGTH.unpack_from(message)
        header = json.loads(message[LENGTH.size : LENGTH.size + length])
        dim, ambient = int(header["dim"]), int(header["ambient"])
        recipe, extractor = Recipe.from_json(str(header["recipe"])), Extractor.from_json(str(header["extractor"]))
        data, threshold = message[LENGTH.size + length :], header["threshold"]
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as cause:
        raise InputError("this message does not hold a template") from cause
    refuse_unprotected(recipe)
    if min(dim, ambient) < 1 or len(data) != 4 * (dim + 1) * ambient:
        raise InputError("this message declares another size than it has")
    rows = np.frombuffer(data, "<f4").reshape(1, dim + 1, ambient)
    template = ConcealedTemplates((SOMEBODY,), Subspaces(rows[:, 0], rows[:, 1:]), recipe, extractor)
    return template, None if threshold is None else Threshold.from_dict(threshold)
