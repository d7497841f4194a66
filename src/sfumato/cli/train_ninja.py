# SPDX-License-Identifier: Apache-2.0
"""sfumato train ninja: train an encoder on pairs of descriptors, against inverters."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.options import ContrastThreshold, MaxFeatures, Weights, one_of
from sfumato.cli.train import Steps, TrainOptions, list_photos, tell_file
from sfumato.errors import InputError
from sfumato.features.local import DESCRIPTORS, DETECTORS, LocalParams, extractor_of
from sfumato.features.networks import NETWORKS
from sfumato.files.atomic import check_output
from sfumato.training.loop import part_of
from sfumato.training.ninja.params import ADVERSARIES, PRESETS, SMALL, preset, takes_photos
from sfumato.training.ninja.state import NinjaFiles
from sfumato.training.ninja.train import train_ninja
from sfumato.training.pairs import PairParams, check_descriptor, open_pairs, photo_folders, read_pairs

LOCAL = PairParams().local


def ninja(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. ninja-sift-1.0.safetensors.")],
    patches: Annotated[
        Path,
        typer.Option(
            help="Pairs that keep it useful: a file of pairs, or a folder of UBC patches, HPatches patches or photos."
        ),
    ],
    photos: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of photos that inverters learn from, for patch, unet and all. Default: --patches."),
    ] = None,
    privacy: Annotated[
        float, typer.Option("--lambda", help="Weight of privacy against utility; 0 for none.")
    ] = SMALL.privacy,
    adversary: Annotated[
        str | None,
        typer.Option(
            help=f"The inverters it is trained against: {', '.join(ADVERSARIES)}. Default: that of the preset."
        ),
    ] = None,
    preset_name: Annotated[
        str, typer.Option("--preset", help=f"{' or '.join(PRESETS)}; paper takes days.")
    ] = SMALL.preset,
    extractor: Annotated[
        str | None,
        typer.Option(
            help=f"For photos: {' or '.join(DETECTORS)}. Default: that of the preset.", autocompletion=one_of(DETECTORS)
        ),
    ] = None,
    descriptor: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(DESCRIPTORS)}. Default: that of a file of pairs, else sift.",
            autocompletion=one_of(DESCRIPTORS),
        ),
    ] = None,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    perceptual: Annotated[Path | None, typer.Option(help="For unet: a file of VGG16, for the perceptual loss.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Length of all three stages. Default: that of the preset.")
    ] = None,
    steps: Steps = None,
    adversary_steps: Annotated[
        int | None, typer.Option(help="Steps of the inverters for one of the encoder. Default: that of the preset.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise added to the inverters' input; fainter directions are cut off. 0: none.")
    ] = None,
    output_dim: Annotated[
        int | None,
        typer.Option(help="Numbers that are released: fewer reveal less. Default for small: n / (1 + 1.6 lambda)."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="A file for the first two stages, which other lambdas share: read if it exists, else written."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = SMALL.device,
    options: TrainOptions = TrainOptions(seed=SMALL.seed),
) -> None:
    """Train an encoder that moves descriptors to where they still match but are harder to invert (NinjaDesc).

    The encoder first learns to keep matches, then inverters learn to undo it, then both learn against one another. Use
    it with --recipe ninja:FILE. What it hides is measured by inverters trained afterwards, from scratch: 'sfumato train
    inverter --recipe ninja:FILE', 'sfumato train decoder --recipe ninja:FILE'. Training needs the extra 'learn'
    (torch), concealing does not. Never train on photos you measure with.

    Example: sfumato train ninja --patches photos/ --lambda 1.0 -o ninja-sift-1.0.safetensors
    """
    _check(output, start, minutes, steps, overwrite=options.overwrite or options.resume)
    pairs, kind = open_pairs(patches, descriptor)
    base = preset(preset_name, kind)
    adversary = adversary or base.adversary
    local = None
    if pairs is None or weights is not None or kind not in NETWORKS or takes_photos(adversary):
        local = LocalParams(
            extractor=extractor or (base.opponents.local or LOCAL).extractor,
            descriptor=kind,
            weights=weights,
            max_features=max_features,
            contrast_threshold=contrast_threshold,
        )
        if pairs is not None:
            check_descriptor(pairs, extractor_of(local).name, patches)
    params = replace(
        base,
        privacy=privacy,
        adversary=adversary,
        seed=options.seed,
        device=device,
        adversary_steps=base.adversary_steps if adversary_steps is None else adversary_steps,
        noise=base.noise if noise is None else noise,
        output_dim=output_dim,
        opponents=replace(base.opponents, perceptual=perceptual, local=local),
    )
    if minutes is not None or steps is not None:
        params = replace(params, minutes=minutes, steps=steps)
    bar = options.bar("reading and training")
    if pairs is None:
        pairs = read_pairs(patches, PairParams(seed=options.seed, local=local or LOCAL), progress=bar)
    paths = list_photos(photos or photo_folders(patches))
    files = NinjaFiles(start=start, data=f"pairs of {patches.name}, {len(paths)} photos", command=_command())
    is_shown = not options.is_silent and not sys.stderr.isatty()
    report = _print_line if is_shown else _ignore
    encoder = train_ninja(params, pairs, paths, output, files=files, progress=bar, report=report, resume=options.resume)
    raw, encoded = encoder.card["held out"]["raw"], encoder.card["held out"]["encoded"]
    line = f"encoder for {kind}, lambda {privacy:g}, against {params.adversary}: FPR@95 {encoded['fpr95']:.4f} "
    line += f"(raw {raw['fpr95']:.4f}), matched {encoded['matched']:.3f} ({raw['matched']:.3f})"
    tell_file(line, {"checksum": encoder.checksum, **encoder.card}, output, options)


def _print_line(line: str) -> None:
    print(line, file=sys.stderr)


def _ignore(line: str) -> None:
    pass


def _command() -> str:
    """Return the command, with the names of files and folders but not their paths."""
    words = [Path(word).name if "/" in word or "\\" in word else word for word in sys.argv[1:]]
    return " ".join(["sfumato", *words])


def _check(output: Path, start: Path | None, minutes: float | None, steps: int | None, *, overwrite: bool) -> None:
    """Refuse contradictions, and files that cannot be written, before any work."""
    if minutes is not None and steps is not None:
        raise InputError("--minutes and --steps both give the length: use one")
    check_output(output, overwrite=overwrite)
    if start is not None:
        check_output(start, overwrite=True)
        if start.resolve() in (output.resolve(), part_of(output).resolve()):
            raise InputError(f"{start}: this training writes there itself: give --start another file")
