"""Make the notebooks of the examples from their scripts: ``python scripts/notebooks.py``; ``--check`` only compares.

In a script ``# %%`` begins a cell of code and ``# %% [markdown]`` one of text, which is a string. Nothing is run.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPTS = [ROOT / "examples" / "grpo_sudoku.py"]

_CELL = re.compile(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", re.M | re.S)


def notebook(script: str) -> str:
    """The notebook of a script, as the text of its file.

    Args:
        script: the text of the script; everything before its first cell mark is left out.

    Raises:
        ValueError: a cell of text is no string.
        SyntaxError: a cell of text is no Python.
    """
    cells: list[dict[str, Any]] = []
    for number, match in enumerate(_CELL.finditer(script)):
        kind, text = match.groups()
        text = text.strip("\n")
        cell: dict[str, Any] = {"cell_type": "markdown" if kind else "code", "id": f"cell-{number}", "metadata": {}}
        if kind:
            text = str(ast.literal_eval(text)).strip("\n")
        else:
            cell.update(execution_count=None, outputs=[])
        cells.append({**cell, "source": text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """Write the notebooks, or with ``--check`` tell which are old; the exit code is their number."""
    old = 0
    for script in SCRIPTS:
        path, text = script.with_suffix(".ipynb"), notebook(script.read_text())
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in arguments:
            sys.stderr.write(f"{path.relative_to(ROOT)} is old; make it: python scripts/notebooks.py\n")
            old += 1
        else:
            path.write_text(text)
    return old


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
