# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import build_face_decoys, conceal_embeddings, split_decoys
from sfumato.errors import FileError, InputError
from sfumato.faces.calibration import CalibrateParams, calibrate, measure_threshold, stranger_pairs
from sfumato.faces.compare import pair_distances
from sfumato.faces.enrollment import enroll
from sfumato.faces.gallery_file import load_gallery
from sfumato.types.clear import Embeddings
from sfumato.types.recipe import Recipe


@pytest.mark.parametrize("comparison", ["p-to-s", "s-to-s"])
def test_other_strangers_are_accepted_at_the_chosen_rate(photos, comparison):
    decoys = build_face_decoys(photos(range(500, 560)))
    params = CalibrateParams(rate=0.02, comparison=comparison)
    chosen = measure_threshold(photos(range(100, 250)), Recipe.of("hybrid-2"), decoys, params)
    assert chosen.measured_rate <= 0.02
    assert chosen.impostor_pairs == 150 * 149
    assert chosen.people == 150
    others = photos(range(300, 400))
    halves = split_decoys(decoys)
    templates = conceal_embeddings(others, "hybrid-2", halves[0])
    probes = others.values if comparison == "p-to-s" else conceal_embeddings(others, "hybrid-2", halves[1])
    rows = stranger_pairs(others.names, 10**6, np.random.default_rng(0))
    accepted = pair_distances(probes, templates, *rows) <= chosen.distance
    assert 0.008 < accepted.mean() < 0.05


def test_photos_of_one_person_are_no_strangers(photos):
    faces = photos(range(4), photos=3)
    who = np.array(["a", "b", "c", "d"]).repeat(3)
    rows0, rows1 = stranger_pairs(list(who), 10**6, np.random.default_rng(0))
    assert len(rows0) == 12 * 9
    assert (who[rows0] != who[rows1]).all()
    few = stranger_pairs(list(who), 20, np.random.default_rng(0))
    assert len(few[0]) == 20
    assert (who[few[0]] != who[few[1]]).all()
    with pytest.raises(InputError, match="108"):
        measure_threshold(faces, Recipe.of("random-2"), None, CalibrateParams(rate=0.01))
    with pytest.raises(InputError, match="12"):
        measure_threshold(faces, Recipe.of("random-2"), None, CalibrateParams(), people=["a"])


def test_the_threshold_is_stored_with_the_gallery(photos, tmp_path):
    path, strangers = tmp_path / "gallery.sqlite", photos(range(100, 150))
    with pytest.raises(FileError, match="no such"):
        calibrate(strangers, path)
    enroll(photos(range(2)), path)
    chosen = calibrate(strangers, path, rate=0.05)
    assert load_gallery(path).thresholds == (chosen,)
    with pytest.raises(InputError, match="dimensions"):
        calibrate(Embeddings(np.eye(8)), path)
    with pytest.raises(InputError, match="positive"):
        CalibrateParams(pairs=0)


def test_other_decoys_are_refused(photos, tmp_path):
    path = tmp_path / "gallery.sqlite"
    ours, others = (build_face_decoys(photos(range(first, first + 40))) for first in (500, 600))
    enroll(photos(range(2)), path, decoys=ours)
    with pytest.raises(InputError, match="gallery"):
        calibrate(photos(range(100, 150)), path, decoys=others, rate=0.05)
