"""`ToolEnv` and `tool_env`: an environment for a trainer in a few lines, or in none where the server says its tools."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Literal, Unpack

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.generic_client import GenericEnvClient
from openenv.core.sync_client import SyncEnvClient
from openenv.integrations.trl.content import rendered
from openenv.integrations.trl.discovery import tool_class
from openenv.integrations.trl.episode import LossOptions, Options
from openenv.integrations.trl.factory import EnvFactory, OwnRewardRule, row_seed

__all__ = ["ToolEnv", "tool_env"]

logger = logging.getLogger("openenv.client")


class ToolEnv:
    """Base of an environment whose public methods are the tools of the model.

    A tool takes typed arguments, has a Google-style docstring, and acts with ``self._step(action)``::

        class Sudoku(ToolEnv):
            def place(self, row: int, col: int, value: int) -> str:
                \"\"\"Write a value into an empty cell.

                Args:
                    row: row of the cell, from 1.
                    col: column of the cell, from 1.
                    value: the value.
                \"\"\"
                return self._step(SudokuAction(row=row, col=col, value=value)).observation.text

    Everything that is no tool begins with an underscore. Do not use it without `tool_env`.

    Args:
        client: the client; nothing is connected before the first reset.

    Attributes:
        reset_columns: columns of the dataset that go to the server's reset; None for all but ``prompt``. ``seed`` goes
            with every reset.
    """

    reset_columns: ClassVar[Collection[str] | None] = None

    def __init__(self, client: SyncEnvClient[Any, Any, Any]) -> None:
        self._client = client
        self._result: StepResult[Any] | None = None
        self._warned = False

    def reset(self, **row: Any) -> Any:
        """Start an episode from a dataset row; what it returns is added to the prompt."""
        self._result = self._client.reset(**self._arguments(row))
        return self._opening(self._result)

    def _opening(self, result: StepResult[Any]) -> Any:
        """What the model sees first. Override it to show less, or nothing (None)."""
        return rendered(result.observation)

    def _step(self, action: Any) -> StepResult[Any]:
        """Apply one action.

        Raises:
            InvalidActionError: the environment does not allow it; the model is told why.
        """
        self._result = self._client.step(action)
        return self._result

    @property
    def _done(self) -> bool:
        return self._result is not None and self._result.done

    def _arguments(self, row: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self.reset_columns
        columns = {name for name in row if name not in ("prompt", "environment")} if wanted is None else set(wanted)
        found = {name: row[name] for name in row if name in columns and row[name] is not None}
        unfit = sorted(name for name, value in found.items() if not _has_json_form(value))
        if unfit and not self._warned:
            self._warned = True
            logger.warning("%s: the columns %s do not go to reset()", type(self).__name__, ", ".join(unfit))
        return {**{name: found[name] for name in found if name not in unfit}, "seed": row_seed(row)}


class _Maker:
    """Makes environments of one class over clients of one or several servers. Pickles if its classes do."""

    def __init__(
        self,
        cls: type[ToolEnv] | None,
        client: Callable[..., EnvClient[Any, Any, Any]],
        urls: Sequence[str],
        discover: str,
        client_options: Mapping[str, Any],
    ) -> None:
        self.cls = cls
        self.client = client
        self.urls = tuple(urls)
        self.discover = discover
        self.client_options = dict(client_options)
        self.specs: list[dict[str, Any]] | None = None
        self.__name__ = cls.__name__ if cls is not None else "Environment"
        self._turns: Iterator[str] = itertools.cycle(self.urls)

    def __call__(self) -> ToolEnv:
        client = self.client(base_url=next(self._turns), **self.client_options)
        if self.cls is None:
            self.cls, self.specs = tool_class(ToolEnv, client, self.discover, self.specs)
        return self.cls(client.sync())

    def __getstate__(self) -> dict[str, Any]:
        built = {"cls": None} if self.discover else {}
        return {name: value for name, value in {**vars(self), **built}.items() if name != "_turns"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turns = itertools.cycle(self.urls)


def tool_env(
    cls: type[ToolEnv] | None = None,
    *,
    url: str | Sequence[str],
    client: Callable[..., EnvClient[Any, Any, Any]] | None = None,
    tools: Literal["mcp", "schema"] | None = None,
    reward: OwnRewardRule = "sum",
    client_options: Mapping[str, Any] | None = None,
    **options: Unpack[LossOptions],
) -> EnvFactory:
    """An ``environment_factory`` from a `ToolEnv`, or from what a server says of itself.

    Args:
        cls: the environment, for ``tool_env(Sudoku, client=SudokuEnv, url=...)``.
        url: the server, or several of them, which are taken in turn.
        client: the class of the clients; `GenericEnvClient` by default.
        tools: without ``cls``: ``mcp``, the tools that an MCP environment lists; ``schema``, one tool ``act`` with the
            fields of the server's action. The server is asked when the first environment is made.
        reward: the environment's own reward: ``sum`` or ``last`` of the rewards of the steps, a function of the
            environment, or None for none.
        client_options: further arguments of the client, as ``{"headers": {...}}``.
        **options: as for `protect`: ``on_session_lost``, ``reset_deadline_s``, ``late_budget_s`` ...

    Raises:
        TypeError: neither ``cls`` nor ``tools``, or both; ``cls`` is no `ToolEnv`.
        ValueError: no URL, or an unknown policy.
    """
    urls = [url] if isinstance(url, str) else list(url)
    if not urls:
        raise ValueError("tool_env() needs a url.")
    if (cls is None) == (tools is None):
        raise TypeError('tool_env() takes a class of tools, or tools="mcp" or "schema", and not both.')
    if cls is not None and not (isinstance(cls, type) and issubclass(cls, ToolEnv)):
        raise TypeError(f"tool_env() takes a subclass of ToolEnv, not {cls!r}; for any other class there is protect().")
    maker = _Maker(cls, client or _client_for(tools), urls, tools or "", client_options or {})
    return EnvFactory(maker, Options(**options), reward)


def _client_for(tools: str | None) -> Callable[..., EnvClient[Any, Any, Any]]:
    if tools != "mcp":
        return GenericEnvClient
    made: Callable[..., EnvClient[Any, Any, Any]] = import_module("openenv.core.mcp_client").MCPToolClient
    return made


def _has_json_form(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
