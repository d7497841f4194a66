# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.cli.attack import listed, public_of, why_nothing_ran

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.WideSealWarning")

KEY = bytes(range(32))


@pytest.fixture
def archive_of(tmp_path):
    """Open an archive of a few random features, by kind and recipe."""
    opened = []

    def make(kind, recipe, **how):
        rows = np.random.default_rng(0).random((6, 128))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        features = sfumato.Features(np.ones((6, 4)), rows, sfumato.Extractor(kind))
        path = tmp_path / f"{len(opened)}.sfm.h5"
        sfumato.save(path, {"a.jpg": sfumato.conceal(features, recipe, **how)})
        opened.append(sfumato.load(path))
        return opened[-1]

    yield make
    for archive in opened:
        archive.close()


def test_sealed_sift_is_attacked_with_what_anyone_has(archive_of, capsys):
    sealed = archive_of("sift", "sealed-64", secret=KEY)
    found = public_of(None, sealed, None)
    assert found.checksum == sfumato.load_decoys().checksum
    assert "65536 bundled decoys as public descriptors" in capsys.readouterr().err
    assert public_of(None, archive_of("rootsift", "sealed-64", secret=KEY), ["alignment"]).extractor.name == "rootsift"
    assert public_of(None, sealed, ["known-pairs"]) is None
    assert public_of(None, archive_of("disk", "sealed-64", secret=KEY), None) is None
    assert public_of(None, archive_of("sift", "random-2"), None) is None


def test_what_is_missing_is_told(archive_of):
    told = why_nothing_ran(archive_of("disk", "sealed-64", secret=KEY), (), {})
    assert told.startswith("no attack on sealed-64@")
    assert "of disk is possible with what was given; give --public for alignment. --public is a decoys file" in told
    assert "pairs" not in told
    encoded = archive_of("sift", "ninja-sift-2.5")
    assert "--clear for oracle" in why_nothing_ran(encoded, ("public", "encoder"), {})
    assert "every image was left out" in why_nothing_ran(encoded, (), {"a.jpg": "why"})


def test_every_attack_says_what_it_needs():
    rows = {name: (needs, assumes) for name, needs, assumes in listed()}
    assert rows["vertex"][0] == "-"
    assert rows["oracle-encoded"][0] == "--public --clear --encoder"
    assert rows["alignment"][0] == "--public"
    assert rows["alignment"][1].endswith("(sealed features only)")
    assert rows["told-alignment"][0] == rows["known-pairs"][0] == "sfumato evaluate leakage"
