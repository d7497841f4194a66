# SPDX-License-Identifier: Apache-2.0
import re

import h5py
import numpy as np
import pytest

from sfumato.errors import SourceError
from sfumato.features.hloc import extractor_in_hloc, features_in_hloc, guess_extractor, list_hloc, read_hloc
from sfumato.types.clear import Features


def names_in(path):
    return list_hloc(path, "x")[0]


def only(path, **options):
    """Read a file of one image."""
    [(_, features)] = read_hloc(path, **options)
    return features


def test_images_in_folders_come_sorted(write_hloc, hloc_image):
    path = write_hloc({"query.jpg": hloc_image(5), "db/1.jpg": hloc_image(7), "db/deep/0.jpg": hloc_image(0)})
    assert names_in(path) == ["db/1.jpg", "db/deep/0.jpg", "query.jpg"]
    found = dict(read_hloc(path))
    assert list(found) == names_in(path)
    assert [len(features) for features in found.values()] == [7, 0, 5]
    assert found["db/deep/0.jpg"].descriptors.shape == (0, 256)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_are_taken_as_they_are(write_hloc, hloc_image, dtype):
    arrays = hloc_image(9, dtype=dtype)
    features = only(write_hloc({"a.jpg": arrays}))
    assert (features.keypoints[:, :2] == arrays["keypoints"].astype(np.float32)).all()
    assert (features.keypoints[:, 2] == 1).all()
    assert (features.keypoints[:, 3] == 0).all()
    assert np.abs(features.descriptors - arrays["descriptors"].T.astype(np.float32)).max() < 1e-3
    assert features.image_size == (640, 480)
    assert features.extractor.name == "superpoint"
    assert features.extractor.settings == {"source": "hloc"}


def test_rounding_to_half_precision_does_not_spoil_unit_norm(write_hloc, hloc_image):
    features = only(write_hloc({"a.jpg": hloc_image(50)}))
    assert np.abs(np.linalg.norm(features.descriptors.astype(float), axis=1) - 1).max() < 1e-6


def test_descriptors_of_other_norms_are_kept(write_hloc, hloc_image):
    arrays = hloc_image(9, 64, dtype=np.float32)
    arrays["descriptors"] *= np.linspace(0.5, 3, 9, dtype=np.float32)
    assert (only(write_hloc({"a.jpg": arrays})).descriptors == arrays["descriptors"].T).all()


def test_scales_and_orientations(write_hloc, hloc_image):
    arrays = {**hloc_image(4, 128), "scales": np.float16([1, 2, 3, 4.5]), "oris": np.float16([-90, 0, 90, 450])}
    del arrays["image_size"], arrays["scores"]
    features = only(write_hloc({"a.jpg": arrays}, "feats-sift.h5"))
    assert features.keypoints[:, 2].tolist() == [1, 2, 3, 4.5]
    assert features.keypoints[:, 3].tolist() == [270, 0, 90, 90]
    assert features.image_size is None
    assert features.extractor.name == "rootsift"


@pytest.mark.parametrize(
    ("name", "extractor"),
    [
        ("feats-superpoint-n4096-r1024.h5", "superpoint"),
        ("feats-superpoint-n4096-rmax1600.h5", "superpoint"),
        ("out/feats-r2d2-n5000-r1024.h5", "r2d2"),
        ("feats-d2net-ss.h5", "d2net-ss"),
        ("feats-sift.h5", "rootsift"),
        ("feats-sosnet.h5", "sosnet"),
        ("feats-disk.h5", "disk"),
        ("feats-aliked-n16.h5", "aliked-n16"),
        ("feats-xfeat-n5000-r1600.h5", "xfeat"),
        ("features.h5", None),
        ("global-feats-netvlad.h5", None),
        ("feats-.h5", None),
    ],
)
def test_the_file_name_says_what_it_holds(name, extractor):
    assert guess_extractor(name) == extractor


def test_a_file_that_does_not_say_what_it_holds_can_be_told(write_hloc, hloc_image, caplog):
    path = write_hloc({"a.jpg": hloc_image()}, "features.h5")
    assert extractor_in_hloc(path) is None
    assert only(path).extractor.name == "hloc"
    assert "--extractor" in caplog.text
    assert only(path, extractor="superpoint").extractor.name == "superpoint"
    other = write_hloc({"a.jpg": hloc_image()}, "feats-disk.h5")
    assert only(other, extractor="mydisk").extractor.name == "mydisk"


def test_reading_is_lazy(write_hloc, hloc_image):
    broken = {**hloc_image(), "keypoints": np.zeros((3, 2))}
    results = read_hloc(write_hloc({"a.jpg": hloc_image(), "b.jpg": broken}))
    assert next(results)[0] == "a.jpg"
    with pytest.raises(SourceError, match=r"image b\.jpg"):
        next(results)


# ---------------------------------------------------------------- files that are wrong


def with_changes(**changes):
    def change(arrays):
        for key, value in changes.items():
            if value is None:
                del arrays[key]
            else:
                arrays[key] = value

    return change


def poison(key, value):
    def change(arrays):
        arrays[key] = arrays[key].astype(np.float32)
        arrays[key].flat[5] = value

    return change


WRONG = [
    (with_changes(keypoints=None), "keypoints is missing"),
    (with_changes(descriptors=None), "descriptors is missing"),
    (with_changes(keypoints=np.zeros((30, 3))), r"keypoints has the shape \(30, 3\), expected \(any, 2\)"),
    (with_changes(keypoints=np.zeros((29, 2))), r"descriptors has the shape \(256, 30\), expected \(any, 29\)"),
    (with_changes(descriptors=np.zeros((30, 256))), r"expected \(any, 30\)"),
    (with_changes(descriptors=np.zeros(30)), "descriptors has the shape"),
    (with_changes(descriptors=np.zeros((0, 30))), "at least one dimension"),
    (with_changes(descriptors=np.array(b"text")), "not an array of numbers"),
    (with_changes(descriptors=np.zeros((256, 30), np.complex64)), "not an array of numbers"),
    (with_changes(scales=np.ones(29)), "scales has the shape"),
    (with_changes(scales=-np.ones(30)), "negative"),
    (with_changes(oris=np.full(30, np.inf)), "keypoints: 30 of 30 rows are not finite"),
    (with_changes(image_size=np.array([0, 480])), "image_size"),
    (with_changes(image_size=np.array([640, 480, 3])), "image_size has the shape"),
    (with_changes(image_size=np.array([np.nan, 480])), "image_size"),
    (with_changes(image_size=np.array([np.inf, 480])), "image_size"),
    (poison("descriptors", np.nan), "descriptors: 1 of 30 rows are not finite"),
    (poison("keypoints", np.inf), "keypoints: 1 of 30 rows are not finite"),
]  # fmt: skip


def test_a_wrong_image_is_named_and_does_not_spoil_the_others(write_hloc, hloc_image):
    images = {"right.jpg": hloc_image()}
    for number, (change, _) in enumerate(WRONG):
        images[f"{number}.jpg"] = hloc_image()
        change(images[f"{number}.jpg"])
    path = write_hloc(images)
    results = dict(features_in_hloc(path, names_in(path), extractor="superpoint"))
    assert isinstance(results.pop("right.jpg"), Features)
    for number, (_, says) in enumerate(WRONG):
        problem = results.pop(f"{number}.jpg")
        assert isinstance(problem, SourceError)
        assert re.search(says, str(problem)), problem
        assert f"{path}, image {number}.jpg" in str(problem)
    assert not results
    with pytest.raises(SourceError, match=r"image 0\.jpg"):
        list(read_hloc(path))


def test_an_image_without_either_is_not_lost(write_hloc, hloc_image):
    path = write_hloc({"a.jpg": {"scores": np.ones(3)}, "b.jpg": hloc_image()})
    assert names_in(path) == ["a.jpg", "b.jpg"]
    with pytest.raises(SourceError, match=r"a\.jpg: keypoints"):
        list(read_hloc(path))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"global_descriptor": np.ones(4096)}, "global descriptors"),
        ({"matches0": np.ones(40, np.int16), "matching_scores0": np.ones(40)}, "holds matches"),
        ({"pixels": np.ones(40)}, "no image with keypoints"),
        ({}, "no image with keypoints"),
    ],
)
def test_other_files_of_hloc_are_told_apart(write_hloc, arrays, says):
    with pytest.raises(SourceError, match=says):
        names_in(write_hloc({"a.jpg": arrays}))


def test_an_archive_of_ours_is_already_concealed(tmp_path):
    with h5py.File(tmp_path / "private.h5", "w") as file:
        file.attrs["format"] = "sfumato-archive"
    with pytest.raises(SourceError, match=r"private\.h5.*already concealed"):
        names_in(tmp_path / "private.h5")


def test_files_that_can_not_be_opened_are_named(tmp_path, write_hloc, hloc_image):
    with pytest.raises(SourceError, match="check"):
        names_in(tmp_path / "none.h5")
    with pytest.raises(SourceError, match="features"):
        names_in(tmp_path)
    (tmp_path / "feats-text.h5").write_text("no such thing")
    with pytest.raises(SourceError, match="HDF5"):
        names_in(tmp_path / "feats-text.h5")
    path = write_hloc({f"{i}.jpg": hloc_image() for i in range(5)})
    data = path.read_bytes()
    for share in (0.2, 0.6, 0.99):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(SourceError, match="HDF5"):
            read_hloc(path)


# ---------------------------------------------------------------- files that mean harm


def test_links_are_refused(tmp_path, write_hloc, hloc_image):
    secret = write_hloc({"secret.jpg": hloc_image()}, "other.h5")
    path = write_hloc({"a.jpg": hloc_image(), "c.jpg": hloc_image()})
    with h5py.File(path, "a") as file:
        file["soft.jpg"] = h5py.SoftLink("/a.jpg")
        file["external.jpg"] = h5py.ExternalLink(str(secret), "/secret.jpg")
        file["dangling.jpg"] = h5py.SoftLink("/nowhere")
        del file["c.jpg/descriptors"]
        file["c.jpg/descriptors"] = h5py.ExternalLink(str(secret), "/secret.jpg/descriptors")
    found = dict(features_in_hloc(path, names_in(path), extractor="superpoint"))
    assert sorted(found) == ["a.jpg", "c.jpg", "dangling.jpg", "external.jpg", "soft.jpg"]
    assert isinstance(found.pop("a.jpg"), Features)
    for name, problem in found.items():
        assert isinstance(problem, SourceError)
        assert "links are refused" in str(problem)
        assert name in str(problem)


def test_data_of_other_files_is_refused(tmp_path, write_hloc, hloc_image):
    other = write_hloc({"secret.jpg": hloc_image()}, "other.h5")
    (tmp_path / "raw.bin").write_bytes(bytes(30 * 256 * 4))
    path = write_hloc({name: {"keypoints": hloc_image()["keypoints"]} for name in ("a.jpg", "b.jpg")})
    layout = h5py.VirtualLayout((256, 30), np.float16)
    layout[:] = h5py.VirtualSource(str(other), "secret.jpg/descriptors", (256, 30))
    with h5py.File(path, "a") as file:
        file["a.jpg"].create_virtual_dataset("descriptors", layout)
        outside = [(str(tmp_path / "raw.bin"), 0, h5py.h5f.UNLIMITED)]
        file["b.jpg"].create_dataset("descriptors", (256, 30), np.float32, external=outside)
    results = list(features_in_hloc(path, names_in(path), extractor="x"))
    assert ["lies in another file" in str(problem) for _, problem in results] == [True, True]


def test_huge_claims_are_refused_before_memory_is_asked(write_hloc, hloc_image):
    path = write_hloc({"a.jpg": {}, "b.jpg": {}, "c.jpg": {}, "d.jpg": {}})
    with h5py.File(path, "a") as file:
        file["a.jpg"].create_dataset("keypoints", (2**40, 2), np.float32, chunks=(1000, 2))
        file["b.jpg"].create_dataset("keypoints", (2**40, 2), np.float32, chunks=(1000, 2), compression="gzip")
        file["b.jpg/keypoints"][:1000] = 1
        file["c.jpg"].create_dataset("keypoints", (2**30, 2), np.float32)
        file["d.jpg"].create_dataset("keypoints", (100_000, 2), np.float32, chunks=(1000, 2))
        file["d.jpg/keypoints"][:1000] = 1  # one chunk of a hundred is there
        for name in file:
            file[name].create_dataset("descriptors", (4, 2**40), np.float32, chunks=(4, 1000))
    for _, problem in features_in_hloc(path, names_in(path), extractor="x"):
        assert isinstance(problem, SourceError)
        assert "the file holds only" in str(problem)


def test_gzip_is_read_and_other_packing_refused(tmp_path, hloc_image):
    arrays, path = hloc_image(), tmp_path / "feats-disk.h5"
    for options in ({"compression": "gzip"}, {"compression": "lzf"}, {"shuffle": True}, {"fletcher32": True}):
        with h5py.File(path, "w") as file:
            for key in ("keypoints", "descriptors"):
                file.create_dataset(f"a.jpg/{key}", data=arrays[key], chunks=True, **options)
        if "gzip" in options.values():
            assert len(only(path)) == 30
        else:
            with pytest.raises(SourceError, match="packed"):
                only(path)


@pytest.mark.parametrize("place", ["db/again", "again"])
def test_groups_in_circles_do_not_hang(write_hloc, hloc_image, place):
    path = write_hloc({"db/a.jpg": hloc_image()})
    with h5py.File(path, "a") as file:
        file[place] = file["db"]  # a hard link; many of them in a row double the work each time
    with pytest.raises(SourceError, match="nested"):
        names_in(path)


@pytest.mark.parametrize("count", [5, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{"libver": "latest"}, {"libver": "earliest"}, {"compression": "gzip"}])
def test_damage_ends_in_an_error_or_in_features(tmp_path, hloc_image, flipped, options, count):
    """Whatever damage does to libhdf5, the file gives a SourceError or features of valid shape."""
    path, packing = tmp_path / "feats-disk.h5", {"compression": options.pop("compression", None)}
    with h5py.File(path, "w", **options) as file:
        for number in range(3):
            for key in ("keypoints", "descriptors"):
                file.create_dataset(f"db/{number}.jpg/{key}", data=hloc_image(3, 8)[key], **packing)
    content, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(count):
        path.write_bytes(flipped(content, rng))
        try:
            for _, found in features_in_hloc(path, names_in(path), extractor="x"):
                refused += isinstance(found, SourceError)
        except SourceError:
            refused += 1
    assert refused
