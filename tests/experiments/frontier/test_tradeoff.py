# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.auditing.matching import score_name
from sfumato.errors import InputError
from sfumato.experiments.frontier.tradeoff import draw_tradeoff, tradeoff_table, weigh
from sfumato.types.record import Record, Score


def used(recipe, accuracy, correct, distance="s-to-s", seed=0):
    scores = (
        Score(score_name("accuracy 3 px", "overall"), accuracy),
        Score(score_name("correct 3 px", "overall"), correct),
    )
    return Record("homography", scores, {"recipe": recipe, "distance": distance}, seed=seed)


def leaked(recipe, attack, value, inverter="patch"):
    params = {"recipe": recipe, "attack": attack, "inverter": inverter}
    return Record("leakage", (Score("leakage", value),), params, seed=0)


USE = [
    used("raw", 0.5, 400, "p-to-p", None),
    used("sub-hybrid-2", 0.4, 300, seed=0),
    used("sub-hybrid-2", 0.5, 340, seed=1),
    used("sub-hybrid-2", 0.9, 900, "p-to-s"),
    used("random-2", 0.5, 400),
]
LEAKS = [
    leaked("raw", "clear", 1.0),
    leaked("sub-hybrid-2", "vertex", 0.8),
    leaked("sub-hybrid-2", "oracle", 0.95),
    leaked("sub-hybrid-2", "direct", 0.6, "unet"),
]


def test_the_worst_attack_counts_and_an_oracle_does_not():
    raw, hidden = weigh(USE, LEAKS)
    assert raw.worst == (1.0, "clear")
    assert hidden.recipe == "sub-hybrid-2"
    assert hidden.accuracy == pytest.approx(0.45)
    assert hidden.worst == (0.8, "vertex")
    assert {one.title: value for one, value in hidden.leakage.items()} == {
        "vertex": 0.8,
        "oracle": 0.95,
        "direct, unet": 0.6,
    }


def test_table_tells_shares_of_raw():
    table = tradeoff_table(weigh(USE, LEAKS))
    row = dict(zip(table.columns, (cell.value for cell in table.rows[1]), strict=True))
    assert row["accuracy / raw"] == pytest.approx(0.9)
    assert row["correct / raw"] == pytest.approx(0.8)
    assert (row["worst leakage"], row["by"]) == (0.8, "vertex")


def test_nothing_in_common_is_told():
    with pytest.raises(InputError, match="no recipe"):
        weigh(USE[:1], LEAKS)
    broken = Record("leakage", (), {"recipe": "sub-hybrid-2", "attack": "vertex"}, dropped=("a.jpg: no picture",))
    with pytest.raises(InputError, match=r"left out: a\.jpg: no picture"):
        weigh(USE, [broken])


def test_figure(tmp_path):
    for path in draw_tradeoff(weigh(USE, LEAKS), tmp_path / "tradeoff", "title"):
        assert path.stat().st_size > 1000
