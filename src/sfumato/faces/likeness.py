# SPDX-License-Identifier: Apache-2.0
"""Faces that must not become templates: like somebody else's, unlike the person's own, or among the decoys.

Runs where clear embeddings may be seen. Different photos of one person are told from those of two by a gallery's
threshold alone; one and the same photo is told without any.
"""

from collections.abc import Sequence

import numpy as np

from sfumato.concealment.decoys import Decoys
from sfumato.errors import DecoyError, InputError
from sfumato.faces.compare import POINT, pair_distances
from sfumato.faces.gallery import Gallery
from sfumato.faces.identify import Identifier
from sfumato.faces.thresholds import Threshold
from sfumato.types.embeddings import Embeddings

SAME_PHOTO = 1e-2
"""An embedding this near to a template is the one that is concealed in it: rounding is a hundredth of that."""

SAME_FACE = 0.999
"""Cosine above which a decoy is taken for a face itself, rounded or averaged with little."""

AT_ONCE = 4096


def point_threshold(gallery: Gallery) -> Threshold | None:
    """Return the threshold that clear embeddings are held against, if the gallery has one; that of s-to-s is none."""
    return next((one for one in gallery.thresholds if one.comparison == POINT), None)


def refuse_similar(gallery: Gallery, embeddings: Embeddings, ids: Sequence[str]) -> None:
    """Raise InputError if a face would be accepted as somebody else of a gallery that holds it as one of ``ids``.

    Without a threshold for clear embeddings only the same photo is recognised.
    """
    if len(gallery) < 2 or not len(embeddings):
        return
    threshold = point_threshold(gallery)
    limit = SAME_PHOTO if threshold is None else max(SAME_PHOTO, threshold.distance)
    found, rows = Identifier(gallery.templates).search(embeddings.values, k=2)
    own = np.array([gallery.row(one) for one in ids])
    similar = (rows != own[:, None]) & (found <= limit)
    if not similar.any():
        return
    mine, place = np.argwhere(similar)[0]
    if threshold is None or found[mine, place] <= SAME_PHOTO:
        advice = "It is the same photo: leave it out, or allow similar faces (--allow-similar)"
    else:
        chance = threshold.measured_rate * (len(gallery) - 1)
        advice = (
            f"About {chance:.2g} others look alike by chance: allow similar faces (--allow-similar) if these are "
            f"different people"
        )
    raise InputError(
        f"{ids[mine]!r:.80} looks like {gallery.templates.ids[rows[mine, place]]!r:.80}, who is enrolled or about to "
        f"be; {int(similar.any(axis=1).sum())} of {len(ids)} faces look like somebody. Two templates of one face would "
        f"reveal it. {advice}"
    )


def refuse_different(gallery: Gallery, embeddings: Embeddings) -> None:
    """Raise InputError if a face would be rejected as the one whose name it has, where the gallery has a threshold."""
    threshold = point_threshold(gallery)
    if threshold is None:
        return
    rows = [gallery.row(one) for one in embeddings.names]
    found = pair_distances(embeddings.values, gallery.templates, np.arange(len(rows)), np.array(rows, np.int64))
    different = np.flatnonzero(found > threshold.distance)
    if different.size:
        first = different[0]
        raise InputError(
            f"the new photo of {embeddings.names[first]!r:.80} would be rejected: it is at {found[first]:.4f} from the "
            f"template, the threshold is {threshold.distance:.4f} ({POINT}); so are {different.size} of {len(rows)}. A "
            f"template must not move to another face: take another photo, or allow different faces "
            f"(--allow-different) if you know that it is the same person"
        )


def refuse_decoys(embeddings: Embeddings, decoys: Decoys | None) -> None:
    """Raise DecoyError if a face is among the decoys: a template with that decoy would pass through the face."""
    if decoys is None or decoys.descriptors.shape[1] != embeddings.values.shape[1]:
        return
    lengths = np.linalg.norm(decoys.descriptors, axis=1, keepdims=True)
    others = (decoys.descriptors / np.maximum(lengths, np.finfo(np.float32).tiny)).T
    for start in range(0, len(embeddings), AT_ONCE):
        nearest = (embeddings.values[start : start + AT_ONCE] @ others).max(axis=1)
        among = np.flatnonzero(nearest > SAME_FACE)
        if among.size:
            raise DecoyError(
                f"the face {embeddings.names[start + among[0]]!r:.80} is among the decoys: templates of others would "
                f"pass through it. Build the decoys from faces of people who are neither enrolled nor measured with: "
                f"sfumato decoys build --faces"
            )
