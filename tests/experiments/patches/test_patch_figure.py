# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.errors import InputError
from sfumato.experiments.patches.evaluate import draw_bars
from sfumato.types.record import Record, Score


def record(recipe, value, seed=None, tasks=("fpr95", "verification")):
    scores = tuple(Score(name, value) for task in tasks for name in (task, f"{task}, easy", f"{task}, hard"))
    return Record(task="patches", scores=scores, params={"recipe": recipe, "distance": "p-to-p"}, seed=seed)


def test_the_same_records_give_the_same_figure(tmp_path):
    records = [record("raw", 0.2), record("random-2", 0.4, 0), record("random-2", 0.5, 1)]
    png, svg = draw_bars(records, tmp_path / "bars", "Patches")
    assert png.read_bytes().startswith(b"\x89PNG")
    again = draw_bars(records, tmp_path / "again", "Patches")[1]
    assert svg.read_bytes() == again.read_bytes()
    other = draw_bars([*records[:1], record("random-2", 0.9)], tmp_path / "other", "Patches")[1]
    assert svg.read_bytes() != other.read_bytes()
    text = svg.read_text()
    assert "raw p-to-p" in text or "<svg" in text


def test_nothing_to_draw_is_told(tmp_path):
    with pytest.raises(InputError, match="no record"):
        draw_bars([record("raw", 0.1, tasks=("matching",))], tmp_path / "bars")
