"""What ``openenv play`` plays: an environment with actions, or one with tools. Each knows its words and its client.

A game reads one line and returns what is to be shown. Errors of the link and of the environment pass through.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from openenv.cli._ask import BadValue, Field, constants_of, fields_of, from_line, pairs_of
from openenv.cli._show import shown, shown_result
from openenv.core.client_types import StepResult

__all__ = ["ActionGame", "Game", "ToolGame"]

Ask = Callable[[str], str]
"""Asks a person for one line; raises `EOFError` at the end of the input."""


class Game(ABC):
    """One environment, and how it is played.

    Args:
        client: the blocking client.
        ask: asks for one line.
        tell: shows a message.
    """

    def __init__(self, client: Any, ask: Ask, tell: Callable[[str], None]) -> None:
        self.client = client
        self._ask = ask
        self._tell = tell

    def play(self, line: str) -> str:
        """Do what a line says.

        Raises:
            BadValue: it is not understood.
            OpenEnvError: it went wrong.
        """
        word, _, rest = line.strip().partition(" ")
        if word == "reset":
            return self.reset(rest)
        if word == "state" and not rest.strip():
            state = self.client.state()
            return shown(state if isinstance(state, Mapping) else state.model_dump())
        if word in ("help", "?") and not rest.strip():
            return self.help()
        return self.act(line)

    def reset(self, line: str = "") -> str:
        """Begin an episode, with parameters as ``seed=3``."""
        pairs = pairs_of(line) if line.strip() else {}
        if pairs is None:
            raise BadValue("parameters of a reset are name=value, as seed=3")
        values = {name: Field(name, {}, False).read(value) for name, value in pairs.items()}
        return _result(self.client.reset(**values))

    @abstractmethod
    def act(self, line: str) -> str:
        """Take a step, or call a tool."""

    @abstractmethod
    def help(self) -> str:
        """What may be typed."""

    def _asked(self, fields: list[Field]) -> dict[str, Any]:
        """Ask for each field, again until it fits."""
        values = {}
        for field in fields:
            while True:
                text = self._ask(f"{field.described()}: ").strip()
                if not text and not field.required:
                    break
                try:
                    values[field.name] = field.read(text)
                    break
                except BadValue as reason:
                    self._tell(str(reason))
        return values


class ActionGame(Game):
    """An environment whose actions have a schema; without one, actions are JSON objects."""

    def __init__(self, client: Any, ask: Ask, tell: Callable[[str], None], schema: Mapping[str, Any] | None) -> None:
        super().__init__(client, ask, tell)
        self._fields = fields_of(schema or {})
        self._constants = constants_of(schema or {})
        self._knows_schema = schema is not None

    def act(self, line: str) -> str:
        text = line.strip()
        if text == "step":
            text = ""
        is_whole = bool(text) or not self._knows_schema
        values = from_line(self._fields, text) if is_whole else self._asked(self._fields)
        return _result(self.client.step({**self._constants, **values}))

    def help(self) -> str:
        lines = ["an empty line asks for each field of an action:"] if self._fields else ["an action is a JSON object"]
        lines += [f"  {field.described()}{_about(field.schema)}" for field in self._fields]
        if self._fields:
            main = [field.name for field in self._fields if field.required] or [self._fields[0].name]
            short = "its value alone" if len(main) == 1 else f"the values alone ({' '.join(main)})"
            lines.append(f"or type {short}, name=value pairs, or a JSON object")
        return "\n".join([*lines, "reset [seed=3 ...], state, help, quit"])


class ToolGame(Game):
    """An environment whose actions are tools."""

    def tools(self) -> dict[str, Any]:
        """The tools by name."""
        return {tool.name: tool for tool in self.client.list_tools()}

    def act(self, line: str) -> str:
        text = line.strip()
        if text == "tools":
            return self.help()
        word, _, rest = text.removeprefix("call ").strip().partition(" ")
        tool = self.tools().get(word)
        if tool is None:
            raise BadValue(f"there is no tool {word!r}; there are {', '.join(self.tools()) or 'none'}")
        fields = fields_of(tool.input_schema)
        if rest.strip():
            values = from_line(fields, rest)
        else:
            values = self._asked(fields) if any(field.required for field in fields) else {}
        result = self.client.call_tool(word, **values)
        return shown(_structured(result))

    def help(self) -> str:
        lines = []
        for name, tool in self.tools().items():
            arguments = ", ".join(field.described() for field in fields_of(tool.input_schema))
            about = (tool.description or "").strip().partition("\n")[0]
            lines.append(f"{name}: {about}" + (f"\n  {arguments}" if arguments else ""))
        ending = "NAME [arguments] calls a tool (call NAME, if it has the name of a command)"
        return "\n".join([*lines, f"{ending}; tools, reset [seed=3 ...], state, help, quit"])


def _result(result: StepResult[Any]) -> str:
    ending = ("truncated" if result.truncated else "terminated") if result.done else ""
    seen = result.observation
    return shown_result(seen if isinstance(seen, Mapping) else seen.model_dump(), result.reward, ending)


def _structured(result: Any) -> Any:
    """A tool's answer; a text that is JSON is shown as what it says."""
    if isinstance(result, str) and result[:1] in "[{":
        try:
            return json.loads(result)
        except ValueError:
            return result
    return result


def _about(schema: Mapping[str, Any]) -> str:
    about = str(schema.get("description") or "").partition("\n")[0]
    return f"  {about}" if about else ""
