# SPDX-License-Identifier: Apache-2.0
"""Seals: descriptors as bits that only close ones share, under a key that devices have and a server has not.

A secure binary embedding (Boufounos and Rane, "Secure binary embeddings for privacy preserving nearest neighbors",
2011, in the form with random phases of Raginsky and Lazebnik, "Locality-sensitive binary codes from shift-invariant
kernels", 2009): bit i is the sign of cos(a_i x + w_i), with a_i Gaussian and w_i uniform, both drawn from the key. The
share of different bits grows with the distance of two descriptors and reaches one half at a few bandwidths: without the
key anyone learns which descriptors are close, and how close, and nothing about the others. Rotating or shifting all
descriptors does not change the distribution of the bits, so they reveal nothing but distances.

Faces have odd waves instead: bit i is the sign of sin(a_i x). With random phases the zero vector is nearer to every
vector of unit norm than two of those at right angles are to each other, so that whoever has the key sends its bits and
is accepted as everybody. Under odd waves vectors at right angles agree in half of the bits, as coin throws do, and zero
agrees with nobody in more. Local features are matched, not accepted, and keep the random phases.

A key is never kept, and neither is a seal: each call takes the key. A key cannot be computed from what is made with it.
"""

import hashlib
import re
import warnings
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.encoder import ROWS_AT_ONCE, WIDEST
from sfumato.concealment.keys import EVALUATION_KEY, is_public, is_weak
from sfumato.concealment.randomness import normal_of_words, uniform
from sfumato.errors import BandwidthWarning, InputError, RecipeError, WideSealWarning
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import Bits
from sfumato.types.recipe import CHECKSUM_DIGITS, SIFT_BANDWIDTH, Link, Recipe

BANDWIDTH = SIFT_BANDWIDTH
"""Standard deviation of the kernel, for SIFT of unit norm: true matches lie within it or not far beyond, most others at
four times its distance."""

BANDWIDTHS = {"sift": BANDWIDTH, "rootsift": 0.19, "hardtfeat": 0.18, "aliked": 0.4}
"""Bandwidth of each kind that was measured, of unit norm: each shows what SIFT's shows (benchmarks/bandwidth.py)."""
UNNAMED = "unknown"
"""Name of descriptors that were given without one, which is taken for SIFT's: nobody could tell which to compare."""

USUAL_WIDTH = 128
"""Numbers of a descriptor that we extract; descriptors of other programs may have others."""

FEWEST_BITS = 32
MOST_BITS = 512
WIDEST_BANDWIDTH = 0.27
"""A seal beyond either of them warns: what attackers without the key get grows with both. The bandwidth is SIFT's; that
of another kind may be wider than its own by the same factor."""
SEE = " (see 'sfumato help concealment')"

FEWEST_ROWS, MOST_ROWS = 100, 1000
"""Features of one image from which a bandwidth is estimated."""
RARE = 0.05
NEAREST_SHARE = 0.294
"""Of the pairs of features of an image one in twenty is nearer than some distance. The bandwidth of SIFT is this share
of it, and so is what is estimated for other kinds."""
SMALLEST_ESTIMATE, LARGEST_ESTIMATE = 0.01, 10.0
UNIT_NORMS = (0.9, 1.1)
"""Norms that count as 1, for kinds whose bandwidth was measured."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Seal:
    """What a key makes of descriptors: ``directions`` (B, n) and ``phases`` (B,) float32. As secret as the key.

    ``checksum`` is the public name of the key and the sizes: equal names mean equal seals.
    """

    directions: NDArray[np.float32]
    phases: NDArray[np.float32]
    checksum: str

    @property
    def input_dim(self) -> int:
        """Numbers of a descriptor."""
        return int(self.directions.shape[1])

    def __call__(self, points: ArrayLike) -> Bits:
        """Return the bits of descriptors (N, n): whether cos(a_i x + w_i) is not negative, for each i of B.

        A function of each row alone, summed in float64. Raises InputError for rows of another dimension or not finite.
        """
        rows = frozen_array(points, "points", (None, None))
        if rows.shape[1] != self.input_dim:
            raise InputError(f"this seal takes {self.input_dim} dimensions, the points have {rows.shape[1]}")
        packed = np.empty((len(rows), len(self.phases) // 8), np.uint8)
        directions, phases = self.directions.astype(np.float64).T, self.phases.astype(np.float64)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            turns = rows[start : start + ROWS_AT_ONCE] @ directions
            turns += phases
            turns /= 2 * np.pi
            turns -= np.rint(turns)  # a cosine is not negative within a quarter of a turn
            packed[start : start + len(turns)] = np.packbits(np.abs(turns, out=turns) <= 0.25, axis=1)
        packed.setflags(write=False)
        return Bits(packed)

    def __repr__(self) -> str:
        return f"Seal({self.input_dim} numbers to {len(self.phases)} bits, {self.checksum[:12]})"


def make_seal(key: bytes, input_dim: int, bits: int, bandwidth: float = BANDWIDTH, *, odd: bool = False) -> Seal:
    """Return the seal of a key for rows of ``input_dim`` numbers. The same key gives the same seal, everywhere.

    ``odd``: all phases are -pi / 2, so that a bit is the sign of a sine, for faces. The waves of one key that are odd
    and those that are not have nothing in common.

    Raises InputError for an empty key, or sizes out of range.
    """
    if not isinstance(key, bytes | bytearray) or not key:
        raise InputError("a seal needs a key of unguessable bytes, for example secrets.token_bytes(32)")
    _check_sizes(bits, bandwidth)
    seed = _seed(key, input_dim, bits, bandwidth, odd=odd)
    drawn = np.frombuffer(hashlib.shake_256(seed + b"directions").digest(2 * bits * input_dim), np.uint8)
    directions = normal_of_words(drawn, 1 / bandwidth).reshape(bits, input_dim)
    if odd:
        return Seal(directions, np.full(bits, -np.pi / 2, np.float32), _name(seed))
    phases = np.pi * (1 + uniform(np.frombuffer(hashlib.shake_256(seed + b"phases").digest(4 * bits), np.uint8)))
    return Seal(directions, phases.astype(np.float32), _name(seed))


def bandwidth_of(link: Link) -> float:
    """Return the bandwidth of a sealed link, by default ``BANDWIDTH``."""
    return BANDWIDTH if link.bandwidth is None else link.bandwidth


def kind_of(name: str) -> str:
    """Return the kind of descriptor that the name of an extractor begins with.

    >>> [kind_of(name) for name in ("aliked-n16", "hardtfeat-1f0c9a27", "superpoint_max", "D2Net")]
    ['aliked', 'hardtfeat', 'superpoint', 'd2net']
    """
    return re.split(r"[^a-z0-9]", name.lower())[0]


def needs_estimate(recipe: Recipe, name: str) -> bool:
    """Tell whether the bandwidth of a sealed recipe must be estimated from the data, for this extractor's name.

    What an encoder makes of other descriptors than SIFT was never measured either.
    """
    kind = kind_of(name)
    is_known = kind in ("sift", UNNAMED) or (kind in BANDWIDTHS and len(recipe.links) == 1)
    return recipe.is_sealed and recipe.links[-1].bandwidth is None and not is_known


def with_bandwidth(recipe: Recipe, bandwidth: float) -> Recipe:
    """Return a sealed recipe that names this bandwidth; one that names its own, or a key, as it is.

    >>> str(with_bandwidth(Recipe.of("sealed-512"), 0.19))
    'sealed-512:0.19'
    """
    link = recipe.links[-1]
    if not recipe.is_sealed or link.bandwidth is not None:
        return recipe
    return replace(recipe, links=(*recipe.links[:-1], replace(link, variant=f":{bandwidth:g}")))


def with_usual_bandwidth(recipe: Recipe, name: str) -> Recipe:
    """Return a sealed recipe with the bandwidth that was measured for an extractor's name, or else that of SIFT."""
    known = BANDWIDTHS if len(recipe.links) == 1 else {}
    return with_bandwidth(recipe, known.get(kind_of(name), BANDWIDTH))


def estimate_bandwidth(rows: NDArray[np.floating], *, may_fail: bool = True) -> float | None:
    """Return the bandwidth for descriptors (N, n) of one image, of two digits; None if they are too few to tell.

    Unrelated ones must be as many bandwidths apart as SIFT is. Nearly all pairs of one image are unrelated.

    Raises InputError, if it ``may_fail``, where they are so near or so far apart that no recipe can name it.
    """
    if len(rows) < FEWEST_ROWS:
        return None
    chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(np.intp)].astype(np.float64)
    squares = np.einsum("ni,ni->n", chosen, chosen)
    squared = squares[:, None] + squares[None] - 2 * chosen @ chosen.T
    pairs = squared[np.triu_indices(len(chosen), 1)]
    distance = float(np.sqrt(max(0.0, float(np.quantile(pairs, RARE)))))
    estimate = float(f"{NEAREST_SHARE * distance:.2g}")
    if may_fail and not SMALLEST_ESTIMATE <= estimate < LARGEST_ESTIMATE:
        raise InputError(
            f"the bandwidth of a seal for these descriptors would be {estimate:g}, out of range: their norm is about "
            f"{float(np.sqrt(np.median(squares))):.2g}; divide each by its norm"
        )
    return estimate


def without_key_name(link: Link) -> Link:
    """Return a sealed link without the name of its key; without a bandwidth only if it never had one."""
    return replace(link, variant="" if link.bandwidth is None else f":{link.bandwidth:g}")


def without_key(recipe: Recipe) -> Recipe:
    """Return a sealed recipe without the name of its key, with its bandwidth: what seals of all keys have in common.

    >>> str(without_key(Recipe.of("compress-48+sealed-512:0.3@0123456789ab")))
    'compress-48+sealed-512:0.3'
    """
    link = recipe.links[-1]
    return Recipe(links=(*recipe.links[:-1], replace(link, variant=f":{bandwidth_of(link):g}")))


def seal_link(link: Link, recipe: Recipe, key: bytes | None, width: int, *, odd: bool = False) -> tuple[Seal, Link]:
    """Return the seal of a link for rows of ``width`` numbers, and the link with its checksum; ``odd`` for faces.

    Another key gives another seal. A link that names its seal must name the one that is made; without a key, or with
    one that protects nobody, it may also name that of all evaluations.

    Raises RecipeError for a key that is missing, too short or another one, and for sizes out of range.
    """
    check_sealed(recipe)
    keys = [] if key is None else [checked_key(recipe, key)]
    if link.checksum and (key is None or is_public(key)):
        keys.append(EVALUATION_KEY)
    bits, bandwidth = link.dim or 0, bandwidth_of(link)
    for candidate in keys:
        if _name(_seed(candidate, width, bits, bandwidth, odd=odd)).startswith(link.checksum):
            seal = make_seal(candidate, width, bits, bandwidth, odd=odd)
            named = "" if bandwidth == BANDWIDTH else f":{bandwidth:g}"  # what names a key and no bandwidth has SIFT's
            return seal, replace(link, variant=f"{named}@{seal.checksum[:CHECKSUM_DIGITS]}")
    name = fingerprint(recipe, checked_key(recipe, key), width, odd=odd)
    raise RecipeError(
        f"recipe {recipe} was made with another device key than the given one, whose fingerprint is {name}, or for "
        f"descriptors of other than {width} numbers: give the key it was made with, or leave out what follows the @"
    )


def fingerprint(recipe: Recipe, key: bytes, width: int, *, odd: bool = False) -> str:
    """Return the name of a key in a sealed recipe, for rows of ``width`` numbers: the part after the @."""
    link = recipe.links[-1]
    return _name(_seed(key, width, link.dim or 0, bandwidth_of(link), odd=odd))[:CHECKSUM_DIGITS]


def checked_key(recipe: Recipe, key: bytes | None) -> bytes:
    """Return the key for a sealed recipe; raise RecipeError if it is missing or could be guessed."""
    if key is None:
        raise RecipeError(
            f"recipe {recipe} needs the device key{' it was made with' if recipe.links[-1].checksum else ''}: give "
            f"--secret-file, or secret=, the same for all devices whose features are to match"
        )
    if not isinstance(key, bytes | bytearray):
        raise RecipeError(
            f"recipe {recipe}: a device key is bytes, not {type(key).__name__}: read one from a file with "
            f"sfumato.device_key(path), or make one with sfumato.new_key()"
        )
    if is_weak(key) and not is_public(key):
        raise RecipeError(
            f"recipe {recipe}: this device key can be guessed: it is short, regular, or a text. Take random bytes, for "
            f"example sfumato.new_key(): archives show the fingerprint of a key, on which anyone can try others"
        )
    return bytes(key)


def check_sealed(recipe: Recipe) -> None:
    """Raise RecipeError if the sizes of a seal are out of range."""
    link = recipe.links[-1]
    try:
        _check_sizes(link.dim or 0, bandwidth_of(link))
    except InputError as cause:
        raise RecipeError(f"recipe {recipe}: {cause}") from cause


def is_made_under(made: Recipe, recipe: Recipe, key: bytes | None) -> bool:
    """Tell whether the sealed recipe of an archive is what another recipe gives under a key, for rows of any width.

    Without a key only the sizes are compared, and the bandwidth only where the other recipe names one: an archive goes
    on with its own. A name tells no width: the usual one is tried first, then all others.
    """
    link, other = made.links[-1], recipe.links[-1]
    forms = [(one.links[:-1], one.kind, one.links[-1].dim) for one in (made, recipe)]
    if not made.is_sealed or forms[0] != forms[1]:
        return False
    if other.bandwidth not in (None, bandwidth_of(link)):
        return False
    if key is None or not link.checksum:
        return key is None
    sizes = link.dim or 0, bandwidth_of(link)
    widths = (USUAL_WIDTH, *range(1, WIDEST + 1))
    return any(_name(_seed(key, width, *sizes)).startswith(link.checksum) for width in widths)


def warn_if_wide(recipe: Recipe, name: str = "sift", estimate: float | None = None, stacklevel: int = 3) -> None:
    """Warn of a seal that shows attackers more of an extractor's descriptors than the seals that were measured.

    ``estimate`` is the bandwidth that the data suggest, for a kind that was not measured.
    """
    if not recipe.is_sealed:
        return
    link, kind = recipe.links[-1], kind_of(name)
    usual = BANDWIDTHS.get("sift" if kind == UNNAMED else kind, estimate)
    message = ""
    if usual is None:
        message = f"seals were measured on {', '.join(BANDWIDTHS)}; what they show of {name} is unknown{SEE}"
    widest = np.inf if usual is None else WIDEST_BANDWIDTH / BANDWIDTH * usual
    if (link.dim or 0) > MOST_BITS or bandwidth_of(link) > widest + 1e-9:
        at_most = "" if usual is None else f" and a bandwidth of {usual:g}"
        message = (
            f"what attackers without the key get grows with bits and bandwidth; for {name} take at most "
            f"{MOST_BITS} bits{at_most}{SEE}"
        )
    if message:
        warnings.warn(f"recipe {recipe}: {message}", WideSealWarning, stacklevel=stacklevel)


def warn_of_estimate(recipe: Recipe, name: str, estimate: float | None, stacklevel: int = 3) -> None:
    """Warn of a bandwidth that nobody measured: which it is, what it costs, and that all devices need the same."""
    if estimate is None:
        chosen = (
            f"there are fewer than {FEWEST_ROWS} features to estimate it from, so it is SIFT's, {BANDWIDTH:g}. What "
            f"that costs in matches and shows to attackers is unknown"
        )
    else:
        chosen = (
            f"from the distances between features of one image it is {estimate:g}. Attackers without the key should "
            f"learn about as little as of sealed SIFT, and a fifth to a third of the correct matches is lost"
        )
    warnings.warn(
        f"the bandwidth of seals was not measured for {name}: {chosen}. Features match only with one bandwidth: give "
        f"all devices of one map --recipe {with_bandwidth(recipe, estimate or BANDWIDTH)}{SEE}",
        BandwidthWarning,
        stacklevel=stacklevel,
    )


def check_norms(rows: NDArray[np.floating], name: str) -> None:
    """Raise InputError for descriptors whose norm is not 1, if the bandwidth of their kind was measured for norm 1."""
    if not len(rows) or kind_of(name) not in BANDWIDTHS:
        return
    norm = float(np.median(np.linalg.norm(rows.astype(np.float64), axis=1)))
    if not UNIT_NORMS[0] <= norm <= UNIT_NORMS[1]:
        raise InputError(
            f"these {name} descriptors have a norm of about {norm:.2g}, and the bandwidth of seals is for norm 1: "
            f"divide each by its norm, or name a bandwidth that is {norm:.2g} times as wide (sealed-512:NUMBER)"
        )


def _check_sizes(bits: int, bandwidth: float) -> None:
    if bits < FEWEST_BITS:
        raise InputError(f"a seal has {FEWEST_BITS} bits or more, got {bits}: fewer do not distinguish descriptors")
    if bits > WIDEST:
        raise InputError(f"a seal has at most {WIDEST} bits, got {bits}")
    if bits % 8:
        raise InputError(f"a seal has whole bytes, got {bits} bits: take {bits - bits % 8} or {bits + 8 - bits % 8}")
    if not (np.isfinite(bandwidth) and bandwidth > 0):
        raise InputError(f"the bandwidth of a seal is a number above 0, got {bandwidth}")


def _seed(key: bytes, input_dim: int, bits: int, bandwidth: float, *, odd: bool = False) -> bytes:
    """Return the seed of a seal's directions, phases and name: seals of faces, with odd waves, have others."""
    context = b"%d bits of %d numbers, bandwidth %.6f" % (bits, input_dim, bandwidth)
    hashed = hashlib.blake2b(key, digest_size=32).digest()
    return hashlib.blake2b(context, key=hashed, person=b"sfumato faces 1" if odd else b"sfumato seal 2").digest()


def _name(seed: bytes) -> str:
    """Return the public name of a seal: equal names mean equal keys."""
    return hashlib.shake_256(seed + b"name").hexdigest(32)
