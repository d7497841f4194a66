# SPDX-License-Identifier: Apache-2.0
"""Photos to a map, end to end: what each stage costs under the default, with all positions released, and in COLMAP.

    python benchmarks/pipeline.py --json out.json                      # sets of SFUMATO_DATA
    python benchmarks/pipeline.py photos/ more-photos/                 # your own

Each stage runs in a fresh process, as a user types it: ``sfumato conceal``, ``match``, ``release``, ``map``; and plain
COLMAP as it comes: its own SIFT, exhaustive matching and incremental mapper. Our default keeps the same keypoints. The
ways take turns, so that what disturbs the machine disturbs all of them. Processor time counts all cores.

"released": rows whose positions left the device, of all rows. "without need": of these, the share that is in no point
of the map. "of COLMAP": points and processor time as a share of plain COLMAP's on the same photos.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import arguments, data_folder, finish, load_average, note

from sfumato import load, new_key
from sfumato.geometry import load_map
from sfumato.images import sample_paths

SETS = (
    "unordered/internet/london_bridge", "unordered/internet/piazza_san_marco", "unordered/internet/st_pauls_cathedral",
    "unordered/internet/united_states_capitol", "posed/fountain-P11/images", "posed/entry-P10/images",
    "unordered/sceaux-castle", "unordered/lund",
)  # fmt: skip
WAYS = ("default", "all positions", "colmap")
STAGES = ("conceal", "match", "release", "map")
PHOTOS = (".jpg", ".jpeg", ".png")


def run(words: Sequence[str], environment: dict[str, str]) -> tuple[dict[str, float], str]:
    """Run a process to its end; return processor and wall seconds and the most memory in MB, and what it printed."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(words, stdout=out, stderr=err, env={**os.environ, **environment})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        text, problem = out.read(), err.read()
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}: {problem[-500:]}")
    cost = {"cpu": usage.ru_utime + usage.ru_stime, "wall": time.perf_counter() - started, "MB": usage.ru_maxrss / 1024}
    return cost, text


def sfumato(*words: str) -> list[str]:
    """Return a command of the package, quiet and with figures for programs."""
    return [sys.executable, "-m", "sfumato", *words, "--json", "--quiet"]


def stages_of(way: str, photos: Path, work: Path, key: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the stages of a way from photos to a map in ``work/model``, and the process that each is."""
    if way == "colmap":
        for stage in ("conceal", "match", "map"):
            yield stage, [sys.executable, __file__, "--colmap", stage, str(photos), str(work)]
        return
    archive, matches = str(work / "private.sfm"), str(work / "matches.h5")
    positions = ["--positions"] if way == "all positions" else []
    yield "conceal", sfumato("conceal", str(photos), "-o", archive, "--secret-file", str(key), *positions)
    yield "match", sfumato("match", archive, "--exhaustive", "-o", matches)
    if way == "default":
        yield "release", sfumato("release", archive, "--matches", matches, "--secret-file", str(key))
    yield (
        "map",
        sfumato("map", archive, "--matches", matches, "--photos", str(photos), "-o", str(work / "model")),
    )


def colmap_stage(stage: str, photos: Path, work: Path) -> None:
    """Run a stage of plain COLMAP, as it comes."""
    import pycolmap

    database = str(work / "database.db")
    if stage == "conceal":
        pycolmap.extract_features(
            database, str(photos), camera_mode=pycolmap.CameraMode.PER_IMAGE, device=pycolmap.Device.cpu
        )
    elif stage == "match":
        pycolmap.match_exhaustive(database, device=pycolmap.Device.cpu)
    else:
        models = pycolmap.incremental_mapping(database, str(photos), str(work))
        best = max(models.values(), key=lambda one: (one.num_reg_images(), one.num_points3D()), default=None)
        if best is not None:
            (work / "model").mkdir()
            best.write(str(work / "model"))


def figures_of(way: str, work: Path) -> dict[str, Any]:
    """Return what is in a map, and what left the device for it."""
    model = work / "model"
    if not model.is_dir():
        return {"registered": 0, "points": 0}
    import pycolmap

    built = pycolmap.Reconstruction(str(model))
    figures: dict[str, Any] = {"registered": built.num_reg_images(), "points": built.num_points3D()}
    if way == "colmap":
        return figures
    with load(work / "private.sfm") as images:
        released = {name: int(images[name].is_shown.sum()) for name in images}
        rows = {name: len(images[name]) for name in images}
    with load_map(model) as map_:
        used = {name: len(map_.view(name).landmarks) for name in map_.names}
    shown = sum(released.values())
    figures["released"] = shown / max(1, sum(rows.values()))
    figures["without need"] = 1 - sum(used.values()) / max(1, shown)
    figures["archive bytes"] = (work / "private.sfm").stat().st_size
    return figures


def measure(way: str, photos: Path, key: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Go one way from photos to a map, and return its figures."""
    with tempfile.TemporaryDirectory(prefix="sfumato-pipeline-") as place:
        work = Path(place)
        costs = {}
        for stage, words in stages_of(way, photos, work, key):
            note(f"{photos}: {way}, {stage}")
            costs[stage], _ = run(words, environment)
        row: dict[str, Any] = {"cpu s": round(sum(cost["cpu"] for cost in costs.values()), 2)}
        for stage in STAGES:
            row[f"{stage} cpu s"] = round(costs[stage]["cpu"], 2) if stage in costs else None
        row["wall s"] = round(sum(cost["wall"] for cost in costs.values()), 2)
        row["MB"] = round(max(cost["MB"] for cost in costs.values()))
        return {**row, **figures_of(way, work)}


def main() -> None:
    """Measure the sets that were named, or those of the data folder, or else a bundled photo twice."""
    parser = arguments(__doc__ or "")
    parser.add_argument("photos", nargs="*", type=Path, help="folders of photos; default: sets of SFUMATO_DATA")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--colmap", nargs=3, metavar=("STAGE", "PHOTOS", "WORK"), help="internal: a stage of COLMAP")
    args = parser.parse_args()
    if args.colmap:
        colmap_stage(args.colmap[0], Path(args.colmap[1]), Path(args.colmap[2]))
        return
    load, data = load_average(), data_folder()
    with tempfile.TemporaryDirectory(prefix="sfumato-pipeline-") as place:
        key, environment = Path(place) / "device.key", {"SFUMATO_KEY": str(Path(place) / "none.key")}
        key.write_bytes(new_key())
        key.chmod(0o600)
        sets = [data / name for name in SETS] if data and not args.small else [small_set(Path(place))]
        folders = args.photos or sets
        rows = []
        for folder in folders:
            costs = {way: measure(way, folder, key, environment) for way in args.ways}
            peer = costs.get("colmap")
            count = sum(path.suffix.lower() in PHOTOS for path in folder.iterdir())
            for way, row in costs.items():
                name = folder.parent.name if folder.name == "images" else folder.name
                shares = {} if peer is None else {
                    "points of COLMAP's": round(row["points"] / max(1, peer["points"]), 3),
                    "time of COLMAP's": round(row["cpu s"] / peer["cpu s"], 2),
                }  # fmt: skip
                rows.append({"set": name, "photos": count, "way": way, **shares, **row})
            print(json.dumps(rows[-len(costs) :], indent=1), file=sys.stderr)
    finish("pipeline", args, {"cores": os.cpu_count(), "load before": load}, rows)


def small_set(place: Path) -> Path:
    """Return a folder of two views of a bundled photo."""
    import cv2

    folder = place / "small"
    folder.mkdir()
    picture = cv2.imread(str(sample_paths()["coffee"]))
    for number in range(3):
        cv2.imwrite(str(folder / f"{number}.png"), picture[:, 20 * number :])
    return folder


if __name__ == "__main__":
    main()
