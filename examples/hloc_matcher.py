# SPDX-License-Identifier: Apache-2.0
"""Matcher for hloc: put this file into hloc/matchers/, and hloc.match_features matches concealed features.

    sfumato conceal photos/ -o private.sfm --positions             # hloc wants keypoints: outlines are visible
    sfumato export hloc private.sfm -o hloc/ --with-subspaces      # features.h5, without descriptors
    cp hloc_matcher.py .../hloc/matchers/

    from hloc import match_features
    conf = {"output": "matches-sfumato", "model": {"name": "hloc_matcher", "recipe": "default"}}
    match_features.main(conf, Path("pairs.txt"), Path("hloc/features.h5"), matches=Path("hloc/matches.h5"))

No key is needed: codes are compared as they are. ``recipe`` is the one that the features were concealed with
(``sfumato inspect`` shows it). It decides what counts as a match. The matches are those of ``sfumato match``.

A file with clear descriptors is refused, unless ``recipe`` is set: then both images are concealed here, in memory and
under a key that is thrown away. So you can try a recipe on the features that your pipeline has already. Of other
descriptors than SIFT name the bandwidth too: "sealed-512:0.19" for hloc's ``feats-sift.h5``, which holds RootSIFT.
After an error in a matcher hloc prints it and waits for ever: press Ctrl-C.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from hloc.utils.base_model import BaseModel
from numpy.typing import NDArray

import sfumato

Arrays = dict[str, NDArray[Any]]
Tensors = dict[str, torch.Tensor]

MOST_ROWS = 32_767
"""Keypoints of an image whose rows hloc can write: it stores them as int16, in which larger numbers turn negative."""


class SubspaceMatcher(BaseModel):  # type: ignore[misc]  # hloc has no types
    """Match sealed bits or subspaces of two images, exactly; the settings are those of ``sfumato.match``."""

    default_conf: ClassVar[dict[str, Any]] = {"recipe": None, "mutual": True, "ratio": None, "max_distance": None}
    required_inputs: ClassVar[list[str]] = ["keypoints0", "keypoints1"]

    def _init(self, conf: dict[str, Any]) -> None:
        self.key = sfumato.new_key()  # for clear descriptors alone
        self.recipe = conf["recipe"]
        self.settings = {name: conf[name] for name in ("mutual", "ratio", "max_distance")}

    def _forward(self, data: Tensors) -> Tensors:
        """Return hloc's form: for each row of image 0 the row of image 1, or -1, and a score from 0 to 1."""
        first, second = (self.read_side(data, number) for number in "01")
        matches = sfumato.match(first, second, **self.settings)
        rows, others = np.array(matches.indices, np.int64).T
        rows0, scores0 = np.full((1, len(first)), -1), np.zeros((1, len(first)), np.float32)
        rows0[0, rows] = others
        scores0[0, rows] = score(first, matches.distances)
        return {"matches0": torch.from_numpy(rows0), "matching_scores0": torch.from_numpy(scores0)}

    def read_side(self, data: Tensors, number: str) -> sfumato.ConcealedFeatures:
        """Return the features of one image; hloc hands over all arrays of its group, as floats in a batch of one."""
        arrays = {
            name[:-1]: data[name][0].cpu().numpy() for name in data if name[-1] == number and name[:-1] != "image"
        }
        count = len(arrays["keypoints"])
        if count > MOST_ROWS:
            raise ValueError(
                f"an image has {count} keypoints, and hloc cannot store rows above {MOST_ROWS}: match the archive with "
                f"sfumato match, or conceal with a smaller --max-features"
            )
        code = self.read_code(arrays)
        keypoints = np.column_stack([arrays["keypoints"], np.ones(count), np.zeros(count)])  # positions alone
        recipe = sfumato.Recipe.of(self.recipe or usual_recipe(code))
        return sfumato.ConcealedFeatures(keypoints.astype(np.float32), code, recipe)

    def read_code(self, arrays: Arrays) -> sfumato.Bits | sfumato.Subspaces:
        """Return what stands in the place of descriptors; conceal them if they are clear."""
        if "sealed_bits" in arrays:
            return sfumato.Bits(arrays["sealed_bits"].astype(np.uint8))
        if "subspace_basis" in arrays:
            return sfumato.Subspaces(arrays["subspace_origin"], arrays["subspace_basis"])
        if "descriptors" in arrays and self.recipe is not None:
            return sfumato.conceal(arrays["descriptors"].T, self.recipe, secret=self.key)
        what = "clear descriptors" if "descriptors" in arrays else "keypoints alone"
        raise ValueError(
            f"this file holds {what}: conceal the photos, and write features.h5 with sfumato export hloc "
            f"--with-subspaces. To try a recipe on clear descriptors, name it in the configuration: recipe"
        )


def usual_recipe(code: sfumato.Bits | sfumato.Subspaces) -> str:
    """Return a recipe that makes such a code, for features whose recipe was not named."""
    if isinstance(code, sfumato.Bits):
        return f"sealed-{code.ambient_dim}"
    if code.dim:
        return f"random-{code.dim}"
    raise ValueError("these are points of an encoder: name it in the configuration, as in recipe: ninja-sift-1.0")


def score(features: sfumato.ConcealedFeatures, distances: NDArray[np.float32]) -> NDArray[np.floating]:
    """Return hloc's score: the share of bits that agree, or (similarity + 1) / 2 of unit vectors."""
    if isinstance(features.code, sfumato.Bits):
        return 1 - distances / features.code.ambient_dim
    return np.clip(1 - distances**2 / 4, 0, 1)
