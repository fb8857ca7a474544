"""Playing episodes on a server, and telling where two of them differ. No rule is judged here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openenv.core.exceptions import (
    ActionValidationError,
    CallTimeoutError,
    CapacityError,
    EnvExecutionError,
    EnvironmentFactoryError,
    InvalidActionError,
    OpenEnvError,
    SessionLostError,
)
from openenv.core.sync_client import SyncEnvClient

__all__ = ["Actions", "Episode", "Trouble", "differences", "identities", "play"]

Client = SyncEnvClient[Any, Any, Any]

EPISODE_ID = "validate"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A call that did not come to its end.

    Attributes:
        call: ``connect``, ``reset``, ``step`` or ``state``.
        kind: ``raised``, ``late``, ``lost``, ``factory``, ``full`` or ``other``.
        text: what was told.
        number: of the step.
    """

    call: str
    kind: str
    text: str
    number: int = 0


@dataclass
class Episode:
    """What one episode was.

    Attributes:
        reset: the observation of its reset.
        steps: for each step its observation, reward, done; or why it was refused.
        first: the state after the reset.
        last: the state at its end.
        done: whether it came to its end.
        refused: steps that were refused.
        misshaped: of them those whose action did not fit the action class.
        trouble: what broke it off.
    """

    reset: Any = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    first: Any = None
    last: Any = None
    done: bool = False
    refused: int = 0
    misshaped: str = ""
    trouble: Trouble | None = None


class Actions(Sequence[Any]):
    """The actions of every episode: the same each time.

    Args:
        make: makes an action from random numbers.
        given: actions to begin with.
        others: for another player, who does something else.
    """

    def __init__(
        self, make: Callable[[random.Random], Any], given: Sequence[Any] = (), *, others: bool = False
    ) -> None:
        self._make = make
        self._made = list(given)
        self._draw = random.Random(20_072 if others else 20_071)

    def __getitem__(self, index: Any) -> Any:
        while len(self._made) <= index:
            self._made.append(self._make(self._draw))
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)


def play(client: Client, actions: Actions, *, steps: int, seed: int | None, ends: float) -> Episode:
    """Play one episode, to its end or for a number of steps.

    Args:
        client: plays it.
        actions: what it does.
        steps: most steps.
        seed: of the reset.
        ends: when to stop anyhow, on the clock of `time.monotonic`.
    """
    episode = Episode()
    for _ in playing(client, actions, episode, seed=seed, ends=ends):
        if len(episode.steps) >= steps:
            break
    _finish(client, episode)
    return episode


def playing(client: Client, actions: Actions, episode: Episode, *, seed: int | None, ends: float) -> Iterator[None]:
    """Play an episode a call at a time, until it is over or breaks off."""
    result = _tried(episode, "reset", lambda: client.reset(seed=seed, episode_id=EPISODE_ID))
    if result is None:
        return
    episode.reset, episode.done = result.observation, bool(result.done)
    episode.first = _tried(episode, "state", client.state)
    while episode.trouble is None and not episode.done and time.monotonic() < ends:
        yield
        _step(client, episode, actions[len(episode.steps)])


def _step(client: Client, episode: Episode, action: Any) -> None:
    try:
        result = client.step(action)
    except InvalidActionError as error:
        episode.refused += 1
        episode.steps.append({"refused": error.message})
    except ActionValidationError as error:
        episode.refused += 1
        episode.misshaped = episode.misshaped or str(error)
        episode.steps.append({"refused": error.message})
    except OpenEnvError as error:
        episode.trouble = _trouble("step", error, len(episode.steps) + 1)
    else:
        episode.done = bool(result.done)
        told = {"observation": result.observation, "reward": result.reward, "done": result.done}
        episode.steps.append(told if result.metadata is None else {**told, "metadata": result.metadata})


def _finish(client: Client, episode: Episode) -> None:
    if episode.trouble is None:
        episode.last = _tried(episode, "state", client.state)


def _tried(episode: Episode, call: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except OpenEnvError as error:
        episode.trouble = _trouble(call, error)
        return None


def _trouble(call: str, error: OpenEnvError, number: int = 0) -> Trouble:
    match error:
        case EnvExecutionError():
            return Trouble(call, "raised", f"{error.error_type or 'an error'}: {error.message}", number)
        case CallTimeoutError():
            return Trouble(call, "late", str(error), number)
        case EnvironmentFactoryError():
            return Trouble(call, "factory", str(error), number)
        case CapacityError():
            return Trouble(call, "full", str(error), number)
        case SessionLostError():
            return Trouble(call, "lost", str(error), number)
    return Trouble(call, "other", str(error), number)


# ---------------------------------------------------------------- where two episodes differ


def differences(one: Episode, other: Episode) -> set[str]:
    """Names of what differs: fields as ``observation.board``, ``reward``, ``done``, ``state.step_count`` and so on."""
    found = _differing("observation", one.reset, other.reset)
    found |= _differing("state", one.first, other.first)
    for mine, its in zip(one.steps, other.steps, strict=False):
        for name in mine.keys() | its.keys():
            found |= _differing(name, mine.get(name), its.get(name))
    if len(one.steps) == len(other.steps) and one.last is not None and other.last is not None:
        found |= _differing("state", one.last, other.last)
    return found


def identities(episode: Episode) -> set[str]:
    """Names of what may well be a name of the instance: one text without blanks, in everything it shows."""
    shown = [one.get("observation") for one in episode.steps if isinstance(one.get("observation"), Mapping)]
    found = _constant("observation", [episode.reset, *shown])
    return found | _constant("state", [episode.first, episode.last])


def _constant(prefix: str, seen: list[Any]) -> set[str]:
    maps = [one for one in seen if isinstance(one, Mapping)]
    names = set(maps[0]) if maps else set()
    return {
        f"{prefix}.{name}"
        for name in names
        if isinstance(maps[0][name], str)
        and len(maps[0][name]) >= 4
        and " " not in maps[0][name]
        and all(one.get(name) == maps[0][name] for one in maps)
    }


def _differing(name: str, one: Any, other: Any) -> set[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = set()
        for key in one.keys() | other.keys():
            found |= _differing(f"{name}.{key}", one.get(key), other.get(key))
        return found
    return set() if _same(one, other) else {name}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and one != one:
        return other != other  # both are not a number
    same = one == other
    every: Any = getattr(same, "all", None)
    return bool(every() if callable(every) else same)
