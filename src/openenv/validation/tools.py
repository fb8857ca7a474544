"""The rule about tools, and calls of tools made from their schemas."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from openenv.validation.report import Report, Verdict
from openenv.validation.schemas import sample

__all__ = ["check_tools", "tool_actions"]


def check_tools(tools: Sequence[Any], report: Report) -> None:
    """Look whether a model that reads the tools would know what to do with them.

    Args:
        tools: as a client lists them.
        report: what was found is added to it.
    """
    if not tools:
        report.add("tools", Verdict.FAIL, "there is no tool", "decorate functions with the FastMCP server's .tool")
    for tool in tools:
        said = (tool.description or "").strip()
        if not said:
            text = f"{tool.name} has no description"
            report.add("tools", Verdict.FAIL, text, "give its function a docstring: it is all that a model sees")
            continue
        arguments = tool.input_schema.get("properties", {})
        dark = [name for name, one in arguments.items() if not one.get("description") and not _names(said, name)]
        if dark:
            text = f"{tool.name} does not say what it takes as {', '.join(dark)}"
            move = 'describe it under "Args:" in the docstring, or with Annotated[..., Field(description=...)]'
            report.add("tools", Verdict.WARN, text, move)
    report.passed("tools")


def tool_actions(tools: Sequence[Any]) -> Callable[[random.Random], Any]:
    """What makes calls of tools."""
    if not tools:
        return lambda draw: {}

    def make(draw: random.Random) -> dict[str, Any]:
        tool = draw.choice(list(tools))
        return {"type": "call_tool", "tool_name": tool.name, "arguments": sample(tool.input_schema, draw) or {}}

    return make


def _names(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b\s*(\([^)]*\))?\s*:", text) is not None
