# SPDX-License-Identifier: Apache-2.0
"""Export to hloc: features.h5, matches.h5 and pairs.txt, from an archive and its matches.

An archive's descriptors are never written: hloc maps and localizes from keypoints and matches. Keypoints are float32
with the centre of the first pixel at 0, which is hloc's convention and ours; hloc adds COLMAP's 0.5 itself. Sizes and
angles are written where an archive has them, strengths never: it keeps none.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.files.atomic import replace_file, write_text
from sfumato.files.hdf5 import new_hdf5
from sfumato.geometry.cameras import NAME_EARLIER, name_fault, name_list, unlistable_names
from sfumato.geometry.colmap import ShownMatches
from sfumato.geometry.outputs import HLOC_FEATURES, HLOC_MATCHES, HLOC_PAIRS, Inputs, refuse_existing
from sfumato.matching.match_file import (
    MATCHES,
    SCORES,
    MatchFile,
    bits_of,
    group_name,
    load_matches,
    pair_arrays,
)
from sfumato.store.archive import Archive, open_archive
from sfumato.types.concealed import Bits, ConcealedFeatures
from sfumato.types.progress import Progress

FEATURES_FILE, MATCHES_FILE, PAIRS_FILE = "features.h5", "matches.h5", "pairs.txt"
UNCERTAINTY_PX = 1.0
"""What hloc notes beside keypoints of images at their own size."""
NO_FRAME = 1, 0
"""Size and angle of keypoints whose sizes and angles were not kept; nothing is written for them."""
KINDS = {FEATURES_FILE: HLOC_FEATURES, MATCHES_FILE: HLOC_MATCHES, PAIRS_FILE: HLOC_PAIRS}
"""What each of the files may take the place of."""

Pair = tuple[str, str]


@dataclass(slots=True)
class HlocOutcome:
    """Counts of what was written, the images of unknown size, and the files."""

    images: int = 0
    features: int = 0
    pairs: int = 0
    matches: int = 0
    without_size: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HlocImage:
    """An image of a features.h5: ``keypoints`` (N, 4), the image's size or None, and more arrays by name."""

    keypoints: NDArray[np.float32]
    image_size: tuple[int, int] | None
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def export_hloc(
    archive: str | os.PathLike[str] | Archive,
    matches: str | os.PathLike[str] | MatchFile | None,
    folder: str | os.PathLike[str],
    *,
    with_subspaces: bool = False,
    overwrite: bool = False,
    progress: Progress = iter,
) -> HlocOutcome:
    """Write the keypoints of an archive, and matches of its images, as files that unmodified hloc reads.

    ``matches``: a match file, or None for features alone. ``with_subspaces`` adds ``subspace_origin`` (N, n) and
    ``subspace_basis`` (N, m, n) to each image, for a matcher of one's own inside hloc. All files are there at the end
    or none is new.

    Raises InputError for names that hloc's files cannot hold and for matches of other features, FileError for files.

    >>> import tempfile, numpy as np
    >>> from sfumato import ConcealedFeatures, Subspaces, save
    >>> lines = Subspaces(np.eye(8)[:3], np.eye(8)[3:6, None])
    >>> work = tempfile.mkdtemp()
    >>> save(f"{work}/private.sfm", {"desk.jpg": ConcealedFeatures(np.zeros((3, 4)), lines, "random-1")})
    >>> export_hloc(f"{work}/private.sfm", None, f"{work}/hloc").features
    3
    """
    with ExitStack() as files:
        images = files.enter_context(open_archive(archive))
        if isinstance(matches, str | os.PathLike):
            matches = files.enter_context(load_matches(matches))
        return _export(images, matches, folder, with_subspaces=with_subspaces, overwrite=overwrite, progress=progress)


def _export(
    archive: Archive,
    matches: MatchFile | None,
    folder: str | os.PathLike[str],
    *,
    with_subspaces: bool,
    overwrite: bool,
    progress: Progress,
) -> HlocOutcome:
    names, outcome = tuple(archive), HlocOutcome()
    refuse_names(names)
    pairs = [] if matches is None else _check_pairs(archive, matches)
    files = [FEATURES_FILE] if matches is None else [FEATURES_FILE, MATCHES_FILE, PAIRS_FILE]
    shown = {name: archive[name].is_shown for name in names if archive.header(name).is_home}
    if shown and not any(rows.any() for rows in shown.values()):
        raise InputError(
            f"no position of {archive.path} has left its device: match the archive (sfumato match), and release on the "
            f"device what the photos agree on (sfumato release)"
        )
    images = ((name, _image(archive[name], with_subspaces)) for name in progress(names))
    inputs = {"the archive": archive.path, "the match file": None if matches is None else matches.path}
    with new_files(folder, files, inputs, overwrite=overwrite) as (part, outcome.files):
        write_features(part / FEATURES_FILE, images, outcome)
        if matches is not None:
            _write_matches(part / MATCHES_FILE, archive, pairs, matches, shown, outcome)
            write_text(part / PAIRS_FILE, "".join(f"{first} {second}\n" for (first, second), _ in pairs))
    return outcome


def refuse_names(names: Iterable[str]) -> None:
    """Raise InputError naming the images that no features.h5 can hold under their names."""
    wrong = [name for name in names if name_fault(name) or not all(part not in ("", ".") for part in name.split("/"))]
    if wrong:
        why = name_fault(wrong[0]) or "a part of it is empty"
        raise InputError(f"hloc's files cannot hold {name_list(wrong)} ({why}): {NAME_EARLIER}")


def _check_pairs(archive: Archive, matches: MatchFile) -> list[tuple[Pair, Pair]]:
    """Return the pairs of a match file as the archive names them, and as the file does.

    Raises InputError if an image is not in the archive or not the one that was matched, if two images would be spelt
    alike, or if hloc's list of pairs cannot hold a name.
    """
    spelling: dict[str, str] = {}
    for name in archive:
        first = spelling.setdefault(group_name(name), name)
        if first != name:
            raise InputError(f"hloc spells {first!r:.80} and {name!r:.80} alike, with - for /: {NAME_EARLIER}")
    pairs = [(first, second) for first, second in matches]
    used = {name for pair in pairs for name in pair}
    missing = sorted(name for name in used if group_name(name) not in spelling)
    if missing:
        raise InputError(f"{matches.path} has matches of images that are not in {archive.path}: {name_list(missing)}")
    real = {name: spelling[group_name(name)] for name in used}
    unlisted = sorted(unlistable_names(real.values()))
    if unlisted:
        raise InputError(
            f"hloc's list of pairs cannot hold {name_list(unlisted)}, because of spaces or a #: {NAME_EARLIER}"
        )
    facts = {} if matches.provenance is None else matches.provenance.images
    other = sorted(name for name in used if name in facts and archive.header(real[name]).checksum != facts[name][1])
    if other:
        raise InputError(
            f"{matches.path} holds matches of other features than {archive.path}: {name_list(other)}; match again"
        )
    return [((real[first], real[second]), (first, second)) for first, second in pairs]


def write_features(
    path: Path, images: Iterable[tuple[str, HlocImage]], outcome: HlocOutcome, *, private: bool = False
) -> None:
    """Write a features.h5; images without a known size are counted, since hloc's matchers ask for it."""
    with new_hdf5(path, private=private) as file:
        for name, image in images:
            file.add(name, _arrays(image), {"keypoints": {"uncertainty": UNCERTAINTY_PX}})
            outcome.images += 1
            outcome.features += len(image.keypoints)
            if image.image_size is None:
                outcome.without_size.append(name)


@contextmanager
def new_files(
    folder: str | os.PathLike[str], names: list[str], inputs: Inputs, *, overwrite: bool
) -> Iterator[tuple[Path, list[Path]]]:
    """Give a private folder to write files of these names to, and the places they are moved to when the block ends.

    Nothing is new if the block ends with an error.

    Raises FileError if a file is there already and is not to be replaced, is one of the ``inputs`` or of another kind,
    or cannot be written.
    """
    folder = Path(folder)
    targets = [folder / name for name in names]
    there = [str(target) for target in targets if target.exists()]
    if there and not overwrite:
        raise FileError(
            f"{', '.join(there)} exists: choose another folder, or overwrite it (--overwrite, overwrite=True)"
        )
    for target in targets:
        refuse_existing(target, KINDS[target.name], inputs, overwrite=overwrite)
    part = folder / f".{secrets.token_hex(8)}.part"
    try:
        part.mkdir(0o700, parents=True)
        yield part, targets
        for target in targets:
            if target.exists():  # the new file has the access rights of the old one
                (part / target.name).chmod(stat.S_IMODE(target.stat().st_mode))
            replace_file(part / target.name, target)
    except SfumatoError:
        raise
    except OSError as cause:
        raise FileError(f"cannot write to {folder}: {cause.strerror or cause}; free space or choose another") from cause
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _image(features: ConcealedFeatures, with_subspaces: bool) -> HlocImage:
    features = features if features.is_shown.all() else features.take(features.is_shown)
    more: dict[str, NDArray[Any]]
    if isinstance(features.code, Bits):
        more = {"sealed_bits": features.code.packed}
    else:
        more = {"subspace_origin": features.code.origin, "subspace_basis": features.code.basis}
    return HlocImage(features.keypoints, features.image_size, more if with_subspaces else {})


def _arrays(image: HlocImage) -> dict[str, NDArray[Any]]:
    """Return the datasets of an image's group, in hloc's names, shapes and types."""
    keypoints = np.asarray(image.keypoints, np.float32)
    size = {} if image.image_size is None else {"image_size": np.array(image.image_size, np.int64)}
    frames = {}
    if not (keypoints[:, 2:] == NO_FRAME).all():
        frames = {"scales": np.ascontiguousarray(keypoints[:, 2]), "oris": np.ascontiguousarray(keypoints[:, 3])}
    return {"keypoints": np.ascontiguousarray(keypoints[:, :2]), **frames, **size, **image.more}


def _write_matches(
    path: Path,
    archive: Archive,
    pairs: list[tuple[Pair, Pair]],
    matches: MatchFile,
    shown: Mapping[str, NDArray[np.bool_]],
    outcome: HlocOutcome,
) -> None:
    facts = {name: archive.header(name) for name in archive}
    full = {name: shown.get(name, np.ones(header.count, bool)) for name, header in facts.items()}
    of_shown = ShownMatches(matches, full)
    with new_hdf5(path) as file:
        for pair, stored in pairs:
            rows, counts = of_shown[stored], [int(full[name].sum()) for name in pair]
            bits = None if matches.provenance is None else bits_of(facts[pair[0]].recipe)  # hloc's own are not in bits
            arrays = pair_arrays(rows, counts[0], bits)
            file.add("/".join(map(group_name, pair)), {key: arrays[key] for key in (MATCHES, SCORES)})
            outcome.pairs += 1
            outcome.matches += len(rows)
