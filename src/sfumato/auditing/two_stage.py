# SPDX-License-Identifier: Apache-2.0
"""Attacks in two stages on recipes that encode and then lift: first the lifting is undone, then the encoder.

A lifting after an encoder is attacked as any other, in the encoder's space, where public descriptors and decoys are
brought by the encoder, which the attacker knows. What that recovers are points of that space: how near they are to the
encoded descriptors is told by itself, and a network that was trained on the encoder alone takes them further, a decoder
to clear descriptors, an inverter to a picture. Keeps distances and pictures, never a descriptor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Companions, Knowledge, Recovered, run_attack
from sfumato.attacks.registry import ATTACKS
from sfumato.auditing.attack_task import (
    SECOND,
    VARIANTS,
    Case,
    Intruder,
    distance_scores,
    encode_picture,
    picture_figures,
)
from sfumato.auditing.subjects import Subject
from sfumato.auditing.task import Figures, Prediction, Sample
from sfumato.auditing.toolbox import Tools
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.resolve import Resolved, encode_decoys, encode_points, resolve
from sfumato.errors import ImageError
from sfumato.inversion.canonical import canonical_input
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, as_points
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe
from sfumato.types.record import Value

Floats = NDArray[np.float32]

DECODER, INVERTER, POINTS = "decoder", "inverter", "nothing"
"""What undoes the encoder: a decoder, an inverter of encoded points, or nothing that is at hand."""

SPACE = Extractor("encoded")
UNFIT = ("vertex", "decoder", "reveal", "tracks", "replay")
"""Attacks that ask for histograms, for networks of their own, or for what single photos do not have."""

STAGED: dict[str, tuple[str, str]] = {
    f"{name} then {end}": (name, end)
    for name, (attack, _) in VARIANTS.items()
    if attack not in UNFIT and not ATTACKS[attack].only_encoded
    for end in (DECODER, INVERTER, POINTS)
}
"""Every attack in two stages: the way of attacking the lifting, and what follows."""


def encoder_part(recipe: Recipe) -> Recipe:
    """Return the recipe without its lifting: the encoders alone."""
    return Recipe(links=recipe.encoders)


def staged_cases(subject: Subject, kind: str, tools: Tools) -> list[Case]:
    """Return all attacks in two stages that the tools allow; none but on encoders followed by a lifting."""
    recipe, clear = subject.recipe, tools.painter(kind, "raw")
    if not recipe.has_encoder or recipe.lifting is None or clear is None:
        return []
    before = str(encoder_part(recipe))
    ends = [(DECODER, clear)] if tools.decoder(kind, before) else []
    ends += [(INVERTER, painter) for painter in tools.painters_for(kind, before)]
    known = tools.knowledge_about(kind, str(recipe))
    fitting = [name for name, end in STAGED.values() if end == POINTS and set(VARIANTS[name][1]) <= known]
    return [
        Case(subject, f"{name} then {end}", painter) for name in fitting for end, painter in ends or [(POINTS, clear)]
    ]


class LiftingUndone:
    """Attacks on the lifting of one recipe, in the space of its encoders."""

    def __init__(self, recipe: Recipe, tools: Tools) -> None:
        assert recipe.lifting is not None
        self.resolved: Resolved = resolve(recipe)
        self.lifting = Recipe(links=(recipe.lifting,))
        self._tools = tools

    def seen(self, concealed: ConcealedFeatures) -> ConcealedFeatures:
        """Return concealed features as if they had been lifted only."""
        return ConcealedFeatures(
            concealed.keypoints, concealed.subspaces, self.lifting, SPACE, concealed.image_size, concealed.payload
        )

    def truth(self, features: Features) -> Floats:
        """Return what was lifted: the encoded descriptors (N, n')."""
        return encode_points(self.resolved, features.descriptors)

    def general(self, needs: Sequence[str]) -> dict[str, Any]:
        """Return those of the public descriptors and decoys that are needed, encoded."""
        public = self._tools.public or self._tools.decoys
        given = {"public": public, "decoys": self._tools.decoys}
        return {name: self._encoded(one) for name, one in given.items() if name in needs and one is not None}

    def _encoded(self, decoys: Decoys) -> Floats:
        return encode_decoys(self.resolved, decoys).descriptors


class StagedIntruder(Intruder):
    """Attacks the photos of one case in two stages, and scores what each gave."""

    @property
    def needs(self) -> tuple[str, ...]:
        """What the attacker knows beside the concealed features."""
        variant, end = STAGED[self.case.attack]
        return tuple(dict.fromkeys((*VARIANTS[variant][1], "encoder", *(("decoder",) if end == DECODER else ()))))

    @property
    def params(self) -> dict[str, Value]:
        """All that decides a result, but the seed and the photos."""
        decoder = self._decoder() if STAGED[self.case.attack][1] == DECODER else None
        return {**super().params, "decoder": None if decoder is None else decoder[0]}

    def predict(self, sample: Sample) -> Prediction:
        """Attack one photo: distances (N,) in the lifted and, decoded, in the clear space; the picture as PNG bytes."""
        features = self._clear[self.photos[sample.key]]
        if features.image_size is None:
            raise ImageError(f"{sample.key}: the size of the photo is not known")
        undone, case = LiftingUndone(self.case.subject.recipe, self.tools), self.case
        variant, end = STAGED[case.attack]
        found = self._recovered(features, undone, variant)
        told: dict[str, NDArray[Any]] = {
            "lifted": _distances(found.descriptors, undone.truth(features)),
            "distances": np.empty(0, np.float32),
            "confidence": found.confidence,
            "features": np.array([len(features)], np.int32),
        }
        if end == POINTS:
            return told
        rows = found.descriptors
        if end == DECODER:
            decoder = self._decoder()
            assert decoder is not None
            rows = decoder[1](as_points(rows))
            told["distances"] = _distances(rows, features.descriptors)
        else:
            frame = np.empty((0, 0)) if case.painter.frame is None else case.painter.frame
            rows = canonical_input(as_points(rows), frame)
        return {**told, "picture": encode_picture(case.painter.paint(features.keypoints, rows, features.image_size))}

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return how near points, descriptors and the picture came to those of the photo."""
        figures = {f"lifted {name}": value for name, value in distance_scores(prediction["lifted"]).items()}
        figures |= distance_scores(prediction["distances"])
        if "picture" in prediction:
            figures |= picture_figures(self.photos[sample.key], prediction["picture"])
        return {**figures, "features": float(prediction["features"][0])}

    def _decoder(self) -> tuple[str, Any] | None:
        return self.tools.decoder(self._extractor.name, str(encoder_part(self.case.subject.recipe)))

    def _recovered(self, features: Features, undone: LiftingUndone, variant: str) -> Recovered:
        """Return what undoing the lifting gives, once for all that follows."""
        subject = self.case.subject
        key = (subject.recipe.identity, subject.seed, variant)
        return self.tools.releases.kept(features, key, lambda: self._undo(features, undone, variant))

    def _undo(self, features: Features, undone: LiftingUndone, variant: str) -> Recovered:
        attack, needs = VARIANTS[variant]
        known = undone.general(needs)
        if "clear" in needs:
            known["clear"] = undone.truth(features)
        if "releases" in needs:
            rows = np.arange(len(features), dtype=np.int32)
            known["releases"] = Companions(rows=rows, subspaces=self._concealed(features, SECOND).subspaces)
        return run_attack(ATTACKS[attack], undone.seen(self._concealed(features, 0)), Knowledge(**known))


def _distances(found: Floats, truth: Floats) -> Floats:
    distances: Floats = np.linalg.norm(found - truth, axis=1).astype(np.float32)
    return distances
