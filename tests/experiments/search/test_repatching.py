# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.search.methods import LINEAR
from sfumato.experiments.search.repatching import PatchDictionary, cut_patches, join_patches, patch_subspaces, repatch
from sfumato.images.read import to_grey
from sfumato.images.samples import sample_image
from sfumato.inversion.metrics import picture_scores

SMALL = PatchDictionary(pixels=120)


@pytest.fixture(scope="module")
def grey():
    return to_grey(sample_image("coffee"))[100:220, 200:361]


def test_patches_are_cut_and_joined(grey):
    patches = cut_patches(grey, 5)
    assert patches.shape == (24 * 32, 25)
    assert np.array_equal(patches[1], (grey[:5, 5:10] / 255).astype(np.float32).ravel())
    assert np.allclose(join_patches(patches, grey.shape, 5), grey[:120, :160] / 255)
    with pytest.raises(InputError, match="no patch"):
        cut_patches(grey[:4], 5)


def test_subspaces_of_random_pixels(grey):
    entries = patch_subspaces(grey, SMALL, np.random.default_rng(0))
    assert entries.basis.shape == (120, 4, 25)
    assert not entries.origin.any()
    again = patch_subspaces(grey, SMALL, np.random.default_rng(0))
    assert np.array_equal(again.basis, entries.basis)
    first = np.abs(entries.basis[:, 0].sum(axis=1))  # nearly the flat patch: they are not centred
    assert np.median(first) > 4.5


def test_sixteen_patches_span_what_they_should():
    ramp = np.add.outer(np.arange(60), 2 * np.arange(60)).astype(np.uint8)
    with pytest.raises(InputError, match="flat"):
        patch_subspaces(ramp, SMALL, np.random.default_rng(0))  # patches of a plane span 2 dimensions
    with pytest.raises(InputError, match="small"):
        patch_subspaces(ramp[:10], SMALL, np.random.default_rng(0))
    with pytest.raises(InputError):
        PatchDictionary(dim=20, shifts=4)


def test_exact_search_makes_a_photo_again(grey):
    entries = patch_subspaces(grey, SMALL, np.random.default_rng(0))
    index = LINEAR["exact"].build(entries, "angle")
    made, truth, stats, angle = repatch(grey, entries, index, 5)
    assert made.shape == truth.shape == (120, 160)
    assert picture_scores(made, truth)["ssim"] > 0.85
    assert (stats.queries, stats.looked_at) == (768, 768 * 120)
    blind = LINEAR["grassmann printed pi/8"].limited(1).build(entries, "angle")
    worse = repatch(grey, entries, blind, 5)
    assert picture_scores(worse[0], truth)["ssim"] < picture_scores(made, truth)["ssim"]
    assert worse[3] > angle


def test_black_patches_stay_black(grey):
    dark = grey.copy()
    dark[:50] = 0
    entries = patch_subspaces(grey, SMALL, np.random.default_rng(0))
    made, _, stats, _ = repatch(dark, entries, LINEAR["exact"].build(entries, "angle"), 5)
    assert not made[:50].any()
    assert stats.queries == 768 - 320
