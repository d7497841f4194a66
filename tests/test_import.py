# SPDX-License-Identifier: Apache-2.0
"""What an import loads, seen in a process of its own: the source may say one thing and run another."""

import subprocess
import sys

import pytest

HEAVY = [
    "cv2",
    "faiss",
    "h5py",
    "kornia",
    "matplotlib",
    "numba",
    "onnxruntime",
    "pycolmap",
    "skimage",
    "torch",
]


def loaded(code: str) -> set[str]:
    """The modules in a fresh interpreter after ``code``."""
    program = f"import sys\n{code}\nsys.stdout.write('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n"))


def test_import_alone_loads_nothing_heavy():
    names = loaded("import sfumato")
    assert "sfumato" in names
    assert not names & set(HEAVY)
    assert not [name for name in names if name.startswith("sfumato.") and name != "sfumato.lazy"], (
        "public names load when first used"
    )


def test_types_and_distances_load_nothing_heavy():
    names = loaded("import sfumato; sfumato.Recipe; sfumato.Subspaces; sfumato.squared_distances; sfumato.Features")
    assert "sfumato.types.concealed" in names
    assert not names & {*HEAVY, "scipy"}


def test_every_public_name_loads_nothing_heavy():
    names = loaded("import sfumato\nfor name in sfumato.__all__: getattr(sfumato, name)")
    assert not names & set(HEAVY)


def test_looking_at_the_package_loads_nothing():
    names = loaded("import sfumato; dir(sfumato)")
    assert {name for name in names if name.startswith("sfumato.")} == {"sfumato.lazy"}


@pytest.mark.parametrize(
    "module",
    ["sfumato.store", "sfumato.types.concealed", "sfumato.subspace.reference", "sfumato.geometry.queries"],
)
def test_the_server_side_loads_nothing_clear(module: str):
    names = loaded(f"import {module}")
    assert module in names
    clear = (
        "sfumato.types.clear",
        "sfumato.features",
        "sfumato.images",
        "sfumato.concealment",
        "sfumato.inversion",
        "sfumato.training",
    )
    assert not [name for name in names if name.startswith(clear)]


def test_the_public_archive_functions_load_nothing_clear():
    names = loaded("import sfumato; sfumato.load; sfumato.save; sfumato.ConcealedFeatures")
    assert not [name for name in names if name.startswith(("sfumato.types.clear", "sfumato.features"))]


def test_the_check_can_fail():
    assert "sfumato.types.clear" in loaded("import sfumato; sfumato.Features")
