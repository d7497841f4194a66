# SPDX-License-Identifier: Apache-2.0
"""Curves over K: the same as sorting everything; paired databases; the drawing."""

import itertools

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.oracle_curves import (
    OracleCurve,
    _best_by_rank,
    draw_curves,
    encoder_curves,
    grid_up_to,
    mean_curve,
    oracle_curve,
    paired_curves,
)
from sfumato.errors import InputError
from sfumato.subspace.reference import project, squared_distances


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def rows():
    return unit(np.abs(np.random.default_rng(0).standard_normal((500, 16))))


def test_the_curve_is_what_sorting_gives(rows):
    clear, public = rows[:30], rows[100:]
    hidden = sfumato.conceal(clear, "random-2")
    order = np.argsort(squared_distances(hidden, public), axis=1)
    grid = (1, 5, 40, 400)
    curve = oracle_curve(hidden, clear, public, grid=grid)
    for number, k in enumerate(grid):
        candidates = public[order[:, :k]]
        best = np.linalg.norm(candidates - clear[:, None], axis=2).argmin(axis=1)
        answer = candidates[np.arange(30), best]
        assert curve.plain[number] == pytest.approx(np.linalg.norm(answer - clear, axis=1).mean(), abs=1e-5)
        inside = project(answer, hidden.origin, hidden.basis)
        assert curve.projected[number] == pytest.approx(np.linalg.norm(inside - clear, axis=1).mean(), abs=1e-5)
    assert curve.count == 30


def test_curves_fall_and_projection_helps(rows):
    hidden = sfumato.conceal(rows[:40], "sub-hybrid-2", sfumato.Decoys(rows[300:], parts=2))
    curve = oracle_curve(hidden, rows[:40], rows[100:])
    assert curve.neighbours[0] == 1
    assert curve.neighbours[-1] == 400
    assert (np.diff(curve.plain) <= 1e-9).all()
    assert (np.array(curve.projected) <= np.array(curve.plain) + 1e-6).all()


def test_a_set_that_holds_the_descriptors_ends_at_zero(rows):
    hidden = sfumato.conceal(rows[:20], "random-2")
    assert oracle_curve(hidden, rows[:20], rows).plain[-1] == pytest.approx(0, abs=1e-3)


def test_only_what_is_better_than_all_nearer_ones_counts():
    scores, squared = np.array([0.3, 0.1, 0.2, 0.4], np.float32), np.array([0.5, 0.9, 1.0, 0.1], np.float32)
    ranks, chosen = _best_by_rank(scores, squared)
    assert ranks.tolist() == [1, 3, 4]
    assert chosen.tolist() == [1, 0, 3]


def test_pairs_of_an_encoded_database(rows):
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((16, 16)))[0]
    encoded = unit(np.tanh(3 * (rows @ turn)))  # nearness survives, the place does not
    curves = paired_curves(encoded[:50], rows[:50], encoded[50:], rows[50:])
    assert set(curves) == {"paired", "clear database", "encoded database"}
    assert curves["paired"].projected is None
    assert curves["paired"].plain[0] < curves["clear database"].plain[0]  # a first neighbour is worth something
    assert curves["paired"].plain[-1] == pytest.approx(curves["clear database"].plain[-1], abs=1e-6)  # all are asked
    assert curves["encoded database"].plain[-1] > 1.1 * curves["paired"].plain[-1]
    wider = np.concatenate([encoded, encoded], axis=1)
    assert set(paired_curves(wider[:50], rows[:50], wider[50:], rows[50:])) == {"paired"}


def test_grids():
    assert grid_up_to(1) == (1,)
    assert grid_up_to(256_000)[-1] == 256_000
    with pytest.raises(InputError, match="no public"):
        grid_up_to(0)


def test_no_queries(rows):
    curve = oracle_curve(sfumato.conceal(rows[:0], "random-2"), rows[:0], rows)
    assert curve.count == 0


def test_drawing(rows, tmp_path):
    hidden = sfumato.conceal(rows[:5], "random-2")
    draw_curves(tmp_path / "new" / "a.png", {"m = 2": oracle_curve(hidden, rows[:5], rows)}, "a title")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_curves_of_figure_11(sift, encoder, decoys):
    hidden, public = sfumato.conceal(sift, encoder.recipe), decoys.descriptors[:2000]
    known = Knowledge(public=public, clear=sift.descriptors, encoder=encoder)
    curves = encoder_curves(hidden, known)
    assert set(curves) == {"paired", "clear database", "encoded database"}
    paired, clear, encoded = (curves[name].plain for name in ("paired", "clear database", "encoded database"))
    assert paired[-1] == pytest.approx(clear[-1], abs=1e-5)  # of all of them both choose the same
    assert paired[0] < clear[0]
    assert encoded[-1] > paired[0]
    for curve in (paired, clear, encoded):
        assert all(a >= b - 1e-9 for a, b in itertools.pairwise(curve))
    lifted = sfumato.conceal(sift, f"{encoder.recipe}+random-2")
    assert set(encoder_curves(lifted, known)) == {"paired"}
    with pytest.raises(InputError, match="no encoder"):
        encoder_curves(sfumato.conceal(sift, "random-2"), known)
    with pytest.raises(InputError, match="clear"):
        encoder_curves(hidden, Knowledge(encoder=encoder))


def test_curves_of_several_images_are_weighed_by_their_rows():
    one = OracleCurve(neighbours=(1, 2), plain=(1.0, 0.5), projected=(0.4, 0.2), count=1)
    three = OracleCurve(neighbours=(1, 2), plain=(2.0, 1.5), projected=(0.8, 0.6), count=3)
    found = mean_curve([one, three])
    assert found.plain == pytest.approx((1.75, 1.25))
    assert found.projected == pytest.approx((0.7, 0.5))
    assert found.count == 4
    with pytest.raises(InputError, match="curves"):
        mean_curve([])
