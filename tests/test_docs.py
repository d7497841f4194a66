# SPDX-License-Identifier: Apache-2.0
"""Python blocks and ``$ sfumato`` lines of the documents, and the examples of docstrings, are run.

Blocks of one document run from top to bottom, in one namespace and one folder, which holds a photo desk.jpg and a
folder photos/ of 24, so that a shortlist of 20 leaves pairs out. A block is left out only by ``<!-- not run: why -->``
on the line before it.
"""

import doctest
import importlib
import pkgutil
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import sfumato
from sfumato.errors import EvaluationOnlyWarning

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")])
MODULES = sorted(info.name for info in pkgutil.walk_packages(sfumato.__path__, "sfumato."))
PYTHON, SHELL = {"python", "py", "python3", "pycon"}, {"console", "bash", "sh", "shell"}
PHOTOS = 24
Run = Callable[..., object]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it starts on, and why it is not run, if so."""

    language: str
    text: str
    line: int
    left_out: str | None

    def commands(self) -> list[list[str]]:
        """The calls of sfumato in a shell block; only in a console block must each have its prompt."""
        prompt = r"\$ " if self.language == "console" else r"(?:\$ )?"
        lines = self.text.replace("\\\n", " ").splitlines()
        calls = [re.fullmatch(prompt + r"sfumato (.*)", line.strip()) for line in lines]
        return [shlex.split(call[1], comments=True) for call in calls if call]


def blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    start, mark, language = None, "", ""
    for number, line in enumerate(lines):
        fence = re.match(r"^ {0,3}(`{3,}|~{3,})\s*([\w+-]*)", line)
        if start is None and fence:
            start, mark, language = number, fence[1], fence[2].lower()
        elif start is not None and fence and fence[1].startswith(mark) and not fence[2]:
            before = next((above.strip() for above in reversed(lines[:start]) if above.strip()), "")
            why = re.fullmatch(r"<!-- not run: (.{5,}) -->", before)
            yield Block(language, "\n".join(lines[start + 1 : number]), start + 2, why[1] if why else None)
            start = None
    assert start is None, f"the block that starts on line {(start or 0) + 1} has no end"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a photo and a folder of many, from the wheel of scikit-image; most are small parts of two."""
    import cv2
    import skimage.data

    folder = tmp_path_factory.mktemp("photos")
    (folder / "photos").mkdir()
    coffee, cat, rocket = (getattr(skimage.data, name)() for name in ("coffee", "chelsea", "astronaut"))
    pictures = {"desk.jpg": coffee, "photos/cat.jpg": cat, "photos/rocket.jpg": rocket}
    for number in range(PHOTOS - 2):
        whole, column, row = (coffee, rocket)[number % 2], 25 * (number // 2), 12 * number
        pictures[f"photos/part{number:02}.jpg"] = whole[row : row + 96, column : column + 128]
    for name, pixels in pictures.items():
        assert cv2.imwrite(str(folder / name), pixels[..., ::-1])
    return folder


@pytest.fixture
def desk(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "desk"
    shutil.copytree(photos, folder)
    monkeypatch.chdir(folder)
    return folder


def run_python(block: Block, name: str, namespace: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        if block.text.lstrip().startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block.text, namespace, name, name, block.line)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            told: list[str] = []
            runner.run(test, out=told.append, clear_globs=False)
            assert not runner.failures, "".join(told)
            namespace.update(test.globs)
        else:
            exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), namespace)  # noqa: S102


def run_document(path: Path, run: Run) -> int:
    """Run the blocks of one document in the current folder; return how many were run."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.left_out:
            continue
        if block.language in PYTHON:
            run_python(block, str(path), namespace)
            count += 1
        elif block.language in SHELL:
            for arguments in block.commands():
                run(*arguments)
                count += 1
    return count


SLOW = ("audit.md", "evaluating.md", "localization.md", "decoys.md", "patches.md", "mapping.md", "tutorial.md")
"""Documents whose commands take five seconds and more, and are tested one by one elsewhere."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.name in SLOW else path for path in DOCUMENTS],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_documents_run(path: Path, desk: Path, run_sfumato: Run):
    run_document(path, run_sfumato)


def test_the_readme_shows_something_that_runs():
    shown = list(blocks((ROOT / "README.md").read_text(encoding="utf-8")))
    assert any(block.language in PYTHON and not block.left_out for block in shown)
    assert any(block.commands() and not block.left_out for block in shown if block.language in SHELL)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str, desk: Path):
    module = importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        assert not doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed


def test_links_between_documents_lead_somewhere():
    lost = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not lost


IMPORT = re.compile(r"^\s*(?:>>> )?(?:from|import) (sfumato(?:\.\w+)+)", re.MULTILINE)


def deep_imports(text: str) -> list[str]:
    """Modules that a text imports and that lie within a package; a package offers its names itself."""
    names = IMPORT.findall(text)
    return [name for name in names if name.count(".") > 1 and not (ROOT / "src" / name.replace(".", "/")).is_dir()]


def test_documents_import_from_packages():
    paths = [*DOCUMENTS, *sorted((ROOT / "examples").glob("*.py"))]
    deep = [f"{path.relative_to(ROOT)}: {name}" for path in paths for name in deep_imports(path.read_text())]
    assert not deep, "\n".join(deep)


# ---------------------------------------------------------------- the checks can fail


DOCUMENT = """
```python
made = 6
```
<!-- not run: shows what fails -->

```python
raise SystemExit
```
~~~py
with open("made.txt", "w") as file:
    file.write(str(made * 7))
~~~
```
not python at all
```
"""


def test_blocks_run_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_sfumato: Run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(DOCUMENT, encoding="utf-8")
    assert run_document(tmp_path / "page.md", run_sfumato) == 2
    assert (tmp_path / "made.txt").read_text(encoding="utf-8") == "42"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```", ZeroDivisionError),
        ("<!-- not run -->\n```python\n1 / 0\n```", ZeroDivisionError),
        ("```python\n>>> 1 + 1\n3\n```", AssertionError),
        ("```python\nname\n```\n```python\nname = 1\n```", NameError),
        ("```console\n$ sfumato no-such-verb\n```", AssertionError),
        ("```bash\nsfumato no-such-verb # why\n```", AssertionError),
        ("```python\n1", AssertionError),
    ],
)
def test_a_wrong_block_is_seen(text: str, error: type[Exception], tmp_path: Path, run_sfumato: Run):
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    with pytest.raises(error):
        run_document(tmp_path / "page.md", run_sfumato)


def test_a_deep_import_is_seen():
    for line in (
        "from sfumato.types.clear import Features",
        "    >>> from sfumato.a.b.c import d",
        "import sfumato.a.b",
    ):
        assert deep_imports(f"text\n{line}\n")
    for line in ("from sfumato.types import Features", "from sfumato.search.grassmann import advise", "sfumato.a.b"):
        assert not deep_imports(f"text\n{line}\n")


def test_commands_are_read_as_a_shell_would():
    text = "$ sfumato conceal 'my photos' \\\n    -o a.h5  # a note\n$ ls\nit's there\nsfumato inspect a.h5"
    first, second = ["conceal", "my photos", "-o", "a.h5"], ["inspect", "a.h5"]
    assert Block("console", text, 1, None).commands() == [first]
    assert Block("bash", text, 1, None).commands() == [first, second]


def test_no_figure_is_left_to_fill_in():
    for document in sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")):
        left = [word for word in re.findall(r"\b[A-Z]+_[A-Z0-9_]+\b", document.read_text()) if word not in KNOWN_NAMES]
        assert not left, f"{document.name}: {left}"


KNOWN_NAMES = {"NUMBA_CACHE_DIR", "SIMPLE_RADIAL", "SFUMATO_DATA", "SFUMATO_KEY", "ABOUT_THE_WHOLE", "H_1_2", "W_S"}
