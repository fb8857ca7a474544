"""Measuring the policy link against the usual way. Everything that is compared is taken in turns, within one run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bench import openpi_style
from bench.payloads import LADDER, observation, size_of
from openenv.core.wire.arrays import encode, encode_parts
from openenv.policy import WebSocketEnvClientAgent

RATE, DELAY_S = 20e6, 0.0015
"""The slow link: bytes a second and seconds, each way."""


class Exchanging(Protocol):
    """A client of either kind."""

    def exchange(self, observation: Mapping[str, Any], envs: np.ndarray[Any, Any]) -> Any: ...

    def close(self) -> None: ...


class Ours:
    """Our agent, in the manner of `bench.openpi_style.Client`."""

    def __init__(self, url: str, **options: Any) -> None:
        self._agent = WebSocketEnvClientAgent(url, **options)
        self._agent.connect()

    def exchange(
        self,
        observation: Mapping[str, Any],
        envs: np.ndarray[Any, Any],
        answered: Callable[[], object] = lambda: None,
    ) -> Any:
        count = len(envs)
        steps, never = np.zeros(count, np.int64), np.zeros(count, bool)
        answer = self._agent.infer(observation, envs, steps)
        answered()
        self._agent.feedback(observation, envs, steps, np.ones(count, np.float32), never, never)
        return answer.action

    def close(self) -> None:
        self._agent.close()


@contextmanager
def process(*command: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A Python module in a process of its own, that prints its port."""
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert child.stdout is not None
        yield int(child.stdout.readline()), child
    finally:
        child.kill()
        child.communicate()


@contextmanager
def clients(link: tuple[float, float] | None = None) -> Iterator[dict[str, Exchanging]]:
    """A client of each kind with its server: ``openpi``, ``ours`` and ``ours with reuse``.

    Args:
        link: rate and delay of a slow link between them; None for loopback.
    """
    kinds = {"openpi": openpi_style.Client, "plain": Ours, "ours": Ours}
    with ExitStack() as stack:
        made: dict[str, Exchanging] = {}
        for kind, client in kinds.items():
            port, _ = stack.enter_context(process("bench.policy_servers", kind))
            if link is not None:
                port, _ = stack.enter_context(process("bench.slow_link", str(port), str(link[0]), str(link[1])))
            made[{"plain": "ours", "ours": "ours with reuse"}.get(kind, kind)] = client(f"ws://127.0.0.1:{port}")
            stack.callback(made[list(made)[-1]].close)
        yield made


@contextmanager
def pinned() -> Iterator[None]:
    """This process on one core; the servers are on another, if there is one."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Timing:
    """Times of one kind of client with one observation, in seconds.

    Attributes:
        wall: of each exchange.
        cpu: of all threads of the client, a mean of each round.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.wall)

    @property
    def median(self) -> float:
        return float(np.median(self.wall))

    @property
    def cpu_median(self) -> float:
        return float(np.median(self.cpu))

    def to_json(self) -> dict[str, float]:
        """For the report, in milliseconds."""
        times = {"best": self.best, "median": self.median, "client CPU": self.cpu_median}
        return {name: round(1e3 * seconds, 4) for name, seconds in times.items()}


def compare(
    between: Mapping[str, Exchanging], seen: dict[str, Any], *, rounds: int, exchanges: int
) -> dict[str, Timing]:
    """Let clients exchange the same observation in turns.

    Args:
        between: clients by name.
        seen: the observation.
        rounds: turns of each; the first is not counted.
        exchanges: in each turn.
    """
    envs = np.arange(len(seen["text"]), dtype=np.int64)
    times = {name: Timing() for name in between}
    for turn in range(rounds + 1):
        for name, client in between.items():
            client.exchange(seen, envs)  # what the last one left in the caches
            cpu, walls = time.process_time(), []
            for _ in range(exchanges):
                began = time.perf_counter()
                client.exchange(seen, envs)
                walls.append(time.perf_counter() - began)
            if turn:
                times[name].wall += walls
                times[name].cpu.append((time.process_time() - cpu) / exchanges)
    return times


def encoding(count: int, rounds: int) -> dict[str, float]:
    """Best times to encode an observation of ``count`` envs: by the usual packer, joined and in parts; seconds."""
    seen = {"message_type": "infer", "data": observation(count)}
    ways: dict[str, Callable[[Any], Any]] = {"packb": openpi_style.pack, "joined": encode, "parts": encode_parts}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            made = way(seen)
            times[name].append(time.perf_counter() - began)
            del made
    return {name: min(found) for name, found in times.items()}


def ladder(link: tuple[float, float] | None, *, rounds: int, exchanges: int) -> dict[str, dict[str, Timing]]:
    """One env, with images of growing size. Names of the observations, then of the clients."""
    with clients(link) as between:
        return {
            name: compare(between, observation(1, sides), rounds=rounds, exchanges=exchanges)
            for name, sides in LADDER.items()
        }


@dataclass(frozen=True)
class Fit:
    """``fixed_s + k * bytes / rate``, through the medians of a ladder."""

    fixed_s: float
    k: float


def fit(times: Sequence[float], rate: float) -> Fit:
    """Fit the model to the times of the ladder, in its order."""
    sizes = [size_of(observation(1, sides)) / rate for sides in LADDER.values()]
    k, fixed = np.polyfit(sizes, times, 1)
    return Fit(float(fixed), float(k))


def bytes_per_exchange(sides: tuple[int, ...], *, exchanges: int) -> dict[str, float]:
    """Bytes that our client sends in each exchange of one env, without reuse and with it."""
    sent = {}
    for name, kind in (("ours", "plain"), ("ours with reuse", "ours")):
        with (
            process("bench.policy_servers", kind) as (server, _),
            process("bench.slow_link", str(server), "1e12", "0") as (port, proxy),
        ):
            client, seen, envs = Ours(f"ws://127.0.0.1:{port}"), observation(1, sides), np.arange(1)
            marks: list[int] = []  # after each answer: what was sent before has passed then
            for _ in range(exchanges + 2):
                client.exchange(seen, envs, lambda proxy=proxy, marks=marks: marks.append(_passed(proxy)))
            client.close()
            sent[name] = (marks[-1] - marks[1]) / exchanges
    return sent


def _passed(proxy: subprocess.Popen[str]) -> int:
    assert proxy.stdin is not None
    assert proxy.stdout is not None
    proxy.stdin.write("\n")
    proxy.stdin.flush()
    return int(proxy.stdout.readline().split()[0])
