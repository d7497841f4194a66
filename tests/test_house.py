# SPDX-License-Identifier: Apache-2.0
"""House rules that a program can check: sizes of packages, names, and the words that tests hold on to."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sfumato"

MOST_MODULES = 280  # the service, its client and its pages need room; and so does the device
MOST_IN_PACKAGE = {"sfumato.cli": 20}
USUAL_MOST_IN_PACKAGE = 15
SMALL = 80
"""Lines below which a module needs more than one importer, or a reason."""

REASONS = {
    "sfumato.inversion.paint_kernel": "a kernel: numba keeps it by its file",
    "sfumato.search.grassmann.kernels": "a kernel: numba keeps it by its file",
}
"""Small modules with one importer, and why they stand alone: a kernel, a table or a security boundary."""

DENIED = {
    *("told", "held", "seen", "given", "found", "filed", "wanted", "asked", "kept", "chosen", "looking"),
    *("whole", "some", "few", "together", "works"),
}
"""Words that say what happened to a thing and not what it is."""


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name; a package goes by its own."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def is_package(name: str) -> bool:
    return (SOURCE.parent / Path(*name.split("."))).is_dir()


def modules() -> list[str]:
    """Modules that hold code: no ``__init__``, no ``__main__``."""
    return [name for name in trees() if not is_package(name) and not name.endswith("__main__")]


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Every module of ours that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers() -> dict[str, set[str]]:
    """For every module the modules that import it; to offer its names lazily is no import."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees().items():
        for module in imports_of(tree):
            users[module].add(name)
    return users


def test_there_are_few_modules():
    assert len(modules()) <= MOST_MODULES
    sizes = Counter(name.rpartition(".")[0] for name in modules())
    assert not {name: size for name, size in sizes.items() if size > MOST_IN_PACKAGE.get(name, USUAL_MOST_IN_PACKAGE)}


def test_a_small_module_has_several_users_or_a_reason():
    users = importers()
    lines = {name: len((SOURCE.parent / Path(*name.split("."))).with_suffix(".py").read_text().splitlines())
             for name in modules()}  # fmt: skip
    lonely = {name for name in modules() if lines[name] < SMALL and len(users[name]) <= 1}
    assert lonely == set(REASONS)


def test_one_class_name_has_one_meaning():
    homes = defaultdict(list)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(name)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def names_in(tree: ast.Module) -> Iterator[str]:
    """Names of classes, functions and their parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.arguments):
            every = [*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg]
            yield from (argument.arg for argument in every if argument)


def is_denied(name: str) -> bool:
    words = re.sub(r"held_out|whole_number", "", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).split("_")
    return bool(DENIED & set(words))


def test_names_say_what_a_thing_is():
    wrong = {f"{module}.{name}" for module, tree in trees().items() for name in names_in(tree) if is_denied(name)}
    wrong |= {module for module in trees() if is_denied(module.rpartition(".")[2])}
    assert not wrong


def test_module_docstrings_open_with_a_noun():
    wrong = [
        name
        for name, tree in trees().items()
        if re.match(r"(What|Where|Which|How|Who)\b", ast.get_docstring(tree) or "What")
    ]
    assert not wrong


# --- tests

SENTENCE = re.compile(r"(?<![\w-])[A-Za-z]+ [a-z]+ [a-z]+(?![\w-])")
"""Three plain words in a row."""


def sentences_in(text: str) -> list[str]:
    """The patterns of ``match=`` in a module of tests that hold a sentence."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    given = (word.value for call in calls for word in call.keywords if word.arg == "match")
    texts = (node.value for value in given for node in ast.walk(value) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and SENTENCE.search(text)]


def test_no_test_holds_on_to_a_sentence():
    paths = sorted((ROOT / "tests").rglob("*.py"))
    wrong = [f"{path.relative_to(ROOT)}: {text}" for path in paths for text in sentences_in(path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('raises(E, match="--decoys")', 0),
        ('raises(E, match="max_features: 0")', 0),
        ('raises(E, match="cannot read the archive")', 1),
        ('raises(E, match=f"{name} is not there")', 1),
        ('raises(E, match=re.escape("is not there"))', 1),
    ],
)
def test_a_sentence_is_seen(text: str, count: int):
    assert len(sentences_in(text)) == count


def test_denied_names_are_seen():
    assert is_denied("found")
    assert is_denied("_Found")
    assert is_denied("rows_given")
    assert is_denied("AskedFor")
    assert not is_denied("foundation")
    assert not is_denied("unseen_rows")
