# SPDX-License-Identifier: Apache-2.0
"""scripts/setup on machines we do not have: played with an interpreter that only notes its calls."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

INTERPRETER = """#!/bin/bash
echo "$*" >>"{log}"
case "$*" in
  *version_info*) {version} ;;
  *ensurepip*) {venv} ;;
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; [ -z "$STOP_IN_VENV" ] || kill -TERM $PPID ;;
  "scripts/install.py"*) [ -z "$STOP_IN_PIP" ] || {{ echo "no network" >&2; exit 1; }} ;;
esac
"""


class Machine:
    """A copy of the scripts in a folder with a space, and a PATH with one interpreter on it."""

    def __init__(self, folder: Path):
        self.root, self.bin, self.log = folder / "my project", folder / "bin", folder / "log"
        (self.root / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "scripts" / "setup", self.root / "scripts")
        (self.root / "networks").mkdir()
        for name in ("pyproject.toml", "networks/pyproject.toml", "constraints.txt", "hashes.txt"):
            shutil.copy(ROOT / name, self.root / name)
        for tool in ("bash", "cat", "cksum", "cp", "dirname", "env", "mkdir", "rm", "touch"):
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)

    def interpreter(self, name: str = "python3", *, version: str = "exit 0", venv: str = "exit 0") -> None:
        path = self.bin / name
        path.write_text(INTERPRETER.format(log=self.log, version=version, venv=venv), encoding="utf-8")
        path.chmod(0o755)

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("", encoding="utf-8")
        return subprocess.run(
            [self.root / "scripts" / "setup", *arguments],
            env={
                "PATH": str(self.bin),
                "VIRTUAL_ENV": "/elsewhere",
                "PYTHONPATH": "/elsewhere",
                **environment,
            },
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, what: str) -> list[str]:
        return [line for line in self.log.read_text(encoding="utf-8").splitlines() if what in line]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_fresh_machine(machine: Machine):
    machine.interpreter()
    done = machine.setup("dev")
    assert done.returncode == 0, done.stderr
    assert machine.calls("-m venv") == ["-m venv .venv"]
    assert machine.calls("install") == ["scripts/install.py dev"]


def test_what_is_installed_is_not_installed_again(machine: Machine):
    machine.interpreter()
    machine.setup("dev")
    for arguments in (["dev"], []):  # whoever has the tools for tests has what the package needs
        done = machine.setup(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert not machine.calls("install")
    machine.setup("learn")
    assert machine.calls("install") == ["scripts/install.py learn"]


def test_the_package_alone_is_not_enough_for_tests(machine: Machine):
    machine.interpreter()
    machine.setup()
    assert machine.calls("install") == ["scripts/install.py"]
    machine.setup("dev")
    assert machine.calls("install")


@pytest.mark.parametrize("name", ["pyproject.toml", "networks/pyproject.toml", "constraints.txt", "hashes.txt"])
def test_a_changed_list_is_installed_into_the_same_environment(machine: Machine, name: str):
    machine.interpreter()
    machine.setup("dev")
    with (machine.root / name).open("a", encoding="utf-8") as file:
        file.write("\n# changed\n")
    machine.setup("dev")
    assert machine.calls("install")
    assert not machine.calls("-m venv")


@pytest.mark.parametrize("stop", ["STOP_IN_VENV", "STOP_IN_PIP"])
def test_what_was_left_half_made_is_made_again(machine: Machine, stop: str):
    machine.interpreter()
    assert machine.setup("dev", **{stop: "1"}).returncode != 0
    (machine.root / ".venv" / "left").touch()
    assert machine.setup("dev").returncode == 0
    assert machine.calls("-m venv")
    assert not (machine.root / ".venv" / "left").exists()


def test_a_failing_installation_says_so(machine: Machine):
    machine.interpreter()
    done = machine.setup("dev", STOP_IN_PIP="1")
    assert done.returncode != 0
    assert "no network" in done.stderr
    assert "could not install" in done.stderr


def test_a_moved_folder_gets_a_new_environment(machine: Machine):
    machine.interpreter()
    machine.setup("dev")
    machine.root = machine.root.rename(machine.root.with_name("moved"))
    machine.setup("dev")
    assert machine.calls("-m venv")
    assert machine.calls("install")


def test_an_environment_made_by_somebody_else_is_kept(machine: Machine):
    machine.interpreter()
    (machine.root / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(machine.bin / "python3", machine.root / ".venv" / "bin" / "python")
    (machine.root / ".venv" / "theirs").touch()
    assert machine.setup("dev").returncode == 0
    assert not machine.calls("-m venv")
    assert machine.calls("install")
    assert (machine.root / ".venv" / "theirs").exists()


def test_an_old_interpreter_is_passed_over(machine: Machine):
    machine.interpreter("python3", version="exit 1")
    machine.interpreter("python3.12")
    done = machine.setup("dev")
    assert done.returncode == 0, done.stderr
    assert (machine.root / ".venv" / "bin" / "python").read_text(encoding="utf-8").count("exit 1") == 1


@pytest.mark.parametrize("names", [[], ["python3"]])
def test_without_a_new_interpreter_it_says_what_is_needed(machine: Machine, names: list[str]):
    for name in names:
        machine.interpreter(name, version="exit 1")
    done = machine.setup("dev")
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stderr
    assert not (machine.root / ".venv").exists()


def test_without_the_venv_module_it_says_what_to_install(machine: Machine):
    machine.interpreter(venv="exit 1")
    done = machine.setup("dev")
    assert done.returncode != 0
    assert "install its venv package" in done.stderr


def test_the_demo_audits_the_samples_or_what_it_is_given(tmp_path: Path):
    root = tmp_path / "my project"
    (root / "scripts").mkdir(parents=True)
    (root / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "demo", root / "scripts")
    (root / "scripts" / "setup").write_text("echo set up\n", encoding="utf-8")
    command = root / ".venv" / "bin" / "sfumato"
    command.write_text('#!/bin/bash\nprintf "%s|" "$@"\npwd\n', encoding="utf-8")
    command.chmod(0o755)
    for given in ([], ["my photos", "--quiet"]):
        done = subprocess.run(
            ["bash", str(root / "scripts" / "demo"), *given],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        arguments = "".join(f"{word}|" for word in ["audit", "-o", str(root / "demo"), *given])
        assert done.stdout == f"set up\n{arguments}{tmp_path}\n"


def test_the_slow_tests_run_if_all_are_wanted(tmp_path: Path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts")
    for name in ("setup", "check"):
        (tmp_path / "scripts" / name).write_text("true\n", encoding="utf-8")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/bash\nprintf "%s|" "$@" >>"{tmp_path}/log"\n', encoding="utf-8")
    python.chmod(0o755)
    expected = {
        (): "|-m|not slow|",
        ("--all",): "|--hypothesis-profile|thorough|",
        ("tests/x", "-k", "y"): "|-m|pytest|tests/x|-k|y|",
    }
    for arguments, end in expected.items():
        (tmp_path / "log").unlink(missing_ok=True)
        subprocess.run(["bash", str(tmp_path / "scripts" / "test"), *arguments], timeout=60, check=True)
        calls = (tmp_path / "log").read_text(encoding="utf-8")
        assert end in calls
        assert ("not slow" in calls) == (not arguments)


def test_scripts_can_be_run():
    for name in ("scripts/setup", "scripts/check", "scripts/test", "scripts/demo", ".ci/run"):
        path = ROOT / name
        assert os.access(path, os.X_OK), f"{name} is missing or not executable"
        assert path.read_bytes().startswith(b"#!/usr/bin/env bash\n")


# --- the picture of the README


def test_the_picture_is_the_first_row_of_a_page(tmp_path: Path):
    import base64
    import io

    from PIL import Image

    figures = ""
    for colour in ("red", "green", "blue"):
        data = io.BytesIO()
        Image.new("RGB", (40, 20), colour).save(data, "PNG")
        figures += f'<figure><img src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}" alt="x">'
    page = f'<div class="row big">{figures}</div><figure><img src="data:image/png;base64,AAAA"></figure>'
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    load_script("picture").main(str(tmp_path / "report.html"), str(tmp_path / "picture.png"))
    with Image.open(tmp_path / "picture.png") as sheet:
        width, height = sheet.size
        places = [(width * (2 * number + 1) // 6, height - 10) for number in range(3)]
        assert [sheet.getpixel(place) for place in places] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]


# --- checksums


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_version_of_the_constraints_has_checksums():
    install = load_script("install")
    hashes = install.read_hashes((ROOT / "hashes.txt").read_text(encoding="utf-8"))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: version for name, (version, _) in hashes.items()} == pins
    for name, (_, checksums) in hashes.items():
        assert checksums, name
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in checksums), name
    assert set(install.BACKEND) <= set(pins)
    assert f'requires = ["hatchling=={pins["hatchling"]}"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_what_has_no_checksum_is_not_installed():
    install = load_script("install")
    hashes = install.read_hashes(
        "# files\na==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\nb==2 --hash=sha256:02\n"
    )
    report = {"install": [
        {"download_info": {"dir_info": {}}, "metadata": {"name": "sfumato", "version": "0"}},
        {"download_info": {}, "metadata": {"name": "A", "version": "1.0+cpu"}},
    ]}  # fmt: skip
    plan = install.read_plan(report)
    assert install.pinned_lines(plan, hashes) == ["a==1.0+cpu --hash=sha256:00 --hash=sha256:01"]
    for other in ({"a": "1.1"}, {"c": "1.0"}):
        with pytest.raises(SystemExit, match="checksums"):
            install.pinned_lines(other, hashes)
