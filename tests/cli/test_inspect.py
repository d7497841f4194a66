# SPDX-License-Identifier: Apache-2.0
import json
import re
from hashlib import sha256

import numpy as np
import pytest

import sfumato
from sfumato.cli.inspect import describe_archive
from sfumato.concealment.decoys import save_decoys
from sfumato.concealment.seal import BANDWIDTH
from sfumato.errors import InputError


def archive_of(path, value=0.0):
    points = np.random.default_rng(0).normal(size=(20, 16)) + value
    features = sfumato.Features(np.full((20, 4), 7.0), points, sfumato.Extractor("sift", {"max_features": 20}))
    sfumato.save(path, {"a.jpg": sfumato.conceal(features, "random-2")})


def test_an_archive_in_counts_and_never_a_value(run_sfumato, tmp_path):
    path = tmp_path / "a.sfm"
    archive_of(path)
    shown = run_sfumato("inspect", path, "--images", "--check").stdout
    for expected in (
        "random-2",
        "dimension 2 in R^16",
        "max_features=20",
        "operating system",
        "a.jpg",
        "checksum is right",
    ):
        assert expected in shown
    with sfumato.load(path) as archive:
        values = np.concatenate([archive["a.jpg"].code.origin.ravel(), archive["a.jpg"].code.basis.ravel()])
    numbers = {float(number) for number in re.findall(r"-?\d+\.\d{3,}", shown)}
    assert not any(np.isclose(values, number, atol=1e-4).any() for number in numbers)


def test_json_holds_the_same(run_sfumato, tmp_path):
    path = tmp_path / "a.sfm"
    archive_of(path)
    facts = json.loads(run_sfumato("inspect", path, "--json").stdout)
    assert (facts["images"], facts["features"], facts["recipe"]) == (1, 20, "random-2")
    assert facts == describe_archive(path, images=False, check=False)


def test_decoys_and_their_collisions(run_sfumato, tmp_path):
    rows = np.random.default_rng(0).normal(size=(65_536, 2))
    save_decoys(tmp_path / "d.npz", sfumato.Decoys(rows, sfumato.Extractor("disk")))
    shown = run_sfumato("inspect", tmp_path / "d.npz").stdout
    for expected in ("65536", "disk", "16 of 4096 entries", "0.86 (one decoy each, 8000 features an image)"):
        assert expected in shown


def test_damaged_files(run_sfumato, tmp_path):
    path = tmp_path / "a.sfm"
    archive_of(path)
    path.write_bytes(path.read_bytes()[:-100])
    (tmp_path / "text").write_text("hello")
    for bad in (path, tmp_path / "text", tmp_path):
        assert run_sfumato("inspect", bad, code=1).stderr.startswith("error: ")


def test_names_do_not_act_on_the_terminal(run_sfumato, tmp_path):
    path = tmp_path / "a.sfm"
    features = sfumato.Features(np.zeros((1, 4)), np.ones((1, 16)))
    sfumato.save(path, {"a\u202egnp\u2028recipe  raw": sfumato.conceal(features, "random-2")})
    shown = run_sfumato("inspect", path, "--images").stdout
    assert "\u202e" not in shown
    assert "recipe  raw" not in [line.strip() for line in shown.splitlines()]
    with pytest.raises(InputError, match="control"):
        sfumato.save(path, {"a\x1b]0;x\x07\nrecipe  raw": sfumato.conceal(features, "random-2")})


def test_a_damaged_image_is_named_and_the_exit_code_tells(run_sfumato, tmp_path):
    path = tmp_path / "a.sfm"
    archive_of(path)
    with sfumato.load(path) as archive:
        code = archive["a.jpg"].code.basis.tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(code[:1000])] ^= 1
    path.write_bytes(data)
    done = run_sfumato("inspect", path, "--check", "--images", code=1)
    assert "checksum of its blobs is wrong" in done.stdout
    assert "1 images are damaged" in done.stderr


def sealed(key, bits=64, **how):
    rows = np.random.default_rng(0).normal(size=(20, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    features = sfumato.Features(np.full((20, 4), 7.0), rows, sfumato.Extractor("sift"))
    return sfumato.conceal(features, f"sealed-{bits}", secret=key, **how)


def test_a_sealed_archive_says_so_with_its_bits_and_the_fingerprint_of_its_key(run_sfumato, tmp_path):
    one = sealed(sha256(b"1").digest())
    sfumato.save(tmp_path / "a.sfm", {"a.jpg": one})
    shown = run_sfumato("inspect", tmp_path / "a.sfm").stdout
    name = one.recipe.links[-1].checksum
    assert f"64 bits a feature, bandwidth {BANDWIDTH:g}, under the device key with the fingerprint {name}" in shown
    assert "none, sealed bits" in shown
    assert "an encoder" not in shown
    assert "warning" not in shown


def test_seals_of_two_keys_in_an_archive_are_told(tmp_path):
    one, other, longer = (
        sealed(sha256(b"1").digest()),
        sealed(sha256(b"2").digest()),
        sealed(sha256(b"1").digest(), 128),
    )
    sfumato.save(tmp_path / "a.sfm", {"a.jpg": one, "b.jpg": one, "c.jpg": other})
    facts = describe_archive(tmp_path / "a.sfm", images=False, check=False)
    names = [hidden.recipe.links[-1].checksum for hidden in (one, other)]
    assert facts["warning"].startswith(f"sealed under 2 keys, {names[0]} (2 images), {names[1]} (1 images): features")
    sfumato.save(tmp_path / "b.sfm", {"a.jpg": one, "b.jpg": longer})
    assert "warning" not in describe_archive(tmp_path / "b.sfm", images=False, check=False)
