# SPDX-License-Identifier: Apache-2.0
"""Audit benchmark: time, and memory of all processes, from large photos to the page.

    python benchmarks/audit.py --photos 20 --megapixels 12 --json out.json

Photos are those of bsds500/val where SFUMATO_DATA has them, and the sample photos otherwise, enlarged to a number of
megapixels: an audit reads and reduces them as it does the photos of a camera. It runs ``sfumato audit FOLDER`` as a
user would type it, by default with the default recipes. Memory is the greatest sum over its processes, ten times a
second. Without a peer: nothing else makes such a page. Seconds are of the clock on the wall.
"""

import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import psutil
from common import arguments, data_folder, finish, load_average
from PIL import Image

from sfumato.images.samples import sample_paths


def make_photos(folder: Path, count: int, megapixels: float) -> None:
    """Write ``count`` photos of this many megapixels; if there are fewer pictures, each several times."""
    data = data_folder()
    found = sorted((data / "photos/bsds500/val").glob("*.jpg"))[:count] if data else list(sample_paths().values())
    for number, path in enumerate(islice(cycle(found), count)):
        with Image.open(path) as photo:
            scale = (megapixels * 1e6 / (photo.width * photo.height)) ** 0.5
            size = round(photo.width * scale), round(photo.height * scale)
            photo.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(folder / f"{number:03}.jpg", quality=92)


def memory_of(process: psutil.Process) -> int:
    """Return the bytes that a process and its children hold, as far as they still are there."""
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            try:
                total += one.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        pass
    return total


def audit(folder: Path, place: Path, options: list[str]) -> tuple[float, int]:
    """Run an audit; return its seconds and the most bytes it held."""
    command = [sys.executable, "-m", "sfumato", "audit", str(folder), "-o", str(place / "report.html"), "-q"]
    environment = os.environ | {"XDG_CONFIG_HOME": str(place)}  # a key made for this run stays in it
    start, most = time.perf_counter(), 0
    with subprocess.Popen([*command, *options], env=environment) as running:
        watched = psutil.Process(running.pid)
        while running.poll() is None:
            most = max(most, memory_of(watched))
            time.sleep(0.1)
    if running.returncode:
        sys.exit(f"the audit ended with {running.returncode}")
    return time.perf_counter() - start, most


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--photos", type=int, default=20)
    parser.add_argument("--megapixels", type=float, default=12)
    args = parser.parse_args()
    count, size = (1, 0.03) if args.small else (args.photos, args.megapixels)
    options = ["--recipes", "default,raw", "--max-features", "50"] if args.small else []
    load = load_average()
    with tempfile.TemporaryDirectory() as name:
        photos, place = Path(name) / "photos", Path(name) / "audit"
        photos.mkdir()
        place.mkdir()
        make_photos(photos, count, size)
        taken, most = audit(photos, place, options)
        page = (place / "report.html").stat().st_size
    row = {"photos": count, "megapixels": size, "seconds": taken, "gigabytes": most / 1e9, "page_megabytes": page / 1e6}
    finish("audit", args, {"photos": count, "megapixels": size, "cores": os.cpu_count(), "load": load}, [row])


if __name__ == "__main__":
    main()
