# SPDX-License-Identifier: Apache-2.0
"""The process of a job: one that makes a map (collect, match, verify, map, landmarks, publish), or one that matches.

A job that matches gathers evidence for a device, which then releases positions. Jobs work in a folder of their own with
the functions that the commands use, so that both make the same map. A process that takes over after a kill finds the
archive and the pairs that are matched already, and goes on from there; so does the next job of the place. Started by
``foreman`` as ``python -m sfumato.server.map_job``.
"""

import argparse
import json
import logging
import os
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.server.guard import guard_imports, log_quietly

if __name__ == "__main__":
    guard_imports()

import numpy as np
from sqlalchemy.engine import Connection

from sfumato.errors import ArchiveError, FileError, SfumatoError
from sfumato.geometry.cameras import default_camera
from sfumato.geometry.colmap import load_pycolmap
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import LARGEST_EXHAUSTIVE, MapOutcome, build_map, outcome_facts
from sfumato.geometry.statistics import poses_of
from sfumato.matching.batch import match_archive
from sfumato.matching.match_file import load_matches
from sfumato.matching.retrieval import USUAL_COUNT
from sfumato.server import blobs, jobs, places
from sfumato.server.blobs import BUNDLE, CAMERAS, MAPS, MODEL, POINTS, WORK
from sfumato.server.database import Store
from sfumato.server.foreman import DISK_FULL, LITTLE_BYTES
from sfumato.server.jobs import EVIDENCE_JOB
from sfumato.server.limits import Limits, read_limits
from sfumato.store.archive import Archive
from sfumato.store.evidence import gather_evidence, save_evidence
from sfumato.store.writer import ArchiveWriter
from sfumato.types.scene import Camera

ARCHIVE, MATCHES, PAIR_COUNT = "images.sfm", "matches.h5", "pairs"
STAGE_OF = {"voting": "match", "matching": "match", "verifying": "verify", "mapping": "map"}
REPORT_SECONDS = 0.5
FULL_WORDS = ("No space left on device", "disk is full", "is the disk full", "free space")
"""What errors of a full disk say where they have no number for it."""
log = logging.getLogger(__name__)

POINT = np.dtype([("position", "<f4", 3), ("track", "<u2"), ("error", "<u2")])
"""16 bytes a point: where it is, how many images see it, and its reprojection error in hundredths of a pixel."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A job, the fence under which this process writes, and the limits of the server."""

    store: Store
    job: jobs.Job
    limits: Limits

    @property
    def work(self) -> Path:
        """The folder of the job, which a process that takes over goes on with."""
        return self.store.folder / WORK / self.job.id

    def report(self, stage: str, done: int, total: int) -> None:
        """Say how far it is; raises LostLease."""
        jobs.report(self.store, self.job.id, self.job.fence, stage, done, total, most=self.limits.events_of_job)

    def renew_until(self, end: threading.Event) -> None:
        """Renew the lease until the job ends; ends the process if the lease is lost."""
        while not end.wait(self.limits.lease_seconds / 3):
            try:
                jobs.renew(self.store, self.job.id, self.job.fence, self.limits.lease_seconds)
            except jobs.LostLease:
                if not end.is_set():
                    os._exit(0)
            except Exception:  # the disk may be full for a while: the lease decides
                log.warning("a lease cannot be renewed")

    def stages(self, title: str, items: Iterable[Any], total: int) -> Iterator[Any]:
        """Pass items on, and say how many are done."""
        stage, last = STAGE_OF.get(title, title), 0.0
        before = self._pairs_before(total) if title == "matching" else 0
        total += before
        self.report(stage, before, total)
        for number, item in enumerate(items, before):
            yield item
            if time.monotonic() - last > REPORT_SECONDS or number + 1 == total:
                self.report(stage, number + 1, total)
                last = time.monotonic()

    def _pairs_before(self, left: int) -> int:
        """Return how many pairs an earlier process has matched, where so many are left."""
        path = self.work / PAIR_COUNT
        with suppress(OSError, ValueError):  # the first process writes it, and a kill may leave it empty
            return max(int(path.read_text(encoding="ascii")) - left, 0)
        path.write_text(f"{left}", encoding="ascii")
        return 0


def collect(lease: Lease) -> tuple[Path, dict[str, Camera] | None, frozenset[str]]:
    """Write the archive of the images of a job, with what was released of them; return it with cameras, and guesses.

    Cameras are None where no image has one: then the archive's focal lengths count, and guesses.
    """
    store, job, path = lease.store, lease.job, lease.work / ARCHIVE
    lease.work.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = job.request["images"]
    rows = [places.read_image_row(store, job.place, name) for name in names]
    with _open_writer(path) as writer:
        for row in lease.stages("collect", rows, len(rows)):
            if row.name not in writer:
                writer.add(row.name, replace(places.read_features(store, job.place, row), focal_px=row.focal_px))
    known = {row.name: places.parse_camera(row.camera) for row in rows if row.camera}
    if not known:
        return path, None, frozenset()
    others = {row.name: default_camera(row.size, row.focal_px) for row in rows if row.name not in known and row.size}
    guesses = frozenset(row.name for row in rows if row.name in others and row.focal_px is None)
    return path, known | others, guesses


@contextmanager
def _open_writer(path: Path) -> Iterator[ArchiveWriter]:
    """Go on with an archive, or begin anew if a kill left one that cannot be read."""
    with ExitStack() as stack:
        try:
            writer = stack.enter_context(ArchiveWriter(path, append=path.exists()))
        except ArchiveError:
            path.unlink(missing_ok=True)
            writer = stack.enter_context(ArchiveWriter(path))
        yield writer


def make_map(lease: Lease) -> MapOutcome:
    """Match, verify and map the images of a job into its folder."""
    request, work = lease.job.request, lease.work
    archive, cameras, guesses = collect(lease)
    matches: Path | dict[Any, Any] = match_images(lease, archive) if len(request["images"]) > 1 else {}
    params = MapParams(
        mapper=request["mapper"], tries=request["tries"], seed=request["seed"], guessed=guesses,
        refine_intrinsics=request["refine_intrinsics"] or None, shared_camera=request["shared_camera"],
    )  # fmt: skip
    outcome = build_map(archive, matches, work / MODEL, cameras, params, overwrite=True, progress=lease.stages)
    lease.report("landmarks", 1, 1)
    return outcome


def match_images(lease: Lease, archive: Path) -> Path:
    """Match the images of a job; what earlier jobs of the place have matched is not matched again.

    If that cannot be used, because it is damaged, or of images that have other focal lengths by now, all is matched.
    """
    request, path = lease.job.request, lease.work / MATCHES
    kept, pairs = blobs.matches_path(lease.store.folder, lease.job.place), request["pairs"]
    count = len(request["images"])
    if pairs == "auto":
        pairs = "exhaustive" if count <= LARGEST_EXHAUSTIVE else f"votes:{USUAL_COUNT}"
    is_whole = bool(request.get("every_image"))
    if is_whole and not path.exists() and kept.is_file():
        shutil.copyfile(kept, path)
    try:
        match_archive(archive, path, pairs, progress=lease.stages)
    except FileError as problem:
        if is_out_of_space(problem, lease.store.folder):
            raise
        log.warning("matches of earlier jobs cannot be used: all is matched again")
        for part in lease.work.glob(f"{MATCHES}*"):
            part.unlink()
        match_archive(archive, path, pairs, progress=lease.stages)
    if is_whole:
        copy = lease.work / f"{MATCHES}.copy"
        shutil.copyfile(path, copy)
        blobs.sync(copy)
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.replace(copy, kept)
    return path


def show_evidence(lease: Lease) -> None:
    """Match the images of a place, write what a device is to be shown of it, and end the job; raises LostLease."""
    store, job = lease.store, lease.job
    archive, _, _ = collect(lease)
    path, own = lease.work / "evidence", job.request["own"]
    with ExitStack() as stack:
        images = stack.enter_context(Archive(archive))
        matches: Any = {}
        if len(images) > 1:
            matches = stack.enter_context(load_matches(match_images(lease, archive)))
        claims = ((pair, matches[pair].indices) for pair in matches)
        evidence = gather_evidence(claims, images, own)
    save_evidence(path, evidence)
    figures = {"pairs": len(evidence.claims), "matches": sum(map(len, evidence.claims.values())),
               "images": len(job.request["images"]), "bytes": path.stat().st_size}  # fmt: skip
    lease.report("publish", 0, 1)
    blobs.keep_evidence(store.folder, job.place, job.id, path)
    jobs.finish(store, job.id, job.fence, jobs.DONE, "", lambda _: {"map": None, "figures": figures})


def pack(source: Path, folder: Path) -> str:
    """Write the bundle, points and cameras of a finished model to a new folder; return the digest of the bundle."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    model = load_pycolmap().Reconstruction(str(source))
    points = np.zeros(len(model.points3D), POINT)
    for number, (_, point) in enumerate(sorted(model.points3D.items())):
        points[number] = (
            point.xyz,
            min(point.track.length(), 65535),
            min(round(100 * max(float(point.error), 0.0)), 65535),
        )
    (folder / POINTS).write_bytes(points.tobytes())
    poses = {
        name: {"rotation": pose.rotation.tolist(), "center": pose.center.tolist()}
        for name, pose in sorted(poses_of(model).items())
    }
    (folder / CAMERAS).write_text(json.dumps(poses), encoding="utf-8")
    with tarfile.open(folder / BUNDLE, "w", format=tarfile.PAX_FORMAT) as bundle:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                facts = bundle.gettarinfo(path, str(path.relative_to(source)))
                facts.mtime, facts.uid, facts.gid, facts.uname, facts.gname, facts.mode = 0, 0, 0, "", "", 0o600
                with open(path, "rb") as file:
                    bundle.addfile(facts, file)
    return blobs.digest_file(folder / BUNDLE)


def publish(lease: Lease, outcome: MapOutcome) -> None:
    """Move a map to its place and end the job, in one transaction under the fence; raises LostLease.

    Every process that works on a job has a name of its own for the map: one that lost its lease can neither publish,
    nor change what another published.
    """
    store, job, name = lease.store, lease.job, f"{lease.job.id}-{lease.job.fence}"
    lease.report("publish", 0, 1)
    facts = outcome_facts(outcome)
    facts["other models"] = [{**other, "folder": Path(other["folder"]).name} for other in facts["other models"]]
    if outcome.folder is None:
        jobs.finish(store, job.id, job.fence, jobs.DONE, outcome.reason, lambda _: {"map": None, "figures": facts})
        return
    packed, target = lease.work / name, store.folder / MAPS / job.place / name
    digest = pack(lease.work / MODEL, packed)
    shutil.copytree(lease.work / MODEL, packed / MODEL)
    facts |= {"features": _count_features(lease), "recipes": _recipes(lease)}
    move_folder(packed, target)

    def add(connection: Connection) -> dict[str, Any]:
        make_current = bool(job.request["make_current"])
        number = places.publish_map(connection, job.place, name, facts, digest, make_current=make_current)
        return {"map": number, "figures": facts}

    try:
        jobs.finish(store, job.id, job.fence, jobs.DONE, "", add)
    except jobs.LostLease:
        shutil.rmtree(target, ignore_errors=True)
        raise


def move_folder(source: Path, target: Path) -> None:
    """Move a folder to its place, which appears at once; all of it is on disk when this returns."""
    for path in (*source.rglob("*"), source):
        blobs.sync(path)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.replace(source, target)
    for folder in (target.parent, target.parent.parent):
        blobs.sync(folder)


def _count_features(lease: Lease) -> int:
    rows = [places.read_image_row(lease.store, lease.job.place, name) for name in lease.job.request["images"]]
    return sum(row.count for row in rows)


def _recipes(lease: Lease) -> list[str]:
    return places.recipe_names(
        places.read_image_row(lease.store, lease.job.place, name) for name in lease.job.request["images"]
    )


def main() -> int:
    """Work on one job to its end; 0 also if it failed, which the database says.

    DISK_FULL or 1 if it is to be tried again, with or without space on the disk.
    """
    parser = argparse.ArgumentParser(prog="sfumato.server.map_job")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--job", required=True)
    parser.add_argument("--fence", type=int, required=True)
    args = parser.parse_args()
    log_quietly()
    try:
        work(Store(args.data), args.job, args.fence, read_limits(args.config))
    except jobs.LostLease:
        pass
    except Exception as problem:
        log.exception("a job broke off")
        return DISK_FULL if is_out_of_space(problem, args.data) else 1
    return 0


def is_out_of_space(problem: BaseException, folder: Path) -> bool:
    """Tell whether an error comes from a full disk: by its number, or else its words, or because nothing is left."""
    if blobs.is_disk_full(problem) or blobs.free_bytes(folder) < LITTLE_BYTES:
        return True
    chain: list[BaseException] = []
    cause: BaseException | None = problem
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__
    has_number = any(isinstance(one, OSError) and one.errno is not None for one in chain)
    return not has_number and any(words in str(one) for one in chain for words in FULL_WORDS)


def work(store: Store, name: str, fence: int, limits: Limits) -> None:
    """Work on one job to its end; raises LostLease."""
    job = jobs.read_job(store, name)
    lease = Lease(store, replace(job, fence=fence), limits)
    jobs.renew(store, name, fence, limits.lease_seconds, os.getpid())
    end = threading.Event()
    threading.Thread(target=lease.renew_until, args=[end], daemon=True).start()
    try:
        if job.request.get("kind") == EVIDENCE_JOB:
            show_evidence(lease)
        else:
            publish(lease, make_map(lease))
    except (SfumatoError, places.Missing) as problem:
        if is_out_of_space(problem, store.folder):  # to be tried again, not failed
            raise
        reason = str(problem).replace(f"{lease.work}{os.sep}", "")
        jobs.finish(store, name, fence, jobs.FAILED, reason)
    finally:
        end.set()


if __name__ == "__main__":
    sys.exit(main())
