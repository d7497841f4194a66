# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys

import pytest

from sfumato.cli.options import (
    complete_face_recipe,
    complete_recipe,
    complete_recipes,
    one_of,
    recipe_names,
    several_of,
)
from sfumato.types.recipe import KINDS, Recipe

COMPLETED = {"recipe", "recipes", "descriptor", "architecture", "kind", "metric", "attack", "attacks"}
HEAVY = ("torch", "cv2", "h5py", "numba", "scipy", "matplotlib", "pycolmap", "faiss", "onnxruntime")
PROGRAM = """
import json, sys
from sfumato.cli import main
sys.argv[0] = "sfumato"
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""


def completed(line):
    """Return what bash is offered for the last word, and the libraries that were imported."""
    settings = {"_SFUMATO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **settings}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.stdout.split(), json.loads(done.stderr.splitlines()[-1])


def test_recipes_are_offered_with_bundled_encoders_and_each_is_one():
    names = recipe_names("clear", "encoder", "lifting")
    assert {"raw", "sub-hybrid-2", "sub-hybrid-2-generated", "sealed-512", "ninja-sift-2.5"} <= set(names)
    assert {name.partition("-")[0] for name in names} == {kind.partition("-")[0] for kind in KINDS}
    for name in ["default", *names]:
        assert Recipe.of(name)


def test_the_last_link_of_a_recipe_is_completed():
    assert complete_recipe("ra") == ["raw", "random-2"]
    assert complete_recipe("de") == ["default"]
    assert complete_recipe("compress-48+ra") == ["compress-48+random-2"]
    assert complete_recipe("compress-48+d") == []
    assert all(Recipe.of(name) for name in complete_recipe("ninja-sift-1.0+sub-"))
    liftings = [name for name in recipe_names("lifting") if name.startswith("s")]
    assert complete_face_recipe("s") == ["sealed-2048", *liftings]
    assert not {"raw", "sealed-512", "compress-48"} & set(complete_face_recipe(""))


def test_the_last_of_several_is_completed_and_none_twice():
    complete = several_of(one_of(("all", "nearest", "vertex", "vertex+decoys")))
    assert complete("") == ["all", "nearest", "vertex", "vertex+decoys"]
    assert complete("nearest,ver") == ["nearest,vertex", "nearest,vertex+decoys"]
    assert complete("nearest,") == ["nearest,vertex", "nearest,vertex+decoys"]
    assert complete("x") == []
    assert complete_recipes("raw,compress-48+rand") == ["raw,compress-48+random-2"]
    assert complete_recipes("raw,ra") == ["raw,random-2"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sfumato conceal photos/ --recipe sealed", ["sealed-512"]),
        ("sfumato audit --recipes raw,ninja-sift-2", ["raw,ninja-sift-2.5"]),
        ("sfumato enroll a.npz --recipe sealed", ["sealed-2048"]),
        ("sfumato index build a.sfm --kind i", ["inverted"]),
    ],
)
def test_shells_are_offered_values_without_heavy_libraries(line, offered):
    found, libraries = completed(line)
    assert found == offered
    assert not set(HEAVY) & set(libraries)


def test_every_option_of_these_names_is_completed():
    import typer

    from sfumato.cli.app import app

    def options(group, path=()):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from options(command, (*path, name))
            else:
                yield from (((*path, name), command, one) for one in command.params if one.name in COMPLETED)

    found = list(options(typer.main.get_command(app)))
    assert len(found) > 25
    lacking = [
        (path, option.name)
        for path, command, option in found
        if option.param_type_name == "option"
        and not option.shell_complete(command.make_context("x", [], resilient_parsing=True), "")
    ]
    assert not lacking
