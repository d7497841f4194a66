# SPDX-License-Identifier: Apache-2.0
"""Where the decoys of a lifting come from: entries of a database, or fresh neighbours of them.

Decoys are drawn, or generated, as clear descriptors; the encoders of a recipe move them to the space that is lifted.
Knows databases and pools; not how a descriptor is lifted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys, Pool
from sfumato.concealment.encoders import Resolved, encode_decoys, encode_points
from sfumato.concealment.generated import FEWEST, bytes_each, generate
from sfumato.concealment.randomness import distinct_integers
from sfumato.errors import DecoyError
from sfumato.types.recipe import Link

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Supply:
    """The decoys of one image: ``decoys`` as they are drawn from, clear if they are generated, else encoded.

    ``pool`` says which of them each descriptor may get, ``resolved`` how generated ones are encoded.
    """

    link: Link
    decoys: Decoys
    pool: Pool
    resolved: Resolved

    def __post_init__(self) -> None:
        wanted = max(self.link.decoy_count, FEWEST if self.link.is_generated else 0)
        if len(self.pool.sizes) and self.pool.sizes.min() < wanted:
            raise DecoyError(
                f"{self.link} needs {wanted} decoys for a descriptor, but only {self.pool.sizes.min()} may be drawn: "
                f"{len(self.decoys)} entries in {self.decoys.parts} parts"
            )

    @property
    def bytes_needed(self) -> int:
        """How many random bytes a descriptor's decoys take."""
        count = self.link.decoy_count
        return count * (bytes_each(self.decoys.descriptors.shape[1]) if self.link.is_generated else 8)

    def draw(self, rows: NDArray[np.intp], drawn: NDArray[np.uint8]) -> Floats:
        """Return decoys (N, k, n) in the space that is lifted, for ``rows`` (N,), from ``drawn`` (N, bytes_needed)."""
        if not self.link.is_generated:
            entries = self.pool.entries(rows, distinct_integers(drawn, self.pool.sizes[rows]))
            return self.decoys.descriptors[entries]
        fresh = generate(self.decoys, self.pool, rows, drawn)
        flat = encode_points(self.resolved, fresh.reshape(-1, fresh.shape[2]))
        return flat.reshape(*fresh.shape[:2], -1)

    def __repr__(self) -> str:
        return f"Supply({self.link} from {self.decoys!r})"


def decoys_for(link: Link, resolved: Resolved, decoys: Decoys) -> Decoys:
    """Return decoys as a lifting after the encoders of a recipe draws them: encoded, but not before they are moved."""
    return decoys if link.is_generated else encode_decoys(resolved, decoys)
