# SPDX-License-Identifier: Apache-2.0
"""Runner of examples/tour.ipynb without Jupyter; as a program it stores small pictures of the results in the notebook.

    .venv/bin/python tests/examples/tour_pictures.py

Pictures are JPEG, so that the file stays below 300 kB, and text is stored as it was printed.
"""

import base64
import contextlib
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "tour.ipynb"
Cell = dict[str, Any]


def read_notebook() -> dict[str, Any]:
    """Return the notebook as it is stored."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return notebook


def run_cells(cells: list[Cell], on_result: Callable[[Cell, str, list[Any]], None]) -> dict[str, Any]:
    """Run code cells in order and one namespace, which is returned; hand over what each printed, and its figures."""
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, {cell['id']}", "exec"), names)  # noqa: S102
            on_result(cell, printed.getvalue(), [plt.figure(number) for number in plt.get_fignums()])
            plt.close("all")
    return names


def jpeg(figure: Any) -> bytes:
    """Return a figure as a small picture."""
    file = io.BytesIO()
    figure.savefig(file, format="jpeg", dpi=75, bbox_inches="tight", pil_kwargs={"quality": 80})
    return file.getvalue()


def store(cell: Cell, printed: str, figures: list[Any]) -> None:
    """Put what a cell printed and drew into its outputs, in the form of nbformat 4."""
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    for figure in figures:
        data = {"image/jpeg": base64.b64encode(jpeg(figure)).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    cell["outputs"] = outputs


def digest_of(cells: list[Cell]) -> str:
    """Return a digest of all code: the notebook holds that of the code whose results it shows."""
    code = "\0".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return hashlib.blake2b(code.encode(), digest_size=8).hexdigest()


def main() -> None:
    """Run the notebook and write it with its outputs."""
    import matplotlib as mpl

    mpl.use("Agg")
    notebook = read_notebook()
    run_cells(notebook["cells"], store)
    notebook["metadata"]["results_of"] = digest_of(notebook["cells"])
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
