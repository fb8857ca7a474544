"""The class that the trainer sees: ``reset``, the tools, and nothing else that is public.

It holds the user's environment and passes on to it whatever is not its own, so that reward functions read
``environments[i].reward`` as before.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from openenv.core.env_client import EnvClient
from openenv.core.exceptions import (
    ActionValidationError,
    InvalidActionError,
    MessageTooLargeError,
    OpenEnvError,
    ServerError,
)
from openenv.core.sync_client import SyncEnvClient
from openenv.core.watching import watcher_of_new_clients
from openenv.integrations.trl.content import over, shown
from openenv.integrations.trl.episode import LOST_CALL
from openenv.integrations.trl.guard import BACKOFF, Client, Guard
from openenv.integrations.trl.tools import Tool

__all__ = ["BuiltEnv", "build_class", "clients_of", "in_words", "make_watched", "watched"]

logger = logging.getLogger("openenv.client")

_OWN = frozenset({"_inner", "_guard", "_seed_of", "_reward_of"})


class BuiltEnv:
    """Base of the built classes. Private, and empty of public methods but `reset`."""

    _inner: Any
    _guard: Guard
    _seed_of: Callable[[Mapping[str, Any]], int | None]
    _reward_of: Callable[[Any, Guard], float | None] | None

    def __init__(
        self,
        inner: Any,
        guard: Guard,
        seed_of: Callable[[Mapping[str, Any]], int | None],
        reward_of: Callable[[Any, Guard], float | None] | None,
    ) -> None:
        for name, value in (("_inner", inner), ("_guard", guard), ("_seed_of", seed_of), ("_reward_of", reward_of)):
            object.__setattr__(self, name, value)

    def reset(self, **row: Any) -> Any:
        """Start the next episode; waits for a server that is away, until the deadline.

        Raises:
            ConnectError: no episode could be started within the deadline.
        """
        guard, began = self._guard, time.monotonic()
        arguments = _accepted(self._inner.reset, row)
        guard.begin(self._seed_of(row))
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    with watched(self._inner, guard):
                        seen = shown(self._inner.reset(**arguments))
                    guard.begun()
                    return seen
                except LOST_CALL as error:
                    delay = BACKOFF.delay(attempt)
                    if guard.is_final(error) or guard.remaining_s() <= delay:
                        raise (guard.episode.lost or error) from error.__cause__
                    logger.warning("%s: a reset fails, and is tried again: %s", guard.name, error)
                    time.sleep(delay)
                guard.again()
        finally:
            guard.episode.env_s += time.monotonic() - began

    def _is_masked(self) -> bool:
        """Whether the episode has no reward. With ``abort`` that ends the training here."""
        guard = self._guard
        if guard.episode.lost is None:
            return False
        if guard.options.on_session_lost == "abort":
            raise guard.as_ending()
        return True

    def _own_reward(self) -> Any:
        if self._is_masked():
            return None
        own = self._reward_of
        return own(self._inner, self._guard) if own is not None else self._inner.get_reward()

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # an instance under construction, or a copy
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of openenv.trl, episode {self._guard.episode.number}, {self._inner!r}>"


def build_class(inner: object, tools: Mapping[str, Tool], with_reward: bool) -> type[BuiltEnv]:
    """A fresh class with these tools.

    Args:
        inner: an environment; the class is named after its own.
        tools: what the model may call.
        with_reward: whether it has ``get_reward``.
    """
    cls = type(inner)
    members: dict[str, Any] = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    for tool in tools.values():
        call = _async_call(tool.name) if tool.is_async else _call(tool.name)
        members[tool.name] = tool.dress(call, cls.__name__, cls.__module__)
    if with_reward:
        members["get_reward"] = _get_async_reward if _is_async_reward(cls) else _get_reward
    return type(cls.__name__, (BuiltEnv,), members)


def _is_async_reward(cls: type) -> bool:
    return inspect.iscoroutinefunction(getattr(cls, "get_reward", None))


def _get_reward(self: BuiltEnv) -> float | None:
    own: float | None = self._own_reward()
    return own


async def _get_async_reward(self: BuiltEnv) -> float | None:
    own = self._own_reward()
    reward: float | None = await own if inspect.isawaitable(own) else own
    return reward


def _call(name: str) -> Callable[..., Any]:
    def call(self: BuiltEnv, /, *args: Any, **kwargs: Any) -> Any:
        with _ToolCall(self) as running:
            running.result = getattr(self._inner, name)(*args, **kwargs)
        return running.result

    return call


def _async_call(name: str) -> Callable[..., Any]:
    async def call(self: BuiltEnv, /, *args: Any, **kwargs: Any) -> Any:
        with _ToolCall(self) as running:
            running.result = await getattr(self._inner, name)(*args, **kwargs)
        return running.result

    return call


class _ToolCall:
    """What is done around a tool: refuse it after a loss, tell the model no more than it may know."""

    def __init__(self, env: BuiltEnv) -> None:
        self._env = env
        self._guard = env._guard
        self.result: Any = None

    def __enter__(self) -> Self:
        if self._guard.episode.lost is not None:
            raise self._guard.episode.as_told()
        self._guard.episode.refused_over = False
        self._began = time.monotonic()
        self._watching = watched(self._env._inner, self._guard)
        self._watching.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        episode, ended = self._guard.episode, error
        try:
            self._watching.__exit__(kind, error, trace)
        except Exception as late:  # of a bare call under a running loop, made only now; handled below as the tool's own
            ended = error or late
        episode.env_s += time.monotonic() - self._began
        if isinstance(ended, OpenEnvError) and not is_for_the_model(ended) and episode.lost is None:
            self._guard.lose(ended)  # of a call that no watcher saw, or whose result could not be read
        if episode.lost is not None and (ended is None or isinstance(ended, Exception)):
            raise episode.as_told() from None
        if ended is None:
            self.result = episode.final = shown(self.result)
        elif episode.refused_over and isinstance(ended, Exception):
            self.result = over(episode.final)
            return True
        elif isinstance(ended, OpenEnvError):
            raise in_words(ended) from ended
        elif error is None:
            raise ended
        return False


def is_for_the_model(error: OpenEnvError) -> bool:
    """Whether the environment refused or failed a move, or the move was too large; all else is the machinery's."""
    if isinstance(error, MessageTooLargeError):
        return error.direction == "sent" and not error.session_lost
    return isinstance(error, ServerError)


def in_words(error: OpenEnvError) -> ServerError:
    """What the model is told of a move that failed: the environment's words, nothing of codes and sessions."""
    if not isinstance(error, ServerError):
        return InvalidActionError("The arguments of this call are too large.")
    words = error.message or str(error)
    if isinstance(error, ActionValidationError | InvalidActionError):
        return InvalidActionError(words)
    return ServerError(words, code=error.code, outcome=error.outcome, text=words)


@contextlib.contextmanager
def watched(inner: object, guard: Guard) -> Iterator[None]:
    """Watch the clients that an environment has, gets and makes in this block; run its bare calls to their end."""
    for client in clients_of(inner):
        guard.adopt(client)
    token = watcher_of_new_clients.set(guard)
    try:
        yield
        for client in (*clients_of(inner), *guard.clients):
            guard.adopt(client)
            for call in list(client._pending):  # under a running loop a bare call waits until its result is used
                call.result()
    finally:
        watcher_of_new_clients.reset(token)


def make_watched(make: Callable[[], Any], guard: Guard) -> Any:
    """Make an environment, and watch the clients that it makes meanwhile.

    Raises:
        TypeError: it is a client, whose every method would become a tool, or has no plain ``reset``.
    """
    token = watcher_of_new_clients.set(guard)
    try:
        inner = make()
    finally:
        watcher_of_new_clients.reset(token)
    if isinstance(inner, EnvClient | SyncEnvClient):
        raise TypeError(
            "The factory returns a client, whose every method (close, step, connect ...) would be offered to the "
            "model as a tool. Return an object with the tools as methods: see openenv.trl.ToolEnv."
        )
    reset = getattr(inner, "reset", None)
    if not callable(reset):
        raise TypeError(f"{type(inner).__name__} has no reset(), which starts an episode.")
    if inspect.iscoroutinefunction(reset):
        raise TypeError(
            f"{type(inner).__name__}.reset() is a coroutine function, and trainers do not await it. Make it a plain "
            "function, with a client from .sync()."
        )
    for client in clients_of(inner):
        guard.adopt(client)
    return inner


def clients_of(inner: object) -> list[Client]:
    """The clients that an object holds: in its attributes, and in lists, tuples and dicts there."""
    found: list[Client] = []
    for value in list(getattr(inner, "__dict__", {}).values()):
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for one in inside:
            client = one.async_client if isinstance(one, SyncEnvClient) else one
            if isinstance(client, EnvClient) and client not in found:
                found.append(client)
    return found


def _accepted(reset: Callable[..., Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a reset takes."""
    parameters = inspect.signature(reset).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(row)
    return {one.name: row[one.name] for one in parameters if one.name in row and one.kind is not one.POSITIONAL_ONLY}
