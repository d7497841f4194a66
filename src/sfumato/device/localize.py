# SPDX-License-Identifier: Apache-2.0
"""Photos localized on the device that has them, by its own positions."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from operator import length_hint
from pathlib import Path
from tempfile import TemporaryDirectory

from sfumato.concealment.resolve import resolve_ahead
from sfumato.concealment.seal import (
    is_made_under,
)
from sfumato.device.cameras import need_photos
from sfumato.device.conceal import ConcealRun, RunKey, fingerprint_of, warn_of_names
from sfumato.errors import (
    InputError,
    RecipeError,
)
from sfumato.features.local import LocalParams
from sfumato.features.sources import open_source
from sfumato.geometry.cameras import (
    read_known_cameras,
)
from sfumato.geometry.localization import LocalizeParams
from sfumato.geometry.maps import Map, load_map
from sfumato.geometry.outputs import Inputs
from sfumato.geometry.queries import Localizations, localize
from sfumato.geometry.shortlist import CandidatesLike
from sfumato.matching.codebook import Codebook
from sfumato.store.archive import Archive
from sfumato.store.layout import ImageHeader
from sfumato.store.writer import ArchiveWriter
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import Extractor
from sfumato.types.progress import StageProgress
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Camera


def localize_photos(
    photos: str | os.PathLike[str],
    model: str | os.PathLike[str] | Map,
    cameras: str | os.PathLike[str] | Mapping[str, Camera] | None = None,
    pairs: CandidatesLike = "exhaustive",
    params: LocalizeParams | None = None,
    *,
    secret: bytes | None = None,
    place: str | None = None,
    codebook: Codebook | None = None,
    output: str | os.PathLike[str] | None = None,
    inputs: Inputs | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    progress: StageProgress = lambda stage, items, total: items,
) -> Localizations:
    """Localize photos against a map on the device that has its key: conceal them as the map's were, then ``localize``.

    Features are extracted with the settings of the map's. What is concealed is in a private folder and is deleted in
    the end; focal lengths come from EXIF where no cameras are given, or the list marks them as guesses. ``secret``:
    the device key that the map was made with, by default this user's; ``place`` if it was made for one. The rest is as
    in ``localize``.

    Raises RecipeError for a map that was made under another device key, naming its fingerprint, and InputError for one
    whose features were made by another program or in another version: extract and conceal the photos in the same way,
    and localize the archive.
    """
    with ExitStack() as stack:
        map_ = model if isinstance(model, Map) else stack.enter_context(load_map(model))
        made = _landmarks_of(map_)
        recipe, local = made.recipe, local_params_of(made.extractor)
        key = RunKey.choose(recipe, secret, recipe.evaluation_seed, place)
        _refuse_other_device(recipe, key)
        source = open_source(photos, params=local, workers=workers)
        need_photos(source)
        if output is not None:
            warn_of_names(source.names, is_drawn=recipe.lifting is not None and secret is None)
        archive = Path(stack.enter_context(TemporaryDirectory(prefix="sfumato-"))) / "queries.sfm"
        run = ConcealRun(
            resolve_ahead(str(recipe)), key, None, None, keeps_frames=not recipe.is_sealed, with_cameras=True
        )
        with ArchiveWriter(archive) as writer:
            hidden = run.write(source, writer, archive, lambda items: progress("concealing", items, length_hint(items)))
        if isinstance(cameras, str | os.PathLike):
            inputs = {"the list of cameras": cameras, **(inputs or {})}
            cameras = read_known_cameras(cameras, source.names)
        outcome = localize(
            archive, map_, cameras, pairs, params,
            codebook=codebook, output=output, inputs=inputs, overwrite=overwrite, progress=progress,
        )  # fmt: skip
    outcome.unreadable |= hidden.unreadable
    return outcome


def _landmarks_of(map_: Map) -> ImageHeader | ConcealedFeatures:
    """Return what the concealed landmarks of a map are: the first image says it for all."""
    images = map_.landmarks()
    if map_.is_public or not map_.names:
        raise InputError("photos are concealed as the landmarks of a map are, and this one has none that are concealed")
    name = map_.names[0]
    made: ImageHeader | ConcealedFeatures = images.header(name) if isinstance(images, Archive) else images[name]
    return made


def local_params_of(extractor: Extractor) -> LocalParams:
    """Return the settings of the features of a map, if this version can extract such features."""
    settings = dict(extractor.settings)
    if settings.keys() == {entry.name for entry in fields(LocalParams)} and settings["weights"] is None:
        return LocalParams(**settings)  # type: ignore[arg-type]
    raise InputError(
        f"the features of this map ({extractor.name}) were made by a network, another program or another version: "
        f"extract and conceal the photos in the same way (sfumato conceal), and localize the archive"
    )


def _refuse_other_device(recipe: Recipe, key: RunKey) -> None:
    """Raise RecipeError if the landmarks of a map were sealed under another key than the one of this device."""
    if not recipe.is_sealed:
        return
    secret, name = key.sealing, recipe.links[-1].checksum
    if secret is not None and is_made_under(recipe, recipe, secret):
        return
    here = "and this device has no key" if secret is None else f"and the given one has {fingerprint_of(recipe, secret)}"
    raise RecipeError(
        f"the map was made under the device key with the fingerprint {name}, {here}: give the key of the map "
        f"(--secret-file, secret=) and its place if it has one (--place, place=), or localize on a device that has it"
    )
