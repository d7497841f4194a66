# SPDX-License-Identifier: Apache-2.0
"""Public names and signatures are what other people's programs rely on; tests/api.txt holds them.

After a change that is meant: python tests/test_api.py --update
"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MemberDescriptorType

import pytest

import sfumato

SURFACE = Path(__file__).resolve().with_name("api.txt")
HOW = "Meant? Then: python tests/test_api.py --update, and say it in CHANGELOG.md."


class Named:
    """A function as a default, shown by its name."""

    def __init__(self, function: object) -> None:
        self.name = getattr(function, "__name__", "")

    def __repr__(self) -> str:
        return self.name


def signature(value: object) -> str:
    """Names, kinds and defaults of parameters; types are the type checker's business."""
    found = inspect.signature(value)  # type: ignore[arg-type]
    bare = [
        p.replace(annotation=inspect.Parameter.empty, default=Named(p.default))
        if inspect.isroutine(p.default)
        else p.replace(annotation=inspect.Parameter.empty)
        for p in found.parameters.values()
        if p.name not in ("self", "cls")
    ]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def describe(name: str, value: object) -> Iterator[str]:
    """One line for a name, and one for each public member of a class of ours."""
    if not callable(value):
        yield f"{name} {type(value).__name__}"
    elif not inspect.isclass(value):
        yield f"{name} {'function' if inspect.isroutine(value) else 'value'} {signature(value)}"
    elif issubclass(value, Exception):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"{name} exception ({bases})"
    else:
        yield f"{name} class {signature(value)}"
        for member in sorted(vars(value)):
            if not member.startswith("_") or member in ("__len__", "__getitem__", "__iter__"):
                yield f"{name}.{member} {kind(vars(value)[member])}"


def kind(member: object) -> str:
    if isinstance(member, property):
        return "property"
    if isinstance(member, MemberDescriptorType):
        return "field"
    if isinstance(member, classmethod | staticmethod):
        return f"{type(member).__name__} {signature(member.__func__)}"
    return f"method {signature(member)}" if inspect.isroutine(member) else "value"


def surface() -> str:
    lines = [line for name in sfumato.__all__ for line in describe(name, getattr(sfumato, name))]
    return "\n".join(sorted(lines)) + "\n"


def test_public_names_are_what_the_file_says():
    assert surface().splitlines() == SURFACE.read_text(encoding="utf-8").splitlines(), HOW


def test_names_are_sorted_and_unique():
    assert list(sfumato.__all__) == sorted(set(sfumato.__all__))
    assert set(sfumato.__all__) <= set(dir(sfumato))


@pytest.mark.parametrize("name", sfumato.__all__)
def test_every_name_can_be_imported_and_says_what_it_is(name: str):
    value = getattr(sfumato, name)
    if not callable(value):
        return
    assert getattr(value, "__name__", name) == name
    if callable(value):
        assert value.__module__.startswith("sfumato.")
        assert inspect.getdoc(value), f"{name} has no docstring"


def test_packages_offer_names_that_are_there_and_not_names_of_modules():
    for info in pkgutil.iter_modules(sfumato.__path__):
        package = importlib.import_module(f"sfumato.{info.name}")
        if info.ispkg and hasattr(package, "__all__"):
            modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
            assert not modules & set(package.__all__), f"{info.name}: a module would take the place of the name"
            assert all(hasattr(package, name) for name in package.__all__), info.name


def test_promised_names_are_there():
    types = {"ConcealedFeatures", "Decoys", "Features", "Recipe", "Subspaces"}
    functions = {"conceal", "extract", "load", "load_decoys", "save", "squared_distances"}
    assert types | functions <= set(sfumato.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="'reveal'"):
        _ = sfumato.reveal


def test_a_changed_signature_would_be_seen():
    def before(a, *, b=1): ...

    def after(a, *, b=2): ...

    def typed(a: int, *, b: int = 1) -> None: ...

    assert signature(before) == signature(typed) == "(a, *, b=1)"
    assert signature(after) != signature(before)


if __name__ == "__main__" and sys.argv[1:] == ["--update"]:
    SURFACE.write_text(surface(), encoding="utf-8")
