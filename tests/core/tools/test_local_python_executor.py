"""`PyExecutor` around an interpreter that is there, and one that is not."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from openenv.core.tools import PyExecutor


class Interpreter:
    """Stands in for that of smolagents: runs ``exec``, and keeps what it was given."""

    def __init__(self, additional_authorized_imports: list[str]) -> None:
        self.imports = additional_authorized_imports
        self.tools: dict[str, Any] = {}

    def send_tools(self, tools: dict[str, Any]) -> None:
        self.tools = tools

    def __call__(self, code: str) -> SimpleNamespace:
        printed: list[str] = []
        space: dict[str, Any] = {"print": printed.append, **self.tools}
        exec(code, space)
        return SimpleNamespace(logs="\n".join(printed), output=space.get("result"))


@pytest.fixture
def smolagents(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("smolagents")
    module.LocalPythonExecutor = Interpreter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "smolagents", module)


@pytest.mark.usefixtures("smolagents")
def test_code_is_run() -> None:
    executor = PyExecutor(["math"])
    assert executor._executor.imports == ["math"]
    result = executor.run("print('hi'); result = {'a': [1]}")
    assert (result.stdout, result.stderr, result.exit_code) == ('hi\n{"a": [1]}', "", 0)
    assert executor.run("result = {1, 2}").stdout == "{1, 2}"
    assert executor.run("print(safe_json_dumps({'x': {1}}))").stdout == '{"x": "{1}"}'
    assert executor.run("").stdout == ""


@pytest.mark.usefixtures("smolagents")
def test_code_that_fails_is_told_with_its_traceback() -> None:
    result = PyExecutor().run("1 / 0")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert "ZeroDivisionError" in result.stderr


def test_without_smolagents_the_name_is_there_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smolagents", None)
    with pytest.raises(ImportError, match="pip install smolagents"):
        PyExecutor()
