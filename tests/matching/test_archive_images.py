# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest

import sfumato
from sfumato.errors import ArchiveError, InputError
from sfumato.matching.archive_images import ArchiveImages
from sfumato.matching.mutual import MatchParams


@pytest.fixture
def images(archive_path):
    with sfumato.load(archive_path) as archive:
        yield ArchiveImages(archive)


def test_facts_are_the_header(images):
    facts = images.facts("db/2.jpg")
    assert (facts.count, facts.dim, facts.ambient_dim, facts.recipe) == (28, 2, 16, "random-2")
    assert facts.checksum == images.archive.header("db/2.jpg").checksum
    with pytest.raises(InputError, match=r"'db/9.jpg'"):
        images.facts("db/9.jpg")


def test_a_pair_is_matched_as_by_hand(images):
    by_hand = sfumato.match(images.archive["db/0.jpg"], images.archive["db/1.jpg"], ratio=0.9)
    found = images.match(("db/0.jpg", "db/1.jpg"), MatchParams(ratio=0.9))
    assert len(by_hand) > 5
    assert np.array_equal(found.indices, by_hand.indices)
    assert np.array_equal(found.distances, by_hand.distances)


def test_images_without_features_match_nothing(images):
    for pair in (("db/0.jpg", "db/5.jpg"), ("db/5.jpg", "db/0.jpg"), ("db/5.jpg", "db/5.jpg")):
        for mutual in (True, False):
            assert len(images.match(pair, MatchParams(mutual=mutual, ratio=0.8))) == 0


def test_what_was_read_is_kept_within_a_budget(images):
    names = [f"db/{i}.jpg" for i in range(5)]
    for pair in itertools.combinations(names, 2):
        images.match(pair, MatchParams())
    assert images.reads == 5
    poor = ArchiveImages(images.archive, budget=1)
    for pair in itertools.combinations(names, 2):
        poor.match(pair, MatchParams())
    assert 5 < poor.reads <= 20
    assert len(poor._cache) == 2  # the two of a pair, whatever they take


def test_all_images_are_projected_on_the_same_axes(images):
    for pair in (("db/0.jpg", "db/1.jpg"), ("db/2.jpg", "db/3.jpg"), ("db/1.jpg", "db/3.jpg")):
        images.match(pair, MatchParams())
    assert len({id(image.features.frame) for image in images._cache.values()}) == 1


def test_images_of_different_dimensions_have_axes_of_their_own(tmp_path, image):
    several = {f"{n}-{k}": image(k, ambient_dim=n) for n in (8, 24) for k in range(2)}
    sfumato.save(tmp_path / "m.sfm", several)
    with sfumato.load(tmp_path / "m.sfm") as archive:
        images = ArchiveImages(archive)
        for n in (8, 24):
            pair = f"{n}-0", f"{n}-1"
            found = images.match(pair, MatchParams())
            np.testing.assert_array_equal(found.indices, sfumato.match(several[pair[0]], several[pair[1]]).indices)


def test_a_damaged_image_is_named(archive_path, spoil):
    spoil(archive_path, "db/1.jpg")
    with sfumato.load(archive_path) as archive:
        images = ArchiveImages(archive)
        with pytest.raises(ArchiveError, match=r"db/1\.jpg"):
            images.match(("db/0.jpg", "db/1.jpg"), MatchParams())
        assert len(images.match(("db/0.jpg", "db/2.jpg"), MatchParams()))


def test_different_descriptors_are_not_compared(tmp_path, image):
    sfumato.save(tmp_path / "m.sfm", {"a": image(0), "b": image(1, extractor="disk")})
    with (
        sfumato.load(tmp_path / "m.sfm") as archive,
        pytest.raises(InputError, match="'b'"),
    ):
        ArchiveImages(archive).match(("a", "b"), MatchParams())


def test_void_pairs_are_told(tmp_path, archive_at):
    with sfumato.load(archive_at(tmp_path / "v.sfm", ambient_dim=4)) as archive:
        images = ArchiveImages(archive)
        assert images.facts("db/0.jpg").is_void_with(images.facts("db/1.jpg"))
