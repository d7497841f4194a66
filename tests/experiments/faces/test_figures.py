# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InputError
from sfumato.experiments.faces.figures import balance_points, draw_attributes, draw_balance, draw_curves
from sfumato.types.record import Record, Score


def verified(recipe, distance, accuracy, seed=0):
    return Record("faces", (Score("accuracy", accuracy),), {"recipe": recipe, "distance": distance}, seed=seed)


def attacked(recipe, leakage, attribute="gender", seed=0):
    names = ("majority", "neighbours", "neighbours relabelled", "templates", "undone", "leakage")
    values = (0.5, 0.55, 0.6, 0.7, leakage, leakage)
    scores = tuple(Score(name, value) for name, value in zip(names, values, strict=True))
    return Record("attributes", scores, {"recipe": recipe, "attribute": attribute}, seed=seed)


USE = [verified("raw", "p-to-p", 0.99), verified("hybrid-2", "p-to-s", 0.98), verified("hybrid-2", "s-to-s", 0.96)]
LEAKS = [attacked("raw", 0.92), attacked("hybrid-2", 0.91), attacked("hybrid-2", 0.89, seed=1)]


def test_recipes_are_joined_over_seeds():
    points = balance_points(USE, [*LEAKS, attacked("random-2", 0.9)])
    assert [(one.recipe, one.distance) for one in points] == [
        ("raw", "p-to-p"), ("hybrid-2", "p-to-s"), ("hybrid-2", "s-to-s"),
    ]  # fmt: skip
    assert points[1].leakage == pytest.approx(0.9)
    assert (points[1].accuracy, points[1].neighbours, points[1].majority) == (0.98, 0.6, 0.5)
    with pytest.raises(InputError, match="verified"):
        balance_points(USE, [attacked("random-2", 0.9)])


def test_figures_are_written(tmp_path):
    lines = [("raw p-to-p", [0.1, 0.2, 0.6, 0.9], [True, True, False, False])]
    drawn = [
        *draw_curves(lines, tmp_path / "curves", "title"),
        *draw_attributes([*LEAKS, attacked("raw", 0.8, "race")], tmp_path / "bars", "title"),
        *draw_balance(balance_points(USE, LEAKS), tmp_path / "balance", "title"),
    ]
    assert len(drawn) == 6
    assert all(path.stat().st_size > 1000 for path in drawn)


def test_nothing_to_draw_is_told(tmp_path):
    with pytest.raises(InputError, match="no distances"):
        draw_curves([], tmp_path / "a")
    with pytest.raises(InputError, match="no record"):
        draw_attributes([], tmp_path / "a")
