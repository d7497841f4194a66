# SPDX-License-Identifier: Apache-2.0
"""The error tree is the one drawn in its docstring, and messages help."""

import inspect
import math
import re

import pytest

from sfumato import errors
from sfumato.errors import MissingDependency, SfumatoError, need, suggest

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if value.__module__ == errors.__name__ and issubclass(value, Exception)
]


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Read {class: (parent, built-in parent)} from the drawing in the module docstring."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^( {4}[ │├└─]*)([A-Z]\w+)(?: \((\w+)\))?(?: .*)?$", line)
        if not found:
            continue
        depth, name, builtin = len(found[1]), found[2], found[3]
        above = [(d, n) for d, n in above if d < depth]
        tree[name] = (above[-1][1] if above else None, builtin)
        above.append((depth, name))
    return tree


def test_the_drawing_shows_every_class_and_nothing_else():
    assert set(drawn_tree()) == {cls.__name__ for cls in CLASSES}
    assert len(CLASSES) >= 11


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_drawing_is_right(cls: type[Exception]):
    parent, builtin = drawn_tree()[cls.__name__]
    bases = {base.__name__ for base in cls.__bases__}
    wanted = {name for name in (parent, builtin) if name}
    assert bases == (wanted or {"Exception"})


def test_all_errors_are_caught_at_the_root():
    for cls in CLASSES:
        assert issubclass(cls, SfumatoError) or issubclass(cls, Warning), cls


def test_need_returns_what_is_installed():
    assert need("math", extra="learn") is math


def test_need_names_the_extra():
    with pytest.raises(MissingDependency, match=r"'sfumato\[learn\]'") as caught:
        need("no_such_library", extra="learn")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_suggest():
    assert suggest("sub-hybird", ["hybrid", "sub-hybrid"]) == " (did you mean 'sub-hybrid'?)"
    assert suggest("xyz", ["hybrid", "sub-hybrid"]) == ""
    assert suggest("x", []) == ""
