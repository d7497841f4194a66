# SPDX-License-Identifier: Apache-2.0
"""sfumato report: records in, a page out, and one line for what is none."""

import json

from sfumato.types.record import Record, Score


def record(recipe="random-2", attack="vertex"):
    params = {"recipe": recipe, "attack": attack, "descriptor": "sift", "knows": "", "inverter": "patch"}
    return Record("leakage", (Score("leakage", 0.9, samples=2),), params, seed=0)


def test_records_of_files_and_folders_become_a_page(run_sfumato, tmp_path):
    (tmp_path / "results" / "records").mkdir(parents=True)
    (tmp_path / "results" / "records" / "a.json").write_text(record().to_json(), encoding="utf-8")
    (tmp_path / "b.json").write_text(record(attack="density").to_json(), encoding="utf-8")
    page = tmp_path / "deep" / "page.html"
    told = json.loads(run_sfumato("report", tmp_path / "results", tmp_path / "b.json", "-o", page, "--json").stdout)
    assert told == {"page": str(page), "records": 2, "recipes": ["random-2"]}
    assert "Under random-2 a server still sees 90 %" in page.read_text(encoding="utf-8")


def test_what_is_no_record_is_named(run_sfumato, tmp_path):
    (tmp_path / "no.json").write_text('{"task": 3}', encoding="utf-8")
    assert "no.json: not a record" in run_sfumato("report", tmp_path / "no.json", code=1).stderr
    assert "gone.json: no such file" in run_sfumato("report", tmp_path / "gone.json", code=1).stderr
    (tmp_path / "empty").mkdir()
    assert "no record of an audit" in run_sfumato("report", tmp_path / "empty", code=1).stderr
    assert "Example: sfumato report" in run_sfumato("report", "--help").stdout
