"""Runs the notebooks and stores what they print and draw: `make notebooks`.

    python tools/run_notebooks.py [NAME ...]

Each runs in a folder of its own that is removed afterwards. The notebook keeps a digest of its code, so that a test
sees when the outputs are of other code.
"""

import ast
import base64
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"


def digest_code(notebook: dict[str, Any]) -> str:
    """A digest of all code cells."""
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; what it prints, its last expression unless that is None, and its figures."""
    from matplotlib import pyplot

    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(file.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        value = None
    pyplot.close("all")
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None})
    return outputs


def run_notebook(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with outputs, run in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count, cells = 0, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = run_cell("".join(cell["source"]), names)
            outputs = [{**each, "execution_count": count} if "execution_count" in each else each for each in outputs]
            cell = {**cell, "outputs": outputs, "execution_count": count}
        cells.append(cell)
    metadata = {**notebook["metadata"], "mnagt": {"code": digest_code(notebook)}}
    return {**notebook, "cells": cells, "metadata": metadata}


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--here"]:  # a process of its own for each, in its folder
        path = Path(words[1])
        done = run_notebook(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    for path in [FOLDER / f"{name}.ipynb" for name in words] or sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--here", str(path.resolve())]
            subprocess.run(command, cwd=folder, check=True, env={**os.environ, "MPLBACKEND": "agg"})
        print(path.name)


if __name__ == "__main__":
    main()
