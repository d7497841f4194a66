# SPDX-License-Identifier: Apache-2.0
"""How near two sealed features must be to be a match: nearer than unrelated ones come by chance.

Bits of unrelated descriptors agree like throws of a coin, so that it is known how near the nearest of many comes though
none is right. Of clear or lifted features nothing of the kind is known: there every nearest counts, as ever.
"""

from functools import lru_cache

import numpy as np

from sfumato.types.recipe import Recipe

FALSE_ALARMS = 0.1
"""A feature is matched where at most so many unrelated ones would be expected as near, of all there are."""


def chance_limit(recipe: Recipe | None, count: int) -> float | None:
    """Return the distance up to which two sealed features match, one of ``count`` candidates; None for other recipes.

    >>> round(chance_limit(Recipe.of("sealed-512"), 2000), 3), chance_limit(Recipe.of("random-2"), 2000)
    (1.285, None)
    """
    if recipe is None or not recipe.is_sealed:
        return None
    return _limit(int(recipe.links[-1].dim or 0), max(1, count))


@lru_cache(maxsize=4096)
def _limit(bits: int, count: int) -> float:
    from scipy.special import bdtr

    differing = np.arange(bits + 1)
    rare = bdtr(differing, bits, 0.5) * count <= FALSE_ALARMS  # so few bits differ, or fewer
    most = int(rare.sum()) - 1
    return float(np.sqrt(4 * (most + 0.5) / bits)) if most >= 0 else 0.0
