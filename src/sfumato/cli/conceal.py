# SPDX-License-Identifier: Apache-2.0
"""sfumato conceal: pictures or clear features in, an archive of concealed features out."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.shared import human_size, outcome_facts, progress_bar, read_labels, tell, warn_about
from sfumato.concealment.decoyfile import load_decoys
from sfumato.device import ConcealParams, conceal_to_archive, open_source
from sfumato.errors import FileError
from sfumato.features.local import LocalParams

DEFAULTS, LOCAL = ConcealParams(), LocalParams()


def run(
    source: Annotated[
        Path, typer.Argument(help="A folder of photos, a photo, an hloc features.h5, or a COLMAP database.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write, e.g. private.sfm.h5.")],
    recipe: Annotated[
        str,
        typer.Option(help="How to conceal: kind and dimension, e.g. random-2, sub-hybrid-2, sub-hybrid-4."),
    ] = DEFAULTS.recipe,
    decoys: Annotated[
        Path | None, typer.Option(help="Decoys made by 'sfumato decoys build'. Default: the bundled ones, for SIFT.")
    ] = None,
    descriptor: Annotated[str, typer.Option(help="For photos: sift or rootsift.")] = LOCAL.descriptor,
    max_features: Annotated[int, typer.Option(help="For photos: keep the strongest.")] = LOCAL.max_features,
    contrast_threshold: Annotated[
        float, typer.Option(help="For photos: lower finds more, weaker keypoints.")
    ] = LOCAL.contrast_threshold,
    extractor: Annotated[
        str | None, typer.Option(help="For hloc and COLMAP files: what the descriptors are, e.g. superpoint.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="A table 'image name,label', a line for every image: for hybrid-labels.")
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="A device key, 16 random bytes or more: the same descriptor then always gets the same subspace."
        ),
    ] = None,
    evaluation_seed: Annotated[
        int | None, typer.Option(help="Repeatable draws, for evaluations only: protects nobody.")
    ] = None,
    float16: Annotated[bool, typer.Option("--float16", help="Half the size, see docs/format.md for the loss.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew instead of adding what is missing.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Images extracted at once. Default: the cores there are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Conceal the features of photos, or features that another program extracted.

    Images already in the archive are skipped: a second, independent lifting of a descriptor would reveal it.
    Unreadable images are named and left out.

    Example: sfumato conceal photos/ -o private.sfm.h5 --recipe sub-hybrid-2
    """
    local = LocalParams(descriptor=descriptor, max_features=max_features, contrast_threshold=contrast_threshold)
    params = ConcealParams(
        recipe=recipe,
        dtype="float16" if float16 else "float32",
        overwrite=overwrite,
        evaluation_seed=evaluation_seed,
        secret=None if secret_file is None else _read_secret(secret_file),
    )
    opened = open_source(source, params=local, extractor=extractor, workers=workers)
    outcome = conceal_to_archive(
        opened,
        output,
        params,
        None if decoys is None else load_decoys(decoys),
        labels=None if labels is None else read_labels(labels),
        progress=progress_bar("concealing", len(opened.names), quiet=quiet or as_json),
    )
    warn_about(outcome)
    size = output.stat().st_size
    counts = f"{outcome.features} features of {outcome.images} images concealed with {recipe}"
    notes = "".join(
        f", {count} {what}"
        for count, what in (
            (outcome.skipped, "images already there"),
            (len(outcome.featureless), "without features"),
            (len(outcome.unreadable), "unreadable"),
        )
        if count
    )
    facts = {**outcome_facts(outcome), "recipe": recipe, "output": str(output), "bytes": size}
    tell(f"{counts}{notes}: {output} ({human_size(size)})", facts, as_json=as_json)


def _read_secret(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise FileError(
            f"{path}: can not read the device key ({cause.strerror}); make one with: head -c 32 /dev/urandom > {path}"
        ) from cause
