"""`protect`: the factory that a trainer calls, around the class or factory that it was given before."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, Unpack, overload

from openenv.core.session.events import Op
from openenv.core.session.states import State
from openenv.core.transport.io_thread import IoThread
from openenv.integrations.trl.built import BuiltEnv, build_class, make_watched
from openenv.integrations.trl.episode import LossOptions, LossPolicy, Options, differing
from openenv.integrations.trl.guard import Client, Guard
from openenv.integrations.trl.report import Report, inspect_server
from openenv.integrations.trl.rewards import MaskedReward, OwnReward, masked
from openenv.integrations.trl.tools import find_tools
from openenv.integrations.trl.versions import OLDEST, owns_reward, trl_version

__all__ = ["EnvFactories", "EnvFactory", "OwnRewardRule", "protect", "row_seed"]

logger = logging.getLogger("openenv.client")

Maker = Callable[[], Any]
OwnRewardRule = Literal["sum", "last"] | Callable[[Any], float | None] | None


class EnvFactory:
    """Makes the environments of a trainer: pass it as ``environment_factory``. Pickles if what it wraps does.

    Get one from `protect` or `openenv.trl.tool_env`. As a context manager it closes the sessions of its environments.

    Args:
        make: the class or factory.
        options: what to do when the network fails.
        reward: the environment's own reward.
    """

    def __init__(self, make: Maker, options: Options, reward: OwnRewardRule = None) -> None:
        if not callable(make):
            raise TypeError(f"protect() takes a class or a factory without arguments, not {make!r}.")
        if isinstance(make, EnvFactory):
            raise TypeError(f"{make!r} is protected already.")
        self._make = make
        self._options = options
        self._reward = reward
        self._masks = False
        self.__name__ = name_of(make)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._class: type[BuiltEnv] | None = None
        self._tools: frozenset[str] = frozenset()
        self._guards: list[weakref.ref[Guard]] = []
        self._dealt: dict[str, Mapping[str, Any]] = {}
        self._made = 0
        self._warned_seed = False

    def __call__(self) -> BuiltEnv:
        """Make one environment. It connects when its class does, at the latest in its first reset.

        Raises:
            TypeError: a tool without docstring or hints, an asynchronous reset, other tools than the environment
                before, or a client instead of an environment.
        """
        with self._lock:
            self._made += 1
            slot = self._made
        guard = Guard(self._options, f"{self.__name__}[{slot - 1}]", self)
        inner = make_watched(self._make, guard)
        tools = find_tools(inner)
        own = self._reward is not None or callable(getattr(inner, "get_reward", None))
        with self._lock:
            if self._class is None:
                self._class = build_class(inner, tools, own and owns_reward())
                self._tools = frozenset(tools)
            self._guards = [ref for ref in self._guards if ref() is not None]
            self._guards.append(weakref.ref(guard))
        if frozenset(tools) != self._tools:
            raise TypeError(
                f"Two environments of {self.__name__} have different tools: {', '.join(sorted(self._tools)) or 'none'} "
                f"and {', '.join(tools) or 'none'}. The trainer shows the model the tools of the first one."
            )
        return self._class(inner, guard, self._seed_of, None if self._reward is None else self._own)

    def rewards(self, *functions: Callable[..., Any]) -> list[Callable[..., Any]]:
        """Reward functions for the trainer: each gives None for a lost episode.

        All of them have to: one that still scores the sample gives it an advantage. The first also logs
        ``openenv/sessions_lost``, ``openenv/resumed``, ``openenv/replayed`` and ``openenv/env_time_share``.
        The environments' own reward is added where the trainer does not ask for it itself.

        Args:
            *functions: plain functions, coroutine functions, callables or partials.

        Raises:
            TypeError: one is a reward model; or the same is given twice.
        """
        self._masks = True
        return masked_rewards(functions, self.has_reward)

    def check(self, sessions: int = 1, **arguments: Any) -> Report:
        """Look at the server before the model loads. See `openenv.integrations.trl.report.inspect_server`.

        Args:
            sessions: how many are wanted at once: the local generation batch, times the processes.
            **arguments: of `inspect_server`: ``row``, ``tool``, ``turns``, ``timeout_s``.

        Returns:
            What was found, as fields; printed, as a page.

        Raises:
            ConnectError: the server cannot be reached; `CapacityError` if it has fewer slots.
        """
        return inspect_server(self, sessions, **arguments)

    def close(self) -> None:
        """End the sessions of all environments that were made, at once; may be repeated. Trainers do not do it.

        Clients that live on an event loop of the caller's own are left to it.
        """
        clients = [client for ref in self._guards if (guard := ref()) is not None for client in guard.clients]
        _close_all([client for client in clients if _is_ours(client)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def on_session_lost(self) -> LossPolicy:
        """What becomes of a lost episode."""
        return self._options.on_session_lost

    @property
    def has_reward(self) -> bool:
        """Whether the environment has a reward of its own."""
        return self._reward is not None or hasattr(_unwrapped(self._make), "get_reward")

    @property
    def tools(self) -> frozenset[str]:
        """Names of the tools; empty before the first environment was made."""
        return self._tools

    def for_check(self, reset_deadline_s: float) -> EnvFactory:
        """The same for a check: a reset that fails is not tried again."""
        options = dataclasses.replace(self._options, patient=False, reset_deadline_s=reset_deadline_s)
        return EnvFactory(self._make, options, self._reward)

    # ------------------------------------------------------------------ what environments ask of the pool

    def _own(self, inner: Any, guard: Guard) -> float | None:
        rewards = guard.episode.rewards
        if callable(self._reward):
            return self._reward(inner)
        if self._reward == "last":
            return rewards[-1] if rewards else 0.0
        return sum(rewards)

    def _seed_of(self, row: Mapping[str, Any]) -> int | None:
        if not self._options.seed and self._options.on_session_lost != "replay":
            return None
        return row_seed(row)

    def revive(self, asking: Guard) -> None:
        """Where the sockets of a pool are dead, let all of them reconnect at once: resets come one after another."""
        mine = asking.clients
        if not any(_is_dead(client) for client in mine):
            return
        others = [guard for ref in self._guards if (guard := ref()) is not None and guard is not asking]
        for client in (client for guard in others for client in guard.clients):
            if _is_dead(client):
                io = IoThread.shared()
                io.loop.call_soon_threadsafe(_reconnect, weakref.ref(client))

    def note_dealt(self, frame: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Warn, once, if the same reset shows different games: samples of one group would not be comparable."""
        if self._warned_seed or frame.get("data", {}).get("seed") is None:
            return
        key = json.dumps(frame, sort_keys=True, default=str)
        before = self._dealt.pop(key, None)
        self._dealt[key] = copy.deepcopy(dict(data))
        while len(self._dealt) > 4:  # samples of a group are reset one after another
            self._dealt.pop(next(iter(self._dealt)))
        if before is not None and (names := differing(before, data, self._options.volatile)):
            self._warned_seed = True
            logger.warning(
                "%s: two resets with the same seed and arguments show different games (in %s): the environment seems "
                "to ignore its seed, so the samples of a group do not play the same game",
                self.__name__,
                ", ".join(names[:5]),
            )

    def note_lost(self) -> None:
        """Warn, once, if the rewards of a lost episode cannot be masked."""
        if self._masks or self.has_reward or self._options.on_session_lost == "abort":
            return
        self._masks = True
        logger.warning(
            "%s: no reward function comes from its rewards(), so the trainer will score the lost episode: pass "
            "reward_funcs=env.rewards(...)",
            self.__name__,
        )

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_make", "_options", "_reward", "_masks", "__name__")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"<protected {self.__name__}, on_session_lost={self._options.on_session_lost!r}>"


class EnvFactories(dict[str, EnvFactory]):
    """Several environments by name, for datasets with an ``environment`` column. A context manager, as each of them."""

    def close(self) -> None:
        """See `EnvFactory.close`."""
        with contextlib.ExitStack() as stack:
            for one in self.values():
                stack.callback(one.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rewards(self, *functions: Callable[..., Any]) -> list[Callable[..., Any]]:
        """See `EnvFactory.rewards`."""
        for one in self.values():
            one._masks = True
        return masked_rewards(functions, any(one.has_reward for one in self.values()))

    def check(
        self, sessions: int | Mapping[str, int] = 1, *, rows: Sequence[Mapping[str, Any]] = (), **arguments: Any
    ) -> dict[str, Report]:
        """See `EnvFactory.check`.

        Args:
            sessions: for each environment, or for all the same.
            rows: of the dataset, whose ``environment`` column is checked.
            **arguments: as for one.

        Raises:
            ValueError: a row names an environment that is not there.
        """
        for row in rows:
            if row.get("environment") not in self:
                raise ValueError(
                    f"A row of the dataset names the environment {row.get('environment')!r}; there are "
                    f"{', '.join(sorted(self))}."
                )
        wanted = sessions if isinstance(sessions, Mapping) else dict.fromkeys(self, sessions)
        return {name: self[name].check(wanted[name], **arguments) for name in wanted}


@overload
def protect(
    factory: Mapping[str, Maker], *, reward: OwnRewardRule = None, **options: Unpack[LossOptions]
) -> EnvFactories: ...
@overload
def protect(factory: Maker, *, reward: OwnRewardRule = None, **options: Unpack[LossOptions]) -> EnvFactory: ...
def protect(
    factory: Maker | Mapping[str, Maker], *, reward: OwnRewardRule = None, **options: Unpack[LossOptions]
) -> EnvFactory | EnvFactories:
    """Make the environments of a trainer safe from a network that fails.

    ``environment_factory=protect(SudokuEnv)``: the class stays as it is. The clients that it holds or makes are
    watched: a lost game is never played on in another session, and never scored.

    Args:
        factory: what ``environment_factory`` takes: a class or a function without arguments, or a dict of them.
        reward: the environment's own reward, in addition: ``sum`` or ``last`` of the rewards of its steps, or a
            function of the environment. None: what its ``get_reward`` says, if it has one.
        **options: fields of `Options`: ``on_session_lost`` (``mask``, ``replay`` or ``abort``), ``reset_deadline_s``,
            ``late_budget_s``, ``replay_attempts``, ``volatile``, ``seed``.

    Raises:
        TypeError: it is not callable.
        ValueError: an unknown policy.
    """
    chosen = Options(**options)
    _warn_of_old_trl()
    if isinstance(factory, Mapping):
        return EnvFactories({name: EnvFactory(one, chosen, reward) for name, one in factory.items()})
    return EnvFactory(factory, chosen, reward)


def masked_rewards(functions: Sequence[Callable[..., Any]], own: bool) -> list[Callable[..., Any]]:
    """The reward functions of `EnvFactory.rewards`."""
    if any(isinstance(function, MaskedReward) for function in functions):
        raise TypeError("A reward function comes from rewards() already; pass the plain one.")
    found: list[Callable[..., Any]] = [masked(one, reports=index == 0) for index, one in enumerate(functions)]
    if own and not owns_reward():
        found.append(masked(OwnReward(), reports=not found))
    return found


def row_seed(row: Mapping[str, Any]) -> int:
    """A seed that follows from a dataset row, in every process: its own ``seed``, else a hash of the rest."""
    own = row.get("seed")
    if isinstance(own, int) and not isinstance(own, bool):
        return own
    text = json.dumps(dict(row), sort_keys=True, ensure_ascii=False, default=lambda value: type(value).__name__)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 2**31


def name_of(make: Any) -> str:
    """A name for the log."""
    make = _unwrapped(make)
    return str(getattr(make, "__name__", type(make).__name__))


def _unwrapped(make: Any) -> Any:
    while isinstance(make, functools.partial):
        make = make.func
    return make


def _is_dead(client: Client) -> bool:
    link = client._holder.link
    if link is None or not _is_ours(client):
        return False
    return link.transport is None and client._machine.state in (State.NEW, State.LOST)


def _is_ours(client: Client) -> bool:
    """Whether it was used, and not on an event loop of its own."""
    link = client._holder.link
    return link is not None and IoThread.owns(link.loop)


def _close_all(clients: Sequence[Client]) -> None:
    async def close() -> list[BaseException | None]:
        return await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)

    ends = IoThread.shared().run(close, lambda task: task.cancel()) if clients else []
    for failure in filter(None, ends):
        raise failure


def _reconnect(ref: weakref.ref[Client]) -> None:
    client = ref()
    if client is not None:
        task = IoThread.shared().loop.create_task(_connect(client))
        _reconnecting.add(task)
        task.add_done_callback(_reconnecting.discard)


async def _connect(client: Client) -> None:
    try:
        await client._exchange(Op.CONNECT)
    except Exception as error:  # this is a head start only: its own reset tries again, and says what is wrong
        logger.debug("a connection could not be opened in advance: %s", error)


_reconnecting: set[Any] = set()


@functools.lru_cache(maxsize=1)
def _warn_of_old_trl() -> None:
    found = trl_version()
    if found is not None and found < OLDEST:
        logger.warning(
            "TRL %d.%d counts a sample without a reward as one with reward 0, so a lost game still moves its group's "
            "baseline. Use trl>=%d.%d.",
            *found,
            *OLDEST,
        )
