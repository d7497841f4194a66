# SPDX-License-Identifier: Apache-2.0
import shutil

import numpy as np
import pytest

import sfumato
from sfumato.errors import ArchiveError, FileError
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.geometry.maps import CODES, LANDMARKS, Map, draw_map, load_map, save_landmarks
from sfumato.geometry.model import read_model
from sfumato.types.concealed import PublicPoints


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def mapped(places, place, tmp_path_factory):
    """A map with its landmarks, and the archive it was made from; tests must not write to it."""
    folder = tmp_path_factory.mktemp("map")
    places.write_model(place, folder / "model")
    archive = place.archive(folder / "private.sfm", [*places.VIEWS, *places.QUERIES])
    with sfumato.load(archive) as opened:
        count = save_landmarks(folder / "model", opened)
    return folder / "model", archive, count


@pytest.fixture
def copy(mapped, tmp_path):
    shutil.copytree(mapped[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_landmarks_are_the_rows_that_see_a_point_as_they_were(mapped, places):
    folder, archive, count = mapped
    model = read_model(folder)
    assert count == len(model.landmarks.observations)
    with sfumato.load(archive) as whole, sfumato.load(folder / LANDMARKS) as kept:
        assert tuple(kept) == tuple(sorted(places.VIEWS))
        for name in kept:
            rows = model.sight(name).keypoints
            assert 0 < len(rows) < len(whole[name])
            assert np.array_equal(kept[name].keypoints, whole[name].keypoints[rows])
            assert np.array_equal(kept[name].code.origin, whole[name].code.origin[rows])
            assert np.array_equal(kept[name].code.basis, whole[name].code.basis[rows])
            assert kept[name].recipe == whole[name].recipe
            assert kept[name].image_size == whole[name].image_size


def test_half_precision_stays_half_precision(copy, place, places, tmp_path):
    sfumato.save(tmp_path / "half.sfm", place.concealed(places.VIEWS), dtype="float16")
    with sfumato.load(tmp_path / "half.sfm") as archive:
        save_landmarks(copy, archive)
    with sfumato.load(copy / LANDMARKS) as kept:
        assert {kept.header(name).dtype for name in kept} == {"float16"}


def test_a_map_gives_landmarks_and_what_stands_for_them(mapped):
    folder, archive, _ = mapped
    with load_map(folder) as map_, sfumato.load(archive) as whole:
        assert not map_.is_public
        assert len(map_) == 5
        assert "db/a.jpg" in map_
        assert "query/0.jpg" not in map_
        view, sight = map_.view("db/a.jpg"), map_.model.sight("db/a.jpg")
        assert np.array_equal(view.landmarks, sight.landmarks)
        assert np.array_equal(view.side.subspaces.origin, whole["db/a.jpg"].code.origin[sight.keypoints])
        assert map_.view("db/a.jpg") is view
        assert list(map_.landmarks()) == list(map_.names)
        assert map_.extractor is None
        assert repr(map_) == f"Map({len(map_.positions)} points, 5 images, concealed)"


def test_few_images_are_kept_when_memory_is_short(mapped, monkeypatch):
    monkeypatch.setattr("sfumato.geometry.maps.CACHE_BYTES", 1)
    with load_map(mapped[0]) as map_:
        first = map_.view("db/a.jpg")
        map_.view("db/b.jpg")
        assert map_.view("db/a.jpg") is not first


def public_points(place, model, names):
    return {
        name: PublicPoints(
            model.numbers[model.sight(name).landmarks],
            place.features[name].descriptors[model.sight(name).keypoints],
            place.features[name].extractor,
        )
        for name in names
    }


def test_public_points_of_some_images_will_do(mapped, place):
    model = read_model(mapped[0])
    map_ = Map(model, public_points(place, model, ["db/a.jpg"]), is_public=True)
    assert (map_.names, map_.is_public) == (("db/a.jpg",), True)
    view, sight = map_.view("db/a.jpg"), model.sight("db/a.jpg")
    assert np.array_equal(view.landmarks, sight.landmarks)
    assert view.side.subspaces.basis.shape == (len(sight), 0, 32)
    assert view.side.extractor.name == "sift"
    assert "public points" in repr(map_)
    assert list(map_.landmarks()) == ["db/a.jpg"]
    assert map_.landmarks()["db/a.jpg"].shape == (len(sight), 32)


def test_public_points_of_another_map_are_refused(mapped):
    model = read_model(mapped[0])
    unseen = np.setdiff1d(np.arange(len(model.numbers)), model.sight("db/a.jpg").landmarks)
    for points in ([10**6], model.numbers[unseen[:1]]):
        map_ = Map(model, {"db/a.jpg": PublicPoints(points, np.ones((1, 32)))}, is_public=True)
        with pytest.raises(FileError, match="model"):
            map_.view("db/a.jpg")


def test_public_points_are_never_found_by_themselves(copy, mapped):
    (copy / LANDMARKS).unlink()
    (copy / "public-points.sqlite").write_bytes(b"whatever")
    with pytest.raises(FileError, match=r"without landmarks\.sfm.*--public"):
        load_map(copy)
    with pytest.raises(FileError, match="public points"):
        load_map(copy, public=copy / "public-points.sqlite")


def test_landmarks_of_another_map_are_refused(copy, places, place, tmp_path):
    other = places.make_place(seed=5)
    places.write_model(other, tmp_path / "other")
    with sfumato.load(other.archive(tmp_path / "other.sfm", places.VIEWS)) as archive:
        save_landmarks(tmp_path / "other", archive)
    shutil.copy(tmp_path / "other" / LANDMARKS, copy / LANDMARKS)
    with pytest.raises(FileError, match="belong"):
        load_map(copy)


def test_landmarks_that_fit_in_number_only_are_refused_when_read(copy, mapped):
    with sfumato.load(mapped[0] / LANDMARKS) as kept:
        moved = {name: sfumato.ConcealedFeatures(f.keypoints + np.float32(0.5), f.code, f.recipe, f.extractor)
                 for name, f in kept.items()}  # fmt: skip
    sfumato.save(copy / LANDMARKS, moved)
    with load_map(copy) as map_, pytest.raises(FileError, match="landmarks"):
        map_.view("db/a.jpg")


def test_too_many_and_too_few_images_are_refused(copy, mapped, places, place):
    with sfumato.load(mapped[0] / LANDMARKS) as kept:
        some = {name: kept[name] for name in list(kept)[1:]}
        more = {**dict(kept), "zoo.jpg": kept["db/a.jpg"]}
    sfumato.save(copy / LANDMARKS, some)
    with pytest.raises(FileError, match=r"'db/a\.jpg'"):
        load_map(copy)
    sfumato.save(copy / LANDMARKS, more)
    with pytest.raises(FileError, match="more images"):
        load_map(copy)


def test_a_damaged_image_does_not_stop_the_others(copy, mapped):
    with sfumato.load(copy / LANDMARKS) as kept:
        raw = kept["db/b.jpg"].code.origin.tobytes()
    content = bytearray((copy / LANDMARKS).read_bytes())
    content[content.index(raw[:64])] ^= 1
    (copy / LANDMARKS).write_bytes(content)
    with load_map(copy) as map_:
        assert len(map_.view("db/a.jpg").landmarks)
        with pytest.raises(ArchiveError, match=r"db/b\.jpg"):
            map_.view("db/b.jpg")


def test_an_archive_that_was_not_mapped_is_refused_and_nothing_is_left(copy, places, place, tmp_path):
    (copy / LANDMARKS).unlink()
    with (
        sfumato.load(place.archive(tmp_path / "few.sfm", places.VIEWS[1:])) as few,
        pytest.raises(FileError, match=r"lacks 'db/a\.jpg'"),
    ):
        save_landmarks(copy, few)
    other = places.make_place(seed=5)
    with (
        sfumato.load(other.archive(tmp_path / "other.sfm", places.VIEWS)) as archive,
        pytest.raises(FileError, match="mapped"),
    ):
        save_landmarks(copy, archive)
    assert not (copy / LANDMARKS).exists()


def test_public_points_file_of_another_place(copy, tmp_path, mapped, place):
    from sfumato.publish import _write_public

    model = read_model(copy)
    points = public_points(place, model, ["db/a.jpg"])["db/a.jpg"]
    _write_public(tmp_path / "p.h5", [("db/a.jpg", points), ("zoo.jpg", points)])
    with pytest.raises(FileError, match=r"'zoo\.jpg'"):
        load_map(copy, public=tmp_path / "p.h5")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("map.png", b"\x89PNG"), ("map.svg", b"<?xml"), ("deep/map.PDF", b"%PDF")])
def test_a_map_is_drawn_in_the_kind_its_name_says(mapped, tmp_path, name, start):
    draw_map(mapped[0], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_picture_shows_points_and_cameras_from_two_sides(mapped, tmp_path):
    draw_map(mapped[0], tmp_path / "whole.svg", "title")
    model = read_model(mapped[0])
    drawn = (tmp_path / "whole.svg").read_text().count("<use ")
    assert drawn > 2 * len(model.names) + 1.8 * len(model.landmarks)  # a few points are beyond the edge


def test_a_picture_needs_a_kind_that_can_be_drawn_and_a_map(mapped, tmp_path):
    with pytest.raises(FileError, match=r"\.svg"):
        draw_map(mapped[0], tmp_path / "map.jpeg")
    with pytest.raises(FileError, match="COLMAP model"):
        draw_map(tmp_path, tmp_path / "map.png")
    assert not list(tmp_path.iterdir())


def test_bits_of_a_sealed_map_are_mapped_from_one_file_and_only_if_they_are_its_own(sealed_map):
    folder = sealed_map
    with load_map(folder) as map_:
        votes = map_.votes()
        assert votes.names == map_.names
        assert isinstance(votes.packed.base, np.memmap)
        for name, start, stop in zip(votes.names, votes.starts, votes.starts[1:], strict=False):
            assert np.array_equal(votes.packed[start:stop], map_.view(name).side.code.packed)
        expected = votes.packed.copy()
    arrays, texts = load_tensors(folder / CODES)
    save_tensors(folder / CODES, {**arrays, "packed": arrays["packed"] ^ 1}, {**texts, "of": "another map"})
    with load_map(folder) as map_:
        assert np.array_equal(map_.votes().packed, expected)  # read from the landmarks


HOSTILE_CODES = {
    "flat": lambda packed, starts: (packed.ravel(), starts),
    "deep": lambda packed, starts: (packed[..., None], starts),
    "wide": lambda packed, starts: (np.tile(packed, 2), starts),
    "narrow": lambda packed, starts: (packed[:, :8].copy(), starts),
    "floats": lambda packed, starts: (packed, starts.astype(np.float64)),
    "shuffled": lambda packed, starts: (packed, np.r_[starts[:1], starts[1:-1][::-1], starts[-1:]]),
}


@pytest.mark.parametrize("change", HOSTILE_CODES.values(), ids=list(HOSTILE_CODES))
def test_bits_that_cannot_be_of_the_map_are_read_from_its_landmarks(sealed_map, change):
    arrays, texts = load_tensors(sealed_map / CODES)
    packed, starts = change(arrays["packed"], arrays["starts"])
    save_tensors(sealed_map / CODES, {"packed": packed, "starts": starts}, {"of": texts["of"]})
    with load_map(sealed_map) as map_:
        votes = map_.votes()
    assert np.array_equal(votes.packed, arrays["packed"])
    assert np.array_equal(votes.starts, arrays["starts"])


def test_a_damaged_file_of_bits_is_told_of_and_read_from_the_landmarks(sealed_map, caplog):
    expected = load_tensors(sealed_map / CODES)[0]["packed"]
    (sealed_map / CODES).write_bytes((sealed_map / CODES).read_bytes()[:-1])
    with load_map(sealed_map) as map_:
        assert np.array_equal(map_.votes().packed, expected)
    assert "damaged" in caplog.text


@pytest.fixture
def sealed_map(copy, mapped, tmp_path):
    """The folder of a map whose landmarks are bits, drawn for them."""
    rng = np.random.default_rng(0)
    with sfumato.load(mapped[1]) as lifted:
        sealed = {
            name: sfumato.ConcealedFeatures(
                one.keypoints, sfumato.Bits(rng.integers(0, 256, (len(one), 64), np.uint8)),
                "sealed-512@0123456789ab", one.extractor, one.image_size,
            )
            for name, one in lifted.items()
        }  # fmt: skip
    sfumato.save(tmp_path / "sealed.sfm", sealed)
    with sfumato.load(tmp_path / "sealed.sfm") as archive:
        save_landmarks(copy, archive)
    return copy
