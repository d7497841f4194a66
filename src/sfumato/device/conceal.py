# SPDX-License-Identifier: Apache-2.0
"""The device that owns the photos: clear features in, archive out; cameras and poses of its photos.

The only module that holds clear features and writes archives. It knows no format itself: features come from
``features``, keys and concealment from ``concealment``, the archive from ``store``.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys, as_decoys, bundled_decoys
from sfumato.concealment.keys import device_key, device_key_path, sealing_key
from sfumato.concealment.lifting import conceal_features, refuse_place, resolve_for, stays_home
from sfumato.concealment.resolve import ResolvedRecipe, before_seal, resolve_ahead
from sfumato.concealment.rows import row_order, to_grid
from sfumato.concealment.seal import (
    FEWEST_ROWS,
    USUAL_WIDTH,
    checked_key,
    fingerprint,
    is_made_under,
    needs_estimate,
    with_bandwidth,
)
from sfumato.concealment.subset import archive_privacy
from sfumato.device.cameras import focal_length, need_photos
from sfumato.device.positions import PositionsWriter
from sfumato.errors import (
    ArchiveError,
    FileError,
    InputError,
    NameWarning,
    RecipeError,
    SfumatoError,
)
from sfumato.features.hloc import write_hloc
from sfumato.features.local import LocalParams, order_by_position
from sfumato.features.sources import FeatureSource, Result, open_source
from sfumato.geometry.cameras import (
    NAME_EARLIER,
    NAME_FIRST,
    is_listable,
    name_fault,
    name_list,
)
from sfumato.store.layout import ImageHeader
from sfumato.store.writer import ArchiveWriter
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress, SizedItems, identity
from sfumato.types.recipe import DEFAULT, Recipe

REASONS_SHOWN = 3


@dataclass(slots=True)
class ConcealOutcome:
    """Counts of a run: images and features written, images skipped, without features or unreadable.

    ``recipe`` is the one in the archive, with the checksums of encoders and the fingerprint of a key. ``privacy`` says
    what the archive spends, for recipes with a privacy guarantee. ``focal_lengths`` is the number of images in the
    archive, old and new, that have the focal length of their camera.
    """

    images: int = 0
    features: int = 0
    skipped: int = 0
    featureless: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    recipe: str = ""
    privacy: str | None = None
    focal_lengths: int = 0


def conceal_photos(
    photos: str | os.PathLike[str] | FeatureSource,
    archive: str | os.PathLike[str],
    *,
    recipe: str = DEFAULT,
    secret: bytes | None = None,
    place: str | None = None,
    decoys: Decoys | str | os.PathLike[str] | None = None,
    labels: Mapping[str, str] | None = None,
    frames: bool | None = None,
    with_cameras: bool = False,
    dtype: str = "float32",
    evaluation_seed: int | None = None,
    positions: bool | None = None,
    overwrite: bool = False,
    local: LocalParams | None = None,
    extractor: str | None = None,
    workers: int | None = None,
    progress: Progress = identity,
) -> ConcealOutcome:
    """Do the device's whole job: extract the features of photos, conceal them, and write them to an archive.

    ``photos`` is a folder of photos, a photo, an hloc features.h5, a COLMAP database, or what ``open_source`` gave.
    Images already in the archive are skipped, not released again, so that a run that was interrupted goes on when it
    is called again; ``overwrite`` starts anew. An image that cannot be used is named in the outcome and does not stop
    the others. An image that repeats another of the same run gets the same subspaces.

    ``recipe``: by default the one that we defend. A sealed recipe, as this one, needs a key: ``secret``, or
    else this user's ``device_key()``, which is made just before the first image is concealed, and never for an archive
    that already has a key. ``place`` seals under the key of that place. With other recipes ``secret`` gives the same
    descriptor always the same subspace.

    Positions of sealed features go into a file beside the archive (``positions_path``) and stay on the device, until
    ``release_positions`` lets some go; their rows lie in an order under the key. ``positions=True`` puts all of them
    into the archive, and outlines of the photos show.

    ``decoys`` (default: the bundled ones, for SIFT) and ``labels``, one per image, belong to liftings. ``frames`` says
    whether sizes and angles of keypoints are kept, from which alone much of a picture can be painted; None keeps them
    unless the recipe is sealed. Without them rows of other recipes are in order of position, because other programs
    sort by scale or strength. ``with_cameras`` puts the focal length, in pixels, that the EXIF of a photo gives into
    the archive, and nothing else of EXIF: maps and poses are better with it. ``dtype`` may be float16.
    ``evaluation_seed`` makes draws repeatable and protects nobody. ``local`` and ``workers`` are for photos,
    ``extractor`` names the descriptors of an hloc or COLMAP file.

    Encoders are read once, first: a file that changes meanwhile changes nothing.

    Raises ArchiveError if the archive cannot be written or was made in another way, and FileError, RecipeError or
    InputError, before any picture is read, for an encoder, a key or a setting that cannot be used.

    >>> import tempfile, sfumato
    >>> from sfumato.images import sample_paths
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     conceal_photos(sample_paths()["coffee"], f"{folder}/private.sfm", secret=sfumato.new_key()).images
    1
    """
    settled = resolve_ahead(recipe)
    if decoys is not None and (settled.lifting is None or not settled.lifting.decoy_count):
        raise InputError(f"decoys (--decoys) have no effect on {settled}: choose another recipe, such as sub-hybrid-2")
    source = (
        open_source(photos, params=local, extractor=extractor, workers=workers)
        if isinstance(photos, str | os.PathLike)
        else photos
    )
    if with_cameras:
        need_photos(source)
    warn_of_names(source.names, is_drawn=settled.lifting is not None and secret is None)
    key = RunKey.choose(settled, secret, evaluation_seed, place)
    if settled.is_clear:
        raise RecipeError(f"recipe {settled} conceals nothing and cannot be archived")
    _refuse_other_key(settled, key)
    run = ConcealRun(
        settled,
        key,
        as_decoys(decoys),
        labels,
        not settled.is_sealed if frames is None else frames,
        with_cameras,
        stays_home(settled, positions, frames),
    )
    with ArchiveWriter(Path(archive), append=not overwrite, dtype=dtype) as writer:
        outcome = run.write(source, writer, Path(archive), progress)
    if settled.lifting is not None and settled.lifting.epsilon is not None:
        outcome.privacy = archive_privacy(Path(archive))
    return outcome


def warn_of_names(names: Iterable[str], *, is_drawn: bool) -> None:
    """Warn before anything is concealed of names that stand in the way later: nothing can change them then.

    ``is_drawn``: liftings are drawn anew each time, so that concealing a photo again would reveal it.
    """
    wrong = [name for name in names if name_fault(name) or not is_listable(name)]
    if wrong:
        warnings.warn(
            f"{name_list(wrong)}: because of spaces, a # in front or control characters hloc's lists, and with "
            f"them sfumato localize and export, cannot hold such names; {NAME_EARLIER if is_drawn else NAME_FIRST}",
            NameWarning,
            stacklevel=3,
        )


# --- keys


@dataclass(slots=True)
class RunKey:
    """The key of a run: ``secret``, or a function to ``make`` it before the first image, or a public seed.

    With a place, seals are made under the key of that place.
    """

    secret: bytes | None = field(default=None, repr=False)
    make: Callable[[], bytes] | None = field(default=None, repr=False)
    evaluation_seed: int | None = None
    place: str | None = field(default=None, repr=False)

    @classmethod
    def choose(cls, recipe: Recipe, secret: bytes | None, evaluation_seed: int | None, place: str | None) -> "RunKey":
        """Return the given key or, for seals, this user's."""
        make = None
        if secret is None and evaluation_seed is None and recipe.is_sealed:
            if device_key_path().exists():
                secret = device_key()
            else:
                make = device_key
        if place is not None:
            refuse_place(recipe, place)
            sealing_key(b"" if make else secret, None, place)  # checks the name
            if secret is not None:
                checked_key(recipe, secret)
        return cls(secret, make, evaluation_seed, place)

    @property
    def sealing(self) -> bytes | None:
        """The key for a seal, if there is one yet."""
        if self.secret is None and self.make is not None:
            return None
        return sealing_key(self.secret, self.evaluation_seed, self.place)

    def prepare(self) -> None:
        """Make the key if there is none yet."""
        if self.secret is None and self.make is not None:
            self.secret, self.make = self.make(), None


def _refuse_other_key(recipe: Recipe, key: RunKey) -> None:
    """Raise RecipeError for a sealed recipe that names another key than the given one."""
    if not recipe.is_sealed or (key.make is not None and not recipe.links[-1].checksum):
        return
    secret = checked_key(recipe, key.sealing)
    if recipe.links[-1].checksum and not is_made_under(recipe, recipe, secret):
        raise RecipeError(
            f"recipe {recipe} was made with another device key than the given one, whose fingerprint is "
            f"{fingerprint_of(recipe, secret)}: give the key it was made with, or leave out the @ part"
        )


def fingerprint_of(recipe: Recipe, key: bytes) -> str:
    """Return how a sealed recipe names a key, and for which width: no descriptor was read yet."""
    before = before_seal(recipe)
    width = USUAL_WIDTH if before is None else before.encoders[-1].output_dim
    return f"{fingerprint(recipe, key, width)} for {width} numbers"


# --- the run


@dataclass(slots=True)
class ConcealRun:
    """One run over a source: a recipe whose encoders were read, the key, decoys and labels."""

    recipe: Recipe
    key: RunKey
    decoys: Decoys | None
    labels: Mapping[str, str] | None
    keeps_frames: bool
    with_cameras: bool = False
    is_home: bool = False
    _resolved: dict[tuple[str, int], ResolvedRecipe] = field(default_factory=dict, repr=False)

    def write(self, source: FeatureSource, writer: ArchiveWriter, output: Path, progress: Progress) -> ConcealOutcome:
        """Conceal every image of a source that is not in the archive yet, and add it."""
        made = self._refuse_other_archive(output, writer)
        _refuse_other_extractor(source, writer, output)
        self._refuse_other_cameras(source, writer, output)
        with PositionsWriter(output) as home:
            outcome = self._write_images(source, writer, output, home, made, progress)
        if not len(writer):
            raise ArchiveError(f"nothing was written: no image of {source.path} can be read. {_reasons(outcome)}")
        if self.with_cameras:
            outcome.focal_lengths = sum(writer.header(name).focal_px is not None for name in writer.names)
        return outcome

    def _write_images(
        self,
        source: FeatureSource,
        writer: ArchiveWriter,
        output: Path,
        home: PositionsWriter,
        made: set[str],
        progress: Progress,
    ) -> ConcealOutcome:
        outcome = ConcealOutcome(skipped=sum(name in writer for name in source.names))
        outcome.recipe = next((str(writer.header(name).recipe) for name in writer.names), str(self.recipe))
        first: dict[bytes, tuple[str, _Rows]] = {}
        lifting = self.recipe.lifting  # what is not lifted comes out the same again; eps covers no repeat that shows
        shares = lifting is not None and lifting.epsilon is None
        images = source.features(skip=set(writer.names), progress=progress)
        for name, features in _telling_first(images, self.recipe):
            if isinstance(features, SfumatoError):
                outcome.unreadable[name] = str(features)
                continue
            self.key.prepare()
            rows = None if self.keeps_frames else rows_by_position(features)
            digest = hashlib.blake2b(features.descriptors.tobytes()).digest()
            twin, twin_rows = first.setdefault(digest, (name, rows if shares else None))
            if twin in writer and len(features) and shares:
                if self.labels is not None and self.labels.get(twin) != self.labels.get(name):
                    outcome.unreadable[name] = f"the same features as {twin}, under another label"
                    continue
                hidden = _repeat(writer.read(twin), twin_rows, features, rows)
                hidden = hidden if self.keeps_frames else hidden.positions_only()
            else:
                features = _take(features, rows)
                hidden = self._conceal(name, features)
            if self.with_cameras:
                hidden = replace(hidden, focal_px=focal_length(source, name, features.image_size))
            made |= _refuse_mixture(output, made, _how_made(hidden))
            try:
                if hidden.tags is not None:  # first: a kill between the two loses no position
                    home.keep(name, hidden.tags.photo, self._positions_of(hidden.tags.photo, features))
                writer.add(name, hidden)
            except InputError as problem:
                if name in writer:  # another run was faster, and its release stays the only one
                    outcome.skipped += 1
                else:  # a name that no archive takes
                    outcome.unreadable[name] = str(problem)
                continue
            outcome.images += 1
            outcome.features += len(hidden)
            outcome.recipe = str(hidden.recipe)
            if len(hidden) == 0:
                outcome.featureless.append(name)
        return outcome

    def _conceal(self, name: str, features: Features) -> ConcealedFeatures:
        """Conceal one image; a recipe is resolved, and a seal made, once for all images of one kind."""
        if self.labels is not None and name not in self.labels:
            raise InputError(f"no label for the image {name!r:.80}: give one for every image")
        lifting = self.recipe.lifting
        if self.decoys is None and lifting is not None and lifting.decoy_count:
            self.decoys = bundled_decoys(features.extractor)
        secret, seed = self.key.secret, self.key.evaluation_seed
        kind = features.extractor.name, features.descriptors.shape[1]
        if kind not in self._resolved:
            self._resolved[kind] = resolve_for(
                self.recipe, features, secret=secret, place=self.key.place, evaluation_seed=seed
            )
        labels = None if self.labels is None else [self.labels[name]] * len(features)
        return conceal_features(
            features,
            self._resolved[kind],
            self.decoys,
            labels=labels,
            frames=self.keeps_frames,
            secret=secret,
            place=self.key.place,
            evaluation_seed=seed,
            positions=not self.is_home if self.recipe.is_sealed else None,
        )

    def _positions_of(self, photo: str, features: Features) -> NDArray[np.float32]:
        """Return the positions of features as they would be released, in the order of their rows."""
        key = self.key.sealing
        assert key is not None  # they are sealed
        return to_grid(features.keypoints)[row_order(key, photo, len(features))]

    def _refuse_other_archive(self, output: Path, writer: ArchiveWriter) -> set[str]:
        """Return how the images of an archive were made; raise ArchiveError if this run makes them in another way."""
        headers = [writer.header(name) for name in writer.names]
        made, key, recipe = {_how_made(header) for header in headers}, self.key.sealing, self.recipe
        if not recipe.is_sealed:
            _refuse_mixture(output, {how for how in made if not how.startswith(f"{recipe} of ")}, str(recipe))
            return made
        fits = {other: is_made_under(other, recipe, key) for other in {header.recipe for header in headers}}
        others = {
            _how_made(header)
            for header in headers
            if not fits[header.recipe] or (key is None and not header.recipe.keyed)
        }
        bandwidth = next((header.recipe.links[-1].bandwidth for header in headers if header.recipe.is_sealed), None)
        if bandwidth is not None:  # an archive goes on with the bandwidth it was begun with
            self.recipe = with_bandwidth(recipe, bandwidth)
        name = "" if key is None else fingerprint_of(self.recipe, key)
        under = "a new device key" if key is None else f"the given device key, fingerprint {name}"
        advice = "give the recipe and the key it was begun with (--recipe, --secret-file, --place), choose another file"
        _refuse_mixture(output, others, f"{recipe} under {under}", advice)
        if headers and key is None:
            raise ArchiveError(
                f"{output} was begun with {' and '.join(sorted(made))}, and its device key is missing: put the key "
                f"file back or name it with --secret-file (secret= in Python); or choose another file, or --overwrite "
                f"to start anew under a new key"
            )
        return made

    def _refuse_other_cameras(self, source: FeatureSource, writer: ArchiveWriter, output: Path) -> None:
        """Raise ArchiveError for an archive begun with cameras where this run has none, and the other way round.

        An archive without any was begun with cameras only if none of its photos has one, which must be seen.
        """
        sizes = {name: writer.header(name).image_size for name in writer.names}
        if any(writer.header(name).focal_px is not None for name in sizes):
            if not self.with_cameras:
                raise ArchiveError(
                    f"{output} was begun with cameras: go on with --with-cameras (with_cameras=True), or choose "
                    f"another file, or --overwrite to start anew"
                )
        elif self.with_cameras and not all(
            name in source.photos and focal_length(source, name, size) is None for name, size in sizes.items()
        ):
            raise ArchiveError(
                f"{output} was begun without cameras: go on without --with-cameras (with_cameras), or choose another "
                f"file, or --overwrite to start anew"
            )


_Rows = NDArray[np.int32] | None
"""Rows of an image in another order; None leaves them as they are."""


def rows_by_position(features: Features) -> _Rows:
    rows = order_by_position(features.keypoints).astype(np.int32)
    return None if np.array_equal(rows, np.arange(len(rows))) else rows


def _take(features: Features, rows: _Rows) -> Features:
    return features if rows is None else features.take(rows)


def _repeat(twin: ConcealedFeatures, twin_rows: _Rows, features: Features, rows: _Rows) -> ConcealedFeatures:
    """Return the code of an image for another that has the same descriptors, in the order of that one's rows."""
    code = twin.code if twin_rows is None else twin.code[np.argsort(twin_rows)]
    return replace(
        twin,
        code=code if rows is None else code[rows],
        keypoints=_take(features, rows).keypoints,
        image_size=features.image_size,
        focal_px=None,
    )


def _telling_first(images: Iterable[Result], recipe: Recipe) -> Iterator[Result]:
    """Yield images, but those with too few features to estimate the bandwidth of a seal after the first with enough."""
    waiting: list[Result] | None = []
    for name, features in images:
        tells = not isinstance(features, Features) or not needs_estimate(recipe, features.extractor.name)
        if waiting is not None and isinstance(features, Features) and not tells and len(features) < FEWEST_ROWS:
            waiting.append((name, features))
            continue
        yield name, features
        if waiting is not None and not tells:
            yield from waiting
            waiting = None
    yield from waiting or ()


def _refuse_other_extractor(source: FeatureSource, writer: ArchiveWriter, output: Path) -> None:
    """Raise ArchiveError, before any image is read, for an archive of features that were extracted in another way."""
    new = source.extractor if writer.names else None
    if new is None:
        return
    for name in writer.names:
        old = writer.header(name).extractor
        if old != new:
            raise ArchiveError(
                f"{output} was begun with other features, {_differences(old, new)}: extract in the same way, choose "
                f"another file, or --overwrite to start anew"
            )


def _differences(old: Extractor, new: Extractor) -> str:
    """Return in words where two extractors differ."""
    if old.name != new.name:
        return f"{old.name} and not {new.name}"
    missing = "not stated"
    return ", ".join(
        f"{key} {old.settings.get(key, missing)} and not {new.settings.get(key, missing)}"
        for key in sorted({*old.settings, *new.settings})
        if old.settings.get(key, missing) != new.settings.get(key, missing)
    )


def _how_made(image: ConcealedFeatures | ImageHeader) -> str:
    """Return what all images of an archive have in common: recipe, draws, decoys and kind of descriptor."""
    recipe = image.recipe
    seed = "" if recipe.evaluation_seed is None else f", evaluation seed {recipe.evaluation_seed}"
    draws = ", device secret" if recipe.keyed else seed
    decoys = f", decoys {recipe.decoys[:8]}" if recipe.decoys else ""
    if isinstance(image, ImageHeader):
        count, is_home = image.count, image.is_home
    else:
        count, is_home = len(image), not image.is_shown.all()
    places = "" if is_home or not recipe.is_sealed else ALL_POSITIONS if count else NO_FEATURES
    return f"{recipe} of {image.extractor.name}{draws}{decoys}{places}"


ALL_POSITIONS, NO_FEATURES = ", all positions released", ", no features"


def _refuse_mixture(output: Path, made: set[str], new: str, advice: str = "choose another file") -> set[str]:
    others = {one for one in made if not _fits_beside(one, new)}
    if others:
        raise ArchiveError(
            f"{output} was begun with {' and '.join(sorted(made))}, not {new}: {advice}, or --overwrite to start anew"
        )
    return {new}


def _fits_beside(one: str, other: str) -> bool:
    """Tell whether images that were made in two ways go into one archive; those without features go with both."""
    bare = [how.removesuffix(NO_FEATURES) for how in (one, other)]
    return one == other or (bare != [one, other] and len({how.removesuffix(ALL_POSITIONS) for how in bare}) == 1)


# --- clear features


def read_features(
    sources: Iterable[FeatureSource], outcome: ConcealOutcome, progress: Progress = identity
) -> Iterator[tuple[str, Features]]:
    """Yield the features of every readable image of several sources; the others are named in ``outcome``."""
    sources = tuple(sources)
    images = chain.from_iterable(source.features() for source in sources)
    for name, features in progress(SizedItems(images, sum(len(source.names) for source in sources))):
        if isinstance(features, SfumatoError):
            outcome.unreadable[name] = str(features)
            continue
        outcome.images += 1
        outcome.features += len(features)
        if len(features) == 0:
            outcome.featureless.append(name)
        yield name, features


def write_clear_features(
    photos: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    local: LocalParams | None = None,
    extractor: str | None = None,
    frames: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    progress: Progress = identity,
) -> ConcealOutcome:
    """Write the clear features of photos in hloc's format, for evaluations on the device that owns the photos.

    Rows are in order of position, as in an archive that ``conceal_photos`` made without frames; with ``frames`` rows of
    hloc and COLMAP files keep their order, as in an archive with frames.

    Raises FileError for a file that is already there, and where no image can be read.
    """
    target, outcome = Path(output), ConcealOutcome()
    if target.name.endswith(".sfm"):
        raise FileError(f"{target}: .sfm is for archives of concealed features; give clear features another name")
    if target.exists() and not overwrite:
        raise FileError(
            f"{target} is already there: choose another file, or overwrite it (--overwrite, overwrite=True)"
        )
    source = open_source(photos, params=local, extractor=extractor, workers=workers)

    def images() -> Iterator[tuple[str, Features]]:
        for name, features in read_features([source], outcome, progress):
            yield name, features if frames else _take(features, rows_by_position(features))
        if not outcome.images:  # a file of nothing looks like success
            raise FileError(f"nothing to write: no image can be read. {_reasons(outcome)}")

    write_hloc(target, images())
    return outcome


def _reasons(outcome: ConcealOutcome) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in list(outcome.unreadable.items())[:REASONS_SHOWN])
