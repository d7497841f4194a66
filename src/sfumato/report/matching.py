# SPDX-License-Identifier: Apache-2.0
"""What matching a recipe keeps, from records of the evaluation ``homography`` alone, and as shares of raw."""

from collections.abc import Iterable, Mapping

from sfumato.report.attacked import means_of
from sfumato.types.record import Record

BOTH_CONCEALED = ("p-to-p", "s-to-s")


def matching_of(recipe: str, records: Iterable[Record]) -> dict[str, float]:
    """Return the mean scores of matching a recipe with nothing clear on either side; empty where none was measured."""
    group = [
        record
        for record in records
        if record.task == "homography"
        and record.params.get("recipe") == recipe
        and record.params.get("distance") in BOTH_CONCEALED
        and record.scores
    ]
    wanted = ("accuracy 3 px", "correct 3 px", "matches")
    means = means_of(group) if group else {}
    return {name: means[f"{name}, overall"] for name in wanted if f"{name}, overall" in means}


def with_shares(own: Mapping[str, float], raw: Mapping[str, float]) -> dict[str, float]:
    """Return scores of matching with their shares of those of raw."""
    shares = {f"{name} / raw": own[name] / raw[name] for name in own if raw.get(name)}
    return {**own, **shares}
