# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, ImageError, InputError, SourceError
from sfumato.features.local import LocalParams
from sfumato.features.sources import open_source
from sfumato.images.samples import sample_image
from sfumato.types.clear import Features


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for name, rows in (("a.png", 200), ("deep/b.png", 150)):
        assert cv2.imwrite(str(folder / name), sample_image("coins").pixels[:rows])
    (folder / "broken.jpg").write_text("no picture")
    return folder


def test_a_folder_of_photos(photos):
    source = open_source(photos, max_features=50, workers=2)
    assert source.kind == "images"
    assert source.names == ("a.png", "broken.jpg", "deep/b.png")
    assert len(source) == 3
    found = dict(source.features())
    assert len(found["a.png"]) == 50
    assert found["a.png"].extractor.name == "sift"
    assert isinstance(found["broken.jpg"], ImageError)
    assert list(found) == list(source.names)
    assert [name for name, _ in source] == list(source.names), "it can be read again"
    assert repr(source) == f"FeatureSource({str(photos)!r}, images, 3 images)"


def test_one_photo(photos):
    source = open_source(str(photos / "a.png"), params=LocalParams(descriptor="rootsift"), max_features=20)
    [(name, features)] = source
    assert (name, len(features), features.extractor.name) == ("a.png", 20, "rootsift")
    [(name, problem)] = open_source(photos / "broken.jpg")
    assert isinstance(problem, ImageError)


def test_a_photo_with_another_suffix(photos):
    (photos / "a.png").rename(photos / "picture.data")
    [(name, features)] = open_source(photos / "picture.data")
    assert name == "picture.data"
    assert len(features)


def test_an_hloc_file(write_hloc, hloc_image):
    broken = {**hloc_image(), "keypoints": np.zeros((2, 2))}
    source = open_source(write_hloc({"a.jpg": hloc_image(), "b.jpg": broken, "c.jpg": hloc_image(0)}))
    assert (source.kind, source.names) == ("hloc", ("a.jpg", "b.jpg", "c.jpg"))
    found = dict(source.features())
    assert found["a.jpg"].extractor.name == "superpoint"
    assert isinstance(found["b.jpg"], SourceError)
    assert isinstance(found["c.jpg"], Features), "what follows a broken image is still read"


def test_a_colmap_database(write_colmap, colmap_image):
    images = {"a.jpg": colmap_image(), "b.jpg": (colmap_image()[0], None), "c.jpg": colmap_image()}
    path = write_colmap(images)
    source = open_source(path)
    assert (source.kind, source.names) == ("colmap", ("a.jpg", "b.jpg", "c.jpg"))
    found = dict(source.features())
    assert found["c.jpg"].extractor.name == "rootsift"
    assert isinstance(found["b.jpg"], SourceError)
    [(_, features), *_] = open_source(path, extractor="sift")
    assert features.extractor.name == "sift"


def test_the_content_counts_not_the_name(write_hloc, hloc_image, write_colmap, colmap_image):
    assert open_source(write_hloc({"a": hloc_image()}, "photo.jpg"), extractor="disk").kind == "hloc"
    assert open_source(write_colmap({"a": colmap_image()}, "photo.png")).kind == "colmap"


def test_what_is_done_can_be_skipped(photos, write_hloc, hloc_image, write_colmap, colmap_image):
    sources = [
        (open_source(photos), "a.png"),
        (open_source(write_hloc({"a.jpg": hloc_image(), "b.jpg": hloc_image()})), "a.jpg"),
        (open_source(write_colmap({"a.jpg": colmap_image(), "b.jpg": colmap_image()})), "a.jpg"),
    ]
    for source, done in sources:
        assert [name for name, _ in source.features(skip={done})] == [name for name in source.names if name != done]
        assert list(source.features(skip=source.names)) == []


def test_progress_knows_how_many_are_left(photos, write_hloc, hloc_image):
    lengths = []

    def progress(items):
        lengths.append(len(items))
        return items

    assert len(list(open_source(photos).features(progress=progress))) == 3
    assert len(list(open_source(photos).features({"a.png"}, progress=progress))) == 2
    assert len(list(open_source(write_hloc({"a": hloc_image()})).features(progress=progress))) == 1
    assert lengths == [3, 2, 1]


def test_an_archive_is_already_concealed(tmp_path):
    import sfumato

    hidden = sfumato.ConcealedFeatures(
        np.zeros((2, 4)), sfumato.Subspaces(np.zeros((2, 8)), np.tile(np.eye(2, 8), (2, 1, 1))), "random-2"
    )
    for name in ("private.sfm", "renamed.h5"):
        sfumato.save(tmp_path / name, {"a.jpg": hidden})
        with pytest.raises(SourceError, match=f"{name}.*already concealed"):
            open_source(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("features.h5", b"", "not a complete HDF5 file"),
        ("features.hdf5", b"\x89HDF\r\n\x1a\n", "not a complete HDF5 file"),
        ("database.db", b"", "not an SQLite database"),
        ("database.db", b"SQLite format 3\0 and no more", "not an SQLite database"),
        ("decoys.npz", b"PK\3\4", "holds no features: give a folder of photos"),
        ("notes.txt", b"hello", "holds no features"),
        ("nothing", b"", "holds no features"),
    ],
)
def test_what_holds_no_features_is_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=says) as caught:
        open_source(tmp_path / name)
    assert name in str(caught.value)


def test_missing_and_empty_places_are_named(tmp_path):
    with pytest.raises(SourceError, match="nowhere"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(FileError, match="no images"):
        open_source(tmp_path)


def test_settings_are_checked_at_once(photos, write_hloc, hloc_image):
    with pytest.raises(InputError, match="'max_features'"):
        open_source(photos, max_feature=3)
    with pytest.raises(InputError, match="opencv"):
        open_source(photos, extractor="superpoint")
    assert open_source(write_hloc({"a": hloc_image()}, "features.h5")).kind == "hloc"
    ((_, first), *_) = open_source(photos, extractor="opencv")
    assert first.extractor.settings["extractor"] == "opencv"


def test_opening_is_cheap_and_reading_lazy(photos, write_hloc, hloc_image):
    source = open_source(photos)
    (photos / "deep" / "b.png").unlink()
    found = dict(source.features())
    assert "not there" in str(found["deep/b.png"])
    results = open_source(write_hloc({f"{i}.jpg": hloc_image() for i in range(3)})).features()
    assert next(results)[0] == "0.jpg"
    results.close()


@pytest.mark.slow
def test_real_photos(shared_data):
    source = open_source(shared_data / "posed" / "fountain-P11" / "images", max_features=300)
    assert len(source) == 11
    name, features = next(iter(source))
    assert name == source.names[0]
    assert features.image_size == (1536, 1024)
    assert len(features) == 300
