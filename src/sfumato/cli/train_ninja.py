# SPDX-License-Identifier: Apache-2.0
"""sfumato train ninja: pairs of descriptors and photos in, an encoder that conceals descriptors out."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli.options import (
    AsJson,
    ContrastThreshold,
    MaxFeatures,
    Quiet,
    Weights,
    one_of,
    progress_bar,
    tell,
)
from sfumato.errors import FileError, InputError, suggest
from sfumato.features.local import DESCRIPTORS, DETECTORS, LocalParams, extractor_of
from sfumato.features.networks import NETWORKS, kind_of
from sfumato.images.read import list_images
from sfumato.training.loop import part_of
from sfumato.training.ninja.params import ADVERSARIES, PRESETS, SMALL, NinjaTrainParams, preset, takes_photos
from sfumato.training.ninja.state import NinjaFiles
from sfumato.training.ninja.train import train_ninja
from sfumato.training.pairs import DescriptorPairs, PairParams, is_pair_file, load_pairs, read_pairs, refuse_others
from sfumato.training.patch_sets import is_ubc_folder, list_hpatches
from sfumato.types.extractor import Extractor

LOCAL = PairParams().local
PLAIN = tuple(name for name in DESCRIPTORS if name not in NETWORKS)
"""Descriptors that need no weights."""


def ninja(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. ninja-sift-1.0.safetensors.")],
    patches: Annotated[
        Path,
        typer.Option(help="What keeps it of use: a file of pairs, or a folder: UBC patches, HPatches patches, photos."),
    ],
    photos: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of photos that inverters learn from, for patch, unet and all. Default: --patches."),
    ] = None,
    privacy: Annotated[
        float, typer.Option("--lambda", help="How much privacy counts against use; 0 for none.")
    ] = SMALL.privacy,
    adversary: Annotated[
        str | None,
        typer.Option(help=f"What it is trained against: {', '.join(ADVERSARIES)}. Default: as the preset says."),
    ] = None,
    preset_name: Annotated[
        str, typer.Option("--preset", help=f"{' or '.join(PRESETS)}; paper takes days.")
    ] = SMALL.preset,
    detector: Annotated[
        str | None,
        typer.Option(
            help=f"For photos: {' or '.join(DETECTORS)}. Default: as the preset says.", autocompletion=one_of(DETECTORS)
        ),
    ] = None,
    descriptor: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(DESCRIPTORS)}. Default: what a file of pairs holds, else sift.",
            autocompletion=one_of(DESCRIPTORS),
        ),
    ] = None,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    perceptual: Annotated[Path | None, typer.Option(help="For unet: a file of VGG16, for the perceptual loss.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long, all three stages. Default: as the preset says.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="So many steps instead of minutes: repeatable.")] = None,
    adversary_steps: Annotated[
        int | None, typer.Option(help="Steps of the inverters for one of the encoder. Default: as the preset says.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Added to what inverters are shown; fainter directions are cut off. 0: none.")
    ] = None,
    output_dim: Annotated[
        int | None,
        typer.Option(help="Numbers that are released: fewer tell less. Default for small: n / (1 + 1.6 lambda)."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="A file for the first two stages, which other lambdas share: read, or else written."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides all that is random.")] = SMALL.seed,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = SMALL.device,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted training, or begin where there is none.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train an encoder that moves descriptors to where they still match but are harder to invert (NinjaDesc).

    The encoder first learns to keep matches, then inverters learn to undo it, then both learn against one another. Use
    it with --recipe ninja:FILE. What it hides is measured by inverters trained afterwards, from scratch: 'sfumato train
    inverter --recipe ninja:FILE', 'sfumato train decoder --recipe ninja:FILE'. Training needs the extra 'learn'
    (torch), concealing does not. Never train on photos you measure with.

    Example: sfumato train ninja --patches photos/ --lambda 1.0 -o ninja-sift-1.0.safetensors
    """
    _refuse(output, start, overwrite=overwrite or resume, minutes=minutes, steps=steps)
    stored = load_pairs(patches) if is_pair_file(patches) else None
    kind = _kind(descriptor, stored, patches)
    chosen = preset(preset_name, kind)
    local = None
    if stored is None or weights is not None or kind in PLAIN or takes_photos(adversary or chosen.adversary):
        local = LocalParams(
            detector=detector or (chosen.opponents.local or LOCAL).detector, descriptor=kind, weights=weights,
            max_features=max_features, contrast_threshold=contrast_threshold,
        )  # fmt: skip
    if stored is not None and local is not None:
        refuse_others(stored, extractor_of(local).name, patches)
    params = _settled(
        replace(
            chosen, privacy=privacy, adversary=adversary or chosen.adversary, seed=seed, device=device,
            adversary_steps=chosen.adversary_steps if adversary_steps is None else adversary_steps,
            noise=chosen.noise if noise is None else noise, output_dim=output_dim,
            opponents=replace(chosen.opponents, perceptual=perceptual, local=local),
        ), minutes, steps,
    )  # fmt: skip
    hidden = quiet or as_json
    bar = progress_bar("reading and training", None, quiet=hidden)
    pairs = stored
    if pairs is None:
        pairs = read_pairs(patches, PairParams(seed=seed, local=local or LOCAL), progress=bar)
    given = [path for place in photos or _photos_in(patches) for _, path in list_images(place)]
    files = NinjaFiles(start=start, data=f"pairs of {patches.name}, {len(given)} photos", command=_command())

    def report(line: str) -> None:
        if not hidden and not sys.stderr.isatty():
            print(line, file=sys.stderr)

    encoder = train_ninja(params, pairs, given, output, files=files, progress=bar, report=report, resume=resume)
    size, held = output.stat().st_size, encoder.card["held out"]
    facts: dict[str, Any] = {"output": str(output), "bytes": size, "checksum": encoder.checksum, **encoder.card}
    line = f"encoder for {kind}, lambda {privacy:g}, against {params.adversary}: FPR@95 "
    line += f"{held['encoded']['fpr95']:.4f} (raw {held['raw']['fpr95']:.4f}), "
    line += f"matched {held['encoded']['matched']:.3f} ({held['raw']['matched']:.3f})"
    tell(f"{line}: {output} ({decimal(size)})", facts, as_json=as_json)


def _kind(descriptor: str | None, stored: DescriptorPairs | None, patches: Path) -> str:
    """Return the descriptor to train for: the one that is asked for, else what a file of pairs holds, else SIFT.

    Raises InputError for one that there is not, or that contradicts the file.
    """
    if descriptor is not None and descriptor not in DESCRIPTORS:
        hint = suggest(descriptor, DESCRIPTORS)
        raise InputError(f"no descriptor is called {descriptor!r:.80}{hint}; there are {', '.join(DESCRIPTORS)}")
    if stored is None:
        return descriptor or LOCAL.descriptor
    refuse_others(stored, descriptor or stored.extractor.name, patches)
    is_told = stored.extractor.name != Extractor().name
    return descriptor or (kind_of(stored.extractor.name) if is_told else LOCAL.descriptor)


def _settled(params: NinjaTrainParams, minutes: float | None, steps: int | None) -> NinjaTrainParams:
    return params if minutes is None and steps is None else replace(params, minutes=minutes, steps=steps)


def _photos_in(patches: Path) -> list[Path]:
    """Return the place of the pairs, if it is one of photos."""
    return [patches] if patches.is_dir() and not is_ubc_folder(patches) and not list_hpatches(patches) else []


def _command() -> str:
    """Return the command, with the names of files and folders but not where they lie."""
    words = [Path(word).name if "/" in word or "\\" in word else word for word in sys.argv[1:]]
    return " ".join(["sfumato", *words])


def _refuse(output: Path, start: Path | None, *, overwrite: bool, minutes: float | None, steps: int | None) -> None:
    if minutes is not None and steps is not None:
        raise InputError("minutes and steps are two ways to say how long: give one")
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    if start is not None and not start.parent.is_dir():
        raise FileError(f"{start.parent} is not a folder: make it first")
    if start is not None and start.resolve() in (output.resolve(), part_of(output).resolve()):
        raise InputError(f"{start} is where this training keeps its own: give --start another file")
