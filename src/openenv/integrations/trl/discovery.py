"""Tools that a server tells: from its MCP tools, or from the schema of its action, to functions with types and text."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from openenv.core.env_client import EnvClient
from openenv.integrations.trl.content import rendered

__all__ = ["tool_class"]

Spec = dict[str, Any]
"""``name``, ``description`` and ``schema`` (of the arguments) of one tool; plain data, so it pickles."""

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": type(None),
}
_TIMEOUT_S = 30.0


def tool_class(
    base: type[Any], client: EnvClient[Any, Any, Any], source: str, specs: Sequence[Spec] | None
) -> tuple[type[Any], list[Spec]]:
    """A class with the tools of a server.

    Args:
        base: `ToolEnv`.
        client: of that server.
        source: ``mcp`` or ``schema``.
        specs: what the server said before; None to ask it.

    Raises:
        ConnectError: it cannot be reached.
        ValueError: it tells no tool, or one whose name or arguments are no identifiers.
    """
    found = list(specs) if specs is not None else (_from_mcp(client) if source == "mcp" else _from_schema(client))
    if not found:
        raise ValueError(f"The server at {client._shown_url} lists no tools.")
    members = {spec["name"]: _function(spec, _call_tool if source == "mcp" else _act) for spec in found}
    return type("Environment", (base,), {"__module__": base.__module__, **members}), found


def _from_mcp(client: Any) -> list[Spec]:
    listed = client.sync().list_tools()
    return [{"name": tool.name, "description": tool.description, "schema": tool.input_schema} for tool in listed]


def _from_schema(client: EnvClient[Any, Any, Any]) -> list[Spec]:
    answer = client._blocking(lambda: client._dialer.ask("/schema", _TIMEOUT_S))
    action = answer.get("action") or {}
    fields = {name: of for name, of in (action.get("properties") or {}).items() if name != "metadata"}
    schema = {**action, "properties": fields}
    return [{"name": "act", "description": action.get("description") or "Act in the environment.", "schema": schema}]


def _act(self: Any, name: str, arguments: dict[str, Any]) -> Any:
    return rendered(self._step(arguments).observation)


def _call_tool(self: Any, name: str, arguments: dict[str, Any]) -> Any:
    return self._client.call_tool(name, **arguments)


def _function(spec: Spec, carry_out: Callable[..., Any]) -> Callable[..., Any]:
    """A method with the signature, the hints and the docstring of a tool."""
    name, schema = spec["name"], spec["schema"] or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    for word in (name, *properties):
        if not word.isidentifier() or keyword.iskeyword(word) or word.startswith("_"):
            raise ValueError(f"The tool {name!r} cannot be offered: {word!r} is no name for a Python function.")
    kinds = {word: hint(of, schema.get("$defs") or {}) for word, of in properties.items()}
    parameters = [
        inspect.Parameter(
            word,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if word in required else properties[word].get("default"),
            annotation=kinds[word],
        )
        for word in properties
    ]
    optional = {word for word in properties if word not in required and "default" not in properties[word]}

    def tool(self: Any, /, **arguments: Any) -> Any:
        given = {word: value for word, value in arguments.items() if not (word in optional and value is None)}
        return carry_out(self, name, given)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    tool.__name__ = tool.__qualname__ = name
    tool.__signature__ = inspect.Signature([own, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    tool.__annotations__ = {
        word: kinds[word] | None if word in optional and kinds[word] is not Any else kinds[word] for word in kinds
    } | {"return": str}
    tool.__doc__ = _docstring(spec["description"] or name, properties)
    return tool


def _docstring(description: str, properties: Mapping[str, Any]) -> str:
    words = [_one_line(description) or "A tool of the environment."]
    if properties:
        words += ["", "Args:"]
        words += [
            f"    {word}: {_one_line(of.get('description') or of.get('title') or word)}"
            for word, of in properties.items()
        ]
    return "\n".join(words)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def hint(schema: Mapping[str, Any], definitions: Mapping[str, Any] = {}) -> Any:  # never written
    """The type hint of a JSON schema; ``Any`` for what has none."""
    if "$ref" in schema:
        target = definitions.get(str(schema["$ref"]).rpartition("/")[2])
        return hint(target, definitions) if target is not None else Any
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "const" in schema:
        return Literal[schema["const"]]
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        return _union([hint(one, definitions) for one in kinds])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([hint({**schema, "type": one}, definitions) for one in kind])
    if kind == "array":
        items = schema.get("items")
        return list[hint(items, definitions)] if items else list  # type: ignore[misc]
    return _TYPES.get(str(kind), Any)


def _union(kinds: Sequence[Any]) -> Any:
    if Any in kinds:
        return Any
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return union
