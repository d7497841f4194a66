# SPDX-License-Identifier: Apache-2.0
import json
import re

import numpy as np
import pytest

import sfumato
from sfumato.cli.inspect import describe_gallery, holds_gallery
from sfumato.faces.compare import Threshold
from sfumato.faces.gallery import GalleryFacts
from sfumato.faces.gallery_file import GalleryWriter, load_gallery
from sfumato.types.concealed import ConcealedTemplates


@pytest.fixture(autouse=True)
def face_keys(tmp_path, monkeypatch):
    """A folder for the keys of people, in place of the one of whoever runs the tests."""
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path / "face-keys"))
    return tmp_path / "face-keys"


@pytest.fixture
def path(tmp_path):
    """A gallery of three, one of them revoked, with a threshold."""
    rng = np.random.default_rng(0)
    rows = sfumato.Subspaces(rng.normal(size=(3, 16)), rng.normal(size=(3, 2, 16)))
    templates = ConcealedTemplates(("alice", "bob", "carol"), rows, "random-2", sfumato.Extractor("facenet"))
    threshold = Threshold(
        comparison="p-to-s", distance=0.4, wanted_rate=0.01, measured_rate=0.009, impostor_pairs=1000, people=40
    )
    facts = GalleryFacts(
        id=bytes(16), recipe=templates.recipe, extractor=templates.extractor, dimensions=16, thresholds=(threshold,)
    )
    with GalleryWriter(tmp_path / "gallery.sqlite") as writer, writer.turn():
        writer.begin(facts)
        writer.add(templates)
        writer.revoke(["bob", "carol"])
        writer.add(templates[2:])
    return tmp_path / "gallery.sqlite"


def test_a_gallery_in_counts_without_a_name_or_a_value(run_sfumato, path):
    shown = run_sfumato("inspect", path, "--check", "--images").stdout
    told = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in shown.splitlines()}
    for name, expected in {
        "kind": "gallery of concealed faces", "templates": "2", "revoked": "1", "recipe": "random-2",
        "subspaces": "dimension 2 in R^16", "extractor": "facenet", "draws": "operating system", "decoys": "none",
        "thresholds": "1",
    }.items():  # fmt: skip
        assert told[name] == expected
    assert "p-to-s: up to 0.4, false-accept rate 0.009 (wanted 0.01), measured on 1000 pairs of 40 people" in shown
    assert "1 people were released more than once" in shown
    assert "every checksum is right" in shown
    assert not any(name in shown for name in ("alice", "bob", "carol"))
    subspaces = load_gallery(path).templates.code
    values = np.concatenate([subspaces.origin.ravel(), subspaces.basis.ravel()])
    numbers = {float(number) for number in re.findall(r"-?\d+\.\d{4,}", shown)}
    assert not any(np.isclose(values, number, atol=1e-5).any() for number in numbers)


def test_json_holds_the_same(run_sfumato, path):
    facts = json.loads(run_sfumato("inspect", path, "--json").stdout)
    assert facts == describe_gallery(path, check=False)
    assert (facts["bytes"], "checked" in facts) == (path.stat().st_size, False)


def test_damaged_galleries_are_told_as_such(run_sfumato, path, tmp_path):
    data, code = path.read_bytes(), load_gallery(path).template("alice").code.origin.tobytes()
    (tmp_path / "cut-gallery").write_bytes(data[:1500])
    (tmp_path / "short-gallery").write_bytes(data[:50])
    (tmp_path / "old-gallery.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(500))
    (tmp_path / "flipped").write_bytes(data.replace(code[:8], code[1:9]))
    for name, told in (
        ("cut-gallery", "damaged"),
        ("short-gallery", "not a gallery, or it is cut off"),
        ("old-gallery.h5", "earlier version"),
        ("flipped", "checksum"),
    ):
        errors = run_sfumato("inspect", tmp_path / name, code=1).stderr
        assert errors.startswith("error: ")
        assert told in errors
        assert len(errors.strip().splitlines()) == 1


def test_an_archive_of_that_name_is_an_archive(run_sfumato, tmp_path):
    features = sfumato.Features(np.zeros((1, 4)), np.ones((1, 16)))
    sfumato.save(tmp_path / "gallery.sfm", {"a": sfumato.conceal(features, "random-2")})
    sfumato.save(tmp_path / "gallery.h5", {"a": sfumato.conceal(features, "random-2")})
    for name in ("gallery.sfm", "gallery.h5"):
        assert not holds_gallery(tmp_path / name)
        assert "archive of concealed features" in run_sfumato("inspect", tmp_path / name).stdout
    assert not holds_gallery(tmp_path)


@pytest.mark.parametrize("shared_key", [False, True])
def test_a_sealed_gallery_in_counts_without_a_name_or_a_key(run_sfumato, tmp_path, shared_key):
    path, secret = tmp_path / "gallery.sqlite", sfumato.new_key()
    keys = {"alice": sfumato.new_key(), "bob": sfumato.new_key()}
    source = {"shared_key": True, "secret": secret} if shared_key else {"key": keys}
    sfumato.enroll(np.eye(2, 64), path, ids=list(keys), extractor="arcface", **source)
    gallery = load_gallery(path)
    sfumato.revoke("bob", path)
    shown = run_sfumato("inspect", path, "--check").stdout
    facts = json.loads(run_sfumato("inspect", path, "--check", "--json").stdout)
    assert (facts["templates"], facts["revoked"], facts["codes"]) == (1, 1, "2048 bits")
    name = gallery.recipe.links[-1].checksum
    assert facts["keys"] == (f"one for all, {name}" if shared_key else "one of each person")
    assert facts["recipe"] == str(gallery.recipe)
    assert facts["checked"] == "every checksum is right"
    assert not {"subspaces", "draws", "decoys", "warning"} & set(facts)
    hidden = [key.hex() for key in (secret, *keys.values())] + list(gallery.templates.keys)
    assert not any(word in shown for word in ("alice", "bob", *hidden))
