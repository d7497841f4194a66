# SPDX-License-Identifier: Apache-2.0
import json
import shutil
import warnings

import h5py
import pytest
from typer.testing import CliRunner

import sfumato
from sfumato.cli.app import app
from sfumato.matching.batch import match_archive
from sfumato.matching.match_file import load_matches
from sfumato.store.public_points import load_public


@pytest.fixture
def run_here(monkeypatch):
    """Run the command in this process, which is quicker."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def folder(places, place, tmp_path_factory):
    """An archive with its matches, a map, and clear features in hloc's form; tests must not write to it."""
    folder = tmp_path_factory.mktemp("place")
    views = [name for name in places.VIEWS if " " not in name]
    places.write_model(place, folder / "model", views)
    place.archive(folder / "private.sfm", views)
    with sfumato.load(folder / "private.sfm") as archive:
        match_archive(archive, folder / "matches.h5")
    with h5py.File(folder / "feats-sift.h5", "w") as file:
        for name in views:
            group, features = file.create_group(name), place.features[name]
            group["keypoints"], group["descriptors"] = features.keypoints[:, :2], features.descriptors.T
    return folder


def test_colmap_gets_a_database_that_it_verifies(run_here, folder, tmp_path):
    import pycolmap

    database, command = tmp_path / "private.db", ("export", "colmap", folder / "private.sfm", folder / "matches.h5")
    counts = json.loads(run_here(*command, "-o", database, "--json").stdout)
    assert (counts["images"], counts["pairs"], counts["guessed cameras"]) == (4, 6, 4)
    pycolmap.geometric_verification(database)
    with pycolmap.Database.open(database) as opened, load_matches(folder / "matches.h5") as ours:
        numbers = {image.name: image.image_id for image in opened.read_all_images()}
        assert not any(len(opened.read_descriptors(number).data) for number in numbers.values())
        for first, second in ours:
            rows = opened.read_matches(numbers[first], numbers[second])
            assert rows.tolist() == ours[first, second].indices.tolist()
        assert opened.num_verified_image_pairs() == 6
    content = database.read_bytes()
    assert "another path" in run_here(*command, "-o", database, code=1).stderr
    assert database.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["private.db"]


def test_a_database_of_what_does_not_fit_is_not_written(run_here, folder, tmp_path):
    (tmp_path / "cameras.txt").write_text("other.jpg SIMPLE_PINHOLE 640 480 500 320 240\n")
    for matches, options in (("matches.h5", ("--cameras", tmp_path / "cameras.txt")), ("missing.h5", ())):
        words = ("export", "colmap", folder / "private.sfm", folder / matches, "-o", tmp_path / "x.db", *options)
        assert run_here(*words, code=1).stderr.startswith("error: ")
    assert not (tmp_path / "x.db").exists()


def test_hloc_gets_features_matches_and_pairs(run_sfumato, run_here, folder, tmp_path):
    done = run_sfumato("export", "hloc", folder / "private.sfm", folder / "matches.h5", "-o", tmp_path / "hloc")
    assert "features without descriptors of 4 images, 6 pairs with" in done.stdout
    assert done.stdout.rstrip().endswith("(features.h5, matches.h5, pairs.txt)")
    assert len((tmp_path / "hloc" / "pairs.txt").read_text().splitlines()) == 6
    with load_matches(tmp_path / "hloc" / "matches.h5") as again, load_matches(folder / "matches.h5") as ours:
        for pair in ours:
            assert again[pair].indices.tolist() == ours[pair].indices.tolist()
    done = run_here("export", "hloc", folder / "private.sfm", "-o", tmp_path / "hloc", code=1)
    assert "exists" in done.stderr
    facts = json.loads(
        run_here("export", "hloc", folder / "private.sfm", "-o", tmp_path / "hloc", "--overwrite",
                    "--with-subspaces", "--json").stdout
    )  # fmt: skip
    assert (facts["images"], facts["pairs"]) == (4, 0)
    with h5py.File(tmp_path / "hloc" / "features.h5") as file:
        assert file["db/a.jpg/subspace_basis"].shape[1:] == (2, 32)


def test_clear_features_come_only_on_request(run_here, folder, photos, tmp_path):
    done = run_here("export", "hloc", folder / "feats-sift.h5", "-o", tmp_path / "a", code=1)
    assert "HDF5" in done.stderr
    done = run_here("export", "hloc", folder / "private.sfm", "--clear", "-o", tmp_path / "a", code=1)
    assert "already concealed" in done.stderr
    done = run_here("export", "hloc", photos, "--clear", "-o", tmp_path / "a", "--max-features", 50)
    assert "clear features of 3 images, 1 unreadable" in done.stdout
    assert "skipped broken.jpg" in done.stderr
    with h5py.File(tmp_path / "a" / "features.h5") as file:
        assert file["deep/b.jpg/descriptors"].shape == (128, 50)
        assert file["grey.png/keypoints"].shape == (0, 2)
    done = run_here("export", "hloc", photos, folder / "matches.h5", "--clear", "-o", tmp_path / "b", code=1)
    assert "leave out the matches" in done.stderr


def test_a_publication_must_be_meant(run_here, folder, tmp_path):
    path = tmp_path / "public-points.sqlite"
    arguments = ("export", "public", folder / "feats-sift.h5", "--map", folder / "model", "-o", path)
    done = run_here(*arguments, code=1)
    assert "cannot be taken back" in done.stderr
    assert "--yes" in done.stderr
    assert not path.exists()
    done = run_here(*arguments, "--yes", "--extractor", "sift")
    assert done.stdout.startswith("published ")
    assert " points in 4 images: " in done.stdout
    with load_public(path) as file:
        assert len(file) == 4
        assert file.extractor.name == "sift"
    assert "exists" in run_here(*arguments, "--yes", code=1).stderr


def test_what_is_not_published_is_named(run_here, folder, tmp_path):
    with h5py.File(folder / "feats-sift.h5") as file, h5py.File(tmp_path / "feats-sift.h5", "w") as other:
        file.copy("deep", other)
    done = run_here(
        "export", "public", tmp_path / "feats-sift.h5", "--map", folder / "model", "-o", tmp_path / "p.h5", "--yes",
        "--json",
    )  # fmt: skip
    facts = json.loads(done.stdout)
    assert (facts["images"], len(facts["missing"])) == (1, 3)
    assert "not published db/a.jpg" in done.stderr


def test_photos_that_were_not_mapped_are_not_published(run_here, folder, photos, tmp_path):
    done = run_here("export", "public", photos, "--map", folder / "model", "-o", tmp_path / "p.h5", "--yes", code=1)
    assert "nothing to publish" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_export_never_replaces_what_it_reads_or_another_kind(run_here, folder, tmp_path):
    for name in ("private.sfm", "matches.h5"):
        shutil.copy(folder / name, tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    own = ("export", "hloc", tmp_path / "private.sfm", tmp_path / "matches.h5", "-o", tmp_path, "--overwrite")
    assert "it is the match file" in run_here(*own, code=1).stderr
    publish = ("export", "public", folder / "feats-sift.h5", "--map", folder / "model", "--yes", "--overwrite")
    done = run_here(*publish, "-o", tmp_path / "private.sfm", code=1)
    assert "is not a file of public points" in done.stderr
    done = run_here(*publish, "-o", folder / "feats-sift.h5", code=1)
    assert "it is the source" in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    shutil.copy(tmp_path / "private.sfm", tmp_path / "features.h5")
    done = run_here("export", "hloc", folder / "private.sfm", "-o", tmp_path, "--overwrite", code=1)
    assert "features.h5 is not a file of features as hloc has them" in done.stderr


def test_any_detector_and_descriptor_can_be_exported(run_here, folder, photos, untrained, tmp_path):
    settings = ("--extractor", "harris", "--descriptor", "hardtfeat", "--weights", untrained, "--max-features", 20)
    run_here("export", "hloc", photos / "deep", "--clear", "-o", tmp_path / "a", *settings)
    with h5py.File(tmp_path / "a" / "features.h5") as file:
        assert file["b.jpg/descriptors"].shape == (128, 20)
    done = run_here(
        "export", "public", photos / "deep", "--map", folder / "model", "-o", tmp_path / "p.h5", "--yes", *settings,
        code=1,
    )  # fmt: skip
    assert "nothing to publish" in done.stderr


def test_help_teaches(run_here):
    assert "Example" in run_here("export", "hloc", "--help").stdout
    assert "--yes" in run_here("export", "public", "--help").stdout
    assert "hloc" in run_here("export", "--help").stdout
