# SPDX-License-Identifier: Apache-2.0
import csv
import io

import pytest
from rich.console import Console

from sfumato.auditing.tables import Cell, SeedGroup, Table, group_by_seed, make_table, raw_of
from sfumato.types.record import Record, Score


def record(recipe, seed, accuracy, **changes):
    scores = () if accuracy is None else (Score("accuracy, overall", accuracy),)
    return Record(task="t", scores=scores, params={"recipe": recipe}, seed=seed, **changes)


RECORDS = [record("raw", None, 0.5), record("b-2", 0, 0.25), record("b-2", 1, 0.35), record("c|2", 0, None)]
TITLES = {"accuracy": "accuracy, overall"}


def test_records_that_differ_in_the_seed_alone_are_one_group():
    groups = group_by_seed([*RECORDS, record("b-2", 2, 0.1, data="other")])
    counts = [(group.params["recipe"], len(group.records)) for group in groups]
    assert counts == [("raw", 1), ("b-2", 2), ("c|2", 1), ("b-2", 1)]


def test_groups_average_over_seeds():
    raw, two, none = group_by_seed(RECORDS)[:3]
    assert two.mean("accuracy, overall") == pytest.approx(0.3)
    assert two.deviation("accuracy, overall") == pytest.approx(0.1 / 2**0.5)
    assert raw.deviation("accuracy, overall") is None
    assert none.mean("accuracy, overall") is None
    assert raw.mean("unknown") is None


def table():
    groups = group_by_seed(RECORDS)
    return make_table(
        groups, ["recipe"], TITLES, ratios={"of raw": "accuracy, overall"}, baseline=lambda group: groups[0]
    )


def test_a_row_a_group():
    made = table()
    assert made.columns == ("recipe", "seeds", "accuracy", "of raw")
    assert [[str(cell) for cell in row] for row in made.rows] == [
        ["raw", "", "0.5", "1"],
        ["b-2", "2", "0.3 ± 0.071", "0.6"],
        ["c|2", "1", "", ""],
    ]


def test_large_figures_are_written_out():
    assert str(Cell(39_361.4, 123.4)) == "39361 ± 123"
    assert str(Cell(666.42)) == "666.4"
    assert str(Cell(0.00123456)) == "0.001235"


def test_markdown_has_as_many_cells_everywhere():
    lines = table().to_markdown().splitlines()
    assert lines[:2] == ["| recipe | seeds | accuracy | of raw |", "| --- | --- | --- | --- |"]
    assert lines[4] == "| c\\|2 | 1 |  |  |"


def test_comma_separated_values_keep_every_digit():
    rows = list(csv.DictReader(io.StringIO(table().to_csv())))
    assert list(rows[0]) == ["recipe", "seeds", "accuracy", "accuracy deviation", "of raw"]
    assert float(rows[1]["accuracy deviation"]) == group_by_seed(RECORDS)[1].deviation("accuracy, overall")
    assert (rows[0]["accuracy deviation"], rows[2]["accuracy"], rows[2]["recipe"]) == ("", "", "c|2")


def test_terminals_show_texts_as_they_are():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(Table(("a",), ((Cell("[red]x[/red]"),),)).to_rich("title"))
    assert "[red]x[/red]" in console.export_text()


@pytest.mark.parametrize("base", [None, 0.0])
def test_a_ratio_without_a_baseline_is_left_empty(base):
    baseline = None if base is None else SeedGroup({}, (record("raw", None, base),))
    made = make_table(
        group_by_seed(RECORDS), [], {}, ratios={"r": "accuracy, overall"}, baseline=lambda group: baseline
    )
    assert {row[-1].value for row in made.rows} == {None}


def test_no_record_gives_an_empty_table():
    empty = make_table([], ["recipe"], TITLES)
    assert empty.rows == ()
    assert empty.to_csv() == "recipe,seeds,accuracy\n"
    assert empty.to_rich().row_count == 0


def test_raw_is_that_of_the_same_data_and_settings():
    def one(recipe, data="d", **params):
        return Record(task="t", scores=(), params={"recipe": recipe, "m": 1, **params}, data=data)

    groups = group_by_seed([
        one("raw", decoys=None), one("b-2", decoys="x", parts="same", distance="s-to-s"), one("b-2", m=2),
        one("b-2", data="e"), one("raw", data="e"),
    ])  # fmt: skip
    found = [raw_of(groups)(group) for group in groups]
    assert found == [groups[0], groups[0], None, groups[4], groups[4]]


def scenes():
    """A table of two scenes, too wide for a terminal."""
    names = [("castle", "raw"), ("castle", "default"), ("united_states_capitol", "raw")]
    figures = tuple(Cell(1234.5678) for _ in range(9))
    columns = ("scene", "recipe", "seeds", *(f"figure {n} / raw" for n in range(8)), "last [px]")
    return Table(columns, tuple((Cell(a), Cell(b), Cell(1), *figures) for a, b in names))


def test_a_wide_table_is_split_into_parts_that_fit():
    whole = scenes().without_single_seeds()
    parts = whole.split(keys=2)
    assert len(parts) > 1
    assert all(part.columns[:2] == ("scene", "recipe") for part in parts)
    assert [title for part in parts for title in part.columns[2:]] == list(whole.columns[2:])
    console = Console(width=300, file=io.StringIO())
    assert all(console.measure(part.to_rich()).maximum <= 80 for part in parts)
    assert whole.split(keys=2, width=300) == [whole]


def test_scenes_stand_above_their_rows():
    folded = scenes().fold()
    assert folded.columns[0] == "recipe"
    first = [str(row[0]) for row in folded.rows]
    assert first == ["castle", "  raw", "  default", "united_states_capitol", "  raw"]
    assert [str(cell) for cell in folded.rows[0][1:]] == [""] * 10


def test_the_count_of_seeds_goes_where_it_says_nothing():
    assert "seeds" not in scenes().without_single_seeds().columns
    assert "seeds" in table().without_single_seeds().columns
    bare = table().without("seeds", "of raw")
    assert (bare.columns, bare.without_single_seeds()) == (("recipe", "accuracy"), bare)
