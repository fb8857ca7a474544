"""The notebooks of the examples hold what their scripts hold. They are run in tests/trl, where torch is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def notebooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "scripts" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_notebook_is_that_of_its_script(notebooks: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert notebooks.main(["--check"]) == 0, capsys.readouterr().err
    made = {script.with_suffix(".ipynb") for script in notebooks.SCRIPTS}
    assert made == set(ROOT.joinpath("examples").glob("**/*.ipynb"))


def test_a_notebook_has_the_code_of_the_script_in_its_order_and_its_texts() -> None:
    script = ROOT.joinpath("examples", "grpo_sudoku.py").read_text()
    cells = json.loads(ROOT.joinpath("examples", "grpo_sudoku.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "".join("".join(code).split()) in "".join("".join(part.split()) for part in _without_texts(script)), (
        "a line of code is missing"
    )
    assert cells[0]["source"][0].startswith("# ")


def _without_texts(script: str) -> list[str]:
    parts = script.split("# %%")
    return [part for part in parts[1:] if not part.startswith(" [markdown]")]


def test_a_script_that_has_changed_is_told(
    notebooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "one.py"
    script.write_text('# %% [markdown]\n"""# One\n\nText."""\n\n# %%\nprint(1)\n\n\n# %%\nprint(2)\n')
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "SCRIPTS", [script])
    assert notebooks.main([]) == 0
    cells = json.loads(script.with_suffix(".ipynb").read_text())["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == [
        ("markdown", "# One\n\nText."),
        ("code", "print(1)"),
        ("code", "print(2)"),
    ]
    assert notebooks.main(["--check"]) == 0
    script.write_text(script.read_text() + "print(3)\n")
    assert notebooks.main(["--check"]) == 1
