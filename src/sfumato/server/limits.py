# SPDX-License-Identifier: Apache-2.0
"""Limits of a server: sizes, counts, rates and times, in one place, shown by ``/v1/about``."""

import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sfumato.errors import FileError, InputError
from sfumato.store.frames import FrameLimits

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server; what goes beyond one is refused with 413, 422, 429, 504 or 507, and the answer says which.

    Bytes of bodies, numbers of things, seconds. ``localize_rate`` and ``upload_rate`` are requests a second of one key,
    ``localize_burst`` and ``upload_burst`` how many may come at once. ``query_queue`` counts queries that wait or are
    worked on, ``queries_of_key`` those of one key; more are refused at once. ``uploads_at_once`` and ``uploads_of_key``
    do the same for uploads. ``connections`` counts those that are open. A body may pause for ``upload_seconds``, must
    come with ``slowest_upload`` bytes a second on average, and has ``body_seconds`` in all; the head of a request has
    ``head_seconds``. ``job_queue`` counts jobs that wait, ``jobs_of_place`` those of one place. A query that sends no
    positions gets ``landmarks_of_query`` points of a map at most. ``least_free_bytes`` of
    the disk must be left, or uploads and jobs are refused.
    """

    image_bytes: int = 64 * MEBIBYTE
    query_bytes: int = 8 * MEBIBYTE
    json_bytes: int = 2 * MEBIBYTE
    features: int = 100_000
    names_at_once: int = 10_000
    places: int = 10_000
    images: int = 10_000
    images_of_map: int = 2_000
    pairs_of_map: int = 500_000
    candidates: int = 100
    landmarks_of_query: int = 2_000
    localize_rate: float = 2.0
    localize_burst: int = 10
    upload_rate: float = 20.0
    upload_burst: int = 100
    uploads_at_once: int = 8
    uploads_of_key: int = 2
    connections: int = 500
    query_queue: int = 64
    queries_of_key: int = 32
    job_queue: int = 100
    jobs_of_place: int = 2
    query_seconds: float = 5.0
    upload_seconds: float = 30.0
    slowest_upload: int = 16_384
    body_seconds: float = 600.0
    head_seconds: float = 15.0
    job_seconds: float = 6 * 3600.0
    lease_seconds: float = 30.0
    attempts: int = 3
    events_of_job: int = 1_000
    session_seconds: float = 8 * 3600.0
    least_free_bytes: int = 2 * 1024 * MEBIBYTE

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**62
            if not is_number or (isinstance(limit.default, int) and not isinstance(value, int)):
                raise InputError(f"limit {limit.name}: expected a number such as {limit.default}, got {value!r:.40}")

    @property
    def frame(self) -> FrameLimits:
        """The limits of one frame."""
        return FrameLimits(features=self.features, frame_bytes=self.image_bytes)

    def facts(self) -> dict[str, float]:
        """Return the limits by name."""
        return asdict(self)


def read_limits(path: Path | None) -> Limits:
    """Read limits from the table ``[limits]`` of a TOML file; what it does not name has its usual value.

    Raises FileError for a file that cannot be read, InputError for a limit that there is not.
    """
    if path is None:
        return Limits()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise FileError(f"{path}: cannot be read as TOML: {cause}") from cause
    table = content.get("limits", {})
    known = {limit.name for limit in fields(Limits)}
    strange = sorted(set(content) - {"limits"}) or sorted(set(table) - known)
    if strange:
        raise InputError(f"{path}: {strange[0]!r:.80} is no limit; there are {', '.join(sorted(known))}")
    return Limits(**table)
