# SPDX-License-Identifier: Apache-2.0
"""Third party that compares faces: two sides never see each other's templates, and a third process keeps nothing.

    python examples/third_party.py

A device lifts a new photo for every login. If the server got these probes, a few of them would reveal the face (section
5 of the paper). Here they go to a third process, with the template that the server holds. Both sides get the decision
and the distance, nothing else. People are made up. The third party must be trusted not to keep what it gets: this shows
what each side receives, and nothing would reveal a third party that cheats. Sealed templates, the default, need none of
this: see face_login.py.
"""

import json
import multiprocessing
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from sfumato.concealment import Decoys, build_face_decoys
from sfumato.faces import Gallery, calibrate, enroll, load_gallery, make_probe, pack_probe, pack_template, serve
from sfumato.types import Embeddings, Extractor

DIMS = 128


def people(first: int, count: int, photo: int) -> Embeddings:
    """Make up photos of some people: each is a direction, and a photo a little noise."""
    faces = np.random.default_rng(first).normal(size=(count, DIMS))
    noise = np.random.default_rng([first, photo]).normal(0, 0.25, (count, DIMS))
    return Embeddings(
        (faces + noise).astype(np.float32), tuple(f"person{first + row}" for row in range(count)), Extractor("arcface")
    )


class Server:
    """Holds the gallery, and sees decisions only."""

    def __init__(self, gallery: Gallery, line: Connection) -> None:
        self.gallery, self.line, self.received = gallery, line, list[bytes]()

    def begin(self, one: str) -> None:
        """Send the template of somebody who wants to log in."""
        self.line.send_bytes(pack_template(self.gallery, one))

    def finish(self) -> bool:
        """Receive the decision."""
        self.received.append(self.line.recv_bytes())
        return bool(json.loads(self.received[-1])["accepted"])


def log_in(face: Embeddings, gallery: Gallery, decoys: Decoys, line: Connection) -> None:
    """The device: conceal a photo anew and send it to the third party; of the gallery only the recipe is used."""
    probe = make_probe(face, gallery, "s-to-s", decoys)
    assert not isinstance(probe, np.ndarray)
    line.send_bytes(pack_probe(probe))


def prepare(folder: Path) -> tuple[Gallery, Decoys]:
    """Enroll three people and choose a threshold."""
    decoys, path = build_face_decoys(people(1000, 400, 0)), folder / "gallery.sqlite"
    enroll(people(1, 3, 0), path, decoys=decoys)
    calibrate(people(5000, 150, 0), path, decoys=decoys, rate=0.01, comparison="s-to-s")
    return load_gallery(path), decoys


def main() -> int:
    """Log in a few times, as oneself and as somebody else."""
    with tempfile.TemporaryDirectory() as folder:
        gallery, decoys = prepare(Path(folder))
    start = multiprocessing.get_context("spawn")  # a process that has none of our memory
    (device_line, device_end), (server_line, server_end) = start.Pipe(), start.Pipe()
    third = start.Process(target=serve, args=(device_end, server_end), daemon=True)
    third.start()
    device_end.close()
    server_end.close()
    server = Server(gallery, server_line)
    for photo in (1, 2, 3):
        for row, claimed in ((0, "person1"), (1, "person1")):
            server.begin(claimed)
            log_in(people(1, 3, photo)[[row]], gallery, decoys, device_line)
            answer, accepted = json.loads(device_line.recv_bytes()), server.finish()
            print(
                f"photo {photo} of person{1 + row} as {claimed}: {'accepted' if accepted else 'rejected'}, distance "
                f"{answer['distance']:.3f}, threshold {answer['threshold']:.3f}"
            )
    device_line.close()
    server_line.close()
    third.join(10)
    size = sum(map(len, server.received))
    print(f"shown: the server received {len(server.received)} decisions of {size} bytes in all, and no probe")
    return 0


if __name__ == "__main__":
    sys.exit(main())
