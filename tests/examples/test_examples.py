# SPDX-License-Identifier: Apache-2.0
"""Every example is run, and what it showed is checked; hloc is a small stand-in with hloc's interface."""

import ast
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import BandwidthWarning, NewKeyWarning
from sfumato.images import sample_image
from sfumato.matching import load_matches

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
COVERED = {
    *("audit.yml", "audit_in_ci.py", "face_login.py", "hloc_matcher.py", "map_with_hloc.py", "nearest_subspace.py"),
    *("own_extractor.py", "README.md", "third_party.py", "tour.ipynb"),
}


def load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Run the main function of an example in an empty folder, which it must leave empty; return what it printed."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def run_main(name: str, *arguments: object, code: int = 0) -> list[str]:
        main = load_file(EXAMPLES / name).main
        assert (main([str(one) for one in arguments]) if arguments else main()) == code
        assert not list(work.iterdir())
        return capsys.readouterr().out.splitlines()

    return run_main


def test_there_is_a_test_for_every_file():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == COVERED


def test_the_table_names_every_file():
    text = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"^\| \[(\S+)\]\(\1\)", text, re.MULTILINE)) == COVERED - {"README.md"}


def imports_of(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("name", sorted(name for name in COVERED if name.endswith((".py", ".ipynb"))))
def test_examples_import_public_names_only(name: str):
    text = (EXAMPLES / name).read_text()
    if name.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    ours = {module for module in imports_of(text) if module.split(".")[0] == "sfumato"}
    assert ours
    assert not {module for module in ours if module.count(".") > 1}
    assert not {module for module in ours if (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").exists()}
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")


# --- maps with hloc


@pytest.mark.slow
def test_a_map_is_made_of_files_without_descriptors(run: Callable[..., list[str]], tmp_path: Path):
    with pytest.warns(NewKeyWarning):
        lines = run("map_with_hloc.py", "-o", tmp_path / "map")
    assert lines[-2].endswith("5 in feats-sift.h5, 0 in hloc/features.h5")
    photos, points = map(int, re.findall(r"(\d+) photos and (\d+) points", lines[-1])[0])
    assert photos == 5
    assert points > 300
    again = run("map_with_hloc.py", "-o", tmp_path / "map")
    assert "0 photos concealed now, 5 before" in again[0]


# --- the matcher for hloc


@pytest.fixture
def matcher(monkeypatch: pytest.MonkeyPatch) -> type:
    """The matcher, on a stand-in for hloc's base class: settings over defaults, and inputs that must be there."""
    torch = pytest.importorskip("torch")

    class BaseModel(torch.nn.Module):  # type: ignore[misc,name-defined]
        default_conf: dict[str, Any] = {}  # noqa: RUF012
        required_inputs: list[str] = []  # noqa: RUF012

        def __init__(self, conf: dict[str, Any]) -> None:
            super().__init__()
            self.conf = {**self.default_conf, **conf}
            self._init(self.conf)

        def forward(self, data: dict[str, Any]) -> Any:
            assert set(self.required_inputs) <= set(data)
            return self._forward(data)

    base = ModuleType("hloc.utils.base_model")
    base.BaseModel = BaseModel  # type: ignore[attr-defined]
    for name, module in (("hloc", ModuleType("hloc")), ("hloc.utils", ModuleType("hloc.utils")), (base.__name__, base)):
        monkeypatch.setitem(sys.modules, name, module)
    module = load_file(EXAMPLES / "hloc_matcher.py")
    models = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    assert len(models) == 1  # hloc takes the only class of a module
    assert issubclass(models[0], BaseModel)
    return models[0]


def as_hloc_reads(path: Path, pair: tuple[str, str]) -> dict[str, Any]:
    """Return the data of a pair as hloc's loader hands them to a matcher: floats, in a batch of one."""
    import torch

    data: dict[str, Any] = {}
    with h5py.File(path) as file:
        for number, name in enumerate(pair):
            for key, values in file[name].items():
                data[f"{key}{number}"] = torch.from_numpy(np.asarray(values)).float()[None]
            data[f"image{number}"] = torch.empty((1, 1, *np.asarray(file[name]["image_size"])[::-1]))
    return data


@pytest.fixture(scope="module")
def stereo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stereo pair of 200 features each."""
    import cv2

    folder = tmp_path_factory.mktemp("stereo") / "photos"
    folder.mkdir()
    for side in ("left", "right"):
        cv2.imwrite(str(folder / f"{side}.png"), sample_image(f"motorcycle-{side}").pixels[..., ::-1])
    return folder


@pytest.mark.parametrize(
    ("recipe", "named"),
    [("default", True), ("sealed-512", False), ("sub-hybrid-2", False), ("ninja-sift-1.0", True)],
)
def test_hloc_gets_the_matches_of_sfumato(recipe: str, named: bool, matcher: type, stereo: Path, tmp_path: Path):
    from sfumato.features import LocalParams

    archive, pair = tmp_path / "private.sfm", ("left.png", "right.png")
    local = LocalParams(max_features=200, extractor="opencv")
    is_sealed = recipe in ("default", "sealed-512")
    sfumato.conceal_photos(
        stereo, archive, recipe=recipe, secret=sfumato.new_key(), local=local, positions=True if is_sealed else None
    )
    sfumato.match_archive(archive, tmp_path / "matches.h5")
    sfumato.export_hloc(archive, None, tmp_path / "hloc", with_subspaces=True)
    answer = matcher({"name": "hloc_matcher", **({"recipe": recipe} if named else {})})(
        as_hloc_reads(tmp_path / "hloc" / "features.h5", pair)
    )
    with load_matches(tmp_path / "matches.h5") as file:
        expected = file.arrays(pair)
    assert (expected["matches0"] >= 0).sum() > 50
    assert np.array_equal(answer["matches0"][0].numpy(), expected["matches0"])
    assert np.allclose(answer["matching_scores0"][0].numpy(), expected["matching_scores0"], atol=1e-3)


def test_the_matcher_tries_a_recipe_on_clear_features(matcher: type, stereo: Path, tmp_path: Path):
    from sfumato.features import write_hloc

    images = [(path.name, sfumato.extract(path, max_features=200, extractor="opencv")) for path in stereo.iterdir()]
    write_hloc(tmp_path / "feats.h5", images)
    data = as_hloc_reads(tmp_path / "feats.h5", ("left.png", "right.png"))
    assert (matcher({"recipe": "sealed-512"})(data)["matches0"] >= 0).sum() > 50
    with pytest.raises(ValueError, match="recipe"):
        matcher({})(data)


def test_the_matcher_refuses_what_hloc_would_write_wrongly(matcher: type):
    import torch

    data = {"keypoints0": torch.zeros(1, 40_000, 2), "sealed_bits0": torch.zeros(1, 40_000, 64)}
    data |= {"keypoints1": torch.zeros(1, 3, 2), "sealed_bits1": torch.zeros(1, 3, 64)}
    with pytest.raises(ValueError, match="40000"):
        matcher({})(data)


def test_the_matcher_takes_pictures_without_features(matcher: type):
    import torch

    data = {"keypoints0": torch.zeros(1, 0, 2), "sealed_bits0": torch.zeros(1, 0, 64)}
    data |= {"keypoints1": torch.zeros(1, 3, 2), "sealed_bits1": torch.zeros(1, 3, 64)}
    assert matcher({})(data)["matches0"].shape == (1, 0)
    flipped = {f"{key[:-1]}{1 - int(key[-1])}": value for key, value in data.items()}
    assert matcher({})(flipped)["matches0"].tolist() == [[-1, -1, -1]]


# --- your own extractor


def test_features_of_another_network_match_after_sealing(run: Callable[..., list[str]]):
    lines = run("own_extractor.py")
    bandwidth = re.search(r"--recipe sealed-512:(0\.\d+)", lines[0])
    assert bandwidth is not None
    assert lines[0].startswith("warning: ")
    assert f"type on the other devices: --recipe sealed-512:{bandwidth[1]}" in lines
    count, share = map(int, re.findall(r"and (\d+) matches without any descriptor, (\d+)%", lines[-1])[0])
    assert count > 400
    assert share > 95


def test_only_the_first_picture_of_a_place_warns():
    example = load_file(EXAMPLES / "own_extractor.py")
    features = example.as_features(*example.network(sample_image("motorcycle-left").pixels), (741, 500))
    key = sfumato.new_key()
    with pytest.warns(BandwidthWarning):
        recipe = sfumato.conceal(features, "sealed-512", secret=key).recipe
    with warnings.catch_warnings(action="error"):
        assert sfumato.conceal(features, recipe, secret=key).recipe == recipe


# --- faces


def test_one_person_logs_in_and_nobody_else(run: Callable[..., list[str]]):
    lines = run("face_login.py")
    words = [re.split(r"\s{2,}", line)[:1] + re.findall(r"accepted|refused", line) for line in lines[:-1]]
    decisions = {name[0]: name[1] for name in words if len(name) == 2}
    assert decisions == {
        "Alice, with her phone": "accepted",
        "Bob, with Alice's phone": "refused",
        "Alice, with Bob's phone": "refused",
        "Alice, after she renewed": "accepted",
        "Alice's face, with the stolen key": "refused",
    }
    (between,) = (line for line in lines if line.startswith("the stolen template"))
    assert 0.45 < float(re.findall(r"\d\.\d\d", between)[0]) < 0.55


# --- search


@pytest.mark.slow
def test_the_index_finds_what_the_exact_scan_finds(run: Callable[..., list[str]]):
    lines = run("nearest_subspace.py")
    recall, before, after = map(int, re.findall(r"(\d+)% .* planes; (\d+) of 400 .* and (\d+) after", lines[-1])[0])
    assert recall > 90
    assert before > 150
    assert after == 0
    assert "the same answers" in lines[2]


# --- audits


@pytest.fixture
def audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Audit a small picture; give the exit code that is expected, and get the last line."""
    pytest.importorskip("sfumato_networks")
    main = load_file(EXAMPLES / "audit_in_ci.py").main

    def run_audit(recipe: str, limit: float, *more: str, code: int) -> str:
        sizes = ("--side", "160", "--max-features", "100", "-o", str(tmp_path / "audit"))
        assert main(["--recipe", recipe, "--limit", str(limit), *sizes, *more]) == code
        return (capsys.readouterr().out.splitlines() or [""])[-1]

    return run_audit


def test_a_recipe_that_leaks_fails_the_audit(audit: Callable[..., str], tmp_path: Path):
    assert audit("ninja-sift-1.0", 0.3, code=1).endswith("the limit is 0.30: failed")
    assert audit("ninja-sift-1.0", 1.0, code=0).endswith("the limit is 1.00: passed")  # from the records of before
    assert len(list((tmp_path / "audit").glob("ninja-sift-1.0*.html"))) == 1
    assert audit("ninja-sift-1.O", 1.0, code=2) == ""


@pytest.mark.slow
def test_without_evidence_an_audit_does_not_pass(audit: Callable[..., str]):
    assert "failed (too little was tried)" in audit("compress-48+sealed-64", 0.3, code=1)
    assert audit("compress-48+sealed-64", 0.3, "--allow-open", code=0).endswith("passed")


@pytest.mark.slow
def test_the_default_passes_the_audit(audit: Callable[..., str]):
    assert audit("default", 0.1, code=0).endswith("passed")


def commands_of(workflow: dict[str, Any]) -> list[str]:
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("@" in step.get("uses", "")) for step in steps)
    return [step["run"] for step in steps if "run" in step]


def test_the_workflow_of_this_repository_runs_every_test_on_every_python():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert commands_of(workflow) == ["scripts/test"]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_the_workflow_of_the_audit_installs_the_attacks_and_runs_the_example():
    yaml = pytest.importorskip("yaml")
    install, audit = commands_of(yaml.safe_load((EXAMPLES / "audit.yml").read_text()))
    assert install == "pip install . ./networks"
    assert (ROOT / "networks" / "pyproject.toml").is_file()
    assert audit.startswith("python examples/audit_in_ci.py --")


def test_the_workflow_calls_the_audit_with_arguments_that_it_has(monkeypatch: pytest.MonkeyPatch):
    (line,) = (line for line in (EXAMPLES / "audit.yml").read_text().splitlines() if "audit_in_ci.py --" in line)
    module = load_file(EXAMPLES / "audit_in_ci.py")
    calls: list[Any] = []
    monkeypatch.setattr(module, "audit", lambda *arguments, **sizes: calls.append(arguments))
    monkeypatch.setattr(module, "judge", lambda verdict, limit, **more: limit)
    assert 0 < module.main(line.split("audit_in_ci.py", 1)[1].split()) < 1
    assert calls[0][1] == "default"


# --- the notebook


@pytest.fixture
def tour(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import matplotlib as mpl

    mpl.use("Agg")
    return load_file(Path(__file__).with_name("tour_pictures.py"))


def test_the_notebook_is_small_and_of_the_format(tour: ModuleType):
    notebook = tour.read_notebook()
    assert tour.NOTEBOOK.stat().st_size < 300_000
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["results_of"] == tour.digest_of(notebook["cells"]), (
        "run tests/examples/tour_pictures.py"
    )
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("code", "markdown")
        assert isinstance(cell["metadata"], dict)
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert ("outputs" in cell) == ("execution_count" in cell) == (cell["cell_type"] == "code")
        for output in cell.get("outputs", ()):
            assert output["output_type"] in ("stream", "display_data")


def results(tour: ModuleType, cells: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str], int]:
    pytest.importorskip("sfumato_networks")
    printed, pictures = list[str](), list[bytes]()

    def note(cell: dict[str, Any], text: str, figures: list[Any]) -> None:
        printed.extend(text.splitlines())
        pictures.extend(tour.jpeg(figure) for figure in figures)

    names = tour.run_cells(cells, note)
    return names, printed, len(pictures)


def test_the_notebook_shows_that_lifting_is_undone_and_that_all_match(tour: ModuleType):
    cells = tour.read_notebook()["cells"]
    slow = next(at for at, cell in enumerate(cells) if 'ATTACKS["alignment"]' in "".join(cell["source"]))
    names, _, pictures = results(tour, cells[:slow])
    assert names["recovered"] > 0.9
    assert names["likeness"](names["painted_lifted"]) > names["likeness"](names["grey"]) + 0.15
    assert names["matches"].keys() == {"clear, ratio test 0.8", "lifted", "sealed"}
    assert all(count > 500 and share > 0.9 for count, share in names["matches"].values())
    assert 0.45 < names["chance"] < 0.55
    assert pictures == 4


@pytest.mark.slow
def test_the_notebook_shows_that_seals_hold(tour: ModuleType):
    names, printed, pictures = results(tour, tour.read_notebook()["cells"])
    assert names["read"] < 0.02
    assert names["likeness"](names["painted_sealed"]) < names["likeness"](names["grey"]) + 0.05
    assert printed[-1].startswith("shown: ")
    assert pictures == 6
