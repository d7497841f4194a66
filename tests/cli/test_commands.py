# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

from sfumato.cli.app import COMMANDS, GROUPS, PANELS, flowed, select_commands


def test_every_command_is_there_once_and_has_its_place():
    words = [command.words for command in COMMANDS]
    assert len(set(words)) == len(words)
    named = {name for names in PANELS.values() for name in names}
    assert {command.words.split()[0] for command in COMMANDS} == named
    assert {command.group for command in COMMANDS if command.group} == set(GROUPS)
    assert all(callable(command.load()) for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["match", "x.h5", "--help"], ["match"]),
        (["-v", "train", "ninja"], ["train ninja"]),
        (["server", "key", "list", "--json"], ["server key list"]),
        (["map", "evaluate"], ["map"]),
        (["--version"], []),
    ],
)
def test_only_the_named_command_is_loaded(arguments, wanted):
    assert [command.words for command in select_commands(arguments)] == wanted


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["train"], ["train", "--help"], ["server", "key"], ["mtch"], ["match-"], ["-x"]]
)
def test_help_and_misspelt_commands_know_all(arguments):
    assert select_commands(arguments) == COMMANDS


def test_a_command_starts_without_the_others():
    code = (
        "import sys; sys.argv = ['sfumato', 'index', 'add', '--help']\n"
        "from sfumato.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "others = 'sfumato.experiments', 'sfumato.training', 'cv2'\n"
        "loaded = [name for name in sys.modules if name.startswith(others)]\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: sfumato index add" in done.stdout


def test_lines_of_a_paragraph_flow_and_examples_and_lists_stay():
    text = """One line.

    A paragraph that
    goes on.
    - a thing
      of two lines

    Example: first
    Example: second
    """
    assert flowed(text) == (
        "One line.\n\nA paragraph that goes on.\n- a thing\n  of two lines\n\nExample: first\nExample: second"
    )
    assert flowed("") == ""
