"""What a language model is told and answers, in the two dialects in use. Pure: no network, no client.

Conversations are lists of dicts in the form of OpenAI's chat completions; tools are MCP tool definitions
(``name``, ``description``, ``inputSchema``). The names with an underscore are those under which tests and programs
of the OpenEnv world know these conversions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LLMResponse", "ToolCall"]


@dataclass
class ToolCall:
    """One tool that the model wants called.

    Attributes:
        id: names the call in the tool's answer.
        name: the tool.
        args: its arguments by name.
    """

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """One turn of a model.

    Attributes:
        content: its text; empty if it only called tools.
        tool_calls: the tools it wants called, in order.
    """

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)

    def to_message_dict(self) -> dict[str, Any]:
        """This turn as a message of a conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.args)}}
                for call in self.tool_calls
            ]
        return message


def _no_arguments() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "required": []}


def _first_object(options: Iterable[Any]) -> dict[str, Any] | None:
    for option in options:
        if isinstance(option, dict) and option.get("type") == "object":
            return dict(option)
    return None


def _clean_mcp_schema(schema: Any) -> dict[str, Any]:
    """A tool's input schema as function-calling services take it: one object at the top, with ``properties``.

    Of ``oneOf`` and ``anyOf`` the first object is taken; parts of ``allOf`` are merged. The argument is left as it is.
    """
    if not isinstance(schema, Mapping):
        return _no_arguments()
    clean = dict(schema)
    if "oneOf" in clean:
        chosen = _first_object(clean["oneOf"])
        if chosen is None:
            return _no_arguments()
        clean = chosen
    if "allOf" in clean:
        parts = [part for part in clean["allOf"] if isinstance(part, Mapping)]
        clean = _no_arguments()
        for part in parts:
            clean["properties"].update(part.get("properties", {}))
            clean["required"].extend(part.get("required", []))
    if "anyOf" in clean:
        chosen = _first_object(clean["anyOf"])
        if chosen is None:
            return _no_arguments()
        clean = chosen
    clean.setdefault("type", "object")
    if clean["type"] == "object":
        clean.setdefault("properties", {})
    return clean


def _tool_parts(tool: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    return tool["name"], tool.get("description", ""), _clean_mcp_schema(tool.get("inputSchema"))


def _mcp_tools_to_openai(mcp_tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """MCP tool definitions in the form of OpenAI's function calling."""
    return [
        {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
        for name, description, schema in map(_tool_parts, mcp_tools)
    ]


def _mcp_tools_to_anthropic(mcp_tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """MCP tool definitions in the form of Anthropic's messages."""
    return [
        {"name": name, "description": description, "input_schema": schema}
        for name, description, schema in map(_tool_parts, mcp_tools)
    ]


def _openai_msgs_to_anthropic(messages: Iterable[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """A conversation in the form of Anthropic's messages.

    Returns:
        The text of all system messages, and the other messages. A tool's answer becomes a block of a user message;
        answers that follow one another share one message.
    """
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role == "system":
            system.append(message["content"])
        elif role == "user":
            turns.append({"role": "user", "content": message["content"]})
        elif role == "assistant":
            turns.append({"role": "assistant", "content": _assistant_content(message)})
        elif role == "tool":
            answer = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            if turns and turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                turns[-1]["content"].append(answer)
            else:
                turns.append({"role": "user", "content": [answer]})
    return "\n\n".join(system), turns


def _assistant_content(message: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    text = message.get("content") or ""
    calls = message.get("tool_calls")
    if not calls:
        return str(text)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for call in calls:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments or "{}")
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
    return blocks
