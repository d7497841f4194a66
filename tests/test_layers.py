# SPDX-License-Identifier: Apache-2.0
"""Who may import whom, and what a server can never reach: read from the source, imports in functions too.

Two rules, because each misses what the other sees: an import may point down (the layer rule is content) and
still lead from the archive to the clear side (the reach rule is not).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "sfumato"

LAYERS = (
    {"__main__"},
    {"cli"},
    {"experiments"},
    {"training"},
    {"auditing", "client", "server"},
    {"report"},
    {"attacks"},
    {"codebooks"},
    {"device", "publish"},
    {"inversion"},
    {"geometry", "faces"},
    {"search"},
    {"matching"},
    {"concealment"},
    {"store"},
    {"features"},
    {"images"},
    {"types"},
    {"hamming"},
    {"subspace"},
    {"files"},
    {"errors", "lazy"},
)
LEVEL = {name: -depth for depth, names in enumerate(LAYERS) for name in names}

SERVER_SIDE = (
    "store",
    "hamming",
    "matching",
    "search",
    "server",
    "geometry.cameras",
    "geometry.localization",
    "geometry.mappers",
    "geometry.mapping",
    "geometry.maps",
    "geometry.model_folder",
    "geometry.queries",
    "geometry.shortlist",
    "faces.gallery",
    "faces.gallery_file",
    "faces.compare",
    "faces.decide",
    "faces.third_party",
    "files",
    "types.concealed",
)
FORBIDDEN = (
    "types.clear",
    "features",
    "images",
    "concealment",
    "inversion",
    "attacks",
    "auditing",
    "training",
    "experiments",
    "device",
    "publish",
    "codebooks",
)
BESIDE_THE_ROAD = ("training", "experiments")
"""Packages that only the shell imports."""
DYNAMIC = {"import_module", "__import__", "need", "run_module", "run_path"}
MAY_BE_DYNAMIC = {"sfumato.lazy", "sfumato.errors", "sfumato.cli.app"}


class Package:
    """The import graph of a source tree, as written."""

    def __init__(self, root: Path):
        self.trees = {name: ast.parse(path.read_bytes(), str(path)) for name, path in sorted(modules(root))}
        self.lazy = {name: homes(tree) for name, tree in self.trees.items()}
        self.homes = self.lazy.get("sfumato", {})
        self.graph = {name: set(self.imports(name, tree)) for name, tree in self.trees.items()}

    def imports(self, name: str, tree: ast.Module) -> Iterator[str]:
        for node in walk(tree, skip_typing=name == "sfumato"):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self.everything() if alias.name == "sfumato" else self.inside(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = ("." * node.level) + (node.module or "")
                for alias in node.names:
                    yield from self.named(base, alias.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sfumato":
                yield from self.named("sfumato", node.attr)
            elif isinstance(node, ast.Call) and called(node) in DYNAMIC:
                yield from self.dynamic(name, node)

    def named(self, base: str, name: str) -> Iterator[str]:
        """What ``from base import name`` loads: a module, or the module that gives the name a home."""
        if base.startswith("."):
            yield f"relative import of {base}"
        elif base == "sfumato" and name == "*":
            yield from self.everything()
        elif base == "sfumato" and name in self.homes:
            yield from self.inside(f"sfumato.{self.homes[name]}")
        elif f"{base}.{name}" in self.trees:
            yield f"{base}.{name}"
        elif name in self.lazy.get(base, {}):
            yield from (base, f"{base}.{self.lazy[base][name]}")
        elif base != "sfumato":
            yield from self.inside(base)

    def inside(self, name: str) -> Iterator[str]:
        if name.split(".")[0] == "sfumato":
            yield name

    def everything(self) -> Iterator[str]:
        """Whoever holds the top package can ask it for any public name."""
        yield from {f"sfumato.{home}" for home in self.homes.values()}

    def dynamic(self, name: str, node: ast.Call) -> Iterator[str]:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield from self.inside(first.value)
        elif name not in MAY_BE_DYNAMIC:
            yield "an import computed at run time"

    def reached(self, start: str) -> dict[str, str]:
        """Every module that ``start`` loads, directly or through others, with the one that asked for it."""
        asked_by = {start: start}
        todo = [start]
        while todo:
            name = todo.pop()
            parents = {name.rsplit(".", k)[0] for k in range(1, name.count(".") + 1)}  # their __init__ runs too
            for target in sorted(self.graph.get(name, set()) | parents):
                if target not in asked_by:
                    asked_by[target] = name
                    todo.append(target)
        return asked_by


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    for path in root.rglob("*.py"):
        parts = ["sfumato", *path.relative_to(root).with_suffix("").parts]
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def homes(tree: ast.Module) -> dict[str, str]:
    """Read the table of public names from an ``__init__``: ``_HOMES``, or what ``lazy_names`` is called with."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and called(node.value) == "lazy_names":
            if isinstance(node.value.args[1], ast.Dict):
                table: dict[str, str] = ast.literal_eval(node.value.args[1])
                return table
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "_HOMES" for target in targets):
                found: dict[str, str] = ast.literal_eval(node.value)
                return found
    return {}


def walk(tree: ast.AST, *, skip_typing: bool) -> Iterator[ast.AST]:
    """Every node, in functions and conditions too; the top package may show types to a checker."""
    for node in ast.iter_child_nodes(tree):
        if skip_typing and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from walk(node, skip_typing=skip_typing)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def layer(name: str) -> str:
    return name.split(".")[1] if name.count(".") else ""


def unplaced(package: Package) -> list[str]:
    return sorted({layer(name) for name in package.graph if layer(name)} - set(LEVEL))


def upward(package: Package) -> list[str]:
    """Imports that do not point down; anything that is no module of ours counts too."""
    wrong = []
    for name, targets in package.graph.items():
        if name == "sfumato":
            eager = sorted(targets - {"sfumato.lazy"})
            wrong += [f"sfumato/__init__ must stay lazy but imports {target}" for target in eager]
            continue
        for target in sorted(targets):
            if target not in package.graph:
                wrong.append(f"{name}: {target} is no module")
            elif layer(target) != layer(name) and LEVEL.get(layer(name), 0) <= LEVEL.get(layer(target), 0):
                wrong.append(f"{name} imports {target}, which is not below it")
    return wrong


def is_part(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == f"sfumato.{part}" or name.startswith(f"sfumato.{part}.") for part in parts)


def leaks(package: Package) -> list[str]:
    """Ways from the server's side to the clear side."""
    wrong = []
    for start in (name for name in package.graph if is_part(name, SERVER_SIDE)):
        asked_by = package.reached(start)
        for target in sorted(asked_by):
            if is_part(target, FORBIDDEN):
                way = [target]
                while way[-1] != start:
                    way.append(asked_by[way[-1]])
                wrong.append(" <- ".join(way))
    return wrong


def road_reads(package: Package) -> list[str]:
    """Imports of what is beside the road by what is on it."""
    road = [name for name in package.graph if not is_part(name, (*BESIDE_THE_ROAD, "cli", "__main__"))]
    return [f"{n} imports {t}" for n in road for t in sorted(package.graph[n]) if is_part(t, BESIDE_THE_ROAD)]


def report_reads(package: Package) -> list[str]:
    """What reports import beside records; a report is made of records alone."""
    allowed = ("types.record", "errors", "lazy", "report")
    starts = [name for name in package.graph if is_part(name, ("report",))]
    return [f"{n} imports {t}" for n in starts for t in sorted(package.graph[n]) if not is_part(t, allowed)]


# ---------------------------------------------------------------- the rules, on the package


@pytest.fixture(scope="module")
def package() -> Package:
    return Package(SOURCE)


def test_the_graph_is_not_empty(package: Package):
    assert "sfumato.types.concealed" in package.graph
    assert "sfumato.subspace.reference" in package.graph["sfumato.types.concealed"]
    assert len(package.homes) > 10


def test_every_module_has_a_level(package: Package):
    assert not unplaced(package), "give each a place in LAYERS, and in docs/explanation/architecture.md"


def test_imports_point_down(package: Package):
    assert not upward(package)


def test_the_server_side_never_reaches_the_clear_side(package: Package):
    assert not leaks(package)


def test_the_guard_at_run_time_refuses_what_the_source_may_not_reach():
    tree = ast.parse((SOURCE / "server" / "guard.py").read_text(encoding="utf-8"))
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Tuple)
    }
    assert set(tables["FORBIDDEN"]) >= {*FORBIDDEN, "cli", "client"}
    assert set(tables["LIBRARIES"]) >= {"torch", "onnxruntime", "dlib"}


@pytest.mark.parametrize("entry", ["server.__main__", "server.localizer", "server.map_job"])
def test_the_processes_of_the_server_never_reach_the_clear_side(package: Package, entry: str):
    names = package.reached(f"sfumato.{entry}")
    assert len(names) > 20
    assert not [name for name in names if is_part(name, (*FORBIDDEN, "cli", "client"))]


def test_only_the_device_and_the_shell_reach_what_publishes(package: Package):
    starts = {name for name in package.graph if "sfumato.publish" in package.reached(name)}
    assert starts >= {"sfumato.publish", "sfumato.cli.export"}
    assert all(is_part(name, ("publish", "cli", "__main__")) for name in starts), starts


def test_only_the_shell_imports_training_and_experiments(package: Package):
    assert not road_reads(package)


def test_reports_are_made_of_records_alone(package: Package):
    assert not report_reads(package)


def test_the_documented_table_is_the_one_tested():
    text = (SOURCE.parent.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## Who may import whom")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert [{word.strip(" `") for word in row.split("·")} for row in rows] == list(LAYERS)


# ---------------------------------------------------------------- the rules, on planted faults


TREE = {
    "__init__": '_HOMES = {"extract": "features.local", "load": "store", "Subspaces": "types.concealed"}',
    "errors": "",
    "subspace/__init__": "",
    "subspace/reference": "from sfumato.errors import InputError",
    "types/__init__": "",
    "types/clear": "from sfumato.errors import InputError",
    "types/concealed": "from sfumato.subspace import reference",
    "types/record": "",
    "features/__init__": "",
    "features/local": "from sfumato.types.clear import Features",
    "concealment/__init__": "",
    "concealment/lift": "from sfumato.types import clear, concealed",
    "store": "from sfumato.types.concealed import Subspaces\nimport sfumato.errors",
    "matching/__init__": "from sfumato.matching.exact import match",
    "matching/exact": "from sfumato import store",
    "geometry/__init__": "",
    "geometry/localization": "from sfumato.matching.exact import match",
    "geometry/colmap": "from sfumato.features.local import extract",
    "report/__init__": "from sfumato.types.record import Record",
    "device": "from sfumato.features import local\nfrom sfumato.store import save",
    "publish": "from sfumato.features import local\nfrom sfumato.geometry import colmap",
    "cli/__init__": "import sfumato\nfrom sfumato import __version__, extract",
}


def plant(folder: Path, **changes: str) -> Package:
    """A small package like ours, with some modules replaced (a/b is written a__b)."""
    changed = {name.replace("__", "/", 1): text for name, text in changes.items()}
    for name, text in {**TREE, **changed}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Package(folder)


def test_a_clean_tree_passes(tmp_path: Path):
    package = plant(tmp_path)
    assert not unplaced(package)
    assert not upward(package)
    assert not leaks(package)
    assert not report_reads(package)
    assert not road_reads(package)
    assert "sfumato.features.local" in package.graph["sfumato.cli"]


def test_a_new_name_without_a_level_is_seen(tmp_path: Path):
    assert unplaced(plant(tmp_path, utils="")) == ["utils"]
    assert unplaced(plant(tmp_path, helpers__more="")) == ["helpers", "utils"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("errors", "import sfumato.subspace.reference"),
        ("subspace__reference", "from sfumato.types.concealed import Subspaces"),
        ("subspace__reference", "def f():\n    from sfumato.types import concealed"),
        ("types__concealed", "if TYPE_CHECKING:\n    from sfumato.store import load"),
        ("types__concealed", "import sfumato.errors\ndef f():\n    return sfumato.load('x')"),
        ("types__concealed", "from sfumato import load"),
        ("types__concealed", "import sfumato as s"),
        ("types__concealed", "from sfumato import *"),
        ("types__concealed", "from importlib import import_module\nimport_module('sfumato.store')"),
        ("types__concealed", "import importlib\ndef f(name):\n    return importlib.import_module(name)"),
        ("types__concealed", "def f(name):\n    return __import__('sfumato.' + name)"),
        ("types__concealed", "from sfumato.errors import need\nneed('sfumato.store', extra='x')"),
        ("types__concealed", "from . import clear"),
        ("types__concealed", "from ..store import load"),
        ("types__concealed", "from sfumato.nowhere import thing"),
        ("features__local", "class A:\n  def f(self):\n    with x:\n      import sfumato.concealment"),
        ("device", "from sfumato.report import x"),
        ("top", "from sfumato.types.clear import Features"),
    ],
)  # fmt: skip
def test_imports_that_point_up_are_seen(tmp_path: Path, module: str, line: str):
    package = plant_top(tmp_path, line) if module == "top" else plant(tmp_path, **{module: line})
    assert upward(package), "the fault was planted and not found"


def plant_top(folder: Path, text: str) -> Package:
    plant(folder)
    (folder / "__init__.py").write_text(text, encoding="utf-8")
    return Package(folder)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("store", "from sfumato.features import local"),
        ("store", "def load():\n    from sfumato.types.clear import Features"),
        ("store", "from sfumato import extract"),
        ("store", "import sfumato"),
        ("store", "import sfumato.errors\nsfumato.extract('x')"),
        ("store", "from sfumato.errors import need\nneed('sfumato.features.local', extra='x')"),
        ("store", "from sfumato.concealment import lift"),
        ("types__concealed", "from sfumato.types.clear import Features"),
        ("types____init__", "from sfumato.types.clear import Features"),
        ("matching__exact", "from sfumato.concealment.lifting import conceal"),
        ("matching____init__", "from sfumato.types import clear"),
        ("geometry__localization", "from sfumato.geometry import colmap"),
        ("geometry____init__", "from sfumato.geometry.colmap import write"),
        ("search__index", "from sfumato.matching.exact import match\nfrom sfumato.images import read"),
        ("server__app", "from sfumato.attacks import vertex"),
        ("server__app", "from sfumato.publish import publish_points"),
        ("store", "def load():\n    from sfumato import publish"),
        ("geometry__localization", "from sfumato.publish import publish_points"),
        ("geometry__queries", "from sfumato.geometry import localization, colmap"),
        ("faces__gallery", "from sfumato.types.clear import Embeddings"),
        ("faces__decide", "def f():\n    from sfumato.concealment import lift"),
    ],
)
def test_ways_to_the_clear_side_are_seen(tmp_path: Path, module: str, line: str):
    changes = {
        module: line,
        "images____init__": "",
        "images__read": "",
        "attacks____init__": "",
        "attacks__vertex": "",
        "types__embeddings": "",
        "faces____init__": "",
    }
    found = leaks(plant(tmp_path, **changes))
    assert found, "the fault was planted and not found"
    assert all(" <- sfumato." in way for way in found)


def test_a_name_that_a_package_loads_lazily_leads_to_its_module(tmp_path: Path):
    table = '__getattr__, __dir__, __all__ = lazy_names(__name__, {"Features": "clear", "Subspaces": "concealed"})'
    assert not leaks(plant(tmp_path, types____init__=table, store="from sfumato.types import Subspaces"))
    assert leaks(plant(tmp_path, types____init__=table, store="from sfumato.types import Features"))


def test_the_way_is_told(tmp_path: Path):
    found = leaks(plant(tmp_path, types__concealed="from sfumato.types.clear import Features"))
    assert "sfumato.types.clear <- sfumato.types.concealed <- sfumato.store" in found


def test_the_layer_rule_alone_would_not_do(tmp_path: Path):
    package = plant(tmp_path, store="from sfumato.features.local import extract")
    assert not upward(package)
    assert leaks(package)


def test_an_eager_top_package_is_seen_by_both_rules(tmp_path: Path):
    package = plant_top(tmp_path, "from sfumato.features.local import extract\n" + TREE["__init__"])
    assert any("must stay lazy" in line for line in upward(package))
    assert leaks(package)


def test_types_shown_to_a_checker_by_the_top_package_are_no_import(tmp_path: Path):
    text = "if TYPE_CHECKING:\n    from sfumato.features.local import extract\n" + TREE["__init__"]
    package = plant_top(tmp_path, text)
    assert not upward(package)
    assert not leaks(package)


def test_a_report_that_reads_more_is_seen(tmp_path: Path):
    assert report_reads(plant(tmp_path, report__page="from sfumato.types.concealed import Subspaces"))
