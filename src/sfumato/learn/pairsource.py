# SPDX-License-Identifier: Apache-2.0
"""Pairs to learn from, whatever they are made of: a file of pairs, UBC's or HPatches' patches, or photos.

What a place holds is told by what is in it. Knows clear descriptors, which only training may.
"""

import os
from pathlib import Path

import numpy as np

from sfumato.errors import InputError
from sfumato.features.local import extractor_of
from sfumato.features.networks import kind_of
from sfumato.features.results import Progress, identity
from sfumato.images.hpatches import list_hpatches, read_hpatches
from sfumato.images.patchsets import LEVELS, number_apart
from sfumato.images.read import list_images
from sfumato.images.ubc import is_ubc_folder, read_points, read_ubc
from sfumato.learn.pairfile import load_pairs
from sfumato.learn.pairs import DescriptorPairs, PairParams, keep_some, pairs_from_photos
from sfumato.learn.patchpairs import pairs_from_patches


def read_pairs(
    place: str | os.PathLike[str], params: PairParams | None = None, *, progress: Progress = identity
) -> DescriptorPairs:
    """Return the pairs of a place: a file that ``save_pairs`` wrote, a folder of UBC or HPatches, or photos.

    Photos give pairs as ``pairs_from_photos``. Of patches the first of each point is paired with each other one,
    described as ``params.local`` says; ``params.most`` limits how many patches are read, points drawn evenly from
    ``params.seed``. HPatches gives all three levels.

    Raises FileError or ImageError for what can not be read, InputError for a file of another descriptor than the params
    ask for, or no pair at all.
    """
    chosen, folder = params or PairParams(), Path(place)
    if is_pair_file(folder):
        pairs = load_pairs(folder)
        refuse_others(pairs, extractor_of(chosen.local).name, folder)
        return pairs
    rng = np.random.default_rng([chosen.seed, 0])
    if is_ubc_folder(folder):
        parts = [(0, read_ubc(folder, keep_some(read_points(folder), chosen.most, rng)))]
    elif sequences := list_hpatches(folder):
        most = -(-chosen.most // (len(sequences) * len(LEVELS) * 6)) or None
        names = [(number, one, level) for number, one in enumerate(sequences) for level in LEVELS]
        parts = [(number, read_hpatches(one, level, most=most)) for number, one, level in progress(names)]
    else:
        return pairs_from_photos([path for _, path in list_images(folder)], chosen, progress=progress)
    made = [(number, pairs_from_patches(part, chosen.local)) for number, part in parts]
    if not sum(len(one) for _, one in made):
        raise InputError(f"{folder}: no point in it has two patches with contrast")
    groups = np.concatenate([np.full(len(one), number, np.int32) for number, one in made])
    points = np.concatenate([one.points for _, one in made])
    return DescriptorPairs(
        np.concatenate([one.first for _, one in made]),
        np.concatenate([one.second for _, one in made]),
        number_apart([points[groups == number] for number in range(int(groups.max()) + 1)]),  # levels share points
        groups,
        extractor_of(chosen.local),
    )


def is_pair_file(place: str | os.PathLike[str]) -> bool:
    """Tell whether this is a file of pairs, whose descriptors are made already."""
    path = Path(place)
    return path.is_file() and path.suffix == ".npz"


def refuse_others(pairs: DescriptorPairs, wanted: str, place: str | os.PathLike[str]) -> None:
    """Raise InputError for pairs of another descriptor than ``wanted``, a name of an extractor.

    The name of a network without the checksum of weights stands for any weights.
    """
    name = pairs.extractor.name
    if wanted not in (name, kind_of(name)) and "unknown" not in (name, wanted):
        advice = (
            "give the weights they were made with" if kind_of(wanted) == kind_of(name) else "choose the one they hold"
        )
        raise InputError(f"{place}: these pairs are {name}, asked for are {wanted}: {advice}, or make others of photos")
