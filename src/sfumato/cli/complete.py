# SPDX-License-Identifier: Apache-2.0
"""What a shell offers when a value is half typed: names that are known without reading or importing anything more."""

from collections.abc import Callable, Iterable

from sfumato.learn.encoder import bundled_names
from sfumato.types.recipe import GENERATED, KINDS, USUAL_DIMS

Completer = Callable[[str], list[str]]
"""From what was typed so far to all that it may become."""

ALL = "all"
"""Stands alone, never in a list."""


def one_of(names: Iterable[str]) -> Completer:
    """Return what completes one of some names."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def several_of(complete_one: Completer) -> Completer:
    """Return what completes the last of names with commas between them; those that were named are not offered again."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        names = [name for name in complete_one(last) if name not in given and not (comma and name == ALL)]
        return [f"{before}{comma}{name}" for name in names]

    return complete


def complete_recipe(incomplete: str) -> list[str]:
    """Complete the last link of a recipe: any by itself, after an encoder what may follow one."""
    before, plus, last = incomplete.rpartition("+")
    names = recipe_names("encoder", "lifting") if plus else ["default", *recipe_names("clear", "encoder", "lifting")]
    return [f"{before}{plus}{name}" for name in names if name.startswith(last)]


def complete_lifting(incomplete: str) -> list[str]:
    """Complete a recipe that is a lifting alone, as for faces."""
    return [name for name in recipe_names("lifting") if name.startswith(incomplete)]


def recipe_names(*roles: str) -> list[str]:
    """Return the links of recipes that do this, with their usual dimensions, and the encoders of the package."""
    names = []
    for kind, about in KINDS.items():
        if about.role not in roles:
            continue
        if about.argument == "variant":
            names += [f"{kind}-{name}" for name in bundled_names(kind)]
        elif about.argument == "none":
            names.append(kind)
        else:
            usual = f"{kind}-{USUAL_DIMS.get(kind, '2')}"
            names += [usual, f"{usual}{GENERATED}"] if GENERATED in about.variants else [usual]
    return names


complete_recipes = several_of(complete_recipe)
