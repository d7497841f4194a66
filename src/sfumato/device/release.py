# SPDX-License-Identifier: Apache-2.0
"""Release: the device sends positions of rows that several photos of the place see, against evidence that it checks.

A server matches bits and says which rows of which photos agree; ``claims`` decides what that proves. What one photo
alone sees stays home. What left is in the archive, and no row leaves with two positions.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.keys import device_key, device_key_path, sealing_key
from sfumato.concealment.rows import photo_name, row_order, to_grid
from sfumato.concealment.seal import is_made_under
from sfumato.device.claims import ReleaseParams, choose_rows
from sfumato.device.conceal import rows_by_position
from sfumato.device.localize import local_params_of
from sfumato.device.positions import Positions, PositionsWriter, open_positions, positions_path
from sfumato.errors import FileError, InputError, RecipeError, SfumatoError
from sfumato.features.sources import open_source
from sfumato.files.atomic import read_bytes, write_file
from sfumato.images.read import read_image
from sfumato.matching.match_file import load_matches
from sfumato.store.archive import Archive
from sfumato.store.evidence import ClaimedRows, Evidence, Pair
from sfumato.store.writer import ArchiveWriter
from sfumato.types.progress import Progress, identity
from sfumato.types.scene import Matches


@dataclass(slots=True)
class ReleaseOutcome:
    """Result of a release. By photo: ``rows`` it has, rows ``shown`` now, and how many of these are ``new``.

    ``kept_back``: why nothing new of a photo left, or not all that was asked for. ``claimed`` pairs, ``proven`` ones.
    ``bytes``: what went to a server and came from it, where there is one. ``seen``: by photo, the rows that ``shown``
    counts.
    """

    rows: dict[str, int] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    kept_back: dict[str, str] = field(default_factory=dict)
    claimed: int = 0
    proven: int = 0
    bytes: int = 0
    seen: dict[str, NDArray[np.int64]] = field(default_factory=dict, compare=False)

    @property
    def share(self) -> float:
        """Of all rows of these photos, those whose positions left the device."""
        return sum(self.shown.values()) / max(1, sum(self.rows.values()))

    def __repr__(self) -> str:
        return f"ReleaseOutcome({sum(self.new.values())} new positions of {len(self.rows)} photos)"


def release_positions(
    archive: str | os.PathLike[str],
    matches: str | os.PathLike[str] | Mapping[Pair, Matches] | Evidence,
    params: ReleaseParams | None = None,
    *,
    secret: bytes | None = None,
    place: str | None = None,
    photos: str | os.PathLike[str] | None = None,
    never: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    progress: Progress = identity,
) -> ReleaseOutcome:
    """Release the positions that a map needs: those of rows that agree over three photos. They go into the archive.

    ``matches``: a match file, Matches by pairs, or the Evidence of a server. ``secret`` and ``place``: those of
    ``conceal_photos``. Positions come from the file beside the archive, or again from ``photos``. ``never``: a folder
    of masks, ``NAME.png`` for the photo NAME, whose black pixels keep what lies there at home. ``dry_run`` lets nothing
    leave.

    Raises FileError if the positions are not here, RecipeError for another key, ArchiveError for files.
    """
    params = params or ReleaseParams()
    with ExitStack() as stack:
        images = stack.enter_context(Archive(archive))
        key = sealing_key_of(images, secret, place)
        known = {name: one for name in images if (one := ClaimedRows.of(images[name])) is not None}
        if not known:
            raise InputError(
                f"{archive} holds no rows whose positions stay home: it was made with --positions, or by a recipe that "
                f"is not sealed, and a map can be made of it as it is"
            )
        headers = {name: images.header(name) for name in known}
        masks = masks_in(never, {name: header.image_size for name, header in headers.items()})
        positions = _own_positions(images, known, photos, key)
        if not positions:
            raise FileError(
                f"{positions_path(archive)} has none of the photos of {archive}: release on the device that made it, "
                f"or name the photos (--photos)"
            )
        if isinstance(matches, Evidence):
            claims, known = matches.claims, {**matches.others, **known}
        else:
            pairs = stack.enter_context(load_matches(matches)) if isinstance(matches, str | os.PathLike) else matches
            _refuse_other_matches(pairs, images)
            claims = {pair: pairs[pair].indices.astype(np.int64) for pair in progress(list(pairs))}
        before = {name: np.flatnonzero(images[name].is_shown) for name in positions}
        choice = choose_rows(claims, known, positions, key, params, before)
    wanted = {name: rows[~masks(name, positions[name][rows])] for name, rows in choice.rows.items()}
    outcome = ReleaseOutcome(claimed=choice.claimed, proven=choice.proven, kept_back=dict(choice.forged))
    with ExitStack() as stack:
        writer = None if dry_run else stack.enter_context(ArchiveWriter(archive, append=True))
        for name, rows in wanted.items():
            most = params.most_share * known[name].count
            if len(np.union1d(before[name], rows)) > most:
                asked = len(rows) / max(1, known[name].count)
                outcome.kept_back[name] = (
                    f"{asked:.0%} of its rows were asked for, and {params.most_share:.0%} is the limit (--limit): "
                    f"nothing new of it was released"
                )
                rows = rows[:0]
            outcome.rows[name] = known[name].count
            outcome.seen[name] = np.union1d(before[name], rows)
            outcome.shown[name] = len(outcome.seen[name])
            outcome.new[name] = len(np.setdiff1d(rows, before[name]))
            if writer is not None and outcome.new[name]:
                if name not in writer or writer.header(name) != headers[name]:
                    raise FileError(f"{archive} was replaced while its matches were checked: match it, and run again")
                writer.release(name, rows, positions[name][rows])
    return outcome


def sealing_key_of(images: Archive, secret: bytes | None, place: str | None) -> bytes:
    """Return the key that an archive was sealed under; raises RecipeError for another, FileError if there is none."""
    recipe = next((images.header(name).recipe for name in images), None)
    if recipe is None or not recipe.is_sealed:
        raise InputError(f"{images.path} is not sealed, so that its positions did not stay home: map it as it is")
    if secret is None and recipe.evaluation_seed is None:
        if not device_key_path().exists():
            raise FileError(
                f"this device has no key ({device_key_path()}): release on a device that has the one of {images.path}, "
                f"or name it (--secret-file, secret=)"
            )
        secret = device_key()
    key = sealing_key(secret, recipe.evaluation_seed, place)
    if key is None or not is_made_under(recipe, recipe, key):
        raise RecipeError(
            f"{images.path} was sealed under another key than the given one: give the key it was made with "
            f"(--secret-file, secret=) and its place if it has one (--place, place=)"
        )
    return key


def _refuse_other_matches(matches: Any, images: Archive) -> None:
    """Raise FileError for a match file that was made of other features."""
    provenance = getattr(matches, "provenance", None)
    if provenance is None:
        return
    other = [
        name for name, facts in provenance.images.items() if name in images and images.header(name).checksum != facts[1]
    ]
    if other:
        raise FileError(f"{matches.path} holds matches of other features than {images.path}: match again")


# --- positions of this device


def _own_positions(
    images: Archive,
    known: Mapping[str, ClaimedRows],
    photos: str | os.PathLike[str] | None,
    key: bytes,
) -> dict[str, NDArray[np.float32]]:
    """Return the positions of the photos of this device; those of other devices are not among them."""
    if photos is not None:
        restore_positions(images, photos, key)
    path = positions_path(images.path)
    if not path.is_file():
        return {}
    with Positions(path) as kept:
        read = {name: kept.read(name, rows.tags.photo) for name, rows in known.items()}
    return {name: places for name, places in read.items() if places is not None and len(places) == known[name].count}


def restore_positions(images: Archive, photos: str | os.PathLike[str], key: bytes) -> list[str]:
    """Make the file of positions of an archive again from its photos; return the photos that are not the same.

    Raises FileError if none of them is in the archive.
    """
    header = images.header(next(iter(images)))
    local = local_params_of(header.extractor) if Path(photos).is_dir() else None
    source, others, count = open_source(photos, params=local), list[str](), 0
    with PositionsWriter(images.path) as kept:
        for name, features in source.features(skip=set(source.names) - set(images)):
            if isinstance(features, SfumatoError):
                continue
            rows = rows_by_position(features)
            clear = features if rows is None else features.take(rows)
            photo = photo_name(key, clear)
            places = to_grid(clear.keypoints)[row_order(key, photo, len(clear))]
            tags = images[name].tags
            if tags is None or tags.photo != photo:
                others.append(name)
                continue
            kept.keep(name, photo, places)
            count += 1
    if not count:
        raise FileError(f"{photos}: none of the photos there is one of {images.path}, extracted in the same way")
    return others


# --- regions that never leave


Masks = Callable[[str, NDArray[np.float32]], NDArray[np.bool_]]
"""Tells which positions (K, 2) of a photo lie where nothing may leave."""


def masks_in(folder: str | os.PathLike[str] | None, sizes: Mapping[str, tuple[int, int] | None]) -> Masks:
    """Return the masks of a folder: ``NAME.png`` for the photo NAME, as COLMAP has them; black keeps at home.

    ``sizes``: (width, height) of each photo, which its mask must have. Raises FileError for a folder that is not there
    or holds no mask of any of these photos, and when it is used for a mask that cannot be.
    """
    if folder is None:
        return lambda name, positions: np.zeros(len(positions), bool)
    place = Path(folder)
    if not place.is_dir():
        raise FileError(f"{place}: no such folder of masks (--never)")
    paths = {name: place / f"{name}.png" for name in sizes if (place / f"{name}.png").is_file()}
    if not paths:
        raise FileError(
            f"{place} holds no mask of these photos: a mask of photo.jpg is photo.jpg.png, black stays home"
        )

    def is_home(name: str, positions: NDArray[np.float32]) -> NDArray[np.bool_]:
        if name not in paths:
            return np.zeros(len(positions), bool)
        mask, size = read_mask(paths[name]), sizes[name]
        if size is not None and mask.shape != (size[1], size[0]):
            raise FileError(
                f"{paths[name]}: this mask has {mask.shape[1]} x {mask.shape[0]} pixels, and its photo "
                f"{size[0]} x {size[1]}: what it should cover would leave"
            )
        at = np.rint(positions).astype(np.int64)
        inside = ((at >= 0) & (at < [mask.shape[1], mask.shape[0]])).all(axis=1)
        kept: NDArray[np.bool_] = ~np.asarray(inside, bool)  # nothing is known beyond a mask
        kept[inside] = mask[at[inside, 1], at[inside, 0]] == 0
        return kept

    return is_home


def read_mask(path: Path) -> NDArray[np.uint8]:
    """Return a mask (H, W), 0 where nothing may leave; raises FileError for what is no picture."""
    import cv2

    grey = cv2.imdecode(np.frombuffer(read_bytes(path, LARGEST_MASK), np.uint8), cv2.IMREAD_GRAYSCALE)
    if grey is None:
        raise FileError(f"{path}: this mask is no picture: give a PNG whose black pixels stay home")
    return np.asarray(grey, np.uint8)


LARGEST_MASK = 2**28


# --- what is seen, as a picture


def draw_release(
    pixels: NDArray[np.uint8], positions: NDArray[np.float32], is_shown: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return a photo with what stayed home (grey) and what left (orange), beside what a server sees: dots on black."""
    import cv2

    photo = np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels.copy()
    photo = (photo // 2 + 64).astype(np.uint8)
    dots = np.zeros_like(photo)
    radius = max(1, round(max(photo.shape[:2]) / 500))
    for released, colour in ((False, (150, 150, 150)), (True, (255, 150, 0))):
        for x, y in np.rint(positions[is_shown == released]).astype(int).tolist():
            cv2.circle(photo, (x, y), radius, colour, -1)
            if released:
                cv2.circle(dots, (x, y), radius, (255, 255, 255), -1)
    sheet: NDArray[np.uint8] = np.concatenate([photo, np.full((len(photo), 8, 3), 255, np.uint8), dots], axis=1)
    return sheet


def draw_releases(
    archive: str | os.PathLike[str],
    photos: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    outcome: ReleaseOutcome | None = None,
) -> list[Path]:
    """Write a picture of what left of each photo of an archive into a folder; return their paths.

    ``outcome``: that of a release, also of a dry run: then what would leave is drawn as what left.

    Raises FileError if the positions are not here, or a picture cannot be written.
    """
    import cv2

    paths = list[Path]()
    source = open_source(photos)
    with Archive(archive) as images, open_positions(archive) as kept:
        for name in images:
            features = images[name]
            places = None if features.tags is None else kept.read(name, features.tags.photo)
            if places is None or name not in source.photos:
                continue
            shown = features.is_shown
            if outcome is not None and name in outcome.seen:
                shown[outcome.seen[name]] = True
            sheet = draw_release(read_image(source.photos[name]).pixels, places, shown)
            target = Path(folder) / f"{quote(name, safe='')[:150]}.jpg"
            _, encoded = cv2.imencode(".jpg", sheet[:, :, ::-1])
            write_file(target, encoded.tobytes(), with_folder=True, private=True)
            paths.append(target)
    return paths
