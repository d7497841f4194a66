# SPDX-License-Identifier: Apache-2.0
"""Seals: descriptors as bits that only close ones share, under a key that devices have and a server has not.

A secure binary embedding (Boufounos and Rane, "Secure binary embeddings for privacy preserving nearest neighbors",
2011, in the form with random phases of Raginsky and Lazebnik, "Locality-sensitive binary codes from shift-invariant
kernels", 2009): bit i is the sign of cos(a_i x + w_i), with a_i Gaussian and w_i uniform, both drawn from the key. The
share of different bits grows with the distance of two descriptors and reaches one half at a few bandwidths: without the
key anyone learns which descriptors are close, and how close, and nothing about the others. Rotating or shifting all
descriptors does not change the distribution of the bits, so they reveal nothing but distances.

A key is never kept, and neither is a seal: each call takes the key. A key cannot be computed from what is made with it.
"""

import hashlib
import warnings
from dataclasses import replace

import numpy as np

from sfumato.concealment.encoder import SEALED, WIDEST, Encoder
from sfumato.concealment.keys import EVALUATION_KEY, SHORTEST_KEY, is_public
from sfumato.concealment.randomness import normal, uniform
from sfumato.errors import InputError, RecipeError, WideSealWarning
from sfumato.types.recipe import CHECKSUM_DIGITS, Link, Recipe

BANDWIDTH = 0.235
"""Standard deviation of the kernel, for descriptors of unit norm: true matches of SIFT lie within it or not far beyond,
most others at four times its distance."""

USUAL_WIDTH = 128
"""Numbers of a descriptor that we extract; descriptors of other programs may have others."""

FEWEST_BITS = 32
MOST_BITS = 512
WIDEST_BANDWIDTH = 0.27
"""A seal beyond either of them warns: what attackers without the key get grows with both."""
CLOSER = {"sift": 1.0, "rootsift": 0.78, "hardtfeat": 0.7}
"""Distance of unrelated descriptors of a kind, as a share of SIFT's: seals must be narrower by the same factor."""


def make_seal(key: bytes, input_dim: int, bits: int, bandwidth: float = BANDWIDTH) -> Encoder:
    """Return the encoder of a key: (N, input_dim) rows to (N, bits) of plus or minus 1 / sqrt(bits).

    The same key gives the same seal, everywhere. Squared distances of sealed rows are 4 times the share of different
    bits.

    Raises InputError for an empty key, or sizes out of range.
    """
    if not isinstance(key, bytes | bytearray) or not key:
        raise InputError("a seal needs a key of unguessable bytes, for example secrets.token_bytes(32)")
    _check_sizes(bits, bandwidth)
    seed = _seed(key, input_dim, bits, bandwidth)
    count = 8 * ((bits * input_dim + 1) // 2)
    drawn = np.frombuffer(hashlib.shake_256(seed + b"directions").digest(count), np.uint8)
    directions = normal(drawn)[: bits * input_dim].reshape(bits, input_dim) / bandwidth
    phases = np.pi * (1 + uniform(np.frombuffer(hashlib.shake_256(seed + b"phases").digest(4 * bits), np.uint8)))
    layer = (directions.astype(np.float32), phases.astype(np.float32), False)
    return Encoder(layers=(layer,), extractor_name="unknown", kind=SEALED, key_name=_name(seed))


def bandwidth_of(link: Link) -> float:
    """Return the bandwidth of a sealed link, by default ``BANDWIDTH``."""
    return float(link.named[1:] or BANDWIDTH)


def without_key_name(link: Link) -> Link:
    """Return a sealed link in its short form: without the name of the key, and without the default bandwidth."""
    return replace(link, variant="" if bandwidth_of(link) == BANDWIDTH else link.named)


def without_key(recipe: Recipe) -> Recipe:
    """Return a sealed recipe without the name of its key, with its bandwidth: what seals of all keys have in common.

    >>> str(without_key(Recipe.of("compress-48+sealed-512:0.3@0123456789ab")))
    'compress-48+sealed-512:0.3'
    """
    link = recipe.links[-1]
    return Recipe(links=(*recipe.links[:-1], replace(link, variant=f":{bandwidth_of(link):g}")))


def seal_link(link: Link, recipe: Recipe, key: bytes | None, width: int) -> tuple[Encoder, Link]:
    """Return the seal of a link for rows of ``width`` numbers, and the link with its checksum.

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
        if _name(_seed(candidate, width, bits, bandwidth)).startswith(link.checksum):
            seal = make_seal(candidate, width, bits, bandwidth)
            return seal, replace(link, variant=f"{without_key_name(link).variant}@{seal.checksum[:CHECKSUM_DIGITS]}")
    name = fingerprint(recipe, checked_key(recipe, key), width)
    raise RecipeError(
        f"recipe {recipe} was made with another device key than the given one, whose fingerprint is {name}, or for "
        f"descriptors of other than {width} numbers: give the key it was made with, or leave out what follows the @"
    )


def fingerprint(recipe: Recipe, key: bytes, width: int) -> str:
    """Return the name of a key in a sealed recipe, for rows of ``width`` numbers: the part after the @."""
    link = recipe.links[-1]
    return _name(_seed(key, width, link.dim or 0, bandwidth_of(link)))[:CHECKSUM_DIGITS]


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
    if len(key) < SHORTEST_KEY:
        raise RecipeError(
            f"recipe {recipe}: a device key has {SHORTEST_KEY} random bytes or more, for example "
            f"secrets.token_bytes(32): archives show its fingerprint, on which anyone can try shorter ones"
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

    Without a key only the sizes are compared. A name tells no width: the usual one is tried first, then all others.
    """
    link = made.links[-1]
    if not made.is_sealed or (*made.links[:-1], without_key_name(link)) != (
        *recipe.links[:-1],
        without_key_name(recipe.links[-1]),
    ):
        return False
    if key is None or not link.checksum:
        return key is None
    sizes = link.dim or 0, bandwidth_of(link)
    widths = (USUAL_WIDTH, *range(1, WIDEST + 1))
    return any(_name(_seed(key, width, *sizes)).startswith(link.checksum) for width in widths)


def warn_if_wide(recipe: Recipe, kind: str = "sift", stacklevel: int = 3) -> None:
    """Warn of a seal that shows attackers more of a kind of descriptor than the seals that were measured."""
    link, closer = recipe.links[-1], CLOSER.get(kind, 1.0)
    if not recipe.is_sealed:
        return
    message = ""
    if (link.dim or 0) > MOST_BITS or bandwidth_of(link) > WIDEST_BANDWIDTH * closer:
        message = (
            f"what attackers without the key get grows with bits and bandwidth; for {kind} take at most "
            f"{MOST_BITS} bits and a bandwidth of {BANDWIDTH * closer:.2g} (docs/sealing.md)"
        )
    elif kind not in (*CLOSER, "unknown"):
        message = f"seals were measured on {', '.join(CLOSER)}; what they show of {kind} is unknown (docs/sealing.md)"
    if message:
        warnings.warn(f"recipe {recipe}: {message}", WideSealWarning, stacklevel=stacklevel)


def _check_sizes(bits: int, bandwidth: float) -> None:
    if bits < FEWEST_BITS:
        raise InputError(f"a seal has {FEWEST_BITS} bits or more, got {bits}: fewer do not distinguish descriptors")
    if bits > WIDEST:
        raise InputError(f"a seal has at most {WIDEST} bits, got {bits}")
    if not (np.isfinite(bandwidth) and bandwidth > 0):
        raise InputError(f"the bandwidth of a seal is a number above 0, got {bandwidth}")


def _seed(key: bytes, input_dim: int, bits: int, bandwidth: float) -> bytes:
    """Return the seed of a seal's directions, phases and name."""
    context = b"%d bits of %d numbers, bandwidth %.6f" % (bits, input_dim, bandwidth)
    hashed = hashlib.blake2b(key, digest_size=32).digest()
    return hashlib.blake2b(context, key=hashed, person=b"sfumato seal").digest()


def _name(seed: bytes) -> str:
    """Return the public name of a seal: equal names mean equal keys."""
    return hashlib.shake_256(seed + b"name").hexdigest(32)
