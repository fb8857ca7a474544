"""Plays one schedule: a client of the package behind a fault proxy, and what it was told of each of its calls.

What it was told is held against the server's log when all episodes of a batch have ended: see `verify`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from faults.random.schedule import Act, Cut, Fault, Schedule
from openenv import GenericEnvClient
from openenv.core.exceptions import (
    LateResultError,
    OpenEnvError,
    Outcome,
    OutcomeUnknownError,
    SessionClosedError,
    SessionLostError,
)
from openenv.core.wire.v1 import Lease
from openenv.testing import FaultProxy, ServerProcess, _forward
from openenv.testing.oracle import Event

__all__ = ["CuttingProxy", "Episode", "closed_wrongly", "left_open", "verify"]

PING_S = 0.5
PATIENCE_S = 60.0
"""How long a caller who does not give up waits: past it something has stalled."""
POLL_S = 0.003


class CuttingProxy(FaultProxy):
    """Goes through the cuts of a schedule: each begins to count its bytes at the very moment of the one before it."""

    def __init__(self, port: int, cuts: Iterable[Cut]) -> None:
        super().__init__("127.0.0.1", port)
        self._to_come = list(cuts)
        self._seen = 0
        self.arm()

    def arm(self) -> None:
        """Let the next cut come."""
        if self._to_come:
            cut = self._to_come.pop(0)
            self._shared.rules[cut.direction].cut = _forward.Cut(cut.count, cut.mode)  # type: ignore[arg-type]

    def _tell(self) -> None:
        if self._shared.cuts > self._seen:
            self._seen = self._shared.cuts
            self.arm()
        super()._tell()


@dataclass
class Told:
    """What the caller knows of one step: when it was made, the episode and its environment; and ``outcome``, None for
    an answer."""

    mark: str
    reset: str | None
    board: str
    outcome: Outcome | None = Outcome.UNKNOWN
    env: str = ""


@dataclass
class Episode:
    """One client and its schedule."""

    schedule: Schedule
    server: ServerProcess
    proxy: CuttingProxy
    told: dict[str, Told] = field(default_factory=dict)
    resets: dict[str, Outcome | None] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    resumes: int = 0

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._episode: str | None = None
        self._env = ""
        self._first_lease: Lease | None = None
        self._count: int | None = 0
        self._given_up: list[str] = []
        self.client = GenericEnvClient(
            base_url=self.proxy.url,
            connect_timeout_s=PATIENCE_S,
            message_timeout_s=PATIENCE_S,
            websocket_ping_interval_s=PING_S,
            websocket_ping_timeout_s=PING_S,
        )

    @property
    def name(self) -> str:
        return f"e{self.schedule.seed}"

    def wrong(self, text: str) -> None:
        self.faults.append(f"seed {self.schedule.seed}: {text}")

    # ---------------------------------------------------------------- the caller

    async def play(self) -> None:
        """From the first reset to the last close."""
        network = asyncio.create_task(self._network())
        try:
            await self._reset(Act("reset"))
            for act in self.schedule.acts:
                await self._act(act)
            await self._learn()
            await self._end()
        except Exception as error:  # whatever it is, the seed must be told
            self.wrong(f"{type(error).__name__} reached the caller: {error}")
        finally:
            self.resumes = self.client.session.resumes
            network.cancel()
            done, _ = await asyncio.wait({network})
            if any(not one.cancelled() and one.exception() for one in done):
                self.wrong(f"the network failed: {network.exception()!r}")
            await self.client.close()
            self.proxy.heal()
            await asyncio.to_thread(self.proxy.cut, "rst")

    async def _act(self, act: Act) -> None:
        match act.kind:
            case "step":
                await self._step(act)
            case "reset":
                await self._reset(act)
            case "settle":
                await self._settle()
            case "state":
                await self._state()

    async def _reset(self, act: Act) -> None:
        mark = f"{self.name}.r{next(self._numbers)}"
        self.resets[mark] = Outcome.UNKNOWN
        self._episode, self._env = None, ""
        try:
            result = await self._patiently(act, "reset", mark=mark)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._gave_up(act, mark, error)
            return
        except OpenEnvError as error:
            self.resets[mark] = error.outcome
            if self.schedule.gentle:
                raise
            return
        self._reset_answered(mark, result)

    async def _step(self, act: Act) -> None:
        mark = f"{self.name}.s{next(self._numbers)}"
        told = self.told[mark] = Told(mark, self._episode, self._env)
        action = {"op": act.op, "arg": act.arg, "mark": mark}
        try:
            result = await self._patiently(act, "step", action)
        except LateResultError as late:
            told.outcome = Outcome.NOT_APPLIED
            self._late(late.result)
        except OutcomeUnknownError:
            told.outcome = Outcome.NOT_APPLIED
            self._fate_unknown()
        except SessionLostError as error:
            told.outcome = error.outcome
            await self._lost(error)
        except (TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, OpenEnvError):
                told.outcome = error.outcome
            self._gave_up(act, mark, error)
        else:
            self._void()
            self._step_answered(mark, result)

    async def _state(self) -> None:
        try:
            state = await self.client.state()
        except LateResultError as late:
            return self._late(late.result)
        except OutcomeUnknownError:
            return self._fate_unknown()
        except SessionLostError as error:
            return await self._lost(error)
        self._void()
        if self._env and state["env"] != self._env:
            self.wrong(f"state() was answered by {state['env']}, and the episode is on {self._env}")
        return None

    async def _settle(self) -> None:
        try:
            result = await self.client.settle()
        except OutcomeUnknownError:
            return self._fate_unknown()
        except SessionLostError as error:
            return await self._lost(error)
        return self._void() if result is None else self._late(result)

    async def _patiently(self, act: Act, method: str, *args: Any, **kwargs: Any) -> Any:
        call = getattr(self.client, method)
        if act.patience_s is None:
            return await call(*args, **kwargs)
        if act.by_timeout:
            return await call(*args, timeout_s=act.patience_s, **kwargs)
        async with asyncio.timeout(act.patience_s):
            return await call(*args, **kwargs)

    # ---------------------------------------------------------------- what it was told

    def _gave_up(self, act: Act, mark: str, error: BaseException) -> None:
        if act.patience_s is None:
            self.wrong(f"{mark} stalled: {error}")
        never_sent = isinstance(error, OpenEnvError) and error.outcome is Outcome.NOT_APPLIED
        if mark in self.resets:
            self.resets[mark] = Outcome.NOT_APPLIED if never_sent else Outcome.UNKNOWN
        if not never_sent:
            self._given_up.append(mark)

    def _void(self, but: str = "") -> None:
        """What was given up was not applied, except perhaps one. Not told of what came before a reset."""
        given_up, self._given_up = self._given_up, []
        if not any(mark in self.resets for mark in given_up):
            for mark in given_up:
                if mark != but:
                    self.told[mark].outcome = Outcome.NOT_APPLIED

    def _late(self, result: Any) -> None:
        """The result of a call that was given up has come."""
        mark = result.observation["mark"]
        if mark not in self._given_up:
            return self.wrong(f"the late result of {mark} came, and {self._given_up} had been given up")
        self._void(but=mark)
        if mark in self.resets:
            return self._reset_answered(mark, result)
        return self._step_answered(mark, result)

    def _fate_unknown(self) -> None:
        self._given_up = []
        self._count = None

    async def _lost(self, error: SessionLostError) -> None:
        self._given_up = []
        if self._episode is None and error.outcome is Outcome.NOT_APPLIED:
            return await self._reset(Act("reset"))  # its reset was given up, and was not applied
        if self.schedule.gentle:
            self.wrong(f"the session was lost: {error}")
        return await self._reset(Act("reset"))

    def _reset_answered(self, mark: str, result: Any) -> None:
        seen = result.observation
        if seen["mark"] != mark:
            self.wrong(f"the answer of {seen['mark']} was given to {mark}")
        self.resets[mark] = None
        self._first_lease = self._first_lease or self.client._machine.lease
        self._episode, self._env, self._count = mark, seen["env"], 0
        self._given_up = []

    def _step_answered(self, mark: str, result: Any) -> None:
        seen, told = result.observation, self.told[mark]
        told.outcome, told.env = None, seen["env"]
        if seen["mark"] != mark:
            self.wrong(f"the answer of {seen['mark']} was given to {mark}")
        if seen["env"] != told.board:
            self.wrong(f"{mark} ran on {seen['env']}, and its episode is on {told.board or 'none'}")
        if told.reset != self._episode:
            return  # late, and the caller has begun a reset since
        if self._count is not None and seen["count"] != self._count + 1:
            self.wrong(f"{mark} was step {seen['count']} of its episode, and the caller knows of {self._count} before")
        self._count = seen["count"]

    # ---------------------------------------------------------------- the end

    async def _learn(self) -> None:
        """Nothing stays open: what was given up is settled."""
        if self._given_up:
            await self._settle()

    async def _end(self) -> None:
        if self.schedule.ends != "close_busy" or self._episode is None:
            return await self.client.close()
        mark = f"{self.name}.s{next(self._numbers)}"
        told = self.told[mark] = Told(mark, self._episode, self._env)
        step = asyncio.create_task(self._last_step(mark, told))
        await asyncio.sleep(0)
        await self.client.close()
        await step
        return None

    async def _last_step(self, mark: str, told: Told) -> None:
        try:
            result = await self.client.step({"op": "sleep", "arg": 0.01, "mark": mark})
        except (SessionClosedError, SessionLostError) as error:
            told.outcome = error.outcome
        else:
            self._step_answered(mark, result)

    # ---------------------------------------------------------------- the network

    async def _network(self) -> None:
        for fault in self.schedule.faults:
            await asyncio.sleep(fault.after_s)
            await self._befall(fault)

    async def _befall(self, fault: Fault) -> None:
        proxy = self.proxy
        match fault.kind:
            case "hole":
                number = proxy.accepted
                proxy.black_hole(number)
                deadline = asyncio.get_running_loop().time() + 4 * PING_S
                while proxy.accepted == number and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(POLL_S)
                if fault.late:  # what was held arrives after all, on a socket that its client has left
                    await asyncio.sleep(fault.after_s)
                    proxy.release("both", number)
                else:
                    await asyncio.to_thread(proxy.cut, "rst", number)
            case "refuse":
                proxy.refuse("rst")
                await asyncio.to_thread(proxy.cut, "rst")
                await asyncio.sleep(4 * fault.after_s)
                proxy.heal()
                proxy.arm()
            case "ghost":
                await self._resume_elsewhere(self._first_lease, attempt=0)
            case "takeover":
                await self._resume_elsewhere(self.client._machine.lease, attempt=1000)
            case "kill":
                await asyncio.to_thread(self.server.restart)

    async def _resume_elsewhere(self, lease: Lease | None, attempt: int) -> None:
        """A token of the client comes on a socket of its own: its present one, or one that it has used before."""
        machine = self.client._machine
        if lease is None or (not attempt and lease == machine.lease):
            return
        told = {"session": lease.session, "token": lease.token, "epoch": lease.epoch}
        resume = {"type": "resume", "data": {**told, "last_reply": machine.last_reply, "attempt": attempt}}
        url = self.server.url.replace("http", "ws") + "/ws"
        with contextlib.suppress(OSError, WebSocketException, TimeoutError):
            async with asyncio.timeout(5), connect(url, subprotocols=["openenv.v1"], proxy=None) as other:  # type: ignore[list-item]
                await other.recv()
                await other.send(json.dumps(resume))
                answer = json.loads(await other.recv())
                if attempt and answer["type"] == "resumed":
                    await other.send(json.dumps({"type": "close"}))
                elif answer["type"] == "resumed":
                    self.wrong("a resume that was overtaken long ago was accepted")


# ---------------------------------------------------------------- the verdict


def verify(episodes: Iterable[Episode], events: list[Event]) -> list[str]:
    """Hold what the callers were told against what the server did. Returns what is wrong."""
    begun: dict[str, list[Event]] = defaultdict(list)
    last_reset: dict[str, str] = {}
    episode_of: dict[str, str | None] = {}
    for event in events:
        if event.event == "step" and event.phase == "begin":
            begun[event.mark].append(event)
            episode_of[event.mark] = last_reset.get(event.env)
        elif event.event == "reset" and event.phase == "end":
            last_reset[event.env] = event.mark
        elif event.event == "reset":
            begun[event.mark].append(event)
    return [wrong for episode in episodes for wrong in _judge(episode, begun, episode_of)]


def _judge(episode: Episode, begun: dict[str, list[Event]], episode_of: dict[str, str | None]) -> list[str]:
    wrong = list(episode.faults)
    for told in episode.told.values():
        runs = begun[told.mark]
        least, most = {None: (1, 1), Outcome.APPLIED: (1, 1), Outcome.NOT_APPLIED: (0, 0)}.get(told.outcome, (0, 1))
        if not least <= len(runs) <= most:
            wrong.append(f"{told.mark} ran {len(runs)} times, and its caller was told: {told.outcome or 'answered'}")
        if told.outcome is None and runs and runs[0].env != told.env:
            wrong.append(f"{told.mark} ran on {runs[0].env}, and its answer says {told.env}")
        if runs and told.reset is not None and episode_of[told.mark] != told.reset:
            wrong.append(f"{told.mark} belongs to {told.reset}, and ran in the episode of {episode_of[told.mark]}")
    for mark, outcome in episode.resets.items():
        runs = begun[mark]
        if outcome is None and not runs:
            wrong.append(f"{mark} was answered, and never ran")
        if outcome is Outcome.NOT_APPLIED and runs:
            wrong.append(f"{mark} ran, and its caller was told that it did not")
        if len({run.env for run in runs}) < len(runs):
            wrong.append(f"{mark} ran twice on one environment")
    return wrong


def left_open(events: Iterable[Event]) -> set[str]:
    """Environments that were made, and whose ``close()`` has not returned."""
    made: set[str] = set()
    closed: set[str] = set()
    for event in events:
        made.add(event.env)
        if event.event == "close" and event.phase == "end":
            closed.add(event.env)
    return made - closed


def closed_wrongly(events: Iterable[Event]) -> list[str]:
    """Environments that were closed twice, or used when they were closed."""
    over: set[str] = set()
    wrong = []
    for event in events:
        if event.phase != "begin":
            continue
        if event.env in over:
            wrong.append(f"{event.event} {event.mark} on {event.env} after its close")
        if event.event == "close":
            over.add(event.env)
    return wrong
