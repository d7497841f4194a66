# SPDX-License-Identifier: Apache-2.0
"""Face login: enroll Alice and Bob, log in, refuse strangers and a wrong phone, make a stolen template worthless.

    python examples/face_login.py

People are made up, 512 numbers each, so that this runs without a face network. Hand over the embeddings of your own
network, or pictures: with the extra ``face`` every call here takes the path of a picture too.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import sfumato
from sfumato.faces import Decision, load_gallery

NETWORK = "arcface"
"""The name of the network decides how wide a seal is, and which threshold is the usual one."""
NOISE = 0.6
"""How much two photos of one person differ."""

Floats = NDArray[np.float64]


def photo_of(person: Floats, rng: np.random.Generator) -> Floats:
    """Return the embedding of a new photo of somebody."""
    return person + rng.normal(0, NOISE, person.shape)


def tell(what: str, decision: Decision) -> bool:
    """Print a decision, and return it."""
    word = "accepted" if decision.accepted else "refused"
    limit = decision.threshold.distance
    print(f"{what:<44} {word}: {decision.distance:.2f} of the bits differ, {limit:.2f} may")
    return decision.accepted


def log_in(gallery: Path, phones: dict[str, Path], alice: Floats, bob: Floats) -> list[bool]:
    """Try three logins as Alice; only the first is hers."""

    def verify(face: Floats, phone: str) -> Decision:
        return sfumato.verify(face, gallery, "alice", key=phones[phone], extractor=NETWORK)

    return [
        tell("Alice, with her phone", verify(alice, "alice")),
        tell("Bob, with Alice's phone", verify(bob, "alice")),
        tell("Alice, with Bob's phone", verify(alice, "bob")),
    ]


def renew(gallery: Path, phone: Path, rng: np.random.Generator, alice: Floats) -> list[bool]:
    """Alice's key or the gallery was stolen: she renews, and what was stolen is of no use any more."""
    stolen, before = phone.read_bytes(), load_gallery(gallery).template("alice").code
    sfumato.renew(photo_of(alice, rng), gallery, ids="alice", key=phone, extractor=NETWORK)
    after = load_gallery(gallery).template("alice").code
    differing = sfumato.nearest(before, after, k=1)[0][0, 0] / after.ambient_dim
    print(f"{'the stolen template and the new one':<44} {differing:.2f} of the bits differ, as of two strangers")

    today = photo_of(alice, rng)
    with_new, with_stolen = (
        sfumato.verify(today, gallery, "alice", key=key, extractor=NETWORK) for key in (phone, stolen)
    )
    return [tell("Alice, after she renewed", with_new), tell("Alice's face, with the stolen key", with_stolen)]


def run(folder: Path) -> int:
    """Go through all of it in a folder."""
    rng = np.random.default_rng(10)
    alice, bob = rng.normal(size=(2, 512))
    gallery = folder / "gallery.sqlite"  # what the server holds
    phones = {name: folder / f"{name}.key" for name in ("alice", "bob")}  # what never leaves the phones
    for name, person in (("alice", alice), ("bob", bob)):  # each on a phone of its own: enroll makes the key
        sfumato.enroll(photo_of(person, rng), gallery, ids=name, key=phones[name], extractor=NETWORK)

    # The threshold, from faces of people who do not use the service. These strangers are sealed under the same key: of
    # a thousand thieves who have Alice's phone, one gets in with his own face.
    strangers = rng.normal(size=(150, 512))
    people = [str(number) for number in range(len(strangers))]
    sfumato.calibrate(strangers, gallery, rate=0.001, people=people, extractor=NETWORK)

    answers = log_in(gallery, phones, photo_of(alice, rng), photo_of(bob, rng))
    answers += renew(gallery, phones["alice"], rng, alice)
    sfumato.revoke("bob", gallery)  # Bob leaves; his key serves nothing any more
    right = answers == [True, False, False, True, False]
    print(
        f"shown: a login needs Alice's face and Alice's phone, and a stolen key is worthless once she renewed "
        f"({sum(answers)} of {len(answers)} logins accepted)"
    )
    return 0 if right else 1


def main() -> int:
    """Run in a folder that is deleted in the end."""
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
