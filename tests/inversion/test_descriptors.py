# SPDX-License-Identifier: Apache-2.0
"""Decoders as files and as numpy: geometry of the search, and what is refused."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.files.tensors import save_checkpoint
from sfumato.inversion.descriptors import KIND, Decoder, Layout, nearest_in, on_sphere, read_decoder, starts
from sfumato.types.concealed import Subspaces

N = 8


def layout(**changes: Any) -> Layout:
    settings: dict[str, Any] = {
        "form": "search", "n_in": N, "m": 2, "n_out": N, "hidden": 4, "depth": 1, "positive": True, "unit": True,
    }  # fmt: skip
    return Layout(**{**settings, **changes})


def some_decoder(chosen: Layout, seed: int = 0) -> Decoder:
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in chosen.shapes().items()}
    arrays["deviation"] = np.abs(arrays["deviation"]) + 1
    arrays["frame"] = np.linalg.qr(arrays["frame"])[0].astype(np.float32)
    return Decoder(chosen, arrays, {"kind": KIND, "recipe": "random-2", "layout": asdict(chosen)})


def some_subspaces(count: int = 6, m: int = 2) -> Subspaces:
    rng = np.random.default_rng(5)
    return Subspaces(0.2 * rng.normal(size=(count, N)), rng.normal(size=(count, m, N)))


def test_points_on_the_sphere_lie_in_their_subspace():
    one = some_subspaces()
    directions = np.random.default_rng(0).normal(size=(6, 5, 2)).astype(np.float32)
    points = on_sphere(one.origin, one.basis, directions)
    assert np.abs(np.linalg.norm(points, axis=2) - 1).max() < 1e-5
    offset = points - one.origin[:, None]
    along = np.einsum("nki,nmi->nkm", offset, one.basis)
    assert np.abs(np.einsum("nkm,nmi->nki", along, one.basis) - offset).max() < 1e-5
    far = Subspaces(np.full((1, N), 9.0), np.eye(N)[None, :2])  # does not reach the sphere
    assert np.allclose(on_sphere(far.origin, far.basis, directions[:1, :1])[:, 0], far.origin)


def test_the_nearest_point():
    one = some_subspaces()
    guesses = np.random.default_rng(1).normal(size=(6, N)).astype(np.float32)
    nearest = nearest_in(one.origin, one.basis, guesses, unit=False)
    other = one.origin + np.einsum("nm,nmi->ni", np.random.default_rng(2).normal(size=(6, 2)), one.basis)
    assert (np.linalg.norm(nearest - guesses, axis=1) <= np.linalg.norm(other - guesses, axis=1)).all()
    unit = nearest_in(one.origin, one.basis, guesses, unit=True)
    assert np.abs(np.linalg.norm(unit, axis=1) - 1).max() < 1e-5
    around = on_sphere(one.origin, one.basis, np.broadcast_to(starts(2), (6, 16, 2)))
    shortest = np.linalg.norm(around - guesses[:, None], axis=2).min(axis=1)
    assert (np.linalg.norm(unit - guesses, axis=1) <= shortest + 1e-5).all()


def test_a_search_begins_all_around():
    for m in (1, 2, 4, 12):
        directions = starts(m)
        assert np.abs(np.linalg.norm(directions, axis=1) - 1).max() < 1e-5
        assert np.array_equal(directions, starts(m))
        assert len(directions) >= 2


@pytest.mark.parametrize("chosen", [layout(), layout(form="direct"), layout(form="direct", project=True)])
def test_a_guess_depends_on_the_subspace_alone(chosen: Layout):
    one = some_subspaces()
    turned = Subspaces(one.origin + one.basis[:, 0], one.basis[:, ::-1] * -1)
    decoder = some_decoder(chosen)
    guesses, sure = decoder.decode(one)
    assert guesses.shape == (6, N)
    assert np.abs(guesses - decoder(turned)).max() < 1e-4
    assert np.abs(np.linalg.norm(guesses, axis=1) - 1).max() < 1e-4
    assert 0 <= sure.min() <= sure.max() <= 1
    if chosen.form == "search" or chosen.project:
        offset = guesses - one.origin
        along = np.einsum("ni,nmi->nm", offset, one.basis)
        assert np.abs(np.einsum("nm,nmi->ni", along, one.basis) - offset).max() < 1e-5


def test_points_of_another_length():
    decoder = some_decoder(layout(form="direct", n_in=5, m=0, unit=False, positive=False))
    points = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    assert decoder(points).shape == (7, N)
    assert np.array_equal(decoder(points), decoder(Subspaces(points, np.zeros((7, 0, 5)))))
    assert decoder(np.empty((0, 5))).shape == (0, N)


def test_something_else_is_refused():
    decoder = some_decoder(layout())
    for released in (some_subspaces(m=3), np.zeros((2, N)), np.zeros((2, 3 * N))):
        with pytest.raises(InputError, match="this decoder"):
            decoder(released)


def test_files_are_checked(tmp_path: Path):
    decoder, path = some_decoder(layout()), tmp_path / "d.safetensors"
    save_checkpoint(path, decoder.arrays, decoder.facts)
    again = read_decoder(path)
    assert np.array_equal(again(some_subspaces()), decoder(some_subspaces()))
    assert "search" in repr(again)
    for changes in ({"form": "guess"}, {"m": 0}, {"n_out": 9}, {"hidden": 0}, {"hidden": "4"}, {"m": -1}, {"more": 1}):
        save_checkpoint(path, decoder.arrays, {**decoder.facts, "layout": {**asdict(decoder.layout), **changes}})
        with pytest.raises(FileError, match="facts"):
            read_decoder(path)
    save_checkpoint(path, decoder.arrays, {**decoder.facts, "layout": {**asdict(decoder.layout), "hidden": 5}})
    with pytest.raises(FileError, match="network"):
        read_decoder(path)
