# SPDX-License-Identifier: Apache-2.0
"""Uploads: concealed features as frames, and cameras, which is all that a device sends."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Any

from sfumato.client.names import IMAGE_ID
from sfumato.client.settings import refuse_device_key
from sfumato.client.transport import STRANGE
from sfumato.errors import FrameError, ServerError, SfumatoError
from sfumato.geometry.cameras import check_camera
from sfumato.store.archive import Archive, load
from sfumato.store.evidence import Evidence
from sfumato.store.frames import encode_frame
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.scene import Camera

AT_ONCE = 2
"""Uploads under way; servers take as many of one key."""
Source = str | os.PathLike[str] | Archive | Mapping[str, ConcealedFeatures]
"""Concealed features of images: an archive, its path, or a mapping by names."""


@dataclass(slots=True)
class PushOutcome:
    """Images that were sent and those that the server had; bytes that were sent; and images that cannot be read.

    ``released``: by image, positions that were sent, of images whose positions stay home but for these.
    """

    sent: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    bytes: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    is_new_place: bool = False
    released: dict[str, int] = field(default_factory=dict)


@contextmanager
def open_images(source: Source) -> Iterator[Mapping[str, ConcealedFeatures]]:
    """Give concealed features by name; a path is opened for the block."""
    if isinstance(source, str | os.PathLike):
        try:
            archive = load(source)
        except SfumatoError:
            if Path(source).is_file():
                refuse_device_key(source)
            raise
        with archive:
            yield archive
    elif isinstance(source, Mapping):
        if not isinstance(source, Archive):
            for name, features in source.items():
                need_concealed(name, features)
        yield source
    else:
        raise TypeError(f"expected an archive or ConcealedFeatures by name, got {type(source).__name__}")


def need_concealed(name: str, features: object) -> None:
    """Raise TypeError for what is not concealed."""
    if not isinstance(features, ConcealedFeatures):
        raise TypeError(
            f"{name}: a server gets ConcealedFeatures only, got {type(features).__name__}; conceal first: "
            f"sfumato.conceal(features, 'default', secret=sfumato.device_key(), place='its name')"
        )


def frame_of(name: str, features: ConcealedFeatures) -> bytes:
    """Return the frame of an image; raises TypeError for what is not concealed, FrameError for what protects nobody."""
    need_concealed(name, features)
    try:
        return encode_frame(replace(features, focal_px=None))
    except FrameError as problem:
        raise FrameError(f"{name!r:.80}: {problem}", problem.code) from problem


def send_ahead(send: Callable[..., int], uploads: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, int]]:
    """Send uploads, two at a time, and yield the name and the size of each in their order; raises what ``send`` does.

    ``uploads``: the arguments of ``send``, a name first; they are made in this thread, one ahead of those under way.
    What is under way when an error or Ctrl-C ends it is left to itself: an upload that breaks off leaves nothing.
    """
    waiting: deque[tuple[str, AsyncResult[int]]] = deque()
    with ThreadPool(AT_ONCE) as threads:  # whose threads nobody waits for, unlike those of an executor
        for words in uploads:
            waiting.append((words[0], threads.apply_async(send, words)))
            if len(waiting) == AT_ONCE:
                name, result = waiting.popleft()
                yield name, result.get()
        for name, result in waiting:
            yield name, result.get()


def camera_words(features: ConcealedFeatures, camera: Camera | None) -> dict[str, str | None]:
    """Return what is said of a camera beside a frame: the camera, or else the focal length if features have one."""
    return {
        "camera": None if camera is None else camera_text(camera),
        "focal_px": None if features.focal_px is None or camera is not None else repr(float(features.focal_px)),
    }


def camera_text(camera: Camera) -> str:
    """Return a camera as the server reads it: model, width, height and parameters with commas."""
    check_camera(camera)
    return ",".join([camera.model, str(camera.width), str(camera.height), *(repr(float(one)) for one in camera.params)])


def name_evidence(evidence: Evidence, names: Mapping[str, str]) -> Evidence:
    """Return evidence with people's names for the ids of this device's images; what it shows of these is left out.

    Raises ServerError for evidence that names images in a way that no server does.
    """
    if not all(IMAGE_ID.match(key) for key in {*evidence.others, *(key for pair in evidence.claims for key in pair)}):
        raise ServerError("the server's evidence names images that it cannot have: nothing was released", code=STRANGE)
    claims = {(names.get(a, a), names.get(b, b)): rows for (a, b), rows in evidence.claims.items()}
    return Evidence(claims, {key: rows for key, rows in evidence.others.items() if key not in names})
