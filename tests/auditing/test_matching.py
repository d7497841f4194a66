# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path

import numpy as np
import pytest

from sfumato.auditing import matching
from sfumato.auditing.matching import (
    HomographyProtocol,
    accuracy_line,
    draw_accuracy,
    evaluate_homography,
    homography_table,
)
from sfumato.auditing.runner import load_records
from sfumato.auditing.tables import group_by_seed
from sfumato.errors import DecoyError, InputError
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.features.local import LocalParams

LOCAL = LocalParams(max_features=200)


def protocol(*recipes: str, **settings) -> HomographyProtocol:
    return HomographyProtocol(recipes=recipes, local=LOCAL, threads=1, **settings)


def score(record, name: str) -> float:
    return next(one.value for one in record.scores if one.name == name)


@pytest.fixture(scope="module")
def measured(small_sequences: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("measured")
    wanted = protocol("raw", "random-2", "sub-adversarial-2", "sub-hybrid-2", seeds=(0, 1))
    return folder, evaluate_homography(read_homography_folder(small_sequences), folder, wanted)


def test_one_record_a_run(measured):
    folder, records = measured
    assert len(records) == 1 + 3 * 2 * 2
    assert [(record.params["recipe"], record.params["distance"], record.seed) for record in records[:4]] == [
        ("raw", "p-to-p", None), ("random-2", "p-to-s", 0), ("random-2", "p-to-s", 1), ("random-2", "s-to-s", 0)
    ]  # fmt: skip
    assert all(not record.dropped for record in records)
    kept = {record.to_json() for record in load_records(folder)}
    assert kept == {record.to_json() for record in records}


def test_clear_descriptors_are_matched_with_a_ratio_test_too(measured, small_sequences):
    folder, plain = measured
    wanted = protocol("raw", "random-2", clear_ratio=0.8)
    records = evaluate_homography(read_homography_folder(small_sequences), folder, wanted)
    assert [one.params["recipe"] for one in records] == ["raw", "random-2", "random-2", "raw, ratio 0.8"]
    assert records[0].to_json() == plain[0].to_json()
    mutual, tested = records[0], records[-1]
    assert score(tested, "accuracy 3 px, overall") > score(mutual, "accuracy 3 px, overall")
    assert score(tested, "matches, overall") < score(mutual, "matches, overall")


def test_the_order_of_the_paper(measured):
    table = {
        (group.params["recipe"], group.params["distance"]): group.mean("correct 3 px, overall")
        for group in group_by_seed(measured[1])
    }
    raw = table["raw", "p-to-p"]
    assert table["random-2", "s-to-s"] > 0.97 * raw
    assert table["sub-hybrid-2", "p-to-s"] > 0.9 * raw
    assert table["random-2", "s-to-s"] > table["sub-hybrid-2", "s-to-s"] > table["sub-adversarial-2", "s-to-s"]


def test_accuracy_grows_with_the_threshold(measured):
    for record in measured[1]:
        values = [score(record, f"accuracy {px} px, overall") for px in range(1, 11)]
        assert values == sorted(values)
        assert 0.2 < values[-1] <= 1


def test_pairs_are_not_measured_twice(measured, small_sequences, tmp_path, monkeypatch):
    folder = tmp_path / "again"
    shutil.copytree(measured[0], folder)
    sequences = read_homography_folder(small_sequences)
    wanted = protocol("raw", "sub-hybrid-2", seeds=(1, 0))
    monkeypatch.setattr(matching, "extract", None)  # nothing is extracted either
    again = {record.to_json() for record in evaluate_homography(sequences, folder, wanted)}
    assert again <= {record.to_json() for record in measured[1]}


def test_a_changed_image_costs_its_own_pairs(measured, small_sequences, tmp_path, monkeypatch):
    folder, data = tmp_path / "results", tmp_path / "data"
    shutil.copytree(measured[0], folder)
    shutil.copytree(small_sequences, data)
    shutil.copy(data / "v_coffee" / "1.png", data / "v_coffee" / "3.png")
    extracted = []

    def extract(path, params):
        extracted.append(f"{path.parent.name}/{path.name}")
        return real(path, params)

    real = matching.extract
    monkeypatch.setattr(matching, "extract", extract)
    record = evaluate_homography(read_homography_folder(data), folder, protocol("raw"))[0]
    assert sorted(extracted) == ["v_coffee/1.png", "v_coffee/3.png"]
    assert record.data != measured[1][0].data


def test_overwriting_measures_again(small_sequences, tmp_path, monkeypatch):
    sequences = read_homography_folder(small_sequences)[:1]
    first = evaluate_homography(sequences, tmp_path, protocol("raw"))[0]
    monkeypatch.setattr(matching, "extract", lambda path, params: real(path, LocalParams(max_features=20)))
    from sfumato.features.local import extract as real

    second = evaluate_homography(sequences, tmp_path, protocol("raw"), overwrite=True)[0]
    assert score(second, "features, overall") == 20
    assert score(first, "features, overall") > 20


def test_an_image_that_can_not_be_read_is_named(small_sequences, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(small_sequences, data)
    sequences = read_homography_folder(data)
    picture = data / "i_coffee" / "2.png"
    picture.write_bytes(picture.read_bytes()[:500])
    record = evaluate_homography(sequences, tmp_path / "results", protocol("raw"))[0]
    assert len(record.dropped) == 1
    assert record.dropped[0].startswith("i_coffee 1-2: ")
    assert score(record, "accuracy 3 px, illumination") > 0


def test_no_descriptor_reaches_the_disk(measured):
    for path in measured[0].rglob("*.npz"):
        with np.load(path, allow_pickle=False) as members:
            assert all(members[name].ndim < 2 or members[name].shape[1] == 2 for name in members.files)


def test_the_table_compares_with_raw(measured):
    table = homography_table(measured[1])
    assert len(table.rows) == 7
    assert table.columns[-2:] == ("accuracy 3 px / raw", "correct 3 px / raw")
    assert [cell.value for cell in table.rows[0]][-2:] == [1.0, 1.0]
    assert all(row[table.columns.index("seeds")].value == 2 for row in table.rows[1:])
    alone = homography_table([record for record in measured[1] if record.params["recipe"] == "random-2"])
    assert "accuracy 3 px / raw" not in alone.columns


def test_the_figure_has_a_panel_for_each_kind_of_pair(measured, tmp_path):
    _, svg = draw_accuracy(measured[1], tmp_path / "figure", "Title")
    text = svg.read_text()
    for word in ("overall", "illumination", "viewpoint", "sub-hybrid-2", "point to subspace", "subspace to subspace"):
        assert f"<!-- {word} -->" in text
    light = [record for record in measured[1] if record.params["recipe"] == "raw"]
    assert accuracy_line(group_by_seed(light)[0], "other") is None


def test_wrong_wishes_are_told_before_anything_is_measured(small_sequences, tmp_path):
    sequences = read_homography_folder(small_sequences)
    with pytest.raises(InputError, match="no pair"):
        evaluate_homography([], tmp_path, protocol("raw"))
    with pytest.raises(InputError, match="random-1"):
        evaluate_homography(sequences, tmp_path, protocol("raw", "random-1"))
    other = np.random.default_rng(0).normal(size=(64, 128))
    from sfumato.concealment.decoys import Decoys
    from sfumato.types.extractor import Extractor

    with pytest.raises(DecoyError, match="other"):
        evaluate_homography(sequences, tmp_path, protocol("sub-hybrid-2"), Decoys(other, Extractor("other")))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_real_sequences_keep_the_order_of_the_paper(shared_data, tmp_path):
    sequences = [
        one for one in read_homography_folder(shared_data / "homography") if one.name in ("v_graf", "i_leuven")
    ]
    short = [type(one)(one.name, one.kind, one.paths[:3], one.homographies[:2]) for one in sequences]
    wanted = HomographyProtocol(
        recipes=("raw", "random-2", "sub-hybrid-2", "sub-adversarial-2"), distances=("s-to-s",),
        local=LocalParams(max_features=1000), threads=1,
    )  # fmt: skip
    records = evaluate_homography(short, tmp_path, wanted)
    raw, random, hybrid, adversarial = (score(record, "correct 3 px, overall") for record in records)
    assert random > 0.97 * raw
    assert raw > hybrid > adversarial
    assert hybrid > 0.8 * raw
