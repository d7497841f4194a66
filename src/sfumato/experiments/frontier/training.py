# SPDX-License-Identifier: Apache-2.0
"""Networks that attack a recipe: which there should be, which are missing, and training those, all alike.

An attacker that was not trained looks like privacy. So every recipe gets a patch inverter and a decoder trained on what
it releases, with the same number of steps on the same photos; a recipe that encodes and then lifts also those of its
encoder alone; a seal, which releases positions only, an inverter of cells for what attacks read out of it. A network is
trained beside the folder of models and moved there when it is finished.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from sfumato.auditing.subjects import conceal_repeatably
from sfumato.auditing.task import short_digest
from sfumato.auditing.toolbox import Tools
from sfumato.auditing.two_stage import encoder_part
from sfumato.concealment.seal import without_key
from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams
from sfumato.inversion.images import load_image_inverter
from sfumato.inversion.load import AT_POSITIONS, Concealer
from sfumato.inversion.patches import BUNDLED, network_folder
from sfumato.training.concealers import reader_of
from sfumato.training.decoder import DecoderTrainParams, train_decoder
from sfumato.training.image import CELLS, ImageTrainParams, train_image_inverter
from sfumato.training.inverter import InverterTrainParams, train_patch_inverter
from sfumato.training.loop import part_of
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.recipe import Recipe

log = logging.getLogger(__name__)

INVERTER, DECODER = "inverter", "decoder"
UNFINISHED = "unfinished"
"""The folder below the models where networks are trained."""

FIRST_DRAW = 1_000_000
"""Where the seeds of training begin: no attacked photo is concealed with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBudget:
    """Training steps and photos of every network. ``seed`` decides all that is random.

    ``decoder_form``: auto searches the subspaces of liftings, which is stronger and ten times as slow as direct. After
    an encoder it is always direct: the clear descriptor is in no subspace there.
    """

    patch_steps: int = 1500
    refine_steps: int = 400
    refine_photos: int = 100
    max_photos: int = 400
    decoder_steps: int = 1500
    decoder_form: str = "auto"
    seed: int = 0
    local: LocalParams = field(default_factory=LocalParams)


@dataclass(frozen=True, slots=True)
class AttackNetwork:
    """Network that attacks a recipe: an inverter or a decoder of what it releases."""

    kind: str
    recipe: Recipe

    @property
    def file_name(self) -> str:
        """A name for its file, the same for all names of one recipe."""
        return f"{self.kind}-{self.recipe.kind}-{short_digest(self.recipe.identity)}.safetensors"

    def __str__(self) -> str:
        return f"{self.kind} of {self.recipe}"


def networks_for(recipe: Recipe) -> list[AttackNetwork]:
    """Return the networks that attack a recipe, resolved; none for raw, which needs no attacker.

    Without the key nothing can be trained on sealed features, but on what attacks read out of seals under other keys.
    """
    if recipe.is_clear:
        return []
    if recipe.is_sealed:
        return [AttackNetwork(INVERTER, without_key(recipe))]
    attacked = [recipe]
    if recipe.has_encoder and recipe.lifting is not None:
        attacked.append(encoder_part(recipe))
    return [AttackNetwork(kind, one) for one in attacked for kind in (DECODER, INVERTER)]


def missing_for(recipe: Recipe, kind: str, tools: Tools) -> list[AttackNetwork]:
    """Return the networks that attack a recipe of some kind of descriptor and are missing."""

    def is_there(one: AttackNetwork) -> bool:
        if one.kind == DECODER:
            return tools.decoder(kind, str(one.recipe)) is not None
        if one.recipe.is_sealed:
            return bool(tools.inverters_of_readings(kind, str(one.recipe)))
        return bool(tools.inverters_for(kind, str(one.recipe)))

    return [one for one in networks_for(recipe) if not is_there(one)]


def train_missing(
    missing: Iterable[AttackNetwork],
    photos: Sequence[Path],
    models: Path,
    tools: Tools,
    budget: TrainingBudget,
    *,
    report: Callable[[str], None] = log.info,
) -> list[Path]:
    """Train networks on photos of other people and put each into the folder of models when it is finished.

    An interrupted training goes on where it was.

    Raises MissingDependency without the extra ``learn``, FileError if the folder cannot be written.
    """
    made = []
    for one in missing:
        place = models / UNFINISHED / one.file_name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise FileError(f"{place.parent}: cannot be made: {cause.strerror or cause}") from cause
        report(f"training the {one}")
        concealer = concealer_of(one.recipe, tools)
        if one.kind == DECODER:
            form = "direct" if one.recipe.has_encoder else budget.decoder_form
            _train_decoder(photos, place, concealer, replace(budget, decoder_form=form))
        elif one.recipe.is_sealed:
            _train_cells(photos, place, concealer, budget)
        else:
            _train_inverter(photos, place, concealer, budget)
        try:
            os.replace(place, models / one.file_name)
        except OSError as cause:
            raise FileError(f"{models / one.file_name}: cannot be written: {cause.strerror or cause}") from cause
        made.append(models / one.file_name)
    return made


def concealer_of(recipe: Recipe, tools: Tools) -> Concealer:
    """Return a function that conceals features with a recipe, with other draws at every call; or reads back a seal.

    Raises InputError for a seal without public descriptors.
    """
    if recipe.is_sealed:
        if tools.public_descriptors is None:
            raise InputError(f"an attacker of {recipe} learns from public descriptors: pass a file with --public")
        return reader_of(recipe, tools.public_descriptors)
    seeds = count(FIRST_DRAW)

    def conceal_again(features: Features) -> ConcealedFeatures:
        return conceal_repeatably(features, recipe, tools.decoys, seed=next(seeds))

    return conceal_again


def _train_inverter(photos: Sequence[Path], output: Path, concealer: Concealer, budget: TrainingBudget) -> None:
    """Train a patch inverter; for SIFT its refinement goes on from the bundled one's."""
    start = network_folder() / BUNDLED
    params = InverterTrainParams(
        patch_steps=budget.patch_steps,
        refine_steps=budget.refine_steps,
        refine_photos=budget.refine_photos,
        max_photos=budget.max_photos,
        seed=budget.seed,
        local=budget.local,
        start=start if budget.local.descriptor == "sift" else None,
    )
    train_patch_inverter(params, photos, output, concealer=concealer, resume=True)


def _train_cells(photos: Sequence[Path], output: Path, concealer: Concealer, budget: TrainingBudget) -> None:
    """Train an inverter of positions and readings; for SIFT it goes on from the bundled one for clear descriptors."""
    start = network_folder() / AT_POSITIONS
    is_sift = budget.local.descriptor == "sift"
    params = ImageTrainParams(
        architecture="cells",
        width=float(load_image_inverter(start).facts["params"]["width"]),
        steps=budget.patch_steps,
        max_photos=budget.max_photos,
        seed=budget.seed,
        local=budget.local,
        start=start if is_sift else None,
        **CELLS,
    )
    train_image_inverter(params, photos, output, concealer=concealer, resume=True)


def _train_decoder(photos: Sequence[Path], output: Path, concealer: Concealer, budget: TrainingBudget) -> None:
    params = DecoderTrainParams(
        form=budget.decoder_form, steps=budget.decoder_steps, seed=budget.seed, local=budget.local
    )
    used = list(photos)[:: max(1, len(photos) // budget.max_photos)][: budget.max_photos]
    train_decoder(params, used, output, concealer=concealer, resume=part_of(output).is_file())
