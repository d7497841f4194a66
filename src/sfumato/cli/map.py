# SPDX-License-Identifier: Apache-2.0
"""sfumato map: an archive of concealed features in, a COLMAP model with concealed landmarks out."""

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from sfumato.cli.match import counted
from sfumato.cli.options import AsJson, Quiet, printable, progress_bar, tell
from sfumato.codebooks import codebook_for
from sfumato.errors import ArchiveError, FileError, ImageError, InputError, suggest
from sfumato.geometry.cameras import NAME_EARLIER, default_camera, fault, read_cameras, refuse_other_sizes
from sfumato.geometry.database import refuse_missing
from sfumato.geometry.localization import LocalizeParams
from sfumato.geometry.mapping import MapOutcome, MapParams, build_map
from sfumato.geometry.maps import Map, load_map, save_landmarks
from sfumato.geometry.model_folder import refuse_taken
from sfumato.geometry.queries import QueriesOutcome, check_output, localize_queries, save_outcome, summarise
from sfumato.geometry.shortlist import Shortlist, by_pairs, by_votes, every_image
from sfumato.images.read import focal_from_exif
from sfumato.matching.many import match_pairs
from sfumato.matching.match_file import MatchFile, load_matches
from sfumato.matching.pairs import Pair, exhaustive
from sfumato.store import Archive, load
from sfumato.types.scene import Camera, Matches

DEFAULTS = MapParams()
LARGEST_EXHAUSTIVE = 60
"""Images that are compared each with every other without being asked to."""
SHOWN = 5


@dataclass(slots=True)
class Given:
    """What is mapped: keypoints and cameras of the readable images, whose cameras are guesses, and what is lost."""

    keypoints: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    cameras: dict[str, Camera] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)
    unreadable: dict[str, str] = field(default_factory=dict)


def map_(
    archive: Annotated[Path, typer.Argument(help="The archive, e.g. private.sfm.h5.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the model to write, e.g. model/.")],
    cameras: Annotated[
        Path | None, typer.Option(help="A line 'name MODEL width height parameters...' an image, as hloc has it.")
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(help="Where the photos are: focal lengths are taken from their EXIF.")
    ] = None,
    matches: Annotated[
        Path | None, typer.Option(help="Made by sfumato match. Default: every image with every other.")
    ] = None,
    mapper: Annotated[str, typer.Option(help="incremental, or global: all images at once.")] = DEFAULTS.mapper,
    refine: Annotated[
        bool, typer.Option("--refine-intrinsics", help="Adjust given cameras too; guessed ones always are.")
    ] = False,
    shared: Annotated[bool, typer.Option("--shared-camera", help="One camera took all images.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same map.")] = DEFAULTS.seed,
    threads: Annotated[
        int, typer.Option(help="With more than 1 the map may differ a little from run to run.")
    ] = DEFAULTS.threads,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the map that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build a map from concealed features: where the cameras stood, and points with concealed descriptors.

    The folder is a COLMAP model (colmap gui --import_path model/ opens it) with landmarks.sfm.h5, the concealed
    features of its points. No descriptor goes to COLMAP. See docs/mapping.md.

    Example: sfumato map private.sfm.h5 --cameras cameras.txt -o model/
    """
    if cameras is not None and photos is not None:
        raise InputError("--cameras says what --photos would guess: give one of the two")
    refuse_taken(output, overwrite=overwrite)  # before any work
    hidden, started = quiet or as_json, time.perf_counter()
    with ExitStack() as stack:
        opened = stack.enter_context(load(archive))
        given = read_given(opened, cameras, photos)
        params = MapParams(
            mapper=mapper,
            seed=seed,
            threads=threads,
            refine_intrinsics=True if refine or photos is not None else None,
            guessed=given.guessed,
            shared_camera=shared,
            overwrite=overwrite,
        )  # fmt: skip
        pairs: Mapping[Pair, Matches]
        if matches is None:
            pairs = match_all(opened, given.keypoints, hidden=hidden)
        else:
            pairs = fitting(stack.enter_context(load_matches(matches)), opened, given)
        outcome = build_map(
            given.keypoints,
            given.cameras,
            pairs,
            output,
            params,
            progress=lambda stage, items, total: progress_bar(stage, total, quiet=hidden)(items),
            complete=lambda folder: save_landmarks(folder, opened),
        )
    report(given, replace(outcome, seconds=time.perf_counter() - started), output, as_json=as_json)
    if outcome.folder is None or given.unreadable:
        raise typer.Exit(1)


def read_given(archive: Archive, cameras: Path | None, photos: Path | None) -> Given:
    """Return keypoints and cameras of the images of an archive; damaged ones are named and left out."""
    given = Given()
    sizes: dict[str, tuple[int, int] | None] = {}
    for name in archive:
        if fault(name):
            given.unreadable[name] = f"no map can hold this name: {fault(name)}; {NAME_EARLIER}"
            continue
        try:
            features = archive[name]
        except ArchiveError as problem:
            given.unreadable[name] = str(problem)
            continue
        given.keypoints[name], sizes[name] = features.keypoints, features.image_size
    if cameras is not None:
        given.cameras = read_cameras(cameras)
        refuse_missing(given.keypoints, given.cameras)
        refuse_other_sizes(given.cameras, sizes)
        return given
    unknown = [name for name, size in sizes.items() if size is None]
    if unknown:
        raise InputError(
            f"the archive does not say how large {len(unknown)} of its images are, such as {unknown[0]!r:.80}: "
            f"give their cameras with --cameras"
        )
    focal = focal_lengths({name: size for name, size in sizes.items() if size is not None}, photos)
    given.cameras = {name: default_camera(size, focal.get(name)) for name, size in sizes.items() if size is not None}
    given.guessed = set(sizes) - set(focal)
    tell_guesses(len(focal), len(given.guessed))
    return given


def focal_lengths(sizes: Mapping[str, tuple[int, int]], photos: Path | None) -> dict[str, float]:
    """Return the focal lengths that photos of a folder tell; photos that cannot be read are named."""
    found: dict[str, float] = {}
    if photos is None:
        return found
    if not photos.is_dir():
        raise FileError(f"{photos} is not a folder of photos: check the path")
    for name, size in sizes.items():
        path = photos / name  # a link is followed, as it was when the photo was concealed
        try:
            focal = focal_from_exif(path, size)
        except ImageError as problem:
            print(printable(f"no focal length of {name}: {problem}"), file=sys.stderr)
            continue
        if focal is not None:
            found[name] = focal
    return found


def tell_guesses(told: int, guessed: int) -> None:
    """Say on standard error which cameras are not known exactly."""
    exif = [f"focal lengths of {counted(told, 'image')} from EXIF"] if told else []
    rest = [f"of {guessed} guessed as 1.2 times the longer side; give --cameras or --photos"] if guessed else []
    if exif or rest:
        start = "" if exif else "focal lengths "
        print(f"cameras: {start}{', '.join(exif + rest)}; adjusted while mapping", file=sys.stderr)


def match_all(archive: Archive, names: Iterable[str], *, hidden: bool) -> dict[Pair, Matches]:
    """Match every image with every other, if they are few."""
    pairs = exhaustive(names)
    if len(pairs.names) > LARGEST_EXHAUSTIVE:
        raise InputError(
            f"{len(pairs.names)} images make {len(pairs)} pairs: choose which to compare with sfumato match "
            f"{archive.path} --retrieval 20 -o matches.h5, and pass --matches matches.h5"
        )
    bar = progress_bar("matching", len(pairs), quiet=hidden, unit="pairs")
    return dict(match_pairs(archive, pairs, progress=bar))


def fitting(matches: MatchFile, archive: Archive, given: Given) -> Mapping[Pair, Matches]:
    """Return the matches of a file that was made of the images of this archive; another one is a FileError."""
    known = matches.purpose.images if matches.purpose else {}
    other = [name for name in known if name in given.keypoints and archive.header(name).checksum != known[name][1]]
    if other:
        raise FileError(
            f"{matches.path} holds matches of other features: {len(other)} of its images, such as {other[0]!r:.80}, "
            f"are not the ones in {archive.path}; match again"
        )
    if not given.unreadable:
        return matches
    return {pair: matches[pair] for pair in matches if not given.unreadable.keys() & set(pair)}


def report(given: Given, outcome: MapOutcome, output: Path, *, as_json: bool) -> None:
    """Name what is not in the map on standard error, and say what is."""
    for name, reason in given.unreadable.items():
        print(printable(f"skipped {name}: {reason}"), file=sys.stderr)
    statistics = outcome.statistics
    if outcome.folder is not None and outcome.unregistered:
        names = ", ".join(outcome.unregistered[:SHOWN])
        more = f" and {len(outcome.unregistered) - SHOWN} more" if len(outcome.unregistered) > SHOWN else ""
        print(printable(f"not in the map: {names}{more}"), file=sys.stderr)
    if outcome.doubt:
        print(printable(f"cameras in doubt: {outcome.doubt}"), file=sys.stderr)
    facts: dict[str, Any] = {
        **{key.replace("_", " "): value for key, value in asdict(statistics).items()},
        "pairs": len(outcome.verified.pairs),
        "verified pairs": outcome.verified.verified,
        "matches": outcome.verified.matches,
        "inliers": outcome.verified.inliers,
        "unregistered": list(outcome.unregistered),
        "other models": list(outcome.other_models),
        "unreadable": given.unreadable,
        "guessed cameras": len(given.guessed),
        "cameras in doubt": outcome.doubt,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 2),
        "output": None if outcome.folder is None else str(output),
    }
    if outcome.folder is None:
        tell(printable(f"no map: {outcome.reason}"), facts, as_json=as_json)
        return
    doubt = "; the cameras are in doubt" if outcome.doubt else ""
    sizes = ", ".join(map(str, outcome.other_models))
    others = f"; {counted(len(outcome.other_models), 'separate map')} of {sizes} images left out" if sizes else ""
    tell(
        f"{statistics.registered} of {counted(statistics.images, 'image')} registered, {statistics.points} points "
        f"(track length {statistics.track_length:.2f}, reprojection error {statistics.reprojection_error_px:.2f} px, "
        f"{outcome.seconds:.1f} s){others}{doubt}: {output}",
        facts,
        as_json=as_json,
    )


# ----------------------------------------------------------------
# sfumato localize: concealed queries and a map in, camera poses out


LOCALIZE_DEFAULTS = LocalizeParams()


def localize(
    queries: Annotated[Path, typer.Argument(help="The archive of queries, e.g. query.sfm.h5.")],
    map_folder: Annotated[Path, typer.Option("--map", help="The map: a folder made by 'sfumato map'.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The list of poses to write, e.g. poses.txt.")],
    cameras: Annotated[
        Path | None,
        typer.Option(help="A line 'name MODEL width height parameters...' a query, as hloc has it. Default: guessed."),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="Match with these public points instead of the map's concealed landmarks.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="A file with a query and an image of the map a line: what to compare.")
    ] = None,
    retrieval: Annotated[
        int | None, typer.Option(help="Compare each query with the so many likeliest images of the map.")
    ] = None,
    codebook: Annotated[
        Path | None,
        typer.Option(help="For --retrieval: a decoys file of the same descriptor. SIFT and RootSIFT need none."),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="For --retrieval of encoded features: the encoder's file. Bundled ones are found without."),
    ] = None,
    max_error: Annotated[
        float, typer.Option(help="Pixels within which a point is an inlier.")
    ] = LOCALIZE_DEFAULTS.max_error_px,
    min_inliers: Annotated[int, typer.Option(help="Report no pose with fewer.")] = LOCALIZE_DEFAULTS.min_inliers,
    ratio: Annotated[
        float | None, typer.Option(help="Matches at most this times as far as the second nearest, e.g. 0.9.")
    ] = LOCALIZE_DEFAULTS.ratio,
    seed: Annotated[int, typer.Option(help="Makes the estimation repeatable.")] = LOCALIZE_DEFAULTS.seed,
    threads: Annotated[int | None, typer.Option(help="Default: the cores there are.")] = LOCALIZE_DEFAULTS.threads,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a list of poses that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find where pictures were taken, from their concealed features and a map.

    A query is compared with images of the map: those that --pairs names, the likeliest ones with --retrieval N, or all
    of a small map. The poses are written as hloc writes them (name qw qx qy qz tx ty tz, camera from world), and beside
    them a .json with inliers, and the reason for each query that has no pose. No pose is ever borrowed from the map. A
    camera with which much less agrees than with another focal length is doubted, and the query named.

    Example: sfumato localize query.sfm.h5 --cameras cameras.txt --map model/ -o poses.txt
    """
    params = LocalizeParams(max_error_px=max_error, min_inliers=min_inliers, ratio=ratio, seed=seed, threads=threads)
    read = {"the archive of queries": queries, "the list of cameras": cameras, "the file of public points": public,
            "the list of pairs": pairs, "the codebook": codebook, "the encoder": encoder}  # fmt: skip
    check_output(output, map_folder, read, overwrite=overwrite)
    given = {} if cameras is None else read_cameras(cameras)
    with ExitStack() as files:
        archive = files.enter_context(load(queries))
        map_ = files.enter_context(load_map(map_folder, public=public))
        outcome = localize_queries(
            archive,
            given,
            map_,
            choose_shortlist(map_, pairs, retrieval, (codebook, encoder), quiet=quiet or as_json),
            params,
            listable=True,
            progress=progress_bar("localizing", len(archive), quiet=quiet or as_json),
        )
        save_outcome(output, outcome, params, {"map": "public points" if map_.is_public else "concealed"})
    report_poses(outcome, given, output, as_json=as_json)
    if outcome.unreadable or outcome.unlisted or outcome.damaged or not outcome.poses:
        raise typer.Exit(1)


def choose_shortlist(
    map_: Map,
    pairs: Path | None,
    retrieval: int | None,
    words: tuple[Path | None, Path | None] = (None, None),
    *,
    quiet: bool = True,
) -> Shortlist:
    """Return the one way of choosing images of the map that was asked for; ``words``: files of decoys and encoder."""
    if pairs is not None and retrieval is not None:
        raise InputError("--pairs names the images to compare with, --retrieval finds them: give one of the two")
    for option, given in zip(("--codebook", "--encoder"), words, strict=True):
        if given is not None and retrieval is None:
            raise InputError(f"{option} is for --retrieval, which was not asked for")
    if pairs is not None:
        return by_pairs(pairs)
    if retrieval is None:
        return every_image(map_.names)
    codebook = codebook_for(map_.landmarks(), *words)
    return by_votes(map_, retrieval, codebook, progress=progress_bar("voting", len(map_), quiet=quiet))


def report_poses(outcome: QueriesOutcome, given: Mapping[str, Camera], output: Path, *, as_json: bool) -> None:
    """Name the queries without a pose, or with a doubtful one, on standard error, and say what was written."""
    warn_of_guesses(outcome, given)
    for name, reason in outcome.reasons.items():
        print(printable(f"no pose for {name}: {reason}"), file=sys.stderr)
    for name, doubt in outcome.doubts.items():
        print(printable(f"camera of {name} in doubt: {doubt}"), file=sys.stderr)
    for name, reason in outcome.damaged.items():
        print(printable(f"not compared with {name} of the map: {reason}"), file=sys.stderr)
    facts = {**summarise(outcome), "output": str(output), "table": str(output.with_suffix(".json"))}
    notes = "".join(
        f", {what}"
        for count, what in (
            (len(outcome.guessed), f"{counted(len(outcome.guessed), 'camera')} guessed from the image size"),
            (len(outcome.doubts), f"{counted(len(outcome.doubts), 'camera')} in doubt, their poses may be far off"),
            (len(outcome.strangers), f"{counted(len(outcome.strangers), 'candidate')} not in the map"),
            (len(outcome.unlisted), f"{len(outcome.unlisted)} left out because of their names"),
            (len(outcome.unreadable), f"{len(outcome.unreadable)} unreadable"),
            (len(outcome.damaged), f"{counted(len(outcome.damaged), 'damaged image')} of the map left out"),
        )
        if count
    )
    many = f"{facts['queries']} {'query' if facts['queries'] == 1 else 'queries'}"
    if facts["localized"]:
        line = f"{facts['localized']} of {many} localized (median {facts['median inliers']:.0f} inliers)"
    else:
        line = f"nothing was localized, 0 of {many}"
    tell(f"{line}{notes}: {output}", facts, as_json=as_json)


def warn_of_guesses(outcome: QueriesOutcome, given: Mapping[str, Camera]) -> None:
    """Name queries that have no camera where cameras were given."""
    if not given or not outcome.guessed:
        return
    spare = set(given) - set(outcome.results)
    told = ", ".join(f"{name!r:.80}{suggest(name, spare)}" for name in outcome.guessed[:SHOWN])
    more = f" and {len(outcome.guessed) - SHOWN} more" if len(outcome.guessed) > SHOWN else ""
    print(printable(f"no camera is given of {told}{more}: guessed from the image size"), file=sys.stderr)
