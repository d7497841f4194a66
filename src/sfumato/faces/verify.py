# SPDX-License-Identifier: Apache-2.0
"""Is it this person? One probe against one concealed template, decided by the gallery's threshold.

The server's side: never imports the clear types. A clear probe comes as an array, on the device that made it.
"""

from dataclasses import dataclass
from typing import Any

from sfumato.errors import InputError
from sfumato.faces.compare import comparison_of, pair_distances, side_of_templates
from sfumato.faces.gallery import Gallery
from sfumato.faces.thresholds import Threshold


@dataclass(frozen=True, slots=True)
class Decision:
    """``accepted`` or not: the ``distance`` to the template of ``id``, and the ``threshold`` it was held against."""

    id: str
    accepted: bool
    distance: float
    threshold: Threshold


def verify(probe: Any, gallery: Gallery, one: str) -> Decision:
    """Compare one probe, a point (1, n) or a concealed template, with the template of an id.

    Raises InputError for an id that is not enrolled, more than one probe, or a gallery without a threshold for this
    comparison.
    """
    count = len(side_of_templates(probe, "probe").origin)
    if count != 1:
        raise InputError(f"probe: expected one face, got {count}")
    template, threshold = gallery.template(one), gallery.threshold(comparison_of(probe))
    distance = float(pair_distances(probe, template, [0], [0])[0])
    return Decision(one, threshold.accepts(distance), distance, threshold)
