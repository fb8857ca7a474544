"""A rollout's session: the environment as a set of tools. And the adapter that makes one from a step client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from openenv.core.client_types import StepResult
from openenv.core.env_server.mcp_types import RESERVED_TOOL_NAMES, Tool
from openenv.core.harness.results import Message, ToolResult, TraceEntry, VerifyResult

__all__ = [
    "LoopOwningSession",
    "ResourceSession",
    "ResourceSessionFactory",
    "StepEnvSessionAdapter",
    "TrainableSession",
]


class ResourceSession(ABC):
    """One rollout's environment, as a harness sees it: messages to begin with, tools, a verdict at the end."""

    @abstractmethod
    def initial_messages(self) -> list[Message]:
        """The conversation to begin with."""

    @abstractmethod
    def list_tools(self) -> list[Tool]:
        """The tools the model may call."""

    @abstractmethod
    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call one tool.

        Raises:
            KeyError: there is no such tool.
            SessionLostError: the environment is gone; the rollout is void.
        """

    @abstractmethod
    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """Say how the rollout went, once the harness has stopped.

        Args:
            transcript: the whole conversation.
            final_state: what the harness has to add.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the session holds."""


SessionT = TypeVar("SessionT", bound=ResourceSession)


class ResourceSessionFactory(ABC, Generic[SessionT]):
    """Makes sessions, one for each rollout; nothing is shared between them."""

    @abstractmethod
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> SessionT:
        """Make a session for one task.

        Args:
            task: what the rollout is about, as a prompt or a row of a data set.
            seed: makes the episode repeatable.
            episode_id: name for the episode.
        """


@runtime_checkable
class LoopOwningSession(Protocol):
    """What a session adds whose agent runs its own loop: it is waited for, and its model calls are read afterwards."""

    def wait_for_completion(self, timeout_s: float | None = ...) -> int:
        """Wait until the agent ends, at most so many seconds, and return its exit code."""
        ...

    def fetch_proxy_trace(self) -> list[TraceEntry]:
        """The agent's model calls, in order."""
        ...


@runtime_checkable
class TrainableSession(Protocol):
    """A session whose agent runs its own loop, and whose model calls can be trained on."""

    def wait_for_completion(self, timeout_s: float | None = ...) -> int:
        """Wait until the agent ends, at most so many seconds, and return its exit code."""
        ...

    def fetch_training_trace(self) -> Any:
        """The agent's model calls with tokens and masks, in a form that its trainer knows."""
        ...


class StepEnvSessionAdapter(ResourceSession):
    """A session from a client with ``reset``, ``step`` and ``state``: a tool call is one step.

    The episode begins in the constructor; a client that cannot be reset is closed. A client that has ``sync()`` is
    used through it.

    Args:
        client: the client, as an `EnvClient` or `SyncEnvClient`; closed with the session.
        task: handed to ``initial_messages_builder``.
        seed: seed of the reset.
        episode_id: name for the episode.
        tool_specs: the tools.
        action_builder: makes the action from a tool's name and arguments.
        initial_messages_builder: makes the first messages from the reset's result and the task.
        tool_result_builder: makes a tool's result from its name, its arguments, the step's result and the state.
        verify_builder: makes the verdict from transcript, final state, the last step's result and the state.
        reset_kwargs: further arguments of the reset; ``seed`` and ``episode_id`` in here win.

    Raises:
        ValueError: a tool has a reserved name.
    """

    def __init__(
        self,
        client: Any,
        *,
        task: Any = None,
        seed: int | None = None,
        episode_id: str | None = None,
        tool_specs: Sequence[Tool],
        action_builder: Callable[[str, dict[str, Any]], Any],
        initial_messages_builder: Callable[[StepResult[Any], Any], Sequence[Message]],
        tool_result_builder: Callable[[str, dict[str, Any], StepResult[Any], Any], ToolResult] | None = None,
        verify_builder: Callable[[list[Message], Any | None, StepResult[Any] | None, Any], VerifyResult] | None = None,
        reset_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tools = {tool.name: tool for tool in tool_specs}
        reserved = sorted(RESERVED_TOOL_NAMES & self._tools.keys())
        if reserved:
            raise ValueError(f"tool names reserved for the orchestrator: {', '.join(reserved)}; rename the tools")
        self._client = client.sync() if callable(getattr(client, "sync", None)) else client
        self._task = task
        self._action_builder = action_builder
        self._initial_messages_builder = initial_messages_builder
        self._tool_result_builder = tool_result_builder or _tool_result
        self._verify_builder = verify_builder or _verdict
        self._closed = False
        self._last_result: StepResult[Any] | None = None
        chosen = {"seed": seed, "episode_id": episode_id}
        arguments = {name: value for name, value in chosen.items() if value is not None} | dict(reset_kwargs or {})
        try:
            self._initial_result: StepResult[Any] = self._client.reset(**arguments)
            self._last_state = self._read_state()
        except BaseException:  # raised on; the session is closed
            self.close()
            raise

    def initial_messages(self) -> list[Message]:
        """See `ResourceSession.initial_messages`."""
        return list(self._initial_messages_builder(self._initial_result, self._task))

    def list_tools(self) -> list[Tool]:
        """See `ResourceSession.list_tools`."""
        return list(self._tools.values())

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """See `ResourceSession.call_tool`: one step, then one look at the state."""
        if name in RESERVED_TOOL_NAMES:
            raise KeyError(f"Reserved orchestration tool: {name}")
        if name not in self._tools:
            raise KeyError(f"Unknown tool: {name}")
        self._last_result = self._client.step(self._action_builder(name, dict(arguments)))
        self._last_state = self._read_state()
        return self._tool_result_builder(name, dict(arguments), self._last_result, self._last_state)

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """See `ResourceSession.verify`. By default the last step's reward, and the state."""
        return self._verify_builder(list(transcript), final_state, self._last_result, self._last_state)

    def close(self) -> None:
        """Close the client, once."""
        if self._closed:
            return
        self._closed = True
        close = getattr(self._client, "close", None)
        if callable(close):
            close()

    def _read_state(self) -> Any:
        state = getattr(self._client, "state", None)
        return state() if callable(state) else None


def _tool_result(name: str, arguments: dict[str, Any], result: StepResult[Any], state: Any) -> ToolResult:
    shown = {
        "tool_name": name,
        "arguments": arguments,
        "observation": result.observation,
        "reward": result.reward,
        "done": result.done,
    }
    return ToolResult(
        data=shown, done=bool(result.done), metadata={"reward": result.reward, "state": _plain_state(state)}
    )


def _verdict(transcript: list[Message], _: Any | None, last: StepResult[Any] | None, state: Any) -> VerifyResult:
    plain = _plain_state(state)
    metrics = {"step_count": plain["step_count"]} if isinstance(plain, Mapping) and "step_count" in plain else {}
    return VerifyResult(
        env_reward=None if last is None else last.reward,
        done=last is not None and bool(last.done),
        metrics=metrics,
        artifacts={"final_state": plain, "transcript_length": len(transcript)},
    )


def _plain_state(state: Any) -> Any:
    return state.model_dump() if isinstance(state, BaseModel) else state
