# SPDX-License-Identifier: Apache-2.0
"""What the authors measured of sealed recipes, for an audit to hold its own figures against.

The attack on sealed features lives on how many of one key it has. A server has them all, an audit those of a few
photos: what it finds there is too good. Knows the reference frontier of the package, and hands it on as records.
"""

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from sfumato.concealment.seal import keyless
from sfumato.evaluate.frontier import NOBODY
from sfumato.evaluate.frontierfile import FrontierPoint, reference_frontier
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Score

DESCRIPTOR = "sift"
"""What the reference frontier was measured on."""


def references_for(recipes: Iterable[str]) -> list[Record]:
    """Return one record for each sealed recipe that the reference frontier has, by whatever key it was measured."""
    known = {
        without_key(one.recipe): one
        for one in reference_frontier()
        if one.leakage_by != NOBODY and Recipe.of(one.recipe).is_sealed
    }
    sealed = [name for name in dict.fromkeys(recipes) if name.split("+")[-1].startswith("sealed-")]
    return [_record(name, known[without_key(name)]) for name in sealed if without_key(name) in known]


def without_key(recipe: str) -> str:
    """Return a sealed recipe without the name of its key, with its bandwidth; those of its encoders stay.

    >>> without_key("sealed-512:0.3@330fa2794d6c")
    'sealed-512:0.3'
    """
    return str(keyless(Recipe.of(recipe)))


def _record(recipe: str, point: FrontierPoint) -> Record:
    """Return a point of the frontier as a record of the recipe as the audit calls it."""
    photos = _photos(point)
    return Record(
        task="reference",
        scores=(
            Score("leakage", point.leakage, "", photos),
            Score("within 0.1", point.recovered_01, "", photos),
            Score("within 0.3", point.recovered_03, "", photos),
        ),
        params={"recipe": recipe, "attack": point.leakage_by, "descriptor": DESCRIPTOR},
    )


def _photos(point: FrontierPoint) -> int:
    """Return of how many photos a point was measured; 0 where the file does not tell."""
    told = point.figures.get("photos")
    if told is None:
        place = resources.files("sfumato.evaluate") / "data" / "frontier.json"
        made: Any = json.loads(place.read_text(encoding="utf-8")).get("made")
        told = made.get("photos") if isinstance(made, dict) else None
    return int(told) if isinstance(told, int | float) and told > 0 else 0
