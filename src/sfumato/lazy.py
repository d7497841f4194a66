# SPDX-License-Identifier: Apache-2.0
"""Public names of a package, loaded when they are first used, so that an import costs next to nothing."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], packages: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    ``homes``: the module of each public name, relative to the package. ``packages``: sub-packages that are reached as
    attributes. A public name must not be the name of a module in the same package: Python would put the module in its
    place as soon as somebody imports it.
    """

    def load(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return load, lambda: [*names, *packages], names
