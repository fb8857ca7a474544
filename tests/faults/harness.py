"""The stage of every fault scenario: a server process, a proxy process, clients here, and the server's log.

A `Driver` is a client with one face, whether it is async or sync. It marks each request, checks each answer and
each error, and remembers what it was told. When a scenario ends, `World.verify` compares that with the log.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import os
import pickle
import shutil
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

import openenv.testing.counting
from openenv import GenericEnvClient, OpenEnvError
from openenv.core.exceptions import (
    CallTimeoutError,
    LateResultError,
    Outcome,
    OutcomeUnknownError,
    SessionLostError,
)
from openenv.testing import Oracle, ProxyProcess, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class Interrupted(Exception):
    """Raised by a scenario's own signal handler."""


NOT_OURS = (asyncio.CancelledError, KeyboardInterrupt, Interrupted)
"""What a call may raise although it is no error of this package: the caller's own doing."""


@dataclass(frozen=True)
class Link:
    """One pairing of client and server.

    Attributes:
        client: ``async`` or ``sync``.
        server: ``v1`` (ours, with everything), ``ours`` (without ``openenv.v1``) or ``upstream``.
    """

    client: str
    server: str

    def __str__(self) -> str:
        return f"{self.client}-{self.server}"


LINKS = [Link(client, server) for server in ("v1", "ours", "upstream") for client in ("async", "sync")]


# ---------------------------------------------------------------- servers


def peer_python() -> str:
    """The interpreter of the environment that holds upstream's server. Without it a run is refused where
    OPENENV_PEER_REQUIRED is set, and leaves scenarios out elsewhere."""
    python = os.environ.get("OPENENV_PEER_PYTHON") or str(ROOT / ".peer" / "bin" / "python")
    if not os.path.exists(python):
        message = "upstream's server is not installed: run 'make peer'"
        if os.environ.get("OPENENV_PEER_REQUIRED"):
            pytest.fail(message)
        pytest.skip(message)
    return python


class Stage:
    """A server process, with its log and its plan."""

    def __init__(self, kind: str, folder: Path, environ: dict[str, str], arguments: tuple[str, ...]) -> None:
        self.kind = kind
        self.log = folder / "events.jsonl"
        self.plan = folder / "plan.json"
        self.capacity = int(environ.get("OPENENV_COUNTING_CAPACITY", "64"))
        environ = {"OPENENV_COUNTING_LOG": str(self.log), "OPENENV_COUNTING_PLAN": str(self.plan), **environ}
        app, python = "openenv.testing.counting:app", None
        if kind == "ours":  # of the plain dialect: what is dropped is lost
            environ.setdefault("OPENENV_FEATURES", "none")
        if kind == "v1":
            environ.setdefault("OPENENV_FEATURES", "seq,cancel,resume")
        if kind == "upstream":
            shutil.copy(openenv.testing.counting.__file__, folder / "counting.py")
            app, python = "counting:app", peer_python()
            arguments = ("--app-dir", str(folder), *arguments)
            environ["OPENENV_DISABLE_TELEMETRY"] = "1"
        self.server = ServerProcess(app, python=python, environ=environ, arguments=arguments)


class Farm:
    """Starts servers, and keeps those that scenarios may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._shared: dict[Any, Stage] = {}

    def stage(self, kind: str, environ: dict[str, str], arguments: tuple[str, ...], own: bool) -> Stage:
        """A running server; its own if the scenario does it harm."""
        key = (kind, tuple(sorted(environ.items())), arguments)
        if not own and key in self._shared:
            return self._shared[key]
        folder = self._folder / f"server-{next(self._numbers)}"
        folder.mkdir()
        stage = Stage(kind, folder, environ, arguments)
        stage.server.start()
        if not own:
            self._shared[key] = stage
        return stage

    def close(self) -> None:
        for stage in self._shared.values():
            stage.server.__exit__(None, None, None)


# ---------------------------------------------------------------- clients


@dataclass
class Told:
    """What a driver was told of one step: ``outcome`` is that of its error, or None for an answer."""

    mark: str
    episode: str | None
    outcome: Outcome | None
    env: str = ""


def check_error(error: BaseException) -> None:
    """An error that reaches a user is ours, says something, pickles and copies."""
    if isinstance(error, NOT_OURS):
        return
    assert isinstance(error, OpenEnvError), f"{type(error).__module__}.{type(error).__name__} reached the user"
    assert str(error).strip(), f"{type(error).__name__} has an empty text"
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert twin.outcome is error.outcome
        assert vars(twin).keys() == vars(error).keys()


class Driver:
    """One client. Every call is marked, checked and written down.

    Attributes:
        client: the `GenericEnvClient`.
        told: what it was told of each step.
        episode: mark of the reset that was answered last.
        env: the environment that answered it.
    """

    kind = "async"

    def __init__(self, name: str, client: GenericEnvClient) -> None:
        self.name = name
        self.client = client
        self.told: list[Told] = []
        self.episode: str | None = None
        self.env = ""
        self._numbers = itertools.count(1)
        self._noticed = 0

    async def connect(self) -> None:
        await self._checked(self._run("connect"))

    async def reset(self, **kwargs: Any) -> dict[str, Any]:
        mark = kwargs.setdefault("mark", self.new_mark("r"))
        result = await self._checked(self._run("reset", **kwargs))
        return self.reset_answered(mark, result)

    async def step(self, op: str = "inc", arg: Any = None, *, mark: str = "", **kwargs: Any) -> dict[str, Any]:
        """Returns the observation; with ``reward`` and ``done`` beside its own fields."""
        action = {"op": op, "arg": arg, "mark": mark or self.new_mark("s")}
        made_in = self.episode
        try:
            result = await self._checked(self._run("step", action, **kwargs))
        except BaseException as error:
            self.step_failed(action["mark"], made_in, error)
            raise
        return self.step_answered(action["mark"], made_in, result)

    async def state(self, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = await self._checked(self._run("state", **kwargs))
        assert "step_count" in state, f"state() was answered with {state}"
        return state

    async def settle(self, **kwargs: Any) -> dict[str, Any] | None:
        """The observation that a call which was given up had; None if there is none to tell."""
        result = await self._checked(self._run("settle", **kwargs))
        return None if result is None else self.late_answer(result)

    async def close(self) -> None:
        await self._checked(self._run("close"))

    def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.client, name)(*args, **kwargs)

    async def _checked(self, call: Any) -> Any:
        try:
            return await call
        except BaseException as error:
            check_error(error)
            raise

    # ---------------------------------------------------------------- bookkeeping, also for calls made elsewhere

    def new_mark(self, letter: str = "s") -> str:
        return f"{self.name}.{letter}{next(self._numbers)}"

    def reset_answered(self, mark: str, result: Any) -> dict[str, Any]:
        seen: dict[str, Any] = dict(result.observation)
        assert seen["mark"] == mark, f"the answer of {seen['mark']} was given to {mark}"
        self.episode = mark
        self.env = seen["env"]
        return seen

    def step_answered(self, mark: str, episode: str | None, result: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {**result.observation, "reward": result.reward, "done": result.done}
        assert seen["mark"] == mark, f"the answer of {seen['mark']} was given to {mark}"
        self.told.append(Told(mark, episode, None, seen["env"]))
        return seen

    def step_failed(self, mark: str, episode: str | None, error: BaseException) -> None:
        outcome = error.outcome if isinstance(error, OpenEnvError) else Outcome.UNKNOWN
        if isinstance(error, LateResultError | OutcomeUnknownError):  # of an earlier call; this one was not sent
            outcome = Outcome.NOT_APPLIED
        self.told.append(Told(mark, episode, outcome))

    def late_answer(self, result: Any) -> dict[str, Any]:
        """A result that was handed over late belongs to a call that was given up, and comes once."""
        seen: dict[str, Any] = {**result.observation, "reward": result.reward, "done": result.done}
        given_up = [told for told in self.told if told.mark == seen["mark"]]
        assert [told.outcome for told in given_up] == [Outcome.UNKNOWN], f"{seen['mark']} was told as {given_up}"
        self.told.append(Told(seen["mark"], given_up[0].episode, None, seen["env"]))
        return seen

    async def noticed(self) -> None:
        """Return once the client knows that its connection is gone; it may have resumed meanwhile."""
        async with asyncio.timeout(30):
            while self.client._ws is not None and self._ends == self._noticed:
                await asyncio.sleep(0.005)
        self._noticed = self._ends

    async def resumed(self, times: int = 1) -> None:
        """Return once the client has resumed its session, this often in all."""
        async with asyncio.timeout(30):
            while self.client.session.resumes < times:
                await asyncio.sleep(0.005)

    @property
    def _ends(self) -> int:
        session = self.client.session
        return session.resumes + session.losses

    async def finish(self) -> None:
        """Close quietly at the end of a scenario."""
        await self.close()


class SyncDriver(Driver):
    """The blocking client, each call on a thread of the caller's."""

    kind = "sync"

    def __init__(self, name: str, client: GenericEnvClient) -> None:
        super().__init__(name, client)
        self.sync = client.sync()
        self._threads = ThreadPoolExecutor(16, thread_name_prefix=name)

    async def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.sync, name)
        return await asyncio.wrap_future(self._threads.submit(lambda: method(*args, **kwargs)))

    async def finish(self) -> None:
        await self.close()
        self._threads.shutdown(wait=True)


# ---------------------------------------------------------------- one scenario


@dataclass
class World:
    """Everything one scenario needs."""

    link: Link
    stage: Stage
    folder: Path
    oracle: Oracle
    drivers: list[Driver] = field(default_factory=list)
    abandoned: bool = False
    """Some environments have no close to wait for: their process ended, or their session lasts longer."""
    mixed_threads: bool = False
    """Steps of async environments run on the server's loop."""
    _proxy: ProxyProcess | None = None
    _gates: list[Gate] = field(default_factory=list)

    @property
    def keeps_sessions(self) -> bool:
        """Whether a session outlives its socket, and a call its caller."""
        return self.link.server == "v1"

    @property
    def is_ours(self) -> bool:
        """Whether the server is ours, whatever it speaks."""
        return self.link.server != "upstream"

    @property
    def server(self) -> ServerProcess:
        return self.stage.server

    @property
    def proxy(self) -> ProxyProcess:
        """The proxy before the server; started when it is first needed."""
        if self._proxy is None:
            self._proxy = ProxyProcess("127.0.0.1", self.server.port)
        return self._proxy

    def driver(self, *, direct: bool = False, kind: str | None = None, **client: Any) -> Driver:
        """A new client of the scenario's kind, through the proxy unless ``direct``."""
        url = self.server.url if direct else self.proxy.url
        client = {"connect_timeout_s": 30.0, "message_timeout_s": 30.0, **client}
        make = SyncDriver if (kind or self.link.client) == "sync" else Driver
        made = make(f"{self.folder.name}.{len(self.drivers)}", GenericEnvClient(base_url=url, **client))
        self.drivers.append(made)
        return made

    def gate(self) -> Gate:
        """A gate that ``block`` waits at; opened at the end at the latest."""
        gate = Gate(self.folder / f"gate-{len(self._gates)}")
        self._gates.append(gate)
        return gate

    def plan(self, **calls: tuple[str, Any]) -> None:
        """Say what init, reset, state, close or metadata shall do first, from now on."""
        draft = self.stage.plan.with_suffix(".new")
        draft.write_text(json.dumps(calls))
        draft.replace(self.stage.plan)

    async def wait(self, blocking: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run something that blocks, while clients on this loop go on."""
        return await asyncio.to_thread(blocking, *args, **kwargs)

    async def seen(self, event: str, count: int = 1, **which: Any) -> None:
        """Wait until the log shows an event."""
        await self.wait(self.oracle.wait_for, event, count, **which)

    # ---------------------------------------------------------------- what differs with sessions that are kept

    async def cut_short(
        self, call: Awaitable[Any], *, outcome: Outcome | None = None, kept: bool | None = None
    ) -> SessionLostError | None:
        """What a call meets whose connection is cut, before it or under it.

        Where sessions are kept, its own answer; `verify` sees that it ran once, in its episode. Elsewhere the loss.

        Args:
            call: the call.
            outcome: what the error says of it; not looked at for a call that may have been first to notice the cut.
            kept: whether this session goes on, where that is not a matter of the server's kind.

        Returns:
            The error; None for an answer.
        """
        if self.keeps_sessions if kept is None else kept:
            await call
            return None
        with pytest.raises(SessionLostError) as lost:
            await call
        assert outcome in (None, lost.value.outcome)
        return lost.value

    async def reset_after(self, driver: Driver, *, kept: bool | None = None) -> dict[str, Any]:
        """A reset after a cut: in the same session where it is kept, else in a new one; then a step."""
        before = driver.env
        again = await driver.reset()
        assert (again["env"] == before) == (self.keeps_sessions if kept is None else kept)
        assert (await driver.step())["count"] == 1
        return again

    async def after_giving_up(self, driver: Driver, mark: str, gate: Gate | None = None) -> None:
        """What follows a step whose caller gave up while it waits at ``gate``, or was on its way.

        Where sessions are kept: a call made meanwhile is not sent and waits for no longer than its own time; then the
        late result is handed over once, to whatever is called next; then the session goes on. Elsewhere: the session
        is lost, before the late result and after it.
        """
        if self.keeps_sessions:
            await self._late(driver, mark, gate)
            return
        for call in (driver.step, driver.state):
            with pytest.raises(SessionLostError):
                await call()
        if gate is not None:
            gate.open()
            await self.seen("step", mark=mark, phase="end")
        for call in (driver.step, driver.state):
            with pytest.raises(SessionLostError):
                await call()

    async def _late(self, driver: Driver, mark: str, gate: Gate | None) -> None:
        if gate is not None:
            with pytest.raises(CallTimeoutError) as waited:
                await driver.step(timeout_s=0.3)
            assert waited.value.outcome is Outcome.NOT_APPLIED
            gate.open()
        (told,) = await asyncio.gather(driver.state(), return_exceptions=True)
        if isinstance(told, LateResultError):
            assert driver.late_answer(told.result)["mark"] == mark
        else:  # nothing to tell: it was called off before it reached its environment
            assert told["env"] == driver.env
            assert gate is None
            assert self.oracle.times(mark) == 0
        assert (await driver.state())["env"] == driver.env
        await driver.step()
        assert await driver.settle() is None

    # ---------------------------------------------------------------- the end

    async def finish(self) -> None:
        """End everything, then compare what clients were told with what the log says."""
        for gate in self._gates:
            gate.open()
        if self._proxy is not None:
            self._proxy.heal()
        self.plan()
        async with asyncio.timeout(60):
            for driver in self.drivers:
                await driver.finish()
        if self._proxy is not None:
            self._proxy.close()
        if self.server.alive and self.is_ours and not self.abandoned:
            await self.wait(self.oracle.wait_for_all_closed)
        self.verify()

    def verify(self) -> None:
        """G1 to G4 and G8 as the log has them, whatever the scenario was."""
        events = self.oracle.events
        ran: dict[str, int] = {}
        for event in events:
            if event.event == "step" and event.phase == "begin":
                ran[event.mark] = ran.get(event.mark, 0) + 1
        for driver in self.drivers:
            for told in driver.told:
                times = ran.get(told.mark, 0)
                assert times <= 1, f"G2: {told.mark} ran {times} times"
                if told.outcome is None or told.outcome is Outcome.APPLIED:
                    assert times == 1, f"G3: {told.mark} was told to be applied, and did not run"
                if told.outcome is Outcome.NOT_APPLIED and not self._may_run_and_refuse(told.mark):
                    assert times == 0, f"G3: {told.mark} was told not to be applied, and ran"
                if times:
                    episode = self.oracle.episode_of(told.mark)
                    assert episode == told.episode, f"G1: {told.mark} of {told.episode} ran in {episode}"
        if self.is_ours:
            problems = self.oracle.problems()
            assert [one for one in problems if not (self.mixed_threads and " ran on " in one)] == []
            assert self.oracle.most_alive() <= self.stage.capacity, "G8: more environments than slots"
            self._verify_output()

    def _may_run_and_refuse(self, mark: str) -> bool:
        return any(event.op == "invalid" for event in self.oracle.of("step", mark=mark))

    def _verify_output(self) -> None:
        for word in ("Exception in ASGI", "never retrieved", "never awaited", "Exception in callback", "destroyed but"):
            assert word not in self.server.output, self.server.output[-4000:]


class Gate:
    """A file that a blocked environment waits for."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def open(self) -> None:
        Path(self.path).touch()
