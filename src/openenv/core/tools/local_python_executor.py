"""`PyExecutor`: an agent's Python code in the interpreter of ``smolagents``, which this package does not bring."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from openenv.core.env_server.types import CodeExecResult

__all__ = ["PyExecutor"]

logger = logging.getLogger("openenv.server")


class PyExecutor:
    """Runs Python code in an interpreter that allows only some imports. It is no sandbox against an attacker.

    The code finds two functions there: ``format_exc()``, and ``safe_json_dumps(value)``.

    Args:
        additional_imports: modules the code may import, besides the harmless ones.

    Raises:
        ImportError: ``smolagents`` is not installed.
    """

    def __init__(self, additional_imports: Sequence[str] | None = None) -> None:
        try:
            interpreter = import_module("smolagents").LocalPythonExecutor
        except ImportError as error:
            raise ImportError("PyExecutor needs smolagents: pip install smolagents") from error
        self._executor: Any = interpreter(additional_authorized_imports=list(additional_imports or ()))
        self._executor.send_tools({"format_exc": traceback.format_exc, "safe_json_dumps": _safe_json_dumps})

    def run(self, code: str) -> CodeExecResult:
        """Run code.

        Returns:
            What it printed and the value of its last line, in JSON if it has such a form; of code that fails, the
            traceback and the exit code 1.
        """
        try:
            result = self._executor(code)
        except Exception:  # the code's, whatever it is: it is told to whoever wrote it
            logger.debug("an agent's code failed", exc_info=True)
            return CodeExecResult(stdout="", stderr=traceback.format_exc(), exit_code=1)
        printed = str(getattr(result, "logs", "") or "")
        value = getattr(result, "output", None)
        parts = [printed, "" if value is None else _shown(value)]
        return CodeExecResult(stdout="\n".join(part for part in parts if part), stderr="", exit_code=0)


def _safe_json_dumps(value: Any) -> str:
    return json.dumps(value, default=repr)


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
