# SPDX-License-Identifier: Apache-2.0
"""Maps with hloc from concealed features: a features.h5 of hloc goes in, files without a descriptor come out.

    python examples/map_with_hloc.py                                          # a made-up room, nothing else needed
    python examples/map_with_hloc.py feats-superpoint-n4096-r1024.h5 photos/ -o work/

The device conceals the features, a server matches them, and the device releases the positions that a map needs. hloc
gets these and the matches. If hloc is installed its own reconstruction runs on them, otherwise COLMAP through Sfumato.
"""

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np

import sfumato
from sfumato.device import release_positions
from sfumato.experiments import make_room, save_room
from sfumato.features import LocalParams, write_hloc
from sfumato.images import list_images


def make_features(folder: Path) -> tuple[Path, Path]:
    """Make photos of a room and their features, in hloc's form and under hloc's name for RootSIFT: hloc's part."""
    if not (folder / "room").exists():
        save_room(make_room(None, np.random.default_rng(0), views=5, width=480, height=360), folder / "room")
    photos = folder / "room" / "images"
    params = LocalParams(descriptor="rootsift", max_features=1500)
    write_hloc(folder / "feats-sift.h5", [(name, sfumato.extract(path, params)) for name, path in list_images(photos)])
    return folder / "feats-sift.h5", photos


def conceal(features: Path, folder: Path, key: bytes) -> Path:
    """The device: conceal the features of hloc's file under its key. The archive may leave, positions stay here."""
    archive = folder / "private.sfm"
    outcome = sfumato.conceal_photos(features, archive, secret=key)
    print(f"{archive.name}: {outcome.images} photos concealed now, {outcome.skipped} before, with {outcome.recipe}")
    return archive


def match(archive: Path, folder: Path) -> Path:
    """The server: match bits with bits, without the key."""
    sfumato.match_archive(archive, folder / "matches.h5", "exhaustive")
    return folder / "matches.h5"


def release(archive: Path, matches: Path, key: bytes) -> None:
    """The device: check the matches, and put the positions of what three photos see into the archive."""
    outcome = release_positions(archive, matches, secret=key)
    print(f"{outcome.share:.0%} of all positions left the device, {sum(outcome.new.values())} of them now")


def export(archive: Path, matches: Path, folder: Path) -> Path:
    """The server: write what hloc reads."""
    outcome = sfumato.export_hloc(archive, matches, folder / "hloc", overwrite=True)
    print(f"{outcome.pairs} pairs of photos have {outcome.matches} matches")
    return folder / "hloc"


def count_descriptors(path: Path) -> int:
    """Return how many images of a features.h5 have descriptors."""
    with h5py.File(path) as file:
        names: list[str] = []
        file.visit(names.append)
    return sum(name.endswith("/descriptors") for name in names)


def reconstruct(archive: Path, matches: Path, hloc: Path, photos: Path, folder: Path) -> tuple[str, int, int]:
    """Return who reconstructed, and how many photos and points the map has."""
    if find_spec("hloc"):
        from hloc import reconstruction

        files = (hloc / name for name in ("pairs.txt", "features.h5", "matches.h5"))
        model = reconstruction.main(folder / "sfm", photos, *files)
        return ("hloc", 0, 0) if model is None else ("hloc", model.num_reg_images(), model.num_points3D())
    statistics = sfumato.build_map(archive, matches, folder / "model", overwrite=True).statistics
    return "COLMAP", statistics.registered, statistics.points


def run(features: Path | None, photos: Path | None, folder: Path) -> int:
    """Go from features to a map in a folder."""
    if features is None or photos is None:
        features, photos = make_features(folder)
    key = sfumato.device_key(folder / "device.key")  # made here; without a path it is this user's own
    archive = conceal(features, folder, key)
    matches = match(archive, folder)
    release(archive, matches, key)
    hloc = export(archive, matches, folder)
    clear, private = count_descriptors(features), count_descriptors(hloc / "features.h5")
    print(f"photos with descriptors: {clear} in {features.name}, {private} in hloc/features.h5")
    who, registered, points = reconstruct(archive, matches, hloc, photos, folder)
    print(f"shown: {who} mapped {registered} photos and {points} points from files that hold no descriptor")
    return 0 if registered else 1


def main(arguments: list[str] | None = None) -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="Map concealed features with hloc or COLMAP.")
    parser.add_argument("features", type=Path, nargs="?", help="a features.h5 of hloc; default: a made-up room")
    parser.add_argument("photos", type=Path, nargs="?", help="the folder of the photos, for hloc's cameras and colours")
    parser.add_argument("-o", "--output", type=Path, help="the folder for all files; default: one that is deleted")
    options = parser.parse_args(arguments)
    if (options.features is None) != (options.photos is None):
        parser.error("give both features and photos, or neither")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        return run(options.features, options.photos, options.output)
    with tempfile.TemporaryDirectory() as folder:
        return run(options.features, options.photos, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
