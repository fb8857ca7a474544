"""Tools of an environment class: finding them, and refusing those that a chat template could not show to a model.

A tool is a public function of the class, or one bound to the instance. Only what is found here is offered, by every
version of TRL: it is put on a fresh class, without the names that the environment inherits for its own use.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["NOT_TOOLS", "Tool", "find_tools"]

NOT_TOOLS = frozenset({"reset", "get_reward"})

_ARGS = re.compile(
    r"^[ \t]*Args:[ \t]*\n(.*?)(?=^[ \t]*(?:Returns|Raises|Yields|Example|Examples|Note|Notes):|\Z)", re.M | re.S
)
_ARG = re.compile(r"^[ \t]*\*{0,2}(\w+)(?:[ \t]*\([^()\n]*\))?:[ \t]*\S", re.M)


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: what the model calls.
        signature: of the tool, with ``self``.
        hints: its type hints, evaluated.
        doc: its docstring.
        is_async: whether it is a coroutine function.
    """

    name: str
    signature: inspect.Signature
    hints: dict[str, Any]
    doc: str
    is_async: bool

    def dress(self, function: Callable[..., Any], owner: str, module: str) -> Callable[..., Any]:
        """Give a function the looks of this tool."""
        function.__name__ = self.name
        function.__qualname__ = f"{owner}.{self.name}"
        function.__module__ = module
        function.__doc__ = self.doc
        function.__annotations__ = dict(self.hints)
        function.__signature__ = self.signature  # type: ignore[attr-defined]
        return function


def find_tools(instance: object) -> dict[str, Tool]:
    """The tools of an environment, by name.

    Raises:
        TypeError: one of them lacks what its schema is made of: a docstring, type hints, a line for each argument.
    """
    found: dict[str, Any] = {}
    cls = type(instance)
    for name, value in inspect.getmembers(cls, inspect.isfunction):
        found[name] = inspect.getattr_static(cls, name, value)
    for name, value in vars(instance).items():
        if inspect.ismethod(value) and value.__self__ is instance:
            found[name] = value
    wanted = {name: value for name, value in found.items() if name not in NOT_TOOLS and not name.startswith("_")}
    return {name: _tool(cls.__name__, name, getattr(instance, name), value) for name, value in sorted(wanted.items())}


def _tool(owner: str, name: str, bound: Callable[..., Any], static: Any) -> Tool:
    shown = f"{owner}.{name}"
    function = static.__func__ if isinstance(static, staticmethod) else inspect.unwrap(bound)
    doc = inspect.getdoc(bound) or ""
    if not doc:
        raise TypeError(f"The tool {shown}() has no docstring: say what it does, with an 'Args:' section. {_HIDE}")
    parameters = list(inspect.signature(bound).parameters.values())
    try:
        hints = typing.get_type_hints(getattr(function, "__func__", function))
    except NameError as error:
        raise TypeError(f"The type hints of the tool {shown}() cannot be read: {error}.") from error
    hints = {name: kind for name, kind in hints.items() if name == "return" or name in {one.name for one in parameters}}
    told = set(_ARG.findall(section[1])) if (section := _ARGS.search(doc)) else set()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"The tool {shown}() takes *args or **kwargs, for which there is no schema. {_HIDE}")
        if parameter.name not in hints:
            raise TypeError(f"The argument {parameter.name!r} of the tool {shown}() has no type hint. {_HIDE}")
        if parameter.name not in told:
            raise TypeError(
                f"The docstring of the tool {shown}() has no line '{parameter.name}: ...' under 'Args:'. {_HIDE}"
            )
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [one.replace(annotation=hints[one.name]) for one in parameters]
    signature = inspect.Signature([own, *parameters], return_annotation=hints.get("return", inspect.Signature.empty))
    return Tool(name, signature, hints, doc, inspect.iscoroutinefunction(bound))


_HIDE = "Every public method is a tool for the model; one that is none begins with an underscore."
