# SPDX-License-Identifier: Apache-2.0
"""Seals: descriptors as bits that only close ones share, under a key that devices have and a server has not.

A secure binary embedding (Boufounos and Rane, "Secure binary embeddings for privacy preserving nearest neighbors",
2011, in the form with random phases of Raginsky and Lazebnik, "Locality-sensitive binary codes from shift-invariant
kernels", 2009): bit i is the sign of cos(a_i x + w_i), with a_i Gaussian and w_i uniform, both drawn from the key. The
share of different bits grows with the distance of two descriptors and is one half from some ``bandwidths`` on: who has
no key learns which descriptors are near one another, and how near; of all others nothing. Turning or shifting all
descriptors does not change what bits look like without the key, so nothing but distances can ever be read off them.

Knows keys and dimensions, and of a recipe whether it is sealed; no file. A key is never kept: what is made of it can
not be turned back into it.
"""

import hashlib

import numpy as np

from sfumato.concealment.randomness import normal, uniform
from sfumato.errors import InputError
from sfumato.learn.encoder import SEALED, Encoder
from sfumato.types.recipe import Recipe

BANDWIDTH = 0.3
"""Standard deviation of the kernel that codes tell, for descriptors of unit norm: true matches of SIFT lie within it
or not far beyond, most others at four times of it."""

FEWEST_BITS = 32


def sealing_key(recipe: Recipe | str, secret: bytes | None, evaluation_seed: int | None) -> bytes | None:
    """Return the key for a seal: the secret, or one that anyone can make of an evaluation seed; None for neither.

    A recipe that already names its seal needs none, and none is made of a seed then.
    """
    if secret is not None or evaluation_seed is None or Recipe.of(recipe).links[-1].checksum:
        return secret
    return b"evaluation seed %d" % evaluation_seed


def make_seal(key: bytes, input_dim: int, bits: int, bandwidth: float = BANDWIDTH) -> Encoder:
    """Return the encoder that a key stands for: (N, input_dim) rows to (N, bits) of plus or minus 1 / sqrt(bits).

    The same key gives the same seal, everywhere. Squared distances of sealed rows are 4 times the share of different
    bits.

    Raises InputError for an empty key, or sizes that make no sense.
    """
    if not isinstance(key, bytes | bytearray) or not key:
        raise InputError("a seal needs a key of unguessable bytes, for example secrets.token_bytes(32)")
    if bits < FEWEST_BITS:
        raise InputError(f"a seal has {FEWEST_BITS} bits or more, got {bits}: fewer tell nothing apart")
    if not (np.isfinite(bandwidth) and bandwidth > 0):
        raise InputError(f"the bandwidth of a seal is a number above 0, got {bandwidth}")
    context = b"%d bits of %d numbers, bandwidth %.6f" % (bits, input_dim, bandwidth)
    seed = hashlib.blake2b(context, key=hashlib.blake2b(key, digest_size=32).digest(), person=b"sfumato seal").digest()
    name = hashlib.shake_256(seed + b"name").hexdigest(32)  # public; of the key it tells whether it is the same
    count = 8 * ((bits * input_dim + 1) // 2)
    drawn = np.frombuffer(hashlib.shake_256(seed + b"directions").digest(count), np.uint8)
    directions = normal(drawn)[: bits * input_dim].reshape(bits, input_dim) / bandwidth
    phases = np.pi * (1 + uniform(np.frombuffer(hashlib.shake_256(seed + b"phases").digest(4 * bits), np.uint8)))
    layer = (directions.astype(np.float32), phases.astype(np.float32), False)
    return Encoder(layers=(layer,), extractor_name="unknown", kind=SEALED, key_name=name)
