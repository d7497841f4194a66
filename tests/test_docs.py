# SPDX-License-Identifier: Apache-2.0
"""Python blocks and ``$ sfumato`` lines of the documents, and the examples of docstrings, are run.

Blocks of one document run from top to bottom, in one namespace and one folder, which holds a photo desk.jpg and a
folder photos/ of 24, so that a shortlist of 20 leaves pairs out. A block is left out only by ``<!-- not run: why -->``
on the line before it.

``$ sfumato serve`` is a real server on a free port, until a line ``^C`` or the end of the document. Its address and its
key take the place of http://127.0.0.1:8765 and of ``sfm_...`` in the lines that follow. ``$ export`` and ``$ cp`` are
run too.
"""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sfumato
from sfumato.errors import EvaluationOnlyWarning

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("**/*.md")])
MODULES = sorted(info.name for info in pkgutil.walk_packages(sfumato.__path__, "sfumato."))
PYTHON, SHELL = {"python", "py", "python3", "pycon"}, {"console", "bash", "sh", "shell"}
PHOTOS = 24
ADDRESS, KEY = "http://127.0.0.1:8765", "sfm_..."
"""A server and its key, as documents write them."""
Run = Callable[..., object]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it starts on, and why it is not run, if so."""

    language: str
    text: str
    line: int
    left_out: str | None

    def commands(self) -> list[list[str]]:
        """The lines of a shell block that are run, as words; only in a console block must each have its prompt."""
        prompt = r"\$ " if self.language == "console" else r"(?:\$ )?"
        lines = self.text.replace("\\\n", " ").splitlines()
        calls = [re.fullmatch(prompt + r"((?:sfumato|export|cp) .*)|(\^C)", line.strip()) for line in lines]
        return [shlex.split(call[1] or call[2], comments=True) for call in calls if call]


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


@dataclass
class Shell:
    """Commands of a document: sfumato in this process, a server beside it, variables, and copies of folders."""

    run: Run
    live: Callable[[], Any]
    variables: pytest.MonkeyPatch
    server: Any = None
    key: str = ""

    def __call__(self, program: str, *words: str) -> None:
        if program == "^C":
            self.stop()
        elif program == "export":
            name, _, value = words[0].partition("=")
            self.variables.setenv(name, self.fill(value))
        elif program == "cp":
            subprocess.run([program, *words], check=True)
        elif words[0] == "serve":
            self.serve(*words[1:])
        else:
            self.run(*map(self.fill, words))

    def fill(self, word: str) -> str:
        """Put the address and the key of the server in the place of those that documents write."""
        return word if self.server is None else word.replace(ADDRESS, self.server.url).replace(KEY, self.key)

    def serve(self, option: str, folder: str, *words: str) -> None:
        assert option == "--data", "name the folder first"
        assert self.server is None, "stop the first server with ^C"
        self.server = self.live().start_server(Path(folder), words=words, key=self.key, program=("sfumato", "serve"))
        self.key = self.server.key
        if "SFUMATO_SERVER" in os.environ:  # the port is another one
            self.variables.setenv("SFUMATO_SERVER", self.server.url)

    def stop(self) -> None:
        if self.server is not None:
            assert self.server.stop(signal.SIGINT) == 0
            self.server = None


@pytest.fixture
def shell(run_sfumato: Run, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell(run_sfumato, lambda: request.getfixturevalue("live"), monkeypatch)
    yield shell
    shell.stop()


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


def run_document(path: Path, shell: Shell) -> int:
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
            for words in block.commands():
                shell(*words)
                count += 1
    return count


SLOW = ("audit_a_recipe.md", "deploy.md", "first_audit.md", "first_map.md", "keys.md", "map_and_localize.md",
        "map_server.md", "match_and_search.md", "own_features.md")  # fmt: skip
"""Documents whose commands take five seconds and more, and are tested one by one elsewhere."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.name in SLOW else path for path in DOCUMENTS],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_documents_run(path: Path, desk: Path, shell: Shell):
    run_document(path, shell)


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


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path):
    pytest.importorskip("mkdocs", reason="the extra docs is not installed: scripts/docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "search" / "search_index.json").exists()
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").glob("**/*.md")}
    assert pages <= {page.relative_to(tmp_path) for page in tmp_path.glob("**/*.html")}


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


def test_blocks_run_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(DOCUMENT, encoding="utf-8")
    assert run_document(tmp_path / "page.md", shell) == 2
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
def test_a_wrong_block_is_seen(text: str, error: type[Exception], tmp_path: Path, shell: Shell):
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    with pytest.raises(error):
        run_document(tmp_path / "page.md", shell)


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
    first, second = ["sfumato", "conceal", "my photos", "-o", "a.h5"], ["sfumato", "inspect", "a.h5"]
    assert Block("console", text, 1, None).commands() == [first]
    assert Block("bash", text, 1, None).commands() == [first, second]
    session = "$ sfumato serve --data a\n^C\n$ cp -a a b\n$ export NAME=value\nexport it\n$ ls"
    commands = [["sfumato", "serve", "--data", "a"], ["^C"], ["cp", "-a", "a", "b"], ["export", "NAME=value"]]
    assert Block("console", session, 1, None).commands() == commands


def test_a_shell_knows_variables_and_copies(desk: Path, shell: Shell):
    shell("export", "SFUMATO_SERVER=somewhere")
    shell("cp", "desk.jpg", "copy.jpg")
    assert os.environ["SFUMATO_SERVER"] == "somewhere"
    assert (desk / "copy.jpg").read_bytes() == (desk / "desk.jpg").read_bytes()


def test_a_shell_fills_in_address_and_key(monkeypatch: pytest.MonkeyPatch):
    calls: list[tuple[str, ...]] = []
    shell = Shell(lambda *words: calls.append(words), object, monkeypatch)
    shell("sfumato", "jobs", "--server", ADDRESS)
    shell.server, shell.key = SimpleNamespace(url="http://127.0.0.1:1", stop=lambda _: 1), "sfm_key"
    shell("sfumato", "jobs", "--server", ADDRESS)
    shell("export", f"SFUMATO_API_KEY={KEY}")
    assert calls == [("jobs", "--server", ADDRESS), ("jobs", "--server", "http://127.0.0.1:1")]
    assert os.environ["SFUMATO_API_KEY"] == "sfm_key"
    with pytest.raises(AssertionError):
        shell("^C")  # the server ended with an error


def test_no_figure_is_left_to_fill_in():
    for document in sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("**/*.md")):
        left = [word for word in re.findall(r"\b[A-Z]+_[A-Z0-9_]+\b", document.read_text()) if word not in KNOWN_NAMES]
        assert not left, f"{document.name}: {left}"


KNOWN_NAMES = {
    "NUMBA_CACHE_DIR", "XDG_CONFIG_HOME", "SIMPLE_RADIAL", "IMREAD_GRAYSCALE", "SFUMATO_DATA", "SFUMATO_FACE_KEYS",
    "INDEX_FILE", "SFUMATO_KEY", "SFUMATO_SERVER", "SFUMATO_API_KEY", "ABOUT_THE_WHOLE", "H_1_2", "W_S",
}  # fmt: skip
