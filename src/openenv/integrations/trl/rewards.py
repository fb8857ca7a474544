"""Reward functions that give no reward for a lost episode, and tell the trainer how many there were."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

from openenv.integrations.trl.built import BuiltEnv
from openenv.integrations.trl.episode import NEUTRAL

__all__ = ["AsyncMaskedReward", "MaskedReward", "OwnReward", "masked"]

Reward = Callable[..., Any]


class MaskedReward:
    """A reward function around another one. Pickles if the other does.

    Args:
        function: called with all samples, those of lost episodes included.
        reports: whether it logs what became of the sessions; one function of a trainer does.
    """

    def __init__(self, function: Reward, reports: bool) -> None:
        self.function = function
        self.reports = reports
        self.__name__ = _name(function)
        self.__doc__ = function.__doc__

    def __call__(self, **columns: Any) -> list[float | None]:
        lost = self._lost(columns)
        return _without(self.function(**columns), lost)

    def _lost(self, columns: dict[str, Any]) -> list[bool]:
        environments = columns.get("environments")
        if environments is None:  # an asynchronous trainer does not pass them; the transcript tells
            return [_told_of_loss(completion) for completion in columns.get("completions") or ()]
        if self.reports:
            report(environments, columns.get("log_metric"))
        return [_is_lost(env) for env in environments]

    def __repr__(self) -> str:
        return f"<{self.__name__}, masked for lost episodes>"


class AsyncMaskedReward(MaskedReward):
    """The same around a coroutine function."""

    async def __call__(self, **columns: Any) -> list[float | None]:  # type: ignore[override]
        lost = self._lost(columns)
        return _without(await self.function(**columns), lost)


class OwnReward:
    """The environments' own reward as a function, for trainers that do not ask for it."""

    __name__ = "environment_reward"

    def __call__(self, environments: Sequence[Any], **columns: Any) -> list[float | None]:
        return [env._own_reward() if isinstance(env, BuiltEnv) else None for env in environments]


def masked(function: Reward, reports: bool) -> MaskedReward:
    """Wrap one reward function.

    Raises:
        TypeError: it is a reward model, whose samples cannot be left out.
    """
    if not callable(function) or hasattr(function, "forward"):
        raise TypeError(
            f"{function!r} is a reward model: the trainer would score lost episodes with it, too. Pass a function "
            "that calls it."
        )
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(inner.__call__)
    return (AsyncMaskedReward if is_async else MaskedReward)(function, reports)


def report(environments: Sequence[Any], log_metric: Any) -> None:
    """Log what became of the sessions of one round."""
    guards = [env._guard for env in environments if isinstance(env, BuiltEnv)]
    if log_metric is None or not guards:
        return
    for guard in guards:
        guard.note_resumes()
    episodes = [guard.episode for guard in guards]
    log_metric("openenv/sessions_lost", float(sum(episode.lost is not None for episode in episodes)))
    log_metric("openenv/resumed", float(sum(episode.resumes for episode in episodes)))
    log_metric("openenv/replayed", float(sum(episode.replays for episode in episodes)))
    seconds = time.monotonic() - min(guard.began for guard in guards)
    log_metric("openenv/env_time_share", min(sum(episode.env_s for episode in episodes) / max(seconds, 1e-9), 1.0))


def _is_lost(env: Any) -> bool:
    return isinstance(env, BuiltEnv) and env._is_masked()


def _told_of_loss(completion: Any) -> bool:
    messages = completion if isinstance(completion, list) else ()
    return any(
        isinstance(one, dict) and one.get("role") == "tool" and NEUTRAL in str(one.get("content")) for one in messages
    )


def _without(rewards: Sequence[float | None], lost: Sequence[bool]) -> list[float | None]:
    if len(rewards) != len(lost):
        return list(rewards)  # the trainer has better words for it
    return [None if gone else reward for reward, gone in zip(rewards, lost, strict=True)]


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
