# SPDX-License-Identifier: Apache-2.0
"""Attacks in two stages on recipes that encode and then lift: first the lifting is undone, then the encoder.

A lifting after an encoder is attacked in the encoder's space, into which the encoder, which the attacker knows, brings
public descriptors and decoys. How near the recovered points are to the encoded descriptors is a result of its own; a
network trained on the encoder alone takes them further, a decoder to clear descriptors, an inverter to a picture. Keeps
distances and pictures, never a descriptor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Companions, Knowledge, Recovery
from sfumato.attacks.registry import ATTACKS, DECODER, INVERTER, POINTS, run_attack, two_stage_attacks
from sfumato.auditing.attack_task import (
    SECOND,
    AttackData,
    AttackTask,
    distance_scores,
    encode_picture,
    picture_figures,
)
from sfumato.auditing.subjects import Subject
from sfumato.auditing.task import Figures, Prediction, Sample
from sfumato.auditing.toolbox import Tools
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.resolve import ResolvedRecipe, encode_decoys, encode_points, resolve
from sfumato.errors import ImageError
from sfumato.inversion.canonical import canonical_input
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Points
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe
from sfumato.types.record import Value

Floats = NDArray[np.float32]

SPACE = Extractor("encoded")


def encoder_part(recipe: Recipe) -> Recipe:
    """Return the recipe without its lifting: the encoders alone."""
    return Recipe(links=recipe.encoders)


def two_stage_tasks(subject: Subject, data: AttackData) -> list[AttackTask]:
    """Return all attacks in two stages that the tools allow; none but on encoders followed by a lifting."""
    recipe, tools, kind = subject.recipe, data.tools, data.extractor.name
    if not recipe.has_encoder or recipe.lifting is None:
        return []
    clear = tools.clear_inverter(kind, recipe)
    before = str(encoder_part(recipe))
    ends = [(DECODER, clear)] if tools.decoder(kind, before) else []
    ends += [(INVERTER, inverter) for inverter in tools.inverters_for(kind, before)]
    known = tools.known_fields(kind, str(recipe))
    by_stages = {(one.name, one.with_decoys, one.then): one for one in two_stage_attacks().values()}
    first_stages = [one for one in by_stages.values() if one.then == POINTS and set(one.first_needs) <= known]
    return [
        TwoStageTask(subject, by_stages[one.name, one.with_decoys, then], inverter, data)
        for one in first_stages
        for then, inverter in ends or [(POINTS, clear)]
    ]


class EncodedSpace:
    """Space of the encoders of one recipe, in which its lifting is attacked."""

    def __init__(self, recipe: Recipe, tools: Tools) -> None:
        assert recipe.lifting is not None
        self.resolved: ResolvedRecipe = resolve(recipe)
        self.lifting = Recipe(links=(recipe.lifting,))
        self._tools = tools

    def as_lifted(self, concealed: ConcealedFeatures) -> ConcealedFeatures:
        """Return concealed features as if they had been lifted only."""
        return ConcealedFeatures(concealed.keypoints, concealed.subspaces, self.lifting, SPACE, concealed.image_size)

    def encode(self, features: Features) -> Floats:
        """Return what was lifted: the encoded descriptors (N, n')."""
        return encode_points(self.resolved, features.descriptors)

    def knowledge(self, needs: Sequence[str]) -> dict[str, Any]:
        """Return those of the public descriptors and decoys that are needed, encoded."""
        databases = {"public": self._tools.public or self._tools.decoys, "decoys": self._tools.decoys}
        return {name: self._encode_all(one) for name, one in databases.items() if name in needs and one is not None}

    def _encode_all(self, decoys: Decoys) -> Floats:
        return encode_decoys(self.resolved, decoys).descriptors


class TwoStageTask(AttackTask):
    """One attack in two stages on one recipe, photo by photo."""

    @property
    def params(self) -> dict[str, Value]:
        """All that decides a result, but the seed and the photos."""
        decoder = self._decoder() if self.attack.then == DECODER else None
        return {**super().params, "decoder": None if decoder is None else decoder[0]}

    def predict(self, sample: Sample) -> Prediction:
        """Attack one photo: distances (N,) in the lifted and, decoded, in the clear space; the picture as PNG bytes."""
        features = self.data.clear[self.data.photos[sample.key]]
        if features.image_size is None:
            raise ImageError(f"{sample.key}: the size of the photo is not known")
        space = EncodedSpace(self.subject.recipe, self.data.tools)
        recovery = self._undo_lifting_once(features, space)
        prediction: dict[str, NDArray[Any]] = {
            "lifted": _distances(recovery.descriptors, space.encode(features)),
            "distances": np.empty(0, np.float32),
            "confidence": recovery.confidence,
            "features": np.array([len(features)], np.int32),
        }
        if self.attack.then == POINTS:
            return prediction
        rows = recovery.descriptors
        if self.attack.then == DECODER:
            decoder = self._decoder()
            assert decoder is not None
            rows = decoder[1](Points(rows))
            prediction["distances"] = _distances(rows, features.descriptors)
        else:
            frame = np.empty((0, 0)) if self.inverter.frame is None else self.inverter.frame
            rows = canonical_input(Points(rows), frame)
        picture = self.inverter.paint(self._concealed(features, 0).keypoints, rows, features.image_size)
        return {**prediction, "picture": encode_picture(picture)}

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return how near points, descriptors and the picture came to those of the photo."""
        figures = {f"lifted {name}": value for name, value in distance_scores(prediction["lifted"]).items()}
        figures |= distance_scores(prediction["distances"])
        if "picture" in prediction:
            figures |= picture_figures(self.data.photos[sample.key], prediction["picture"])
        return {**figures, "features": float(prediction["features"][0])}

    def _decoder(self) -> tuple[str, Any] | None:
        return self.data.tools.decoder(self.data.extractor.name, str(encoder_part(self.subject.recipe)))

    def _undo_lifting_once(self, features: Features, space: EncodedSpace) -> Recovery:
        """Return what the first stage recovers, once for all second stages."""
        key = (self.subject.recipe.identity, self.subject.seed, self.attack.name, self.attack.with_decoys)
        return self.data.tools.concealed.get(features, key, lambda: self._undo_lifting(features, space))

    def _undo_lifting(self, features: Features, space: EncodedSpace) -> Recovery:
        needs = self.attack.first_needs
        values = space.knowledge(needs)
        if "clear" in needs:
            values["clear"] = space.encode(features)
        if "releases" in needs:
            rows = np.arange(len(features), dtype=np.int32)
            values["releases"] = Companions(rows=rows, subspaces=self._concealed(features, SECOND).subspaces)
        lifted = space.as_lifted(self._concealed(features, 0))
        return run_attack(ATTACKS[self.attack.name], lifted, Knowledge(**values))


def _distances(points: Floats, truth: Floats) -> Floats:
    distances: Floats = np.linalg.norm(points - truth, axis=1).astype(np.float32)
    return distances
