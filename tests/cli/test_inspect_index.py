# SPDX-License-Identifier: Apache-2.0
import json
import re

import numpy as np
import pytest

import sfumato
from sfumato.cli.inspect import describe_index, holds_index
from sfumato.search.archives import index_images, remove_images
from sfumato.search.factory import build, load


@pytest.fixture
def path(tmp_path):
    """An index of two images, one of which was removed."""
    rng, images = np.random.default_rng(0), {}
    for name, count in (("a.jpg", 20), ("b.jpg", 5)):
        rows = sfumato.Features(np.ones((count, 4)), rng.normal(size=(count, 16)), sfumato.Extractor("sift"))
        images[name] = sfumato.conceal(rows, "random-2")
    index = index_images(images, "inverted")
    remove_images(index, ["b.jpg"])
    index.save(tmp_path / "x.index")
    return tmp_path / "x.index"


def test_an_index_in_counts_and_never_a_value(run_sfumato, path):
    shown = run_sfumato("inspect", path, "--images", "--check").stdout
    told = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in shown.splitlines()}
    for name, expected in {
        "kind": "index of concealed features", "search": "inverted", "metric": "distance", "entries": "20",
        "params": "cells=default, filed=128, seed=0", "removed": "5", "dimensions": "16", "images": "1",
        "subspaces": "20 of dimension 2", "ids": "0 to 19", "extractor": "sift", "encoder": "none",
    }.items():  # fmt: skip
        assert told[name] == expected
    assert "a.jpg: 20 features" in shown
    assert "b.jpg" not in shown
    assert "checksum is right" in shown
    segments = load(path).entries.segments
    values = np.concatenate([part.ravel() for one in segments for part in (one.origin, one.basis)])
    numbers = {float(number) for number in re.findall(r"-?\d+\.\d{3,}", shown)}
    assert not any(np.isclose(values, number, atol=1e-4).any() for number in numbers)


def test_json_holds_the_same(run_sfumato, path):
    facts = json.loads(run_sfumato("inspect", path, "--json").stdout)
    assert facts == describe_index(path, images=False, check=False)
    assert (facts["bytes"], "checked" in facts) == (path.stat().st_size, False)


def test_plain_points_without_names(tmp_path):
    build(np.eye(3, dtype=np.float32), "exact").save(tmp_path / "x")
    facts = describe_index(tmp_path / "x", images=True, check=True)
    assert (facts["subspaces"], facts["metric"], facts["params"]) == ("3 points", "distance", "none")
    assert (facts["images"], facts["extractor"], facts["image list"]) == ("not named", "not stated", {})


def test_bits(tmp_path):
    build(sfumato.Bits(np.zeros((3, 64), np.uint8))).save(tmp_path / "x")
    facts = describe_index(tmp_path / "x", images=False, check=True)
    assert (facts["search"], facts["bits"], facts["entries"]) == ("sketch", 512, 3)
    assert not {"subspaces", "dimensions"} & set(facts)


def test_an_index_is_known_by_its_beginning_or_its_name(run_sfumato, path, tmp_path):
    data = path.read_bytes()
    (tmp_path / "cut").write_bytes(data[:-100])
    (tmp_path / "short.index").write_bytes(data[:5])
    assert holds_index(tmp_path / "cut")
    assert holds_index(tmp_path / "short.index")
    assert not holds_index(tmp_path)
    assert not holds_index(tmp_path / "none.index")
    for bad, told in (("cut", "damaged"), ("short.index", "index build")):
        errors = run_sfumato("inspect", tmp_path / bad, code=1).stderr
        assert told in errors
        assert len(errors.strip().splitlines()) == 1


def test_a_check_finds_damage_within(run_sfumato, path):
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    errors = run_sfumato("inspect", path, "--check", code=1).stderr
    assert errors.startswith("error: ")
    assert "digest" in errors
