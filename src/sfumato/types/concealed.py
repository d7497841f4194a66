# SPDX-License-Identifier: Apache-2.0
"""Concealed values, which may leave the device: subspaces, points or bits instead of descriptors, and their recipe.

Unrelated to the clear types on purpose: nothing here holds, imports or converts to a clear descriptor or embedding.
The exception is what an owner chooses to publish, ``PublicPoints``: only ``sfumato.publish`` makes them, on the device
that owns the pictures; a server can read them and cannot write them.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.subspace import reference
from sfumato.types.arrays import checked_focal, checked_size, frozen_array
from sfumato.types.extractor import Extractor, is_label
from sfumato.types.recipe import CHECKSUM_DIGITS, Recipe

SMALLEST = 1e-30
"""A length below which float32 has fewer digits than it should."""

FINGERPRINT = rf"[0-9a-f]{{{CHECKSUM_DIGITS}}}"
"""The name of a key, which tells nothing of it."""

CANONICAL = 2e-6
"""Tolerance for a float32 basis to be orthonormal, and for an origin to be orthogonal to it."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Subspaces:
    """N affine subspaces of dimension m in R^n.

    ``origin`` (N, n) float32, the point of each subspace nearest to 0; ``basis`` (N, m, n) float32,
    orthonormal rows. Any point and any independent directions are accepted and made canonical. m = 0 (points) and
    N = 0 are valid.

    Raises InputError for wrong shapes and values that are not finite, RankError for dependent directions.

    >>> import numpy as np
    >>> Subspaces(np.ones((1, 3)), np.array([[[2.0, 0.0, 0.0]]])).origin
    array([[0., 1., 1.]], dtype=float32)
    """

    origin: NDArray[np.float32]
    basis: NDArray[np.float32]

    def __post_init__(self) -> None:
        origin = frozen_array(self.origin, "origin", (None, None))
        basis = frozen_array(self.basis, "basis", (origin.shape[0], None, origin.shape[1]))
        if origin.shape[1] == 0:
            raise InputError("origin: need at least one dimension")
        if basis.shape[1] > basis.shape[2]:
            raise InputError(f"basis: {basis.shape[1]} directions cannot be independent in {basis.shape[2]} dimensions")
        if not is_canonical(origin, basis):
            rows = ~canonical_rows(origin, basis)  # the others stay as they are, to the last bit
            exact = np.asarray(self.origin, float), np.asarray(self.basis, float)
            origin, basis = origin.copy(), basis.copy()
            origin[rows], basis[rows] = reference.canonicalise(exact[0][rows], exact[1][rows], np.flatnonzero(rows))
            origin, basis = (
                frozen_array(origin, "origin", origin.shape),
                frozen_array(basis, "basis", basis.shape),
            )
        object.__setattr__(self, "origin", origin)
        object.__setattr__(self, "basis", basis)

    @property
    def dim(self) -> int:
        """The dimension m of each subspace."""
        return int(self.basis.shape[1])

    @property
    def ambient_dim(self) -> int:
        """The dimension n of the space they live in."""
        return int(self.origin.shape[1])

    def __len__(self) -> int:
        return len(self.origin)

    def __getitem__(self, rows: Any) -> "Subspaces":
        """Select rows by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        return Subspaces(self.origin[index], self.basis[index])

    def __repr__(self) -> str:
        return f"Subspaces({len(self)} of dimension {self.dim} in R^{self.ambient_dim})"


class Points(Subspaces):
    """N points in R^n, what an encoder makes of descriptors: subspaces of dimension 0.

    >>> import numpy as np
    >>> Points(np.eye(2, 8))
    Points(2 in R^8)
    """

    __slots__ = ()

    def __init__(self, values: ArrayLike) -> None:
        rows = frozen_array(values, "points", (None, None))
        Subspaces.__init__(self, rows, np.zeros((len(rows), 0, rows.shape[1]), np.float32))

    def __getitem__(self, rows: Any) -> "Points":
        return Points(self.origin[np.atleast_1d(np.arange(len(self))[rows])])

    def __repr__(self) -> str:
        return f"Points({len(self)} in R^{self.ambient_dim})"


MOST_BYTES = 8191
"""Of a code: its Hamming distances fit into 16 bits, which searches count with."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Bits:
    """N codes of B bits, what a seal makes of descriptors: ``packed`` (N, B / 8) uint8, eight bits to a byte.

    They are compared by the number of bits in which they differ (Hamming distance), and never widened to floats.

    Raises InputError for another shape or type.

    >>> import numpy as np
    >>> Bits(np.zeros((3, 64), np.uint8))
    Bits(3 of 512 bits)
    """

    packed: NDArray[np.uint8]

    def __post_init__(self) -> None:
        packed = frozen_array(self.packed, "packed bits", (None, None), np.uint8)
        if not 1 <= packed.shape[1] <= MOST_BYTES:
            raise InputError(f"packed bits: need 1 to {MOST_BYTES} bytes a code, got {packed.shape[1]}")
        object.__setattr__(self, "packed", packed)

    @property
    def dim(self) -> int:
        """0, as of points."""
        return 0

    @property
    def ambient_dim(self) -> int:
        """The number B of bits of each code."""
        return 8 * int(self.packed.shape[1])

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: Any) -> "Bits":
        """Select rows by a slice, a mask or a list of indices."""
        return Bits(self.packed[np.atleast_1d(np.arange(len(self))[rows])])

    def __repr__(self) -> str:
        return f"Bits({len(self)} of {self.ambient_dim} bits)"


Code = Subspaces | Points | Bits
"""What stands in the place of descriptors."""


def checked_code(code: Any, recipe: Recipe) -> Code:
    """Return subspaces, points or bits if the recipe makes such; raises InputError."""
    if not isinstance(code, Subspaces | Bits):
        raise InputError(f"code: expected Subspaces, Points or Bits, got {type(code).__name__}")
    bits = recipe.links[-1].dim if recipe.is_sealed else None
    if isinstance(code, Bits):
        if bits != code.ambient_dim:
            raise InputError(
                f"recipe {recipe} makes {f'{bits} bits' if bits else 'no bits'}, these are {code.ambient_dim}"
            )
        return code
    if bits and recipe.links[-1].checksum:  # without the name of a key they are what an attacker reads out of bits
        raise InputError(f"recipe {recipe} makes Bits, not {type(code).__name__}")
    if code.dim != recipe.dim:
        raise InputError(f"recipe {recipe} makes subspaces of dimension {recipe.dim}, these have {code.dim}")
    return code


def is_canonical(origin: NDArray[np.float32], basis: NDArray[np.float32], tolerance: float = CANONICAL) -> bool:
    """Tell whether every basis is orthonormal and every origin orthogonal to it, to float32 precision.

    Sums in float32 are fast and nearly always enough; where rounding or overflow spoils them, ``canonical_rows``
    decides.
    """
    if basis.size == 0 or canonical_rows(origin, basis, tolerance, np.float32).all():
        return True
    return bool(canonical_rows(origin, basis, tolerance).all())


def canonical_rows(
    origin: NDArray[np.float32],
    basis: NDArray[np.float32],
    tolerance: float = CANONICAL,
    dtype: type[np.floating[Any]] = np.float64,
) -> NDArray[np.bool_]:
    """Tell for each of the N subspaces whether it is canonical, with sums in ``dtype``."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram = np.matmul(basis, basis.transpose(0, 2, 1), dtype=dtype)
        along = np.matmul(basis, origin[:, :, None], dtype=dtype)[:, :, 0]
        scale = np.sqrt(np.einsum("ni,ni->n", origin, origin, dtype=dtype)) + SMALLEST
        skew = np.abs(gram - np.eye(basis.shape[1])).max(axis=(1, 2), initial=0.0)
        centred = np.abs(along).max(axis=1, initial=0.0) <= tolerance * scale
    canonical: NDArray[np.bool_] = np.isfinite(scale) & (skew <= tolerance) & centred
    return canonical


TAG_BYTES = 8
"""Of the tag of a row: nobody guesses one in 2^64."""
PHOTO_BYTES = 16
PHOTO_NAME = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RowTags:
    """What shows whoever has the key that rows are of a real photo: its name under the key, and a tag of each row.

    ``photo``: 32 hexadecimal digits, which tell without the key that two are the same photo, and nothing else; ``rows``
    (N, 8) uint8, of the photo, the number of the row and its bits.
    """

    photo: str
    rows: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if not isinstance(self.photo, str) or not PHOTO_NAME.match(self.photo):
            raise InputError("tags: the name of a photo is 32 hexadecimal digits")
        object.__setattr__(self, "rows", frozen_array(self.rows, "tags", (None, TAG_BYTES), np.uint8))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"RowTags({len(self)} rows)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ConcealedFeatures:
    """Concealed local features of one image.

    ``keypoints`` (N, 4) float32 as in ``sfumato.Features``, and NaN where the position stays on the device; ``code`` N
    Subspaces (of a lifting), Points (of an encoder) or Bits (of a seal); ``recipe`` that made them. ``focal_px`` is the
    focal length of the camera in pixels, where the owner of the photo released it. ``tags``: of rows whose positions
    stay home; they lie in an order under the key. Else row i stands for row i of the clear features.
    """

    keypoints: NDArray[np.float32]
    code: Code
    recipe: Recipe
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)
    image_size: tuple[int, int] | None = None
    focal_px: float | None = None
    tags: RowTags | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        recipe = Recipe.of(self.recipe)
        checked_code(self.code, recipe)
        object.__setattr__(self, "keypoints", _checked_keypoints(self.keypoints, len(self.code)))
        if self.tags is not None and (len(self.tags) != len(self.code) or not isinstance(self.code, Bits)):
            raise InputError(f"tags: {len(self.tags)} are not one for each of {self.code!r}")
        object.__setattr__(self, "recipe", recipe)
        object.__setattr__(self, "image_size", checked_size(self.image_size))
        object.__setattr__(self, "focal_px", checked_focal(self.focal_px))

    @property
    def subspaces(self) -> Subspaces:
        """The code of features that are not sealed; raises InputError for bits."""
        if isinstance(self.code, Bits):
            raise InputError(f"expected subspaces or points, and recipe {self.recipe} made bits")
        return self.code

    @property
    def has_frames(self) -> bool:
        """Whether keypoints have sizes and angles: without, all have a size of 1 and an angle of 0."""
        return bool((self.keypoints[self.is_shown][:, 2:] != (1, 0)).any())

    @property
    def is_shown(self) -> NDArray[np.bool_]:
        """Whether the position of each row (N,) left the device."""
        shown: NDArray[np.bool_] = ~np.isnan(self.keypoints[:, 0])
        return shown

    def positions_only(self) -> "ConcealedFeatures":
        """Return the features with sizes of 1 and angles of 0: matching and maps need neither, inverters use both."""
        keypoints = self.keypoints.copy()
        keypoints[:, 2:] = np.where(np.isnan(keypoints[:, 2:]), np.nan, [1, 0])
        return replace(self, keypoints=keypoints)

    def with_positions(self, rows: NDArray[np.integer], positions: NDArray[np.float32]) -> "ConcealedFeatures":
        """Return the features with the positions (K, 2) of some rows (K,), which were released."""
        keypoints = self.keypoints.copy()
        keypoints[rows] = np.pad(positions, ((0, 0), (0, 2)))
        keypoints[rows, 2:] = 1, 0
        return replace(self, keypoints=keypoints)

    def without_positions(self) -> "ConcealedFeatures":
        """Return the codes alone, without positions and tags: all that a query needs to send."""
        return replace(self, keypoints=np.full((len(self), 4), np.nan, np.float32), focal_px=None, tags=None)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> "ConcealedFeatures":
        """Return some rows, as they are; their numbers change, so that tags no longer fit and are left out."""
        return replace(self, keypoints=self.keypoints[rows], code=self.code[rows], tags=None)

    def __len__(self) -> int:
        return len(self.keypoints)

    def __repr__(self) -> str:
        shown = np.count_nonzero(self.is_shown)
        home = "" if shown == len(self) else f", {shown} positions"
        return f"ConcealedFeatures({self.code!r}, {str(self.recipe)!r}, {self.extractor.name}{home})"


def _checked_keypoints(keypoints: Any, count: int) -> NDArray[np.float32]:
    """Return keypoints (N, 4) of which each row is finite or NaN; raises InputError for others."""
    rows = np.asarray(keypoints)
    if rows.ndim != 2 or rows.dtype.kind != "f" or not np.isnan(rows).any():
        return frozen_array(keypoints, "keypoints", (count, 4))
    home = np.isnan(rows).all(axis=1)
    checked = frozen_array(np.where(home[:, None], 0, rows), "keypoints", (count, 4)).copy()
    checked[home] = np.nan
    checked.setflags(write=False)
    return checked


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ConcealedTemplates:
    """Templates of N faces: ``ids`` N different short texts, ``code`` N, ``recipe`` that made them.

    ``keys``: the fingerprints of N keys, for bits that are sealed under a key of each person; else there are none. A
    recipe that names its key has sealed all of them under that one.

    Raises InputError for ids that repeat, for a code that the recipe does not make, and for bits without the name of
    their keys.
    """

    ids: tuple[str, ...]
    code: Code
    recipe: Recipe
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        ids = tuple(self.ids)
        recipe = Recipe.of(self.recipe)
        checked_code(self.code, recipe)
        if len(ids) != len(self.code):
            raise InputError(f"templates: {len(self.code)} rows have {len(ids)} ids")
        if not all(is_label(text) for text in ids):
            raise InputError("templates: ids must be short, printable texts")
        twice = [text for text, count in Counter(ids).items() if count > 1]
        if twice:
            raise InputError(f"templates: {twice[0]!r:.80} stands for two faces: ids must differ")
        needed = len(ids) if isinstance(self.code, Bits) and not recipe.links[-1].checksum else 0
        if len(self.keys) != needed or not all(re.fullmatch(FINGERPRINT, str(key)) for key in self.keys):
            raise InputError(f"templates: {needed} fingerprints of keys are needed, got {len(self.keys)}")
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "recipe", recipe)

    @property
    def subspaces(self) -> Subspaces:
        """The code of templates that are not sealed; raises InputError for bits."""
        if isinstance(self.code, Bits):
            raise InputError(f"expected subspaces or points, and recipe {self.recipe} made bits")
        return self.code

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> "ConcealedTemplates":
        """Select rows by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        ids = tuple(self.ids[row] for row in index)
        keys = tuple(self.keys[row] for row in index) if self.keys else ()
        return ConcealedTemplates(ids, self.code[index], self.recipe, self.extractor, keys)

    def __repr__(self) -> str:
        return f"ConcealedTemplates({self.code!r}, {str(self.recipe)!r}, {self.extractor.name})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PublicPoints:
    """Published descriptors of the mapped points that one image of a map sees.

    ``points`` (N,) int64, COLMAP's numbers of the points; ``descriptors`` (N, n) float32, row i of point i.

    >>> PublicPoints([7, 9], np.eye(2, 8), Extractor("sift"))
    PublicPoints(2 x 8 sift, published)
    """

    points: NDArray[np.int64]
    descriptors: NDArray[np.float32]
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        points = frozen_array(self.points, "points", (None,), np.int64)
        descriptors = frozen_array(self.descriptors, "descriptors", (len(points), None))
        if descriptors.shape[1] == 0:
            raise InputError("descriptors: need at least one dimension")
        if (points < 0).any():
            raise InputError("points: expected COLMAP's numbers of points, 0 or more")
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "descriptors", descriptors)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"PublicPoints({len(self)} x {self.descriptors.shape[1]} {self.extractor.name}, published)"
