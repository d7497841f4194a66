# SPDX-License-Identifier: Apache-2.0
"""Cost of chaff: archives, seconds of the processor, matches on planes, and maps."""

import time
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from common import note

import sfumato
from chaffs.figures import Row, row
from chaffs.photos import plane_pairs
from sfumato.auditing.matching import transfer_errors
from sfumato.experiments.data.room import make_room, save_room
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images

Floats = np.ndarray


def processor_seconds(work: Callable[..., Any], *inputs: Any, **settings: Any) -> tuple[Any, float]:
    """Return what a function gives, and the seconds of the processor that it takes, on all threads together.

    What else runs on the machine changes them less than it does the time on the clock.
    """
    start = time.process_time()
    result = work(*inputs, **settings)
    return result, time.process_time() - start


def match_planes(pairs: list[tuple[Any, Any, Floats]], concealed: Mapping[str, Any]) -> tuple[list[float], ...]:
    """Return, pair by pair, the correct matches, their share, and the seconds."""
    correct, shares, spent = list[float](), list[float](), list[float]()
    for first, second, homography in pairs:
        a, b = concealed[id_of(first)], concealed[id_of(second)]
        matches, seconds = processor_seconds(sfumato.match, a, b, threads=1)
        ends = (side.keypoints[matches.indices[:, column], :2] for column, side in enumerate((a, b)))
        right = transfer_errors(homography, *ends) < 3
        correct.append(float(right.sum()))
        shares.append(float(right.mean()) if len(right) else 0.0)
        spent.append(seconds)
    return correct, shares, spent


def cost_on_planes(args: Any, folder: Path | None, place: Path) -> list[Row]:
    """Measure archives, concealment and matching on pairs of pictures of planes; keys are drawn, and times vary."""
    pairs, key, rows = plane_pairs(args, folder), sfumato.new_key(), list[Row]()
    names = {id_of(picture): picture for first, second, _ in pairs for picture in (first, second)}
    local = LocalParams(max_features=args.features)
    extracted = {name: processor_seconds(extract, picture, local) for name, picture in names.items()}
    real = sum(len(features) for features, _ in extracted.values())
    warm = sfumato.conceal(next(iter(extracted.values()))[0], "sealed-512", secret=key)
    sfumato.match(warm, warm, threads=1)
    base: Mapping[str, float] = {}
    for amount in args.amounts:
        recipe, case = f"sealed-512+chaff-{amount}" if amount else "sealed-512", f"chaff-{amount}"
        timed = {
            name: processor_seconds(sfumato.conceal, features, recipe, secret=key)
            for name, (features, _) in extracted.items()
        }
        concealed = {name: one for name, (one, _) in timed.items()}
        correct, shares, spent = match_planes(pairs, concealed)
        alone, before = (float(np.mean([seconds for _, seconds in one.values()])) for one in (timed, extracted))
        archive = place / f"{case}.sfm"
        sfumato.save(archive, {f"{number}.png": one for number, one in enumerate(concealed.values())})
        rows.append(row("cost", case, "bytes of an archive per real feature", archive.stat().st_size / real))
        rows.append(row("cost", case, "seconds to conceal a photo", alone))
        means = {"extract and conceal a photo": alone + before, "match a pair": float(np.mean(spent))}
        base = base or means
        for name, mean in means.items():
            rows.append(row("cost", case, f"seconds to {name}", mean))
            rows.append(row("cost", case, f"seconds to {name}, times chaff-{args.amounts[0]}", mean / base[name]))
        rows.append(row("cost", case, "correct matches of a pair", correct))
        rows.append(row("cost", case, "accuracy of a pair", shares))
    return rows


def id_of(picture: Any) -> str:
    """Return a name for a picture: its path, or a number of its own."""
    return str(picture) if isinstance(picture, Path) else str(id(picture))


def match_all(concealed: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Match every photo with every other."""
    return {(a, b): sfumato.match(concealed[a], concealed[b], threads=1) for a, b in combinations(sorted(concealed), 2)}


def cost_of_maps(args: Any, folder: Path | None, place: Path) -> list[Row]:
    """Map a place without one of its photos, and localize that one."""
    if folder is None:
        save_room(make_room(None, np.random.default_rng(args.seed), views=4, width=240, height=180), place / "room")
        images = place / "room" / "images"
    else:
        images = folder / "posed/fountain-P11/images"
    local, key, rows = LocalParams(max_features=args.map_features), sfumato.new_key(), list[Row]()
    clear = {path.name: extract(path, local) for _, path in list_images(images)}
    query = sorted(clear)[len(clear) // 2]
    for amount in args.amounts:
        recipe, case = f"sealed-512+chaff-{amount}" if amount else "sealed-512", f"chaff-{amount}"
        concealed = {name: sfumato.conceal(one, recipe, secret=key) for name, one in clear.items()}
        archive, queries, model = (place / f"{case}-{name}" for name in ("map.sfm", "query.sfm", "model"))
        sfumato.save(archive, {name: one for name, one in concealed.items() if name != query})
        sfumato.save(queries, {query: concealed[query]})
        matches, seconds = processor_seconds(match_all, {name: one for name, one in concealed.items() if name != query})
        rows.append(row("cost", case, "seconds to match the photos of a map", seconds))
        outcome, seconds = processor_seconds(sfumato.build_map, archive, matches, model)
        rows.append(row("cost", case, "seconds to make a map of matches", seconds))
        rows.append(row("cost", case, "photos in the map", float(outcome.statistics.registered)))
        rows.append(row("cost", case, "points of the map", float(outcome.statistics.points)))
        if outcome.folder is None:
            note(f"{case}: no map, {outcome.reason}")
            continue
        found, seconds = processor_seconds(sfumato.localize, queries, outcome.folder)
        rows.append(row("cost", case, "seconds to localize a query", seconds))
        rows.append(row("cost", case, "inliers of a query", float(found.results[query].inliers)))
    return rows
