# SPDX-License-Identifier: Apache-2.0
"""Places: their images and maps, as rows. Ids and names are opaque; devices keep the table of what they stand for.

All features of a place live in one space, that of its first image. A name has one frame: the same again is no change,
and another one is refused. A frame of the same photo under another name shows too. Positions that stay home come row by
row, when a device releases them, and each once.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sql
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from sfumato.errors import InputError
from sfumato.geometry.cameras import check_camera
from sfumato.server import blobs
from sfumato.server.access import PLACE
from sfumato.server.database import Store, images, jobs, maps, places, releases
from sfumato.store.frames import FrameHeader, FrameLimits, decode_frame, decode_release, encode_release
from sfumato.store.layout import merge_releases
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Camera

IMAGE = re.compile(r"[0-9a-f]{16,64}\Z")
"""Names of images: what devices make of the names that people chose."""
LISTED, MOST_ROWS = 500, 2**32
LARGEST_PARAMETER = 1e7
"""Of a camera: no focal length in pixels is longer."""


def pattern_of(name: re.Pattern[str]) -> str:
    """Return a pattern as OpenAPI has it, where an entire name must fit.

    >>> pattern_of(IMAGE)
    '^[0-9a-f]{16,64}$'
    """
    return f"^{name.pattern.removesuffix(chr(92) + 'Z')}$"


class Conflict(Exception):
    """A change that contradicts what is there; ``code`` says which way."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Missing(Exception):
    """There is no such thing, or not for this key."""


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image of a place, without its arrays. ``released``: how many of its rows have a position here."""

    name: str
    digest: str
    count: int
    released: int
    bytes: int
    size: tuple[int, int] | None
    recipe: str
    extractor: str
    camera: str | None
    focal_px: float | None
    made: float


@dataclass(frozen=True, slots=True)
class MapRow:
    """One map of a place: its number, its figures, and the digest of its bundle."""

    id: str
    number: int
    facts: dict[str, Any]
    digest: str
    made: float
    is_current: bool


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """One place: what its features have in common, how many images it has, and the map that queries meet."""

    id: str
    space: str | None
    images: int
    bytes: int
    made: float
    current_map: str | None


# --- places


def make_place(store: Store, place: str, most: int) -> bool:
    """Make a place; return False if it is there already.

    Raises InputError for an id that is no opaque one, Conflict if there are too many.
    """
    if not PLACE.match(place):
        raise InputError("a place has an id of 8 to 64 hexadecimal digits; the client makes it from the name")
    with store.write() as connection:
        if _has_place(connection, place):
            return False
        if connection.execute(sql.select(sql.func.count()).select_from(places)).scalar_one() >= most:
            raise Conflict("too_many", f"there are {most} places already, and that is the limit")
        connection.execute(places.insert().values(id=place, made=time.time()))
    return True


def list_places(store: Store, visible: frozenset[str] | None = None, limit: int | None = None) -> list[PlaceRow]:
    """Return places, the newest first; with ``visible`` these alone, with ``limit`` that many at most."""
    return _read_places(store, _select_places(visible).order_by(places.c.made.desc(), places.c.id).limit(limit))


def page_of_places(store: Store, visible: frozenset[str] | None, after: str, limit: int) -> list[PlaceRow]:
    """Return places by id, those that follow ``after``; with ``visible`` these alone."""
    query = _select_places(visible).where(places.c.id > after).order_by(places.c.id).limit(limit)
    return _read_places(store, query)


def count_places(store: Store, visible: frozenset[str] | None = None) -> int:
    """Return how many places there are; with ``visible`` how many of these."""
    query = sql.select(sql.func.count()).select_from(_select_places(visible).subquery())
    with store.read() as connection:
        return int(connection.execute(query).scalar_one())


def read_place(store: Store, place: str) -> PlaceRow:
    """Return one place; raises Missing."""
    rows = _read_places(store, _select_places(frozenset([place])))
    if not rows:
        raise Missing(f"no place {place:.64}")
    return rows[0]


def delete_place(store: Store, place: str) -> None:
    """Remove a place with its images, maps and jobs, and all their files.

    Raises Missing, and Conflict while a job is at work there: its process would write files again. A job whose lease
    ran out has no process that may write.
    """
    with store.write() as connection:
        _need_place(connection, place)
        rows = connection.execute(sql.select(jobs.c.id, jobs.c.state, jobs.c.lease_until).where(jobs.c.place == place))
        leases = {row.id: row.lease_until if row.state == "running" else 0.0 for row in rows}
        if any(lease > time.time() for lease in leases.values()):
            raise Conflict("job_running", "a job is at work at this place: cancel it, and try again when it has ended")
        connection.execute(places.delete().where(places.c.id == place))
    blobs.drop_place(store.folder, place, leases)
    store.forget()


def _has_place(connection: Connection, place: str) -> bool:
    return connection.execute(sql.select(places.c.id).where(places.c.id == place)).first() is not None


def _need_place(connection: Connection, place: str) -> None:
    if not _has_place(connection, place):
        raise Missing(f"no place {place:.64}")


def _select_places(visible: frozenset[str] | None) -> sql.Select[Any]:
    """Return the query for all places; with ``visible`` for these alone."""
    return places.select() if visible is None else places.select().where(places.c.id.in_(sorted(visible)))


def _read_places(store: Store, query: sql.Select[Any]) -> list[PlaceRow]:
    """Return the places of a query, in its order; the images of all of them are counted at once."""
    sums = sql.select(images.c.place, sql.func.count(), sql.func.sum(images.c.bytes)).group_by(images.c.place)
    with store.read() as connection:
        rows = connection.execute(query).all()
        of_these = images.c.place.in_(sql.select(query.subquery().c.id))
        figures = {place: (count, size) for place, count, size in connection.execute(sums.where(of_these))}
    return [PlaceRow(row.id, row.space, *figures.get(row.id, (0, 0)), row.made, row.current_map) for row in rows]


# --- images


def space_of(features: ConcealedFeatures | FrameHeader) -> str:
    """Return what all features of a place have in common: the recipe's space, the descriptor, the number of bits."""
    width = features.ambient_dim if isinstance(features, FrameHeader) else features.code.ambient_dim
    return f"{features.recipe.space} of {features.extractor.name}, {width}"


def refuse_other_space(space: str | None, features: ConcealedFeatures | FrameHeader) -> None:
    """Raise Conflict for features that cannot be compared with those of a place."""
    if space is not None and space != space_of(features):
        raise Conflict(
            "space_mismatch",
            f"the features of this place are {space}, these are {space_of(features)}: conceal with the same recipe and "
            f"key, and for the same place",
        )


def layout_of(features: ConcealedFeatures) -> str:
    """Return a digest of the positions of features, or the name under the key of a photo whose positions stay home."""
    if features.tags is not None:
        return features.tags.photo
    positions = np.ascontiguousarray(features.keypoints[:, :2], "<f4")
    return hashlib.blake2b(positions.tobytes(), digest_size=16).hexdigest()


def missing_images(store: Store, place: str, digests: dict[str, str]) -> tuple[list[str], list[str], dict[str, int]]:
    """Return the names that a place does not have, those it has with another digest, and positions it has of others."""
    with store.read() as connection:
        _need_place(connection, place)
        known, released = dict[str, str](), dict[str, int]()
        names = list(digests)
        for start in range(0, len(names), LISTED):
            part = names[start : start + LISTED]
            rows = connection.execute(_IMAGES.where(images.c.place == place, images.c.name.in_(part))).all()
            known |= {row.name: row.digest for row in rows}
            released |= {row.name: row.released for row in rows if row.released is not None}
    missing = [name for name in digests if name not in known]
    conflicting = [name for name, digest in digests.items() if known.get(name, digest) != digest]
    return missing, conflicting, {name: count for name, count in released.items() if name not in conflicting}


def check_image(store: Store, place: str, name: str, digest: str, features: ConcealedFeatures, most: int) -> bool:
    """Return whether a frame is new to a place; False if it is there.

    Raises Missing for a place that is not there, Conflict for another release of a known name, for a second release of
    known positions, for features of another space, and for a place that is full.
    """
    with store.read() as connection:
        row = connection.execute(places.select().where(places.c.id == place)).one_or_none()
        if row is None:
            raise Missing(f"no place {place:.64}")
        return _check_new(connection, row.space, place, name, digest, features, most)


def _check_new(
    connection: Connection,
    space: str | None,
    place: str,
    name: str,
    digest: str,
    features: ConcealedFeatures,
    most: int,
) -> bool:
    of_place = images.c.place == place
    same = connection.execute(sql.select(images.c.digest).where(of_place, images.c.name == name)).scalar()
    if same is not None and same != digest:
        raise Conflict("already_released", "this image was released before, with other content: give it another name")
    if same is not None:
        return False
    refuse_other_space(space, features)
    twin = sql.select(images.c.digest).where(of_place, images.c.layout == layout_of(features))
    other = connection.execute(twin).scalars().first()
    if len(features) and other is not None and other != digest:
        raise Conflict(
            "second_release",
            "another image of this place is of the same photo and has other codes or another name: a second release of "
            "a photo tells more than one, and is not taken",
        )
    if connection.execute(sql.select(sql.func.count()).select_from(images).where(of_place)).scalar_one() >= most:
        raise Conflict("too_many", f"this place has {most} images, and that is the limit")
    return True


def add_image(
    store: Store,
    place: str,
    name: str,
    digest: str,
    size: int,
    features: ConcealedFeatures,
    most: int,
    camera: Camera | None = None,
    focal_px: float | None = None,
) -> bool:
    """Add the row of a frame that is on disk; return False if it is there. Raises as ``check_image`` does."""
    with store.write() as connection:
        row = connection.execute(places.select().where(places.c.id == place)).one_or_none()
        if row is None:
            raise Missing(f"no place {place:.64}")
        if not _check_new(connection, row.space, place, name, digest, features, most):
            return False
        if row.space is None:
            connection.execute(places.update().where(places.c.id == place).values(space=space_of(features)))
        width, height = features.image_size or (None, None)
        connection.execute(
            images.insert().values(
                place=place,
                name=name,
                digest=digest,
                layout=layout_of(features),
                count=len(features),
                bytes=size,
                width=width,
                height=height,
                recipe=str(features.recipe),
                extractor=features.extractor.name,
                camera=None if camera is None else camera_text(camera),
                focal_px=focal_px,
                made=time.time(),
            )
        )
        if not features.is_shown.all() or features.tags is not None:
            connection.execute(releases.insert().values(place=place, name=name, count=0, positions=b""))
    return True


def release(store: Store, place: str, name: str, rows: NDArray[np.int64], positions: NDArray[np.float32]) -> int:
    """Add positions (K, 2) of rows (K,) of an image to those that were released before; return how many it has now.

    Raises Missing, and Conflict for an image that has all its positions, and for a row that was released elsewhere.
    """
    of_image = sql.and_(releases.c.place == place, releases.c.name == name)
    with store.write() as connection:
        row = connection.execute(releases.select().where(of_image)).one_or_none()
        if row is None:
            _need_image(connection, place, name)
            raise Conflict("already_released", "this image came with all its positions: nothing is left to release")
        try:
            rows, positions = merge_releases(decode_release(row.positions, MOST_ROWS), (rows, positions))
        except InputError as cause:
            raise Conflict(
                "already_released",
                f"{cause}: none is taken. If no device of yours sent them, a key was misused: remove the place and "
                f"push again",
            ) from cause
        content = encode_release(rows, positions)
        connection.execute(releases.update().where(of_image).values(count=len(rows), positions=content))
    return len(rows)


def read_features(store: Store, place: str, image: ImageRow, limits: FrameLimits | None = None) -> ConcealedFeatures:
    """Return the features of an image with the positions that were released; raises FileError for a missing frame."""
    features = decode_frame(blobs.read_frame(store.folder, place, image.digest), limits=limits)
    query = sql.select(releases.c.positions).where(releases.c.place == place, releases.c.name == image.name)
    with store.read() as connection:
        content = connection.execute(query).scalar()
    return features if not content else features.with_positions(*decode_release(content, image.count))


def change_camera(store: Store, place: str, name: str, camera: Camera | None, focal_px: float | None) -> None:
    """Let an image have another camera and focal length from now on; maps that were made stay as they are."""
    text = None if camera is None else camera_text(camera)
    with store.write() as connection:
        row = sql.and_(images.c.place == place, images.c.name == name)
        connection.execute(images.update().where(row).values(camera=text, focal_px=focal_px))


def list_images(store: Store, place: str, after: str = "", limit: int = LISTED) -> list[ImageRow]:
    """Return images of a place by name, those that follow ``after``; raises Missing."""
    with store.read() as connection:
        _need_place(connection, place)
        rows = connection.execute(
            _IMAGES.where(images.c.place == place, images.c.name > after).order_by(images.c.name).limit(limit)
        ).all()
    return [_image_of(row) for row in rows]


def read_image_row(store: Store, place: str, name: str) -> ImageRow:
    """Return one image; raises Missing."""
    with store.read() as connection:
        return _image_of(_need_image(connection, place, name))


def _need_image(connection: Connection, place: str, name: str) -> Any:
    row = connection.execute(_IMAGES.where(images.c.place == place, images.c.name == name)).one_or_none()
    if row is None:
        raise Missing(f"no image {name:.64}")
    return row


_IMAGES = sql.select(images, releases.c.count.label("released")).join_from(
    images, releases, sql.and_(images.c.place == releases.c.place, images.c.name == releases.c.name), isouter=True
)
"""All images, with how many positions were released of those whose positions stay home."""


def known_frames(store: Store) -> set[tuple[str, str]]:
    """Return place and digest of every image."""
    with store.read() as connection:
        return {(row.place, row.digest) for row in connection.execute(sql.select(images.c.place, images.c.digest))}


def _image_of(row: sql.Row[Any]) -> ImageRow:
    size, count = None if row.width is None else (row.width, row.height), int(row._mapping["count"])
    return ImageRow(
        row.name,
        row.digest,
        count,
        count if row.released is None else row.released,
        row.bytes,
        size,
        row.recipe,
        row.extractor,
        row.camera,
        row.focal_px,
        row.made,
    )


# --- cameras, as words in a URL


def camera_text(camera: Camera) -> str:
    """Return a camera as in COLMAP's lists, with commas: ``PINHOLE,640,480,500,500,320,240``."""
    return ",".join([camera.model, str(camera.width), str(camera.height), *(repr(float(one)) for one in camera.params)])


def parse_camera(text: str) -> Camera:
    """Read a camera, and check that COLMAP can use it; raises InputError."""
    model, *numbers = text.split(",")
    try:
        width, height, *params = numbers
        camera = check_camera(Camera(model, int(width), int(height), tuple(float(one) for one in params)))
        if max(abs(value) for value in camera.params) > LARGEST_PARAMETER:
            raise InputError(f"expected parameters of at most {LARGEST_PARAMETER:.0f}")
        return camera
    except ValueError as cause:
        reason = cause if isinstance(cause, InputError) else "expected numbers"
        raise InputError(
            f"camera: {reason}: give the model, width, height and parameters with commas, such as "
            f"PINHOLE,640,480,500,500,320,240"
        ) from cause


# --- maps


def list_maps(store: Store, place: str) -> list[MapRow]:
    """Return the maps of a place, the newest first; raises Missing."""
    current = read_place(store, place).current_map
    with store.read() as connection:
        rows = connection.execute(maps.select().where(maps.c.place == place).order_by(maps.c.number.desc())).all()
    return [_map_of(row, current) for row in rows]


def read_map(store: Store, place: str, number: int | None = None) -> MapRow:
    """Return a map by its number, or the current one; raises Missing."""
    current = read_place(store, place).current_map
    choice = maps.c.id == current if number is None else maps.c.number == number
    with store.read() as connection:
        row = connection.execute(maps.select().where(maps.c.place == place, choice)).one_or_none()
    if row is None:
        raise Missing("this place has no map yet" if number is None else f"no map {number}")
    return _map_of(row, current)


def current_maps(store: Store) -> dict[str, str]:
    """Return the id of the current map of every place that has one, the newest first."""
    with store.read() as connection:
        rows = connection.execute(
            sql.select(places.c.id, places.c.current_map)
            .join(maps, maps.c.id == places.c.current_map)
            .order_by(maps.c.made.desc())
        )
        return {row.id: row.current_map for row in rows}


def known_maps(store: Store) -> set[tuple[str, str]]:
    """Return place and id of every map."""
    with store.read() as connection:
        return {(row.place, row.id) for row in connection.execute(sql.select(maps.c.place, maps.c.id))}


def publish_map(
    connection: Connection, place: str, name: str, figures: dict[str, Any], digest: str, *, make_current: bool
) -> int:
    """Add a map within a transaction, and return its number."""
    last = connection.execute(sql.select(sql.func.max(maps.c.number)).where(maps.c.place == place)).scalar()
    number = (last or 0) + 1
    connection.execute(
        maps.insert().values(
            id=name, place=place, number=number, facts=json.dumps(figures, sort_keys=True), digest=digest,
            made=time.time(),
        )
    )  # fmt: skip
    if make_current:
        connection.execute(places.update().where(places.c.id == place).values(current_map=name))
    return number


def choose_map(store: Store, place: str, number: int) -> None:
    """Let queries meet this map from now on; raises Missing."""
    row = read_map(store, place, number)
    with store.write() as connection:
        connection.execute(places.update().where(places.c.id == place).values(current_map=row.id))


def _map_of(row: sql.Row[Any], current: str | None) -> MapRow:
    return MapRow(row.id, row.number, json.loads(row.facts), row.digest, row.made, row.id == current)


def recipe_names(rows: Sequence[ImageRow] | Iterable[ImageRow]) -> list[str]:
    """Return the recipes of images, each once."""
    return sorted({str(Recipe.of(row.recipe)) for row in rows})
