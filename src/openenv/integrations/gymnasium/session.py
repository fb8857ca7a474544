"""One session as a sequence of Gymnasium time steps: what a loss becomes is decided here.

All coroutines run on the I/O thread, where the client's socket is.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gymnasium.error import ResetNeeded

from openenv.core.arrays import ImageSpec
from openenv.core.client_types import ClientSession
from openenv.core.env_client import EnvClient
from openenv.core.exceptions import (
    CallTimeoutError,
    LateResultError,
    OpenEnvError,
    OutcomeUnknownError,
    SessionLostError,
)
from openenv.core.generic_client import GenericEnvClient
from openenv.core.sync_client import SyncEnvClient
from openenv.integrations.gymnasium import translation
from openenv.integrations.gymnasium.translation import Told, Translation

__all__ = ["Client", "EnvSession", "OnLoss", "Setting", "Source", "TimeStep", "as_client", "ask", "open_clients"]

logger = logging.getLogger("openenv.client")

Client = EnvClient[Any, Any, Any]
Source = str | Client | SyncEnvClient[Any, Any, Any] | Callable[[], Any]
"""Where sessions come from: a base URL, a client of any class, or a callable that makes one."""
OnLoss = Literal["truncate", "raise"]

_REASONS: dict[type[OpenEnvError], str] = {
    CallTimeoutError: "timeout",
    OutcomeUnknownError: "outcome_unknown",
    LateResultError: "late_result",
}
_BREAKS: tuple[type[OpenEnvError], ...] = (SessionLostError, *_REASONS)
"""After any of these nobody can say that the next observation follows on the last one."""


def as_client(source: Source) -> Client:
    """The client that a source stands for; a URL gets a `GenericEnvClient`.

    Raises:
        TypeError: it is none of the kinds of source.
    """
    if isinstance(source, str):
        return GenericEnvClient(base_url=source)
    if isinstance(source, SyncEnvClient):
        return source.async_client
    if isinstance(source, EnvClient):
        return source
    if callable(source):
        return as_client(source())
    raise TypeError(f"a base URL, a client or a callable that makes one is wanted, not {type(source).__name__}")


def open_clients(source: Source | Sequence[Source], count: int) -> list[Client]:
    """As many clients as there are to be sessions: those given, or made by the callable, or sessions of the one client.

    Raises:
        ValueError: a list of another length, or with a client twice.
        ConnectError: a further session of the one client could not be opened.
    """
    if isinstance(source, list | tuple):
        clients = [as_client(one) for one in source]
        if len(clients) != count or len(set(map(id, clients))) != count:
            raise ValueError(f"{count} different clients are wanted, not {len(clients)} of which some may be the same")
        return clients
    if isinstance(source, EnvClient | SyncEnvClient):
        first = as_client(source)
        return [first, *(first.sync().new_session().async_client for _ in range(count - 1))]
    return [as_client(source) for _ in range(count)]  # type: ignore[arg-type]


def ask(client: Client, choice: Mapping[str, Any]) -> Told:
    """Read what a server tells of its environment.

    Args:
        client: of a session in which no episode goes on.
        choice: arguments of ``reset()`` that choose another environment than the server's own; may be empty.

    Raises:
        ValueError: it tells no spaces.
        OpenEnvError: it could not be asked, or has no such environment.
    """
    if choice:
        client.sync().reset(**choice)
    client._machine.expect_no_reset()  # the server's own has its spaces before any episode
    return Told.read(client.sync().state())


@dataclass(frozen=True)
class TimeStep:
    """What ``step()`` returns."""

    observation: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it was the last of its episode."""
        return self.terminated or self.truncated


@dataclass(frozen=True)
class Setting:
    """What the sessions of an adapter have in common.

    Attributes:
        told: what the environment said of itself, or its user.
        translation: to the client's values and back.
        on_session_lost: ``truncate`` ends the episode, ``raise`` lets the error through.
        reset_options: options of every reset; those of a call come on top.
    """

    told: Told
    translation: Translation
    on_session_lost: OnLoss = "truncate"
    reset_options: Mapping[str, Any] = field(default_factory=dict)


class EnvSession:
    """The episodes of one client.

    Args:
        client: its session is used by nobody else.
        setting: what it has in common with its siblings.
        number: which of the siblings it is, for the log.
    """

    def __init__(self, client: Client, setting: Setting, number: int = 0) -> None:
        self.client = client
        self._setting = setting
        self._number = number
        self._last: Any = None
        self._playing = False

    @property
    def session(self) -> ClientSession:
        """Where its client stands."""
        return self.client.session

    async def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode.

        Raises:
            OpenEnvError: as the client's ``reset()``.
        """
        chosen = self._setting.translation
        arguments = chosen.to_arguments({**self._setting.reset_options, **(options or {})})
        if seed is not None:
            arguments["seed"] = int(seed)
        self._playing = False
        result = await self.client.reset(**arguments)
        self._last = chosen.to_observation(result)
        self._playing = True
        return self._last, chosen.to_info(result)

    async def step(self, action: Any) -> TimeStep:
        """Apply an action. A session that is lost ends the episode, if that is the setting.

        Raises:
            ResetNeeded: no episode has begun, or its session was lost.
            ValueError: the action does not fit its space.
            OpenEnvError: as the client's ``step()``.
        """
        if not self._playing:
            raise ResetNeeded("There is no episode to step in: call reset() first.")
        chosen = self._setting.translation
        try:
            result = await self.client.step(chosen.to_action(action))
        except _BREAKS as error:
            self._playing = False
            if self._setting.on_session_lost == "raise":
                raise
            return self._lost(error)
        self._last = chosen.to_observation(result)
        reward = 0.0 if result.reward is None else result.reward
        return TimeStep(self._last, reward, *chosen.to_ends(result), chosen.to_info(result))

    def _lost(self, error: OpenEnvError) -> TimeStep:
        reason = error.reason if isinstance(error, SessionLostError) else _REASONS[type(error)]
        logger.warning("sub-environment %d: its episode is truncated [%s]: %s", self._number, reason, error)
        info = {"session_lost": True, "session_lost_reason": reason, "session_lost_outcome": str(error.outcome)}
        return TimeStep(copy.deepcopy(self._last), truncated=True, info=info)

    async def render(self) -> Any:
        """Draw the environment as it stands.

        Returns:
            An image ``[height, width, 3]``, or text.

        Raises:
            ResetNeeded: no episode has begun, or its session was lost.
            OpenEnvError: as the client's ``step()``; a lost session is not hidden here.
        """
        if not self._playing:
            raise ResetNeeded("There is nothing to draw: call reset() first.")
        seen = (await self.client.step({"render": True})).observation
        frame = translation.field(seen, "frame", None)
        return translation.field(seen, "text", None) if frame is None else ImageSpec("png").validate(frame)

    async def close(self) -> None:
        """End the session."""
        self._playing = False
        await self.client.close()
