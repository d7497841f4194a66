# SPDX-License-Identifier: Apache-2.0
import signal
import subprocess
import sys

import pytest
import typer

import sfumato
from sfumato.cli import terminate
from sfumato.cli.app import explain_errors


@pytest.mark.parametrize("arguments", [[], ["conceal"], ["inspect"], ["decoys"], ["decoys", "build"]])
def test_help_teaches(run_sfumato, arguments):
    shown = run_sfumato(*arguments, "--help").stdout
    assert "Usage" in shown
    if arguments in (["conceal"], ["decoys"], ["decoys", "build"]):
        assert "Example: sfumato" in shown


def commands(group, path=()):
    """Every command with its path, groups left out."""
    for name, command in group.commands.items():
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]


def test_every_command_has_an_example_and_a_place():
    from sfumato.cli.app import PANELS, app

    found = dict(commands(typer.main.get_command(app)))
    assert len(found) > 30
    lacking = [
        path for path, command in found.items() if f"Example: sfumato {' '.join(path)}" not in (command.help or "")
    ]
    assert not lacking
    named = [name for names in PANELS.values() for name in names]
    assert sorted({path[0] for path in found}) == sorted(named)


def groups(group, path=()):
    """Every group with its path, the application itself left out."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield (*path, name), command
            yield from groups(command, (*path, name))


def examples(text):
    """The command lines of a help, without 'sfumato'."""
    joined = " ".join(text.split())
    lines = joined.split("Example: ")[1:]
    return [part.strip().split()[1:] for line in lines for part in line.split("&&")]


def test_every_group_has_an_example_of_its_own():
    from sfumato.cli.app import app

    found = dict(groups(typer.main.get_command(app)))
    assert {path[0] for path in found} == {"decoys", "evaluate", "export", "index", "server", "train"}
    for path, group in found.items():
        assert f"Example: sfumato {' '.join(path)} " in group.help
        assert "Example" not in group.get_short_help_str(200)


def test_every_example_is_a_command_that_can_be_typed():
    from sfumato.cli.app import app

    whole = typer.main.get_command(app)
    texts = [command.help for _, command in (*commands(whole), *groups(whole))]
    typed = [words for text in texts for words in examples(text)]
    assert len(typed) > 40
    for words in typed:
        command, rest = whole, words
        while hasattr(command, "commands"):
            name, rest = rest[0], rest[1:]
            command = command.commands[name]
        assert command.make_context(" ".join(words), list(rest)).params  # refuses what it does not know


def test_examples_of_groups_run(run_sfumato, photos, tmp_path):
    import shutil

    from sfumato.cli.app import app

    shutil.copytree(photos, tmp_path / "photos")
    run_sfumato("conceal", "photos/", "-o", "private.sfm", "--positions", cwd=tmp_path)
    shutil.copy(tmp_path / "private.sfm", tmp_path / "query.sfm")
    run_sfumato("match", "private.sfm", "--exhaustive", "-o", "matches.h5", cwd=tmp_path)
    found = dict(groups(typer.main.get_command(app)))
    for name in ("export", "index"):
        for words in examples(found[name,].help):
            run_sfumato(*words, cwd=tmp_path)
    assert (tmp_path / "hloc" / "features.h5").is_file()
    assert (tmp_path / "nearest.csv").is_file()


def test_shells_complete_commands_and_options(run_sfumato):
    import os
    import subprocess
    import sys

    def completed(line, word):
        settings = {"_SFUMATO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(word)}
        done = subprocess.run(
            [sys.executable, "-c", "from sfumato.cli import main; import sys; sys.argv[0] = 'sfumato'; main()"],
            env={**os.environ, **settings}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout.split()

    assert completed("sfumato au", 1) == ["audit"]
    assert "--recipes" in completed("sfumato audit --re", 2)
    assert "--show-completion" in run_sfumato("--help").stdout


def test_version(run_sfumato):
    assert run_sfumato("--version").stdout.strip() == f"sfumato {sfumato.__version__}"


def test_misspelt_command_and_option(run_sfumato):
    assert "conceal" in run_sfumato("concael", code=2).stderr
    assert "--recipe" in run_sfumato("conceal", "x", "-o", "y", "--recpe", "z", code=2).stderr


def test_errors_are_one_line_without_a_traceback(run_sfumato, tmp_path):
    errors = run_sfumato("inspect", tmp_path / "none.sfm", code=1, real=True).stderr
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1


def test_where_memory_ends_one_line_says_so():
    from typer.testing import CliRunner

    from sfumato.cli import app

    def too_much():
        raise MemoryError

    command = app.explain_errors(too_much, "nothing was changed")
    made = app.typer.Typer()
    made.command("much")(command)
    done = CliRunner().invoke(made, [])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: not enough memory")


def test_the_commands_that_help_begins_with_run(run_sfumato, photos, tmp_path):
    import re
    import shutil

    from sfumato.cli.app import app

    shutil.copytree(photos, tmp_path / "photos")
    begin = app.info.epilog.split("Then: ")[1].split("; ")
    assert [words.split()[1] for words in begin] == ["conceal", "match"]
    for words in begin:
        assert re.match("sfumato ", words)
        run_sfumato(*words.split()[1:], cwd=tmp_path)
    assert (tmp_path / "matches.h5").exists()


def test_usage_names_all_arguments_alike():
    import re

    from sfumato.cli.app import app

    found = dict(commands(typer.main.get_command(app)))
    name = r"[A-Z_]+(\.\.\.)?"
    wrong = {}
    for path, command in found.items():
        pieces = command.collect_usage_pieces(typer.Context(command))
        if pieces[0] != "[OPTIONS]" or not all(re.fullmatch(rf"{name}|\[{name}\]", one) for one in pieces[1:]):
            wrong[path] = pieces
    assert not wrong
    usage = {path: found[path].collect_usage_pieces(typer.Context(found[path]))[1:] for path in found}
    assert usage["conceal",] == ["PHOTOS"]
    assert usage["evaluate", "frontier"] == usage["audit",] == ["[PHOTOS]"]
    assert usage["train", "pairs"] == ["PHOTOS..."]


def test_paragraphs_of_help_are_left_to_the_terminal():
    from sfumato.cli.app import app

    for _, command in commands(typer.main.get_command(app)):
        for paragraph in command.help.split("\n\n"):
            lines = paragraph.splitlines()
            assert len(lines) == 1 or all(line.startswith(("Example", " ", "- ")) for line in lines)


STOPPED = """
import os, sys

class Stopper:
    def find_spec(self, name, path=None, target=None):
        if name == "sfumato.cli.device":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Stopper())
sys.argv = ["sfumato", "extract", "photos", "-o", "clear.h5"]
from sfumato.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_ends_with_one_line(number, tmp_path):
    code = STOPPED.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert done.stderr.startswith("interrupted: ")
    assert done.stderr.count("\n") == 1


KEPT = """
import signal
from sfumato.cli import terminate
from sfumato.errors import load_pycolmap

signal.signal(signal.SIGTERM, terminate)
load_pycolmap()
try:
    signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt:
    print("kept")
"""


def test_colmap_does_not_take_over_a_signal():
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "kept\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_one_line_and_clears_up(number, capsys):
    cleared = []

    def command():
        try:
            signal.raise_signal(number)
        finally:
            cleared.append(number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(typer.Exit) as stop:
            explain_errors(command, "nothing was written")()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.value.exit_code == 128 + number
    assert cleared == [number]
    assert capsys.readouterr().err == "interrupted: nothing was written\n"
