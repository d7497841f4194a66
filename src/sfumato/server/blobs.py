# SPDX-License-Identifier: Apache-2.0
"""Files of a server: frames, streamed, digested, and named by their digest below the folder of their place; maps.

A frame is written to a file without a name or under an unforeseeable one, checked, synced, and moved to its place; the
row in the database follows. After a kill there is a frame without a row at most, which ``sweep`` removes. Places share
no frames: that would tell one tenant what another has.
"""

import asyncio
import errno
import hashlib
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from sfumato.errors import FileError

FOLDER, UPLOADS, WORK, MAPS = "frames", "uploads", "work", "maps"
"""Folders below the data folder: frames by place, uploads that are under way, jobs that are, and maps by place."""
MATCHES, EVIDENCE = "matches", "evidence"
"""Folders by place: matched rows of its images, so that no pair is matched twice; and what devices are shown of it."""
EVIDENCE_KEPT = 5
"""Files of evidence of one place."""
MODEL, BUNDLE, POINTS, CAMERAS = "model", "bundle.tar", "points.bin", "cameras.json"
"""Parts of a map: the COLMAP model with landmarks, all of it in one file, points and cameras for the page."""
OLD_SECONDS = 3600.0
"""Age after which a frame without a row, or an upload that ended, is left over from a kill."""


class TooLarge(Exception):
    """A body is larger than its limit."""


def upload_path(data: Path, place: str) -> Path:
    """Return a new file for an upload to a place that is under way."""
    folder = data / UPLOADS
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{place}-{secrets.token_hex(16)}.part"


async def receive(chunks: AsyncIterator[bytes], path: Path, most: int) -> int:
    """Write a body to a file, chunk by chunk, and return its length.

    Raises TooLarge as soon as it is longer than ``most``; the file is removed then, and after every other error.
    """
    length = 0
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            async for chunk in chunks:
                length += len(chunk)
                if length > most:
                    raise TooLarge(most)
                file.write(chunk)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return length


def frame_path(data: Path, place: str, digest: str) -> Path:
    """Return the place of a frame."""
    return data / FOLDER / place / digest[:2] / digest


def keep_frame(data: Path, place: str, digest: str, upload: Path) -> Path:
    """Move a checked upload to its place; it is on disk when this returns."""
    target = frame_path(data, place, digest)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.replace(upload, target)
    for folder in (target.parent, target.parent.parent, target.parent.parent.parent):
        sync(folder)
    return target


def read_frame(data: Path, place: str, digest: str) -> bytes:
    """Return a frame; raises FileError if it is missing."""
    try:
        return frame_path(data, place, digest).read_bytes()
    except OSError as cause:
        raise FileError(f"frame {digest[:12]} cannot be read: {cause.strerror}; is the disk damaged?") from cause


def map_path(data: Path, place: str, name: str, part: str) -> Path:
    """Return the place of a part of a map."""
    return data / MAPS / place / name / part


def matches_path(data: Path, place: str) -> Path:
    """Return the place of the matches of a place."""
    return data / MATCHES / place / "matches.h5"


def evidence_path(data: Path, place: str, job: str) -> Path:
    """Return the place of the evidence that a job gathered."""
    return data / EVIDENCE / place / job


def keep_evidence(data: Path, place: str, job: str, path: Path) -> None:
    """Move evidence to its place, and remove what earlier jobs of the place left but for the last few.

    Requests cost nothing, and the disk is everybody's.
    """
    target = evidence_path(data, place, job)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.replace(path, target)
    for old in sorted(target.parent.iterdir(), key=lambda one: one.stat().st_mtime)[:-EVIDENCE_KEPT]:
        old.unlink(missing_ok=True)


def drop_place(data: Path, place: str, jobs: Iterable[str] = ()) -> None:
    """Remove all that a place has: frames, maps, matches, evidence, uploads under way, and the folders of its jobs."""
    for folder in (FOLDER, MAPS, MATCHES, EVIDENCE):
        shutil.rmtree(data / folder / place, ignore_errors=True)
    for path in (data / UPLOADS).glob(f"{place}-*.part"):
        path.unlink(missing_ok=True)
    for job in jobs:
        drop_work(data, job)


def drop_frame(data: Path, place: str, digest: str) -> None:
    """Remove a frame, and the folders that are empty then."""
    path = frame_path(data, place, digest)
    path.unlink(missing_ok=True)
    with suppress(OSError):  # there is something in them
        path.parent.rmdir()
        path.parent.parent.rmdir()


def sweep(
    data: Path, frames: set[tuple[str, str]], maps: set[tuple[str, str]], jobs: set[str], now: float | None = None
) -> int:
    """Remove what kills left behind, once it is old, and empty folders; return how many files and folders.

    ``frames`` and ``maps``: place and name of every row; ``jobs``: ids of those that have not ended. Evidence is kept
    for as long as a device may need to fetch it, matches as long as their place has images.
    """
    now, count = time.time() if now is None else now, 0
    left = list((data / UPLOADS).glob("*.part"))
    left += [path for path in (data / FOLDER).glob("*/*/*") if (path.parent.parent.name, path.name) not in frames]
    left += [path for path in (data / MAPS).glob("*/*") if (path.parent.name, path.name) not in maps]
    left += [path for path in (data / WORK).glob("*") if path.name not in jobs]
    left += (data / EVIDENCE).glob("*/*")
    with_images = {place for place, _ in frames}
    left += [path for path in (data / MATCHES).glob("*") if path.name not in with_images]
    for path in left:
        with suppress(OSError):
            if now - path.stat().st_mtime > OLD_SECONDS:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
                count += 1
    for pattern in (f"{FOLDER}/*/*", f"{FOLDER}/*", f"{MAPS}/*", f"{EVIDENCE}/*"):
        for path in data.glob(pattern):
            with suppress(OSError):
                if path.is_dir() and now - path.stat().st_mtime > OLD_SECONDS:
                    path.rmdir()  # fails where there is something in it
    return count


def drop_work(data: Path, job: str) -> None:
    """Remove the folder of a job that has ended, or whose place was removed."""
    shutil.rmtree(data / WORK / job, ignore_errors=True)


def free_bytes(data: Path) -> int:
    """Return the bytes that are left on the disk."""
    return shutil.disk_usage(data).free


def is_disk_full(error: BaseException | None) -> bool:
    """Tell whether an error, or what it comes from, is a full disk or a used up quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if "database or disk is full" in str(error):
            return True
        error = error.__cause__
    return False


def damaged_files(folder: Path) -> list[str]:
    """Return the files of a map that are missing, or whose model differs from the bundle; empty if all is well."""
    names = [name for name in (BUNDLE, POINTS, CAMERAS) if not (folder / name).is_file()]
    try:
        with tarfile.open(folder / BUNDLE) as bundle:
            for member in bundle:
                path, packed = folder / MODEL / member.name, bundle.extractfile(member)
                if packed is None or not path.is_file() or not _are_same(path, packed):
                    names.append(f"{MODEL}/{member.name}")
    except (OSError, tarfile.TarError):
        names.append(BUNDLE)
    return sorted(set(names))


def _are_same(path: Path, other: IO[bytes]) -> bool:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest() == hashlib.file_digest(other, "sha256").digest()  # type: ignore[arg-type]


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until the disk has a file or folder."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
