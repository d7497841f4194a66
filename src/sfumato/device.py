# SPDX-License-Identifier: Apache-2.0
"""What runs on the device that owns the pictures: clear in, archive out.

The only module that holds clear features and writes archives. Knows no format itself: features come from
``features``, concealment from ``concealment``, the archive from ``store``.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.concealment.decoyfile import load_decoys
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.lift import conceal
from sfumato.errors import ArchiveError, DecoyError, RecipeError, SfumatoError
from sfumato.features.sources import Source, open_source
from sfumato.store import ArchiveWriter
from sfumato.types.clear import Features
from sfumato.types.recipe import Recipe

Progress = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcealParams:
    """How an archive is made. ``secret`` and ``evaluation_seed`` as in ``sfumato.conceal``."""

    recipe: str = "sub-hybrid-2"
    dtype: str = "float32"
    overwrite: bool = False
    evaluation_seed: int | None = None
    secret: bytes | None = field(default=None, repr=False)


@dataclass(slots=True)
class Outcome:
    """What became of a source: images and features written, images skipped, featureless or unreadable."""

    images: int = 0
    features: int = 0
    skipped: int = 0
    featureless: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def conceal_to_archive(
    source: Source,
    output: str | Path,
    params: ConcealParams | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Progress = iter,
) -> Outcome:
    """Conceal every image of a source into an archive; images already there are skipped, not released again.

    Without ``decoys`` SIFT gets the bundled ones. An image that can not be read is named in the outcome and does not
    stop the others. Interrupted, it goes on where it stopped when called again.

    Raises ArchiveError if the archive can not be written or was made with another recipe.
    """
    params = params or ConcealParams()
    recipe = Recipe.of(params.recipe)
    if recipe.is_clear:
        raise RecipeError(f"recipe {recipe} conceals nothing and can not be archived")
    output, outcome = Path(output), Outcome()
    with ArchiveWriter(output, append=not params.overwrite, resume=not params.overwrite, dtype=params.dtype) as writer:
        _check_same_recipe(writer, recipe)
        done = set(writer.names)
        outcome.skipped = sum(name in done for name in source.names)
        for name, features in progress(source.features(skip=done)):
            if isinstance(features, SfumatoError):
                outcome.unreadable[name] = str(features)
                continue
            if decoys is None and recipe.lifting is not None and recipe.lifting.decoy_count:
                decoys = bundled_decoys(features)
            hidden = conceal(features, recipe, decoys, secret=params.secret, evaluation_seed=params.evaluation_seed)
            writer.add(name, hidden)
            outcome.images += 1
            outcome.features += len(hidden)
            if len(hidden) == 0:
                outcome.featureless.append(name)
        if not writer.names:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(outcome.unreadable.items())[:3])
            raise ArchiveError(f"nothing to write to {output}: no image of the source could be read. {reasons}")
    return outcome


def bundled_decoys(features: Features) -> Decoys:
    """Return the decoys that come with the package, if they are of the same kind as these features."""
    if features.extractor.name != "sift":
        raise DecoyError(
            f"the bundled decoys are SIFT, these features are {features.extractor.name}: build decoys of the same kind "
            f"with sfumato decoys build and pass them with --decoys"
        )
    return load_decoys()


def read_features(
    sources: Iterable[Source], outcome: Outcome, progress: Progress = iter
) -> Iterator[tuple[str, Features]]:
    """Yield the features of every readable image of several sources; the others are named in ``outcome``."""
    everything = ((name, features) for source in sources for name, features in source.features())
    for name, features in progress(everything):
        if isinstance(features, SfumatoError):
            outcome.unreadable[name] = str(features)
            continue
        outcome.images += 1
        outcome.features += len(features)
        if len(features) == 0:
            outcome.featureless.append(name)
        yield name, features


def _check_same_recipe(writer: ArchiveWriter, recipe: Recipe) -> None:
    others = {
        str(other) for other in (writer.header(name).recipe for name in writer.names) if other.links != recipe.links
    }
    if others:
        raise ArchiveError(
            f"{writer.path} was begun with {', '.join(sorted(others))}, not {recipe}: choose another file, or "
            f"--overwrite to start anew"
        )


__all__ = ["ConcealParams", "Outcome", "bundled_decoys", "conceal_to_archive", "open_source", "read_features"]
