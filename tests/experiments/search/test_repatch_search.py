# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import ImageError, InputError
from sfumato.experiments.search.repatching import (
    PatchDictionary,
    RepatchProtocol,
    draw_photos,
    draw_repatched,
    evaluate_repatch,
    prepare_repatch,
    repatching_table,
)
from sfumato.images.samples import sample_image

CUT = PatchDictionary(pixels=80)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea", "astronaut"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels, (100, 75))[:, :, ::-1])
    return folder


@pytest.fixture(scope="module")
def measured(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("repatch")
    repatchers = prepare_repatch(photos, RepatchProtocol(candidates=(5,), cut=CUT))
    return folder, repatchers, evaluate_repatch(repatchers, folder)


def test_exact_search_is_the_best_and_looks_at_all(measured):
    scores = {r.params["method"]: {s.name: s.value for s in r.scores} for r in measured[2]}
    exact = scores["exact"]
    assert exact["looked at a patch"] == 80
    assert exact["ssim"] == max(row["ssim"] for row in scores.values())
    assert exact["angle"] == min(row["angle"] for row in scores.values())
    assert scores["projector flat"]["ssim"] == pytest.approx(exact["ssim"], abs=1e-3)
    assert scores["grassmann quantile"]["compared a patch"] <= 5
    assert scores["projector kd-tree eps 10"]["compared a patch"] == 1
    assert scores["projector kd-tree eps 10"]["ssim"] < exact["ssim"]


def test_a_photo_is_drawn_from_the_seed_and_named(photos, measured):
    assert measured[2][0].params["source"] in {"coffee.png", "chelsea.png", "astronaut.png"}
    sources = {prepare_repatch(photos, RepatchProtocol(seed=seed, cut=CUT))[0].source for seed in range(8)}
    assert len(sources) > 1
    assert len(prepare_repatch(photos, RepatchProtocol(photos=2, cut=CUT))[0].photos) == 2


def test_nothing_is_measured_twice_and_no_picture_is_kept(measured):
    folder, repatchers, records = measured
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npz")}
    assert [one.to_json() for one in evaluate_repatch(repatchers, folder)] == [one.to_json() for one in records]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*.npz")}
    for path in before:
        with np.load(path) as members:
            assert all(members[name].size < 10 for name in members.files)


def test_tables_and_figures(measured, tmp_path):
    folder, repatchers, records = measured
    assert "| exact |" in repatching_table(records).to_markdown()
    drawn = draw_photos(repatchers, folder, tmp_path / "r")
    assert {path.name for path in drawn if path.suffix == ".png"} == {"r-ssim.png", "r-looked-at.png", "r-compared.png"}
    sheet = cv2.imread(str(draw_repatched(repatchers[:2], tmp_path / "sheet.png")))
    assert sheet.shape[0] > 3 * 100


def test_what_can_not_be(tmp_path):
    with pytest.raises(ImageError):
        prepare_repatch(tmp_path, RepatchProtocol())
    for wrong in ({"candidates": ()}, {"photos": 0}, {"methods": ("exakt",)}):
        with pytest.raises(InputError):
            RepatchProtocol(**wrong)


def test_unreadable_and_small_photos_are_left_out_and_named(photos, tmp_path, caplog):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for path in photos.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "a-broken.png").write_bytes(b"no picture at all")
    cv2.imwrite(str(folder / "b-tiny.png"), np.full((3, 3, 3), 90, np.uint8))
    for seed in range(25):  # whichever is drawn
        protocol = RepatchProtocol(methods=("exact", "projector flat"), candidates=(5,), seed=seed, cut=CUT)
        repatchers = prepare_repatch(folder, protocol)
        assert repatchers[0].source in {"coffee.png", "chelsea.png", "astronaut.png"}
    assert {"a-broken.png", "b-tiny.png"} == {record.args[0].split(":")[0] for record in caplog.records}
    for record in evaluate_repatch(repatchers, tmp_path / "out"):
        assert [line.split(":")[0] for line in record.dropped] == ["a-broken.png", "b-tiny.png"]
        assert {score.samples for score in record.scores} == {3}
    assert draw_repatched(repatchers, tmp_path / "sheet.png").exists()


def test_a_folder_of_unreadable_photos_is_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture at all")
    with pytest.raises(InputError, match="no photo"):
        prepare_repatch(tmp_path, RepatchProtocol(cut=CUT))
