# SPDX-License-Identifier: Apache-2.0
from hashlib import sha256

import numpy as np
import pytest

import sfumato
from sfumato.attacks.inputs import public_decoys, refuse_nothing
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.run import Materials
from sfumato.cli.attack import attack_list
from sfumato.errors import InputError

pytestmark = pytest.mark.filterwarnings(
    "ignore::sfumato.errors.WideSealWarning", "ignore::sfumato.errors.BandwidthWarning"
)

KEY = sha256(b"1").digest()


@pytest.fixture
def archive_of(tmp_path):
    """Open an archive of a few random features, by kind and recipe."""
    opened = []

    def make(kind, recipe, **how):
        rows = np.random.default_rng(0).random((6, 128))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        features = sfumato.Features(np.ones((6, 4)), rows, sfumato.Extractor(kind))
        path = tmp_path / f"{len(opened)}.sfm"
        sfumato.save(path, {"a.jpg": sfumato.conceal(features, recipe, **how)})
        opened.append(sfumato.load(path))
        return opened[-1]

    yield make
    for archive in opened:
        archive.close()


def test_sealed_sift_is_attacked_with_what_anyone_has(archive_of):
    sealed, lines = archive_of("sift", "sealed-64", secret=KEY), []
    decoys = public_decoys(None, sealed, None, lines.append)
    assert decoys.checksum == sfumato.load_decoys().checksum
    assert "65536 bundled decoys" in lines[0]

    def kind_of(archive, names=None):
        public = public_decoys(None, archive, names, lines.append)
        return public and public.extractor.name

    assert kind_of(archive_of("rootsift", "sealed-64", secret=KEY), ["alignment"]) == "rootsift"
    assert kind_of(sealed, ["known-pairs"]) is None
    assert kind_of(archive_of("disk", "sealed-64", secret=KEY)) is None
    assert kind_of(archive_of("sift", "random-2")) is None


def test_what_is_missing_is_told(archive_of):
    with pytest.raises(InputError, match=r"sealed-64@.* of disk .* add --public for alignment") as problem:
        refuse_nothing(archive_of("disk", "sealed-64", secret=KEY), [], Materials(), {})
    assert "pairs" not in str(problem.value)
    encoded = archive_of("sift", "ninja-sift-2.5")
    known = Materials(general=Knowledge(public=np.ones((2, 128)), encoder=lambda rows: rows))
    with pytest.raises(InputError, match="--clear for oracle"):
        refuse_nothing(encoded, [], known, {})
    with pytest.raises(InputError, match="every image"):
        refuse_nothing(encoded, [], known, {"a.jpg": "why"})


def test_every_attack_says_what_it_needs():
    rows = {str(name): (str(needs), str(assumes)) for name, needs, assumes in attack_list().rows}
    assert rows["vertex"][0] == "-"
    assert rows["oracle-encoded"][0] == "--public --clear --encoder"
    assert rows["alignment"][0] == "--public"
    assert rows["alignment"][1].endswith("(sealed features only)")
    assert rows["told-alignment"][0] == rows["known-pairs"][0] == "sfumato evaluate leakage"
