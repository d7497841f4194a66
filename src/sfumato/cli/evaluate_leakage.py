# SPDX-License-Identifier: Apache-2.0
"""Commands ``sfumato evaluate leakage``, ``tradeoff`` and ``frontier``: what attackers get, and what matching keeps."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sfumato.attacks.registry import single_attacks
from sfumato.auditing.leakage import DIRECT, LeakageJob, LeakageProtocol, evaluate_leakage, leakage_table
from sfumato.auditing.matching import HomographyProtocol
from sfumato.auditing.toolbox import Toolbox
from sfumato.cli.evaluate import DecoyFile, Output, Overwrite, Seeds, read_seeds, report
from sfumato.cli.options import (
    ALL,
    AsJson,
    Descriptor,
    PhotoExtractor,
    Quiet,
    Recipes,
    Weights,
    complete_recipes,
    expand_groups,
    one_of,
    printable,
    progress_bar,
    several_of,
    split_names,
)
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.experiments.data.generated import make_homography_folder
from sfumato.experiments.frontier.points import frontier_table
from sfumato.experiments.frontier.run import FrontierJob, evaluate_frontier, scenes_of, write_tables
from sfumato.experiments.frontier.sheets import draw_leakage, draw_sheets
from sfumato.experiments.frontier.tradeoff import evaluate_tradeoff, tradeoff_table
from sfumato.experiments.frontier.training import TrainingBudget
from sfumato.features.local import LocalParams
from sfumato.images.homography import HomographySequence
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths

PROTOCOL, BUDGET = LeakageProtocol(), TrainingBudget()
RECIPES = tuple(dict.fromkeys((*PROTOCOL.recipes, "default")))
"""Those of the paper, and the default recipe."""

Photos = Annotated[Path | None, typer.Argument(help="A photo or a folder of photos. Default: sample photos.")]
Pairs = Annotated[
    Path | None,
    typer.Option(help="Sequences laid out as HPatches or Oxford, to match. Default: generated ones."),
]
Attacks = Annotated[
    str,
    typer.Option(
        help="all, or a list, e.g. vertex,nearest,direct. 'sfumato attack --list' explains them; NAME+decoys knows the "
        "decoys too; direct is an inverter trained on what the very recipe releases (see --models).",
        autocompletion=several_of(one_of((ALL, *single_attacks(), DIRECT.label))),
    ),
]
Limit = Annotated[int | None, typer.Option(help="Attack only this many photos, the first ones.")]
PhotoFeatures = Annotated[int, typer.Option(help="Keep this many features of each photo.")]
PairFeatures = Annotated[int, typer.Option(help="Keep this many features of each matched image.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackerOptions:
    """Options of the attacker in evaluations: his files, and the processes that attack."""

    decoys: DecoyFile = None
    public: Annotated[
        Path | None,
        typer.Option(help="A decoys file of yet other photos: what the attacker searches. Default: the decoys."),
    ] = None
    models: Annotated[
        Path | None,
        typer.Option(help="A folder of inverters and decoders made by sfumato train. Default: the bundled inverters."),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that attack. Default: one per core and photo, as far as memory allows: each takes 0.5 GB, "
            "and four times the size of decoys and public descriptors."
        ),
    ] = None

    @property
    def toolbox(self) -> Toolbox:
        """The files as the attacker's toolbox."""
        return Toolbox(decoys=self.decoys, public=self.public, models=self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of the networks that a frontier trains."""

    train_photos: Annotated[
        list[Path] | None,
        typer.Option(help="Photos of other people, to train missing networks into --models. May be repeated."),
    ] = None
    patch_steps: Annotated[int, typer.Option(help="Training steps of each inverter.")] = BUDGET.patch_steps
    refine_steps: Annotated[int, typer.Option(help="Training steps of its refinement.")] = BUDGET.refine_steps
    refine_photos: Annotated[int, typer.Option(help="Photos its refinement is trained on.")] = BUDGET.refine_photos
    max_photos: Annotated[int, typer.Option(help="Photos that networks are trained on.")] = BUDGET.max_photos
    decoder_steps: Annotated[int, typer.Option(help="Training steps of each decoder.")] = BUDGET.decoder_steps
    decoder_form: Annotated[
        str, typer.Option(help="auto searches the subspaces of liftings, stronger and far slower; or direct.")
    ] = BUDGET.decoder_form

    def budget(self, local: LocalParams) -> TrainingBudget:
        """Return the settings of training."""
        return TrainingBudget(
            patch_steps=self.patch_steps,
            refine_steps=self.refine_steps,
            refine_photos=self.refine_photos,
            max_photos=self.max_photos,
            decoder_steps=self.decoder_steps,
            decoder_form=self.decoder_form,
            local=local,
        )

    @property
    def paths(self) -> tuple[Path, ...]:
        """All photos to train on."""
        return tuple(path for folder in self.train_photos or [] for _, path in list_images(folder))


@expand_groups
def leakage(
    photos: Photos = None,
    output: Output = Path("leakage"),
    recipes: Recipes = ",".join(RECIPES),
    attacks: Attacks = "all",
    seeds: Seeds = "1",
    limit: Limit = None,
    max_features: PhotoFeatures = PROTOCOL.local.max_features,
    extractor: PhotoExtractor = PROTOCOL.local.extractor,
    descriptor: Descriptor = PROTOCOL.local.descriptor,
    weights: Weights = None,
    attacker: AttackerOptions = AttackerOptions(),
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what an attacker gets out of concealed features: descriptors and pictures.

    Each photo is concealed under each recipe and attacked in every way that public descriptors, decoys and trained
    networks allow. Reported are distances to the clear descriptors, and how near the painted picture comes to the
    photo: leakage is 0 for what keypoints with a mean descriptor show and 1 for what clear descriptors show.

    Example: sfumato evaluate leakage photos/ --recipes raw,sub-hybrid-2 --public public.safetensors -o leakage/
    """
    local = LocalParams(extractor=extractor, descriptor=descriptor, weights=weights, max_features=max_features)
    plan = _leakage_job(photos, limit, recipes, attacks, seeds, local, attacker).plan()
    bar = progress_bar("attacking", None, quiet=quiet or as_json)
    records = evaluate_leakage(plan, output, workers=attacker.workers, progress=bar, overwrite=overwrite)
    stem = output / f"leakage-{descriptor}"
    drawn = [record for record in records if any(score.name == "leakage" for score in record.scores)]
    figures = [*draw_leakage(drawn, stem, f"Leakage, {descriptor}")] if drawn else []
    figures += draw_sheets(plan, output, descriptor)
    report(records, leakage_table(records), stem, figures, as_json=as_json)


@expand_groups
def tradeoff(
    photos: Photos = None,
    pairs: Pairs = None,
    output: Output = Path("tradeoff"),
    recipes: Recipes = ",".join(PROTOCOL.recipes),
    attacks: Attacks = "all",
    seeds: Seeds = "1",
    limit: Limit = None,
    max_features: PhotoFeatures = 1000,
    pair_features: PairFeatures = 2000,
    descriptor: Descriptor = "sift",
    weights: Weights = None,
    attacker: AttackerOptions = AttackerOptions(),
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Weigh what a recipe keeps of matching against the most that any attack sees through it.

    Runs 'evaluate homography' and 'evaluate leakage' for the same recipes in one folder, and joins them. An attack that
    needs a trained network runs only where --models has one for the very recipe: without it, a recipe looks better than
    it is. 'sfumato train inverter --recipe ninja:FILE' makes inverters and decoders for an encoder.

    Example: sfumato evaluate tradeoff photos/ --recipes raw,ninja-sift-1.0,sub-hybrid-2 --models models/ -o tradeoff/
    """
    local = LocalParams(descriptor=descriptor, weights=weights, max_features=max_features)
    protocol = HomographyProtocol(
        recipes=split_names(recipes),
        distances=("s-to-s",),
        seeds=read_seeds(seeds),
        local=LocalParams(descriptor=descriptor, weights=weights, max_features=pair_features),
    )
    stem = output / f"tradeoff-{descriptor}"
    points, records, figures = evaluate_tradeoff(
        _sequences(pairs, output),
        protocol,
        _leakage_job(photos, limit, recipes, attacks, seeds, local, attacker),
        stem,
        workers=attacker.workers,
        bar=lambda title: progress_bar(title, None, quiet=quiet or as_json),
        overwrite=overwrite,
    )
    report(records, tradeoff_table(points), stem, figures, as_json=as_json)


@expand_groups
def frontier(
    photos: Photos = None,
    pairs: Pairs = None,
    posed: Annotated[
        list[Path] | None, typer.Option(help="A folder of posed images to map, beside the room. May be repeated.")
    ] = None,
    room: Annotated[bool, typer.Option(help="Also map a generated room.")] = True,
    output: Output = Path("frontier"),
    recipes: Annotated[
        str, typer.Option(help="Recipes to compare with raw.", autocompletion=complete_recipes)
    ] = "sub-hybrid-2,sub-hybrid-4,default",
    seeds: Seeds = "1",
    keyed: Annotated[
        bool, typer.Option("--keyed", help="Releases are derived from a device key: a second one adds nothing.")
    ] = False,
    limit: Limit = None,
    limit_sequences: Annotated[int | None, typer.Option(help="Match only this many sequences, the first ones.")] = None,
    max_features: PhotoFeatures = 1000,
    pair_features: PairFeatures = 2000,
    scene_features: Annotated[int, typer.Option(help="Keep this many features of each mapped image.")] = 2000,
    descriptor: Descriptor = "sift",
    weights: Weights = None,
    attacker: AttackerOptions = AttackerOptions(),
    training: TrainingOptions = TrainingOptions(),
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Weigh what recipes keep of matching and maps against the worst of all attacks.

    The attacker knows the recipe, the decoys, the encoder, public descriptors, every release and every match, and has
    networks trained on the very recipe; not the secret, the seed or the descriptors. Oracle attacks know the answer;
    they are reported but excluded from the worst case. Networks that are missing in --models are trained on
    --train-photos, all with the same number of steps; without such photos the table names the missing attackers.
    frontier.json has the points so far after every recipe, also if interrupted.

    Example: sfumato evaluate frontier photos/ --pairs hpatches/ --models models/ --train-photos others/ -o frontier/
    """
    local = LocalParams(descriptor=descriptor, weights=weights, max_features=max_features)
    scenes = scenes_of(posed or [], output, room=room)
    job = FrontierJob(
        photos=_photos(photos, limit),
        sequences=tuple(_sequences(pairs, output))[:limit_sequences],
        scenes=scenes,
        recipes=split_names(recipes),
        seeds=read_seeds(seeds),
        toolbox=attacker.toolbox,
        train_photos=training.paths,
        budget=training.budget(local),
        local=local,
        pair_features=pair_features,
        scene_features=scene_features,
        workers=attacker.workers,
    )
    stem, silent = output / f"frontier-{descriptor}", quiet or as_json
    points, records, figures = evaluate_frontier(
        job,
        stem,
        keyed=keyed,
        report=lambda line: None if silent else print(printable(line), file=sys.stderr),
        bar=lambda title: progress_bar(title, None, quiet=silent),
        overwrite=overwrite,
    )
    report(records, frontier_table(points, short=True), stem, figures, as_json=as_json)
    write_tables(points, stem)  # with all columns


def _leakage_job(
    photos: Path | None,
    limit: int | None,
    recipes: str,
    attacks: str,
    seeds: str,
    local: LocalParams,
    attacker: AttackerOptions,
) -> LeakageJob:
    protocol = LeakageProtocol(
        recipes=split_names(recipes),
        attacks=() if attacks == ALL else split_names(attacks),
        seeds=read_seeds(seeds),
        local=local,
    )
    return LeakageJob(photos=_photos(photos, limit), protocol=protocol, toolbox=attacker.toolbox)


def _photos(photos: Path | None, limit: int | None) -> tuple[tuple[str, Path], ...]:
    paths = sample_paths() if photos is None else dict(list_images(photos))
    return tuple(paths.items())[:limit]


def _sequences(pairs: Path | None, output: Path) -> list[HomographySequence]:
    return read_homography_folder(pairs or make_homography_folder(output / "generated", np.random.default_rng(0)))
