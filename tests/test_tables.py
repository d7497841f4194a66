# SPDX-License-Identifier: Apache-2.0
"""Tables of the documents are those of the committed records, and a figure that differs from its record is seen."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("tables", ROOT / "scripts" / "tables.py")
assert spec is not None
assert spec.loader is not None
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)

PAGE = "docs/results/page.md"
RETRIEVAL = f"{tables.RECORDS}/retrieval{tables.MACHINE}.json"


def block(name: str) -> str:
    return f"# Page\n\n<!-- table: {name} -->\n<!-- end -->\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with all records, a README without tables, and one page with a fresh table."""
    shutil.copytree(ROOT / tables.RECORDS, tmp_path / tables.RECORDS)
    (tmp_path / tables.SHEETS).mkdir(parents=True)
    for path in (ROOT / tables.SHEETS).glob("*.csv"):
        shutil.copy(path, tmp_path / tables.SHEETS)
    (tmp_path / "README.md").write_text("# Sfumato\n", encoding="utf-8")
    (tmp_path / PAGE).write_text(tables.fill(block("shortlists"), PAGE, tmp_path), encoding="utf-8")
    return tmp_path


def test_the_committed_pages_are_fresh():
    assert list(tables.stale_pages()) == [], "run python scripts/tables.py"


def test_every_table_is_on_a_page():
    pages = [ROOT / "README.md", *(ROOT / tables.SHEETS).glob("*.md")]
    names = {found[2] for page in pages for found in tables.BLOCK.finditer(page.read_text(encoding="utf-8"))}
    assert names == set(tables.TABLES)


def test_a_fresh_page_stays_as_it_is(root: Path):
    assert "| sub-hybrid-2 |" in (root / PAGE).read_text(encoding="utf-8")
    assert tables.stale_pages(root) == {}


def test_a_figure_changed_on_a_page_is_seen(root: Path):
    fresh = (root / PAGE).read_text(encoding="utf-8")
    assert fresh.count("0.85") >= 1
    (root / PAGE).write_text(fresh.replace("0.85", "0.86"), encoding="utf-8")
    assert tables.stale_pages(root) == {PAGE: fresh}


def test_a_figure_changed_in_a_record_is_seen(root: Path):
    record = json.loads((root / RETRIEVAL).read_text(encoding="utf-8"))
    record["rows"][0]["recall_at_5"] = 0.123
    (root / RETRIEVAL).write_text(json.dumps(record), encoding="utf-8")
    assert "0.12" in tables.stale_pages(root)[PAGE]


def test_a_table_names_its_record_and_its_command(root: Path):
    text = (root / PAGE).read_text(encoding="utf-8")
    assert RETRIEVAL in text
    assert "`python benchmarks/retrieval.py --json out.json`" in text


def test_check_names_stale_pages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(tables, "stale_pages", dict)
    assert tables.main(["--check"]) == 0
    monkeypatch.setattr(tables, "stale_pages", lambda: {PAGE: "fresh"})
    assert tables.main(["--check"]) == 1
    assert PAGE in capsys.readouterr().out


def test_stale_pages_are_written_anew(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "ROOT", root)
    monkeypatch.setattr(tables, "stale_pages", lambda: {PAGE: "fresh"})
    assert tables.main([]) == 0
    assert (root / PAGE).read_text(encoding="utf-8") == "fresh"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (block("shortlist"), "shortlist"),
        ("<!-- table: shortlists -->\n", PAGE),
        ("<!-- table: shortlists -->\n" + block("people"), PAGE),
        ("<!-- table:shortlists -->\n<!-- end -->\n", PAGE),
    ],
)
def test_a_block_that_is_no_table_is_an_error(text: str, name: str):
    with pytest.raises(SystemExit) as problem:
        tables.fill(text, PAGE)
    assert name in str(problem.value)


def test_transcribed_figures_are_no_table(root: Path):
    path = root / tables.SHEETS / "map-colmap.csv"
    text = "# transcribed: from a page\n" + "\n".join(
        line for line in (ROOT / tables.SHEETS / "frontier.csv").read_text(encoding="utf-8").splitlines()
    )
    path.write_text(text, encoding="utf-8")
    shown = tables.fill(block("maps-colmap"), PAGE, root)
    assert "|" not in shown
    assert "map-colmap.csv" in shown


def test_a_csv_of_an_evaluation_is_a_table(root: Path):
    path = root / tables.SHEETS / "map-colmap.csv"
    path.write_text("scene,recipe,images,points\nfountain-P11,raw,11.0,14095.0\n", encoding="utf-8")
    assert "| fountain-P11 | raw | 11.0 | 14,095 |" in tables.fill(block("maps-colmap"), PAGE, root)


def test_a_record_that_is_not_there_is_said_to_be_missing(root: Path):
    (root / RETRIEVAL).unlink()
    shown = tables.fill(block("shortlists"), PAGE, root)
    assert "|" not in shown
    assert "retrieval.py" in shown


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (None, "2", ""),
        (True, "", "yes"),
        ("0.5", "", "0.5"),
        ("0.5", "2", "0.50"),
        (-0.001, "2", "0.00"),
        (-0.06, "2", "-0.06"),
        (1234.5, "0", "1,234"),
        (0.0026, "1mm", "2.6 mm"),
        (0.156, "1%", "15.6 %"),
        ("sealed-512@0123456789ab+chaff-2", "", "sealed-512+chaff-2"),
        ("a|b", "", r"a\|b"),
    ],
)
def test_values_become_text(value: object, form: str, text: str):
    assert tables.show(value, form) == text


def test_a_cell_without_its_first_value_is_empty():
    assert tables.cell({"value": 0.5, "error": None}, "{value:2} ± {error:2}") == "0.50"
    assert tables.cell({"value": 0.5, "low": None}, "{value:2} ({low:2})") == "0.50"
    assert tables.cell({"error": 0.1}, "{value:2} ± {error:2}") == ""
