# SPDX-License-Identifier: Apache-2.0
"""sfumato map and localize: concealed features in, a COLMAP model with concealed landmarks, or camera poses, out."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.options import AsJson, Quiet, printable, quantity, stage_bars, tell
from sfumato.cli.service.connect import MapServerOptions, QueryServerOptions
from sfumato.codebooks import codebook_for
from sfumato.concealment.keys import read_key
from sfumato.device import holds_photos, localize_photos, own_keypoints
from sfumato.errors import InputError, suggest
from sfumato.geometry.cameras import SHOWN, pose_numbers, read_marked_cameras
from sfumato.geometry.localization import Localization, LocalizeParams, solve_pose
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import MapOutcome, build_map, outcome_facts
from sfumato.geometry.maps import Map, draw_map, load_map, picture_kind
from sfumato.geometry.outputs import PICTURE, refuse_existing
from sfumato.geometry.queries import (
    Localizations,
    check_poses_output,
    localize,
    localize_each,
    read_landmarks,
    refuse_strange_cameras,
    save_localizations,
    summarise,
    write_landmarks,
)
from sfumato.geometry.shortlist import CandidatesLike
from sfumato.images.read import list_images, read_focal_lengths
from sfumato.matching.codebook import Codebook
from sfumato.store.archive import load
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.scene import Camera

DEFAULTS = MapParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """Options that say how a map is made."""

    mapper: Annotated[
        str, typer.Option(help="auto: both, the best map is kept. incremental or global (all images at once): one run.")
    ] = DEFAULTS.mapper
    tries: Annotated[int, typer.Option(help="Runs that auto makes at most; two that agree are enough.")] = (
        DEFAULTS.tries
    )
    refine_intrinsics: Annotated[
        bool, typer.Option("--refine-intrinsics", help="Adjust given cameras too; guessed ones always are.")
    ] = False
    shared_camera: Annotated[bool, typer.Option("--shared-camera", help="One camera took all images.")] = False
    seed: Annotated[int, typer.Option(help="The same seed gives the same map.")] = DEFAULTS.seed
    threads: Annotated[int, typer.Option(help="With more than 1 the map may differ a little from run to run.")] = (
        DEFAULTS.threads
    )
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the map that is there.")] = False

    @property
    def params(self) -> MapParams:
        """Return the settings of mapping, checked."""
        return MapParams(
            mapper=self.mapper,
            tries=self.tries,
            refine_intrinsics=self.refine_intrinsics or None,
            shared_camera=self.shared_camera,
            seed=self.seed,
            threads=self.threads,
            overwrite=self.overwrite,
        )


def map_(
    archive: Annotated[
        Path | None, typer.Argument(help="The archive, e.g. private.sfm. With --server none: push it first.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The folder of the model to write, e.g. model/. With --server it may be left out."
        ),
    ] = None,
    cameras: Annotated[
        Path | None,
        typer.Option(
            help="A line 'name MODEL width height parameters...' per image, as hloc has it ('sfumato cameras' writes "
            "one), or COLMAP's cameras.txt with images.txt beside it."
        ),
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(help="The folder of the photos: focal lengths are taken from their EXIF.")
    ] = None,
    matches: Annotated[
        Path | None,
        typer.Option(help="Made by sfumato match. Default: all pairs of up to 60 images, 20 per image of more."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the map, points and cameras: a .png, .svg or .pdf file.")
    ] = None,
    options: MapOptions = MapOptions(),
    remote: MapServerOptions = MapServerOptions(),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build a map from concealed features: where the cameras stood, and points with concealed descriptors.

    It is made of positions: 'sfumato release' puts those that it needs into a sealed archive. The folder is a COLMAP
    model (colmap gui --import_path model/ opens it) with landmarks.sfm, the concealed features of its points. No
    descriptor goes to COLMAP. See 'sfumato help map_and_localize'.

    With --server and --place a server makes the map, of the images that 'sfumato push' sent. This shows how far it is,
    and says the same in the end; with -o the map is fetched too.

    Example: sfumato map private.sfm --cameras cameras.txt -o model/
    Example: sfumato map --server http://127.0.0.1:8765 --place kitchen
    """
    if remote.is_meant(archive is None):
        from sfumato.cli.service.maps import map_at_server

        local = {"ARCHIVE": archive, "--cameras": cameras, "--photos": photos, "--matches": matches,
                 "--picture": picture}  # fmt: skip
        map_at_server(remote, output, options, local, as_json=as_json, quiet=quiet)
        return
    remote.refuse()
    if archive is None or output is None:
        raise typer.BadParameter("give an archive and the folder to write: sfumato map private.sfm -o model/")
    if cameras is not None and photos is not None:
        raise InputError("--cameras says what --photos would guess: give one of the two")
    if picture is not None:
        picture_kind(picture)
        if Path(os.path.realpath(output)) in Path(os.path.realpath(picture)).parents:
            raise InputError(
                f"--picture {picture} is within the map's folder, which holds nothing else: choose another"
            )
        refuse_existing(picture, PICTURE, {"archive": archive, "cameras": cameras}, overwrite=options.overwrite)
    params = options.params
    focal_lengths = {} if photos is None else _focal_lengths(archive, photos)
    bars = stage_bars(quiet=quiet or as_json)
    outcome = build_map(archive, matches, output, cameras, params, focal_lengths=focal_lengths, progress=bars)
    _warn_of_guesses(outcome, cameras)
    report(outcome, output, as_json=as_json)
    if picture is not None and outcome.folder is not None:
        facts = outcome_facts(outcome)
        draw_map(outcome.folder, picture, f"{_headline(facts)}{_remarks(facts)}")
    if outcome.folder is None or outcome.unreadable:
        raise typer.Exit(1)


def _focal_lengths(archive: Path, photos: Path) -> dict[str, float]:
    """Return the focal lengths that EXIF gives; photos that cannot be read are named on standard error."""
    with load(archive) as images:
        headers = images.summary().images
    sizes = {header.name: header.image_size for header in headers if header.image_size is not None}
    lengths, problems = read_focal_lengths(photos, sizes)
    for name, problem in problems.items():
        print(printable(f"no focal length of {name}: {problem}"), file=sys.stderr)
    return lengths


def _warn_of_guesses(outcome: MapOutcome, cameras: Path | None) -> None:
    """Say on standard error which cameras are not known exactly."""
    guessed = len(outcome.guessed)
    if cameras is not None:
        if guessed:
            line = f"cameras: {guessed} of {outcome.statistics.images} are marked as guesses in {cameras}"
            print(printable(f"{line}; adjusted while mapping"), file=sys.stderr)
        return
    known = outcome.statistics.images - guessed
    exif = [f"focal lengths of {quantity(known, 'image')} from EXIF"] if known else []
    rest = (
        [
            f"of {guessed} guessed as 1.2 times the longer side; give --cameras, or --shared-camera if one camera "
            "took them all; photos with EXIF know more: --photos, or conceal --with-cameras"
        ]
        if guessed
        else []
    )
    if exif or rest:
        start = "" if exif else "focal lengths "
        print(f"cameras: {start}{', '.join(exif + rest)}; adjusted while mapping", file=sys.stderr)


def report(outcome: MapOutcome, output: Path, *, as_json: bool) -> None:
    """Name what is not in the map on standard error, and say what is."""
    facts = {**outcome_facts(outcome), "output": None if outcome.folder is None else str(output)}
    report_facts(facts, str(output), as_json=as_json)


def report_facts(facts: dict[str, Any], where: str, *, as_json: bool) -> None:
    """Report a map by its facts: those of ``outcome_facts``, and ``output``, None where there is no map."""
    has_map = not facts["reason"]
    for name, reason in facts["unreadable"].items():
        print(printable(f"skipped {name}: {reason}"), file=sys.stderr)
    if has_map and facts["unregistered"]:
        names = ", ".join(facts["unregistered"][:SHOWN])
        more = f" and {len(facts['unregistered']) - SHOWN} more" if len(facts["unregistered"]) > SHOWN else ""
        print(printable(f"not in the map: {names}{more}"), file=sys.stderr)
    doubtful = list(facts["images in doubt"].items())
    for name, reason in doubtful[:SHOWN]:
        print(printable(f"{name} in doubt: {reason}"), file=sys.stderr)
    if len(doubtful) > SHOWN:
        print(f"{len(doubtful) - SHOWN} more images in doubt; --json names all", file=sys.stderr)
    for reason in facts["doubt"]:
        print(printable(f"map in doubt: {reason}"), file=sys.stderr)
    for other in facts["other models"]:
        print(
            printable(f"a separate map of {other['images']} images, {other['points']} points: {other['folder']}"),
            file=sys.stderr,
        )
        for reason in other["doubt"]:
            print(printable(f"separate map {Path(other['folder']).name} in doubt: {reason}"), file=sys.stderr)
    if not has_map:
        tell(printable(f"no map: {facts['reason']}"), facts, as_json=as_json)
        return
    tell(
        f"{_headline(facts)} (track length {facts['track length']:.2f}, reprojection error "
        f"{facts['reprojection error px']:.2f} px, {facts['seconds']:.1f} s){_remarks(facts)}: {where}",
        facts,
        as_json=as_json,
    )


def _headline(facts: Mapping[str, Any]) -> str:
    """Return what a map holds, in a few words."""
    return f"{facts['registered']} of {quantity(facts['images'], 'image')} registered, {facts['points']} points"


def _remarks(facts: Mapping[str, Any]) -> str:
    """Return what the last line says beyond figures."""
    remarks, others = "", facts["other models"]
    if others:
        sizes = ", ".join(str(other["images"]) for other in others)
        remarks += f"; {quantity(len(others), 'separate map')} of {sizes} images beside it"
        doubtful = sum(bool(other["doubt"]) for other in others)
        remarks += f", {doubtful} of them in doubt" if doubtful else ""
    if facts["doubt"]:
        remarks += "; the map is in doubt"
    elif facts["images in doubt"]:
        remarks += f"; {quantity(len(facts['images in doubt']), 'image')} in doubt"
    return remarks


# --- sfumato localize


LOCALIZE_DEFAULTS = LocalizeParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOptions:
    """Options that choose the images of the map to compare a query with."""

    pairs: Annotated[
        Path | None, typer.Option(help="A file with a query and an image of the map per line: what to compare.")
    ] = None
    retrieval: Annotated[
        int | None,
        typer.Option(
            help="Compare each query with this many images of the map that look most like it. By default all, and 20 "
            "of a map of more than 100."
        ),
    ] = None
    codebook: Annotated[
        Path | None,
        typer.Option(help="For --retrieval: a decoys file of the same descriptor. SIFT and RootSIFT need none."),
    ] = None
    encoder: Annotated[
        Path | None,
        typer.Option(help="For --retrieval of encoded features: the encoder's file. Bundled ones are known."),
    ] = None

    def choose(self) -> CandidatesLike:
        """Return the one choice of candidates that was made."""
        if self.pairs is not None and self.retrieval is not None:
            raise InputError("--pairs names the images to compare with, --retrieval finds them: give one of the two")
        for option, path in (("--codebook", self.codebook), ("--encoder", self.encoder)):
            if path is not None and self.retrieval is None:
                raise InputError(f"{option} is for --retrieval, which is not set")
        if self.retrieval is not None:
            return f"votes:{self.retrieval}"
        return self.pairs or "exhaustive"

    def codebook_for(self, map_: Map) -> Codebook | None:
        """Return the codebook of the votes; None where there are no votes, or the bundled one will do."""
        return None if self.retrieval is None else codebook_for(map_.landmarks(), self.codebook, self.encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalizeOptions:
    """Options that say how a query is localized."""

    max_error: Annotated[float, typer.Option(help="Pixels within which a point is an inlier.")] = (
        LOCALIZE_DEFAULTS.max_error_px
    )
    min_inliers: Annotated[int, typer.Option(help="Report no pose with fewer.")] = LOCALIZE_DEFAULTS.min_inliers
    ratio: Annotated[float | None, typer.Option(help="As in sfumato match, where the defaults are.")] = (
        LOCALIZE_DEFAULTS.ratio
    )
    seed: Annotated[int, typer.Option(help="Makes the estimation repeatable.")] = LOCALIZE_DEFAULTS.seed
    threads: Annotated[int | None, typer.Option(help="Default: all cores.")] = LOCALIZE_DEFAULTS.threads

    @property
    def params(self) -> LocalizeParams:
        """Return the settings of localization, checked."""
        return LocalizeParams(
            max_error_px=self.max_error,
            min_inliers=self.min_inliers,
            ratio=self.ratio,
            seed=self.seed,
            threads=self.threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKeyOptions:
    """Options for queries that are photos: the key to conceal them with."""

    secret_file: Annotated[
        Path | None, typer.Option(help="For photos: the device key that the map was made with. Default: yours.")
    ] = None
    place: Annotated[
        str | None,
        typer.Option(help="For photos: the place that the map was sealed for. With --server: the place of the map."),
    ] = None

    def read(self, queries: Path, public: Path | None) -> dict[str, Any]:
        """Return the key and the place for photos; for an archive None of them may be given."""
        if not holds_photos(queries):
            for option, value in (("--secret-file", self.secret_file), ("--place", self.place)):
                if value is not None:
                    raise InputError(f"{option} is for photos, and the features in {queries} are concealed already")
            return {}
        if public is not None:
            raise InputError("--public is for queries that are concealed already: sfumato conceal makes an archive")
        return {"secret": None if self.secret_file is None else read_key(self.secret_file), "place": self.place}


def localize_(
    queries: Annotated[
        Path, typer.Argument(help="An archive of queries, e.g. query.sfm; or, on the device, a photo or a folder.")
    ],
    model: Annotated[
        Path | None, typer.Argument(metavar="MAP", help="The map: a folder made by 'sfumato map'.")
    ] = None,
    map_folder: Annotated[Path | None, typer.Option("--map", help="The same as MAP.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The list of poses to write, e.g. poses.txt. Default: they are shown."),
    ] = None,
    cameras: Annotated[
        Path | None,
        typer.Option(
            help="A line 'name MODEL width height parameters...' per query, as hloc has it, or COLMAP's cameras.txt. "
            "Default: the focal lengths of photos and archives that have one; others are guessed."
        ),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="Match with these public points instead of the map's concealed landmarks.")
    ] = None,
    choice: CandidateOptions = CandidateOptions(),
    options: LocalizeOptions = LocalizeOptions(),
    device: DeviceKeyOptions = DeviceKeyOptions(),
    remote: QueryServerOptions = QueryServerOptions(),
    landmarks: Annotated[
        Path | None,
        typer.Option(
            help="Where the map is, for queries without positions: write the points that they match, to solve "
            "the poses on their device."
        ),
    ] = None,
    solve: Annotated[
        Path | None,
        typer.Option(help="On the device of the queries, instead of MAP: a file that --landmarks wrote."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a list of poses that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find where pictures were taken, from their concealed features and a map.

    A query is compared with images of the map: those that --pairs names, the N likeliest ones with --retrieval N, or
    all of a map of up to 100 images and the 20 likeliest of a larger one. The poses are written as hloc writes them
    (name qw qx qy qz tx ty tz, camera from world), and beside them a .json with inliers, and the reason for each query
    that has no pose. No pose is ever borrowed from the map. A query is named if another focal length explains its
    matches much better than the given one.

    Photos are concealed as the map's were, with your device key and the same settings, and stay here: use this on a
    device that has the key.

    With --server and --place photos are concealed here, as 'sfumato push' concealed those of the place. Codes alone are
    sent; points of the map that they match come back, and the pose is solved here. The server keeps nothing of it.

    Without a server it takes two steps: --landmarks where the map is, --solve on the device of the query.

    Example: sfumato localize query.sfm model/ --cameras cameras.txt -o poses.txt
    Example: sfumato localize photo.jpg model/
    Example: sfumato localize photo.jpg --server http://127.0.0.1:8765 --place kitchen
    Example: sfumato localize query.sfm model/ --landmarks seen.points
    Example: sfumato localize query.sfm --solve seen.points -o poses.txt
    """
    if solve is not None:
        steps = {"MAP": model, "--map": map_folder, "--public": public, "--pairs": choice.pairs,
                 "--landmarks": landmarks, "--retrieval": choice.retrieval, "--server": remote.server}  # fmt: skip
        _solve(queries, solve, steps, cameras, options, output, overwrite=overwrite, as_json=as_json)
        return
    if remote.is_meant(model is None and map_folder is None):
        from sfumato.cli.service.maps import localize_at_server

        local = {"MAP": model, "--map": map_folder, "--public": public, "--pairs": choice.pairs,
                 "--codebook": choice.codebook, "--encoder": choice.encoder}  # fmt: skip
        localize_at_server(
            queries, remote, device, local, cameras=cameras, candidates=choice.retrieval, params=options.params,
            output=output, overwrite=overwrite, as_json=as_json, quiet=quiet,
        )  # fmt: skip
        return
    remote.refuse()
    if (model is None) == (map_folder is None):
        raise InputError("give one map: sfumato localize QUERIES MAP, or --map MAP; or --server URL --place NAME")
    params, pairs, keys = options.params, choice.choose(), device.read(queries, public)
    if landmarks is not None:
        _find(queries, model or map_folder or "", landmarks, choice, params, overwrite=overwrite, as_json=as_json,
              quiet=quiet)  # fmt: skip
        return
    run: Callable[..., Localizations] = (
        partial(localize_photos, **keys) if keys else partial(localize, keypoints=own_keypoints(queries))
    )
    listed, marked = ({}, frozenset()) if cameras is None else read_query_cameras(cameras, queries)
    camera_of = {name: camera for name, camera in listed.items() if name not in marked}
    with load_map(model or map_folder or "", public=public) as map_:
        outcome = run(
            queries,
            map_,
            camera_of,
            pairs,
            params,
            codebook=choice.codebook_for(map_),
            output=output,
            inputs={
                "the list of cameras": cameras,
                "the file of public points": public,
                "the codebook": choice.codebook,
                "the encoder": choice.encoder,
            },
            overwrite=overwrite,
            progress=stage_bars(quiet=quiet or as_json),
        )
    report_poses(outcome, listed, output, as_json=as_json)
    if outcome.unreadable or outcome.unlisted or outcome.damaged or not outcome.poses:
        raise typer.Exit(1)


def _find(
    queries: Path,
    map_folder: Path | str,
    landmarks: Path,
    choice: CandidateOptions,
    params: LocalizeParams,
    *,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the points of a map that queries match."""
    if holds_photos(queries):
        raise InputError("--landmarks is for an archive of queries: sfumato conceal makes one, on the device")
    with load_map(map_folder) as map_:
        found = write_landmarks(
            queries, map_, landmarks, choice.choose(), params, codebook=choice.codebook_for(map_), overwrite=overwrite,
            progress=stage_bars(quiet=quiet or as_json),
        )  # fmt: skip
    counts = {name: len(matches) for name, matches in found.items()}
    which = "1 query" if len(counts) == 1 else f"{len(counts)} queries"
    line = f"{sum(counts.values())} matches of {which}: {landmarks}"
    tell(line, {"matches": counts, "output": str(landmarks)}, as_json=as_json)


def _solve(
    queries: Path,
    landmarks: Path,
    others: Mapping[str, object],
    cameras: Path | None,
    options: LocalizeOptions,
    output: Path | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Solve the poses of queries on their device, with the points of a map that they match."""
    for option, value in others.items():
        if value is not None:
            raise InputError(f"{option} is for where the map is, and --solve works without: leave one of the two out")
    params = options.params
    if output is not None:
        inputs = {"the archive of queries": queries, "the landmarks": landmarks, "the list of cameras": cameras}
        check_poses_output(output, None, inputs, overwrite=overwrite)
    listed, marked = ({}, frozenset()) if cameras is None else read_query_cameras(cameras, queries)
    found, keypoints_of = read_landmarks(landmarks), own_keypoints(queries)

    def answer(name: str, query: ConcealedFeatures, camera: Camera, is_guessed: bool) -> Localization:
        if name not in found:
            return Localization(None, 0, 0, (), f"{landmarks} has no landmarks of it")
        return solve_pose(found[name], keypoints_of(name, query), camera, params, guessed_camera=is_guessed)

    with load(queries) as archive:
        camera_of = {name: camera for name, camera in listed.items() if name not in marked}
        outcome = localize_each(archive, camera_of, answer, listable=output is not None)
    if output is not None:
        save_localizations(output, outcome, params, {"map": "landmarks"})
    report_poses(outcome, listed, output, as_json=as_json)
    if outcome.unreadable or outcome.unlisted or not outcome.poses:
        raise typer.Exit(1)


def read_query_cameras(cameras: Path, queries: Path) -> tuple[dict[str, Camera], frozenset[str]]:
    """Return the cameras of a list, and those marked as guesses; raise InputError if none is of a query."""
    names = _query_names(queries)
    listed, marked = read_marked_cameras(cameras, names)
    refuse_strange_cameras(listed, names)
    return listed, marked


def _query_names(queries: Path) -> list[str]:
    """Return the names of photos, or of the images of an archive."""
    if holds_photos(queries):
        return [name for name, _ in list_images(queries)]
    with load(queries) as archive:
        return list(archive)


def report_poses(outcome: Localizations, cameras: Mapping[str, Camera], output: Path | None, *, as_json: bool) -> None:
    """Name the queries without a pose, or with a doubtful one, on standard error; say what was written, or show it."""
    _warn_of_missing_cameras(outcome, cameras)
    for name, reason in outcome.reasons.items():
        print(printable(f"no pose for {name}: {reason}"), file=sys.stderr)
    for name, doubt in outcome.doubts.items():
        print(printable(f"camera of {name} in doubt: {doubt}"), file=sys.stderr)
    for name, reason in outcome.damaged.items():
        print(printable(f"not compared with {name} of the map: {reason}"), file=sys.stderr)
    poses = {name: pose_numbers(pose) for name, pose in sorted(outcome.poses.items())}
    facts = summarise(outcome)
    facts |= {"poses": poses} if output is None else {"output": str(output), "table": str(output.with_suffix(".json"))}
    notes = "".join(
        f", {note}"
        for count, note in (
            (len(outcome.guessed), f"{quantity(len(outcome.guessed), 'camera')} guessed from the image size"),
            (len(outcome.from_archive), f"{quantity(len(outcome.from_archive), 'focal length')} from EXIF"),
            (len(outcome.doubts), f"{quantity(len(outcome.doubts), 'camera')} in doubt, their poses may be far off"),
            (len(outcome.strangers), f"{quantity(len(outcome.strangers), 'candidate')} not in the map"),
            (len(outcome.unlisted), f"{len(outcome.unlisted)} left out because of their names"),
            (len(outcome.unreadable), f"{len(outcome.unreadable)} unreadable"),
            (len(outcome.damaged), f"{quantity(len(outcome.damaged), 'damaged image')} of the map left out"),
        )
        if count
    )
    total = f"{facts['queries']} {'query' if facts['queries'] == 1 else 'queries'}"
    if facts["localized"]:
        line = f"{facts['localized']} of {total} localized (median {facts['median inliers']:.0f} inliers)"
    else:
        line = f"nothing was localized, 0 of {total}"
    if output is not None:
        tell(f"{line}{notes}: {output}", facts, as_json=as_json)
        return
    rows = [" ".join([printable(name), *(f"{value:.6g}" for value in row)]) for name, row in poses.items()]
    head = ["# name qw qx qy qz tx ty tz (camera from world)"] if rows else []
    tell("\n".join([f"{line}{notes}", *head, *rows]), facts, as_json=as_json)


def _warn_of_missing_cameras(outcome: Localizations, cameras: Mapping[str, Camera]) -> None:
    """Name queries that have no camera where cameras were given."""
    missing = [name for name in outcome.guessed if name not in cameras]
    if not cameras or not missing:
        return
    others = set(cameras) - set(outcome.results)
    names = ", ".join(f"{name!r:.80}{suggest(name, others)}" for name in missing[:SHOWN])
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    print(printable(f"no camera is given for {names}{more}: guessed from the image size"), file=sys.stderr)
