# SPDX-License-Identifier: Apache-2.0
"""Decoys come from the database, encoded, or are generated first and then encoded."""

import numpy as np
import pytest

from sfumato.concealment.decoys import full_pool
from sfumato.concealment.draw_decoys import Supply, decoys_for
from sfumato.concealment.resolve import encode_points, resolve
from sfumato.errors import DecoyError
from sfumato.types.recipe import Link


def test_entries_are_drawn_without_repeats(decoys):
    link, nothing = Link("hybrid", 4), resolve("random-2")
    supply = Supply(link, decoys_for(link, nothing, decoys), full_pool(decoys, 50), nothing)
    drawn = np.frombuffer(np.random.default_rng(0).bytes(50 * supply.bytes_needed), "u1").reshape(50, -1)
    found = supply.draw(np.arange(50), drawn)
    assert found.shape == (50, 2, 32)
    assert all((decoys.descriptors == row).all(axis=1).any() for row in found.reshape(-1, 32))
    assert np.abs(found[:, 0] - found[:, 1]).max(axis=1).min() > 0
    assert "32" in repr(supply)


def test_generated_ones_are_encoded_afterwards(decoys, make_encoder, tmp_path):
    from sfumato.concealment.resolve import remember

    known = remember(make_encoder(3, dims=(32, 16)))
    encoder = resolve(f"ninja:x@{known.checksum[:12]}")
    link, plain = Link("hybrid", 2, variant="-generated"), resolve("random-2")
    assert decoys_for(link, encoder, decoys) is decoys
    assert decoys_for(Link("hybrid", 2), encoder, decoys).descriptors.shape[1] == 16
    pool = full_pool(decoys, 9)
    drawn = np.frombuffer(np.random.default_rng(0).bytes(9 * Supply(link, decoys, pool, plain).bytes_needed), "u1")
    clear = Supply(link, decoys, pool, plain).draw(np.arange(9), drawn.reshape(9, -1))
    found = Supply(link, decoys, pool, encoder).draw(np.arange(9), drawn.reshape(9, -1))
    assert np.array_equal(found[:, 0], encode_points(encoder, clear[:, 0]))


def test_too_few_are_told(decoys):
    with pytest.raises(DecoyError, match="2001"):
        Supply(Link("adversarial", 2001), decoys, full_pool(decoys, 1), resolve("random-2"))
