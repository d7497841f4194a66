# SPDX-License-Identifier: Apache-2.0
"""Photos become an archive: what is refused, what is skipped, and what of a photo an archive holds."""

import shutil
from hashlib import sha256

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.concealment.encoder import save_encoder
from sfumato.concealment.keys import key_for_place
from sfumato.device import ConcealOutcome, conceal_photos, read_features, write_clear_features
from sfumato.device.conceal import ConcealRun, RunKey
from sfumato.errors import (
    ArchiveError,
    BandwidthWarning,
    DecoyError,
    FileError,
    InputError,
    NameWarning,
    NewKeyWarning,
    RecipeError,
    WideSealWarning,
)
from sfumato.features.hloc import write_hloc
from sfumato.features.local import LocalParams, order_by_position
from sfumato.features.sources import open_source
from sfumato.images.samples import sample_paths
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import DEFAULT_RECIPE


def test_hloc_features_of_any_kind_with_decoys_of_the_same(hloc_file, tmp_path):
    source = open_source(hloc_file)
    found = [features for _, features in read_features([source], ConcealOutcome())]
    decoys = sfumato.build_decoys(found, 64, parts=4)
    assert decoys.extractor.name == "superpoint"
    outcome = conceal_photos(source, tmp_path / "p.sfm", recipe="sub-hybrid-4", decoys=decoys)
    assert (outcome.images, outcome.features) == (2, 180)
    with sfumato.load(tmp_path / "p.sfm") as archive:
        hidden = archive["db/1.jpg"]
        assert hidden.code.basis.shape == (90, 4, 256)
        assert hidden.extractor.name == "superpoint"
        distances = sfumato.squared_distances(found[0].descriptors, hidden.code)
        assert np.diag(distances).max() < 1e-9


def test_only_sift_has_bundled_decoys(hloc_file, tmp_path):
    with pytest.raises(DecoyError, match="superpoint"):
        conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="sub-hybrid-2")
    assert not (tmp_path / "p.sfm").exists()
    outcome = conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2")
    assert outcome.images == 2


def test_raw_is_refused_before_anything_is_read(hloc_file, tmp_path):
    with pytest.raises(RecipeError, match="archived"):
        conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="raw")


def test_another_recipe_does_not_join_an_archive(hloc_file, tmp_path):
    conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2")
    with pytest.raises(ArchiveError, match="random-4"):
        conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-4")


def test_the_secret_is_not_shown():
    assert "0123" not in repr(RunKey(secret=b"0123456789abcdef"))


def test_a_picture_that_is_there_twice_is_released_once(hloc_file, tmp_path):
    with h5py.File(hloc_file, "a") as file:
        file.copy("query.jpg", "copy.jpg")
    conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2")
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert len(archive) == 3
        first, second = archive["query.jpg"].code, archive["copy.jpg"].code
        assert np.array_equal(first.origin, second.origin)
        assert np.array_equal(first.basis, second.basis)
        assert not np.allclose(first.origin, archive["db/1.jpg"].code.origin)


@pytest.mark.parametrize("change", [{"secret": sha256(b"6").digest()}, {"evaluation_seed": 3}])
@pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
def test_other_draws_do_not_join_an_archive(hloc_file, tmp_path, change):
    conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2")
    with h5py.File(hloc_file, "a") as file:
        file.copy("query.jpg", "another.jpg")
    with pytest.raises(ArchiveError, match="begun with"):
        conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2", **change)
    assert conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2").skipped == 2


def test_what_is_the_same_under_two_labels_is_left_out(hloc_file, tmp_path):
    with h5py.File(hloc_file, "a") as file:
        file.copy("query.jpg", "copy.jpg")
    found = [features for _, features in read_features([open_source(hloc_file)], ConcealOutcome())]
    rows = np.concatenate([features.descriptors for features in found[:2]])
    decoys = sfumato.Decoys(rows, found[0].extractor, labels=["a"] * 90 + ["b"] * 90)
    labels = {"copy.jpg": "a", "query.jpg": "b", "db/1.jpg": "a"}
    given = {"recipe": "hybrid-labels-2", "decoys": decoys, "labels": labels}
    outcome = conceal_photos(hloc_file, tmp_path / "p.sfm", **given)
    assert outcome.images == 2
    assert list(outcome.unreadable.values()) == ["the same features as copy.jpg, under another label"]


@pytest.fixture
def ninja(tmp_path, make_encoder):
    """The recipe of an encoder for the features of the file."""
    save_encoder(tmp_path / "n.safetensors", make_encoder(dims=(256, 64), name="superpoint"))
    return f"ninja:{tmp_path / 'n.safetensors'}"


def test_an_encoder_is_archived_by_its_checksum_and_resumed(hloc_file, tmp_path, ninja, make_encoder):
    path = tmp_path / "p.sfm"
    assert conceal_photos(hloc_file, path, recipe=ninja).images == 2
    with h5py.File(hloc_file, "a") as file:
        file.copy("query.jpg", "another.jpg")
    outcome = conceal_photos(hloc_file, path, recipe=ninja)
    assert (outcome.images, outcome.skipped) == (1, 2)
    with sfumato.load(path) as archive:
        assert {str(archive[name].recipe).split("@")[0] for name in archive} == {"ninja:n"}
        assert archive["query.jpg"].code.basis.shape == (90, 0, 64)
        assert np.array_equal(archive["query.jpg"].code.origin, archive["another.jpg"].code.origin)
    assert str(tmp_path).encode() not in path.read_bytes()
    save_encoder(tmp_path / "n.safetensors", make_encoder(1, dims=(256, 64), name="superpoint"))  # of the same name
    with pytest.raises(ArchiveError, match="superpoint"):
        conceal_photos(hloc_file, path, recipe=ninja)


def test_an_encoder_that_can_not_be_used_is_told_before_anything_is_read(hloc_file, tmp_path, make_encoder):
    class Untouched:
        path, names = hloc_file, ("a",)

        def features(self, **options):
            raise AssertionError("read")

    for recipe, kind in (("ninja:none.safetensors", FileError), ("ninja-none", RecipeError)):
        with pytest.raises(kind, match="none"):
            conceal_photos(Untouched(), tmp_path / "p.sfm", recipe=recipe)
    save_encoder(tmp_path / "n.safetensors", make_encoder(dims=(256, 64), name="sift"))
    with pytest.raises(RecipeError, match="superpoint"):
        conceal_photos(hloc_file, tmp_path / "p.sfm", recipe=f"ninja:{tmp_path / 'n.safetensors'}")
    assert not (tmp_path / "p.sfm").exists()


KEY, OTHER = sha256(b"1").digest(), sha256(b"2").digest()


@pytest.mark.filterwarnings("ignore::sfumato.errors.BandwidthWarning", "ignore::sfumato.errors.WideSealWarning")
def test_descriptors_of_any_width_are_sealed(hloc_file, tmp_path):
    path = tmp_path / "p.sfm"
    outcome = conceal_photos(hloc_file, path, secret=KEY)
    assert outcome.images == 2
    with sfumato.load(path) as archive:
        assert {str(archive[name].recipe) for name in archive} == {outcome.recipe}
    assert outcome.recipe.startswith(f"{DEFAULT_RECIPE}@")
    with pytest.raises(ArchiveError, match="other features"):
        conceal_photos(sample_paths()["coffee"], path, secret=KEY)
    with h5py.File(hloc_file, "a") as file:
        file.copy("query.jpg", "another.jpg")
    for recipe in (DEFAULT_RECIPE, outcome.recipe):
        again = conceal_photos(hloc_file, path, recipe=recipe, secret=KEY)
        assert again.recipe == outcome.recipe
        with pytest.raises((ArchiveError, RecipeError), match="device key"):
            conceal_photos(hloc_file, path, recipe=recipe, secret=OTHER)


@pytest.mark.filterwarnings("ignore::sfumato.errors.BandwidthWarning")
def test_a_new_key_is_made_when_something_is_to_be_sealed_and_not_for_what_is_sealed_already(
    hloc_file, tmp_path, monkeypatch
):
    key = tmp_path / "keys" / "mine.key"
    monkeypatch.setenv("SFUMATO_KEY", str(key))
    with pytest.raises(ArchiveError, match="no folder"):
        conceal_photos(hloc_file, tmp_path / "none" / "p.sfm")
    conceal_photos(hloc_file, tmp_path / "lifted.sfm", recipe="random-2")
    with pytest.raises(ArchiveError, match="random-2"):
        conceal_photos(hloc_file, tmp_path / "lifted.sfm")
    assert not key.exists()
    with pytest.warns(NewKeyWarning, match=r"mine\.key"):
        made = conceal_photos(hloc_file, tmp_path / "p.sfm")
    assert conceal_photos(hloc_file, tmp_path / "q.sfm", secret=key.read_bytes()).recipe == made.recipe
    assert conceal_photos(hloc_file, tmp_path / "q.sfm").skipped == 2
    town = conceal_photos(hloc_file, tmp_path / "town.sfm", place="town hall")
    expected = conceal_photos(hloc_file, tmp_path / "t.sfm", secret=key_for_place(key.read_bytes(), "town hall"))
    assert town.recipe == expected.recipe != made.recipe
    key.unlink()
    with pytest.raises(ArchiveError, match="device key"):
        conceal_photos(hloc_file, tmp_path / "p.sfm")
    assert not key.exists()
    for recipe in ("random-2", "sealed-64"):
        with pytest.raises(InputError, match="--place"):
            conceal_photos(hloc_file, tmp_path / "r.sfm", recipe=recipe, place="here", evaluation_seed=1)


def write_file(path, name, counts, seed=0):
    """Write a file of one kind with an image for each number of features."""
    rng = np.random.default_rng(seed)

    def image(count):
        rows = rng.standard_normal((count, 128))
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return Features(np.ones((count, 4), np.float32), rows, Extractor(name))

    write_hloc(path, ((f"{number}.jpg", image(count)) for number, count in enumerate(counts)))
    return path


def recipes_in(path):
    with sfumato.load(path) as archive:
        return {str(archive[name].recipe) for name in archive}


def test_an_archive_goes_on_with_the_bandwidth_it_was_begun_with(tmp_path):
    """Archives of RootSIFT were once sealed with the bandwidth of SIFT by default."""
    archive, few = tmp_path / "old.sfm", write_file(tmp_path / "few.h5", "rootsift", (20,))
    with pytest.warns(WideSealWarning, match=r"0\.19"):
        old = conceal_photos(few, archive, recipe="sealed-64:0.235", secret=KEY).recipe
    assert old.startswith("sealed-64@")
    more = write_file(tmp_path / "more.h5", "rootsift", (20, 30))
    with pytest.warns(WideSealWarning, match=r"0\.19"):
        outcome = conceal_photos(more, archive, recipe="sealed-64", secret=KEY)
    assert (outcome.images, outcome.skipped, outcome.recipe) == (1, 1, old)
    assert recipes_in(archive) == {old}
    with pytest.raises(ArchiveError, match=r"sealed-64:0\.19"):
        conceal_photos(more, archive, recipe="sealed-64:0.19", secret=KEY)
    assert conceal_photos(more, tmp_path / "new.sfm", recipe="sealed-64", secret=KEY).recipe.startswith(
        "sealed-64:0.19@"
    )


def test_a_bandwidth_is_estimated_once_from_the_first_image_that_tells_it(tmp_path):
    archive, source = tmp_path / "a.sfm", write_file(tmp_path / "a.h5", "r2d2", (0, 5, 150, 120, 3))
    with pytest.warns(BandwidthWarning, match="r2d2") as caught:
        made = conceal_photos(source, archive, recipe="sealed-64", secret=KEY)
    assert len(caught) == 1
    assert made.images == 5
    assert recipes_in(archive) == {made.recipe}
    bandwidth = sfumato.Recipe(made.recipe).links[-1].bandwidth
    assert f"--recipe sealed-64:{bandwidth:g} " in str(caught[0].message)
    more = write_file(tmp_path / "b.h5", "r2d2", (0, 5, 150, 120, 3, 130), seed=1)
    assert conceal_photos(more, archive, recipe="sealed-64", secret=KEY).recipe == made.recipe
    with pytest.warns(BandwidthWarning, match="fewer"):
        few = conceal_photos(
            write_file(tmp_path / "c.h5", "r2d2", (5,)), tmp_path / "c.sfm", recipe="sealed-512", secret=KEY
        )
    assert few.recipe.startswith("sealed-512@")


@pytest.mark.parametrize(("recipe", "frames", "kept"), [
    ("sealed-64", None, False), ("sealed-64", True, True), ("random-2", None, True), ("random-2", False, False)
])  # fmt: skip
def test_sealed_archives_with_positions_hold_no_frames_unless_asked(tmp_path, recipe, frames, kept):
    source = open_source(sample_paths()["coffee"], params=LocalParams(max_features=50))
    secret = sha256(b"1").digest() if recipe == "sealed-64" else None
    conceal_photos(source, tmp_path / "p.sfm", recipe=recipe, frames=frames, secret=secret, positions=True)
    clear = dict(source.features())
    with sfumato.load(tmp_path / "p.sfm") as archive:
        for name in archive:
            np.testing.assert_array_equal(archive[name].keypoints[:, :2], clear[name].keypoints[:, :2])
            frame = archive[name].keypoints[:, 2:]
            assert np.array_equal(frame, clear[name].keypoints[:, 2:]) == kept
            assert kept or (frame == (1, 0)).all()


def write_by_scale(path):
    """Write features sorted by scale, the largest first, as COLMAP does; and the same descriptors at other places."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((120, 128))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    scales, rest = np.linspace(30, 1, 120), np.zeros(120)
    places = [rng.uniform(0, 400, (2, 120)).astype(np.float32) for _ in range(2)]
    images = {
        name: Features(np.stack([*place, scales, rest], axis=1), rows, Extractor("sift"))
        for name, place in zip(("a.jpg", "b.jpg"), places, strict=True)
    }
    write_hloc(path, images.items())
    return path, images


@pytest.mark.parametrize(("recipe", "frames", "sorts"), [
    ("sealed-64", None, True), ("sealed-64", True, False), ("random-2", None, False), ("random-2", False, True)
])  # fmt: skip
def test_the_order_of_rows_tells_scales_only_where_scales_are_kept(tmp_path, recipe, frames, sorts):
    source, clear = write_by_scale(tmp_path / "clear.h5")
    archive = tmp_path / "p.sfm"
    secret = KEY if recipe == "sealed-64" else None
    given = {"recipe": recipe, "frames": frames, "secret": secret, "positions": True}
    conceal_photos(source, archive, **given)
    before = archive.read_bytes()
    assert conceal_photos(source, archive, **given).skipped == 2
    assert archive.read_bytes() == before
    with sfumato.load(archive) as images:
        for name in images:
            own, hidden = clear[name], images[name]
            order = order_by_position(own.keypoints) if sorts else np.arange(len(own))
            np.testing.assert_array_equal(hidden.keypoints[:, :2], own.keypoints[order, :2])
            assert sorts == bool((np.diff(hidden.keypoints[:, 1]) >= 0).all())
            if secret is None:
                distances = sfumato.squared_distances(own.descriptors[order], hidden.code)
                assert np.diag(distances).max() < 1e-9
            else:
                expected = sfumato.conceal(own, str(hidden.recipe), secret=secret, positions=True)  # keeps row i
                assert np.array_equal(hidden.code.packed, expected.code.packed[order])


def test_the_same_descriptors_at_other_places_are_lifted_once(tmp_path):
    source, clear = write_by_scale(tmp_path / "clear.h5")
    conceal_photos(source, tmp_path / "p.sfm", recipe="random-2", frames=False)
    with sfumato.load(tmp_path / "p.sfm") as images:
        first, second = (
            images[name].code[np.argsort(order_by_position(clear[name].keypoints))] for name in ("a.jpg", "b.jpg")
        )
    assert np.array_equal(first.origin, second.origin)
    assert np.array_equal(first.basis, second.basis)


def test_clear_features_have_the_rows_of_an_archive(tmp_path):
    source, _ = write_by_scale(tmp_path / "clear.h5")
    for frames in (False, True):
        given = {"recipe": "sealed-64", "secret": KEY, "frames": frames, "positions": True}
        conceal_photos(source, tmp_path / f"{frames}.sfm", **given)
        write_clear_features(source, tmp_path / f"{frames}.h5", frames=frames)
        with sfumato.load(tmp_path / f"{frames}.sfm") as archive:
            for name, features in read_features([open_source(tmp_path / f"{frames}.h5")], ConcealOutcome()):
                np.testing.assert_array_equal(archive[name].keypoints[:, :2], features.keypoints[:, :2])


# --- the same archive again, extracted in another way


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"max_features": 50}, "max_features 100 and not 50"), ({"descriptor": "rootsift"}, "rootsift")],
)
def test_other_features_do_not_join_an_archive(camera_photos, tmp_path, monkeypatch, settings, words):
    path = tmp_path / "p.sfm"
    conceal_photos(camera_photos, path, local=LocalParams(max_features=100), secret=sha256(b"1").digest())
    before = path.read_bytes()
    again = conceal_photos(camera_photos, path, local=LocalParams(max_features=100), secret=sha256(b"1").digest())
    assert (again.images, again.skipped) == (0, 3)
    monkeypatch.setattr("sfumato.features.sources.read_image", None)  # no photo is read
    with pytest.raises(ArchiveError, match=words):
        conceal_photos(
            camera_photos, path, local=LocalParams(**{"max_features": 100, **settings}), secret=sha256(b"1").digest()
        )
    assert path.read_bytes() == before


def test_features_of_a_file_under_another_name_do_not_join_an_archive(hloc_file, tmp_path):
    conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2")
    with pytest.raises(ArchiveError, match="disk"):
        conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2", extractor="disk")
    assert conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2", extractor="superpoint").skipped == 2


def test_a_photo_whose_name_no_archive_takes_is_named_and_left_out(tmp_path):
    names = ["a.png", "b\nc.png", "\x1b[2J.png"]
    (tmp_path / "photos").mkdir()
    for name in names:
        shutil.copy(sample_paths()["coffee"], tmp_path / "photos" / name)
    with pytest.warns(NameWarning):
        done = conceal_photos(tmp_path / "photos", tmp_path / "p.sfm", local=LocalParams(max_features=20))
    assert (done.images, set(done.unreadable)) == (1, set(names[1:]))
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert list(archive) == ["a.png"]


def test_an_image_that_another_run_added_meanwhile_is_skipped(hloc_file, tmp_path, monkeypatch):
    """Its release stays the only one: a second lifting of the same descriptors would reveal them."""
    conceal = ConcealRun._conceal

    def be_late(run, name, features):
        if name == "query.jpg":
            sfumato.save(tmp_path / "p.sfm", {name: conceal(run, name, features)}, append=True)
            released.append(sfumato.load(tmp_path / "p.sfm")[name])
        return conceal(run, name, features)

    released = []
    monkeypatch.setattr(ConcealRun, "_conceal", be_late)
    done = conceal_photos(hloc_file, tmp_path / "p.sfm", recipe="random-2")
    assert (done.images, done.skipped, done.unreadable) == (1, 1, {})
    with sfumato.load(tmp_path / "p.sfm") as archive:
        assert list(archive) == ["db/1.jpg", "query.jpg"]
        assert np.array_equal(archive["query.jpg"].code.basis, released[0].code.basis)
