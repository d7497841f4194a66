# SPDX-License-Identifier: Apache-2.0
import pytest

import sfumato


@pytest.mark.parametrize("arguments", [[], ["conceal"], ["inspect"], ["decoys"], ["decoys", "build"]])
def test_help_teaches(run_sfumato, arguments):
    shown = run_sfumato(*arguments, "--help").stdout
    assert "Usage" in shown
    if arguments in (["conceal"], ["decoys", "build"]):
        assert "Example: sfumato" in shown


def test_version(run_sfumato):
    assert run_sfumato("--version").stdout.strip() == f"sfumato {sfumato.__version__}"


def test_misspelt_command_and_option(run_sfumato):
    assert "conceal" in run_sfumato("concael", code=2).stderr
    assert "--recipe" in run_sfumato("conceal", "x", "-o", "y", "--recpe", "z", code=2).stderr


def test_errors_are_one_line_without_a_traceback(run_sfumato, tmp_path):
    errors = run_sfumato("inspect", tmp_path / "none.sfm.h5", code=1, alone=True).stderr
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1
