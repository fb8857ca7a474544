"""What is played with a server that behaves: exchanges, forms, pings, two connections, reuse, its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from websockets.exceptions import ConnectionClosed

from openenv.conformance.policy.clauses import REUSE
from openenv.conformance.policy.codec import Form
from openenv.conformance.policy.judge import Fault, Judge
from openenv.conformance.policy.server.peer import Peer, Target, ended
from openenv.conformance.report import Skip

__all__ = ["STEPS", "Step", "step"]

Play = Callable[[Target, Judge], None]
STOP = (1001, "plugrl-server-stop")
_QUIET_S = 0.2
_SLOW_S = 0.2
_LATER_S = 0.05
_PADDING = 512
_PADDED = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is tried, on connections of its own.

    Attributes:
        phase: what it belongs to.
        main: the clause to blame when the server goes silent or away.
        text: what is tried, in one line.
        play: tries it.
    """

    phase: str
    main: str
    text: str
    play: Play


STEPS: list[Step] = []
"""All steps, in order."""


def step(phase: str, main: str) -> Callable[[Play], Play]:
    """Add a step; its docstring says what it does."""

    def add(play: Play) -> Play:
        STEPS.append(Step(phase, main, (play.__doc__ or "").strip(), play))
        return play

    return add


# ------------------------------------------------------------ exchange


@step("exchange", "5.1a")
def _greeting(target: Target, judge: Judge) -> None:
    """metadata comes first, once, and its known keys hold what they should"""
    with Peer(target, judge) as one:
        data = one.metadata
        for name in ("protocol_version", "action_horizon", "action_dim"):
            proper = name not in data or (type(data[name]) is int and data[name] > 0)
            judge.expect(proper, "5.1d", "bad-metadata", f"{name} is {data.get(name)!r}, no positive integer")
        for name in ("server", "server_version", "algorithm", "policy"):
            proper = isinstance(data.get(name, ""), str)
            judge.expect(proper, "5.1d", "bad-metadata", f"{name} is {data.get(name)!r:.80}, no str")
        listed = data.get("features", [])
        proper = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
        judge.expect(proper, "5.1d", "bad-metadata", f"features is {listed!r:.80}, no list of str")
        target.listed = tuple(listed) if proper else ()
        try:
            one.ws.recv(_QUIET_S)
        except TimeoutError:
            return
        except ConnectionClosed as closed:
            raise Fault("5.1a", "closed", f"the connection was closed after metadata: {ended(closed)}") from None
        raise Fault("5.1a", "speaks-twice", "a second message came after metadata, and nothing was asked")


@step("exchange", "1.1a")
def _compression(target: Target, judge: Judge) -> None:
    """permessage-deflate is offered, and not taken"""
    with Peer(target, judge, deflate=True) as one:
        assert one.ws.response is not None
        taken = one.ws.response.headers.get("Sec-WebSocket-Extensions", "")
        judge.expect("permessage-deflate" not in taken, "1.1a", "takes-deflate", f"the server takes {taken!r}")


@step("exchange", "4a")
def _rounds(target: Target, judge: Judge) -> None:
    """plain exchanges of three envs"""
    with Peer(target, judge) as one:
        for _ in range(max(1, target.exchanges)):
            one.exchange([0, 1, 2])
        judge.passed("4a")


@step("exchange", "5.2c")
def _other_numbers(target: Target, judge: Judge) -> None:
    """three envs, then one, then two in another order"""
    with Peer(target, judge) as one:
        for envs in ([0, 1, 2], [0], [2, 1], [1, 3, 0, 2]):
            one.exchange(envs)
        one.ask([2, 0])
        one.action([2, 0])
        judge.passed("5.2c")


@step("exchange", "4.3b")
def _other_sets(target: Target, judge: Judge) -> None:
    """feedback of other envs than those that have just asked"""
    with Peer(target, judge) as one:
        one.exchange([0, 1, 2], told=[0], done=[0])
        one.exchange([0], told=[1, 2])
        one.exchange([2, 1], told=[0, 2, 1])
        one.ask([0, 1, 2])
        one.action([0, 1, 2])
        judge.passed("4.3b")


@step("exchange", "1.1b")
def _large_frame(target: Target, judge: Judge) -> None:
    """an image of more than two megabytes"""
    with Peer(target, judge) as one:
        envs = list(range(_PADDED))
        one.ask(envs, target.observation(_PADDED, image="conformance_padding", size=_PADDING))
        one.action(envs)
        judge.passed("1.1b")


# ------------------------------------------------------------ forms


@step("forms", "3.1b")
def _other_forms(target: Target, judge: Judge) -> None:
    """big-endian indices of four bytes, their keys in reverse order"""
    with Peer(target, judge) as one:
        one.ask([1, 0], form=Form(">", reverse=True), dtype="<i4")
        ids = one.message("action").get("data", {}).get("env_ids")
        seen = ids.tolist() if isinstance(ids, np.ndarray) else None
        judge.expect(seen in ([1, 0], None), "3.1b", "misread", f"big-endian indices [1, 0] were read as {seen}")


@step("forms", "3.4a")
def _text_as_list(target: Target, judge: Judge) -> None:
    """text as a list of strings"""
    with Peer(target, judge) as one:
        one.exchange([0, 1])
        one.ask([0, 1], target.observation(2, text=["probe", "é" * 3]))
        one.action([0, 1])
        judge.passed("3.4a")


# ------------------------------------------------------------ pings


class _Pong(threading.Thread):
    """Waits for a pong; ``at`` is when it came."""

    def __init__(self, answered: threading.Event, wait_s: float) -> None:
        super().__init__(daemon=True)
        self.at: float | None = None
        self._answered = answered
        self._wait_s = wait_s

    def run(self) -> None:
        if self._answered.wait(self._wait_s):
            self.at = time.monotonic()


@step("pings", "1b")
def _ping_while_inferring(target: Target, judge: Judge) -> None:
    """a ping between an infer and its action"""
    with Peer(target, judge) as one:
        one.exchange([0])
        one.ask([0])
        began = time.monotonic()
        time.sleep(_LATER_S)  # in one segment with the infer it would be answered before the policy begins
        pong = _Pong(one.ws.ping(), target.wait_s)
        pong.start()
        one.action([0])
        action_s = time.monotonic() - began
        pong.join(target.left())
        if pong.at is None:
            raise Fault("1b", "no-pong", "a ping was not answered")
        if action_s < _SLOW_S:
            raise Skip(f"the action came after {action_s:.3f} s, too soon to tell")
        pong_s = pong.at - began
        text = f"the pong came after {pong_s:.2f} s, with the action after {action_s:.2f} s"
        judge.expect(pong_s < action_s / 2, "1b", "late-pong", text)


# ------------------------------------------------------------ scoping


@step("scoping", "4.4a")
def _two_connections(target: Target, judge: Judge) -> None:
    """two connections that both have an env 0"""
    with Peer(target, judge) as one, Peer(target, judge) as two:
        for _ in range(3):
            for peer in (one, two):
                peer.ask([0])
            for peer in (one, two):
                peer.action([0])
            for peer in (one, two):
                peer.tell([0])
        judge.passed("4.4a")


@step("scoping", "4.4a")
def _not_anothers(target: Target, judge: Judge) -> None:
    """what env 0 of one connection fed back is not there for env 0 of another"""
    if not target.reuses:
        return
    with Peer(target, judge) as one:
        one.exchange([0])
        with Peer(target, judge) as two:
            two.ask([0], target.observation(0), reuse=np.array([True]))
            two.refused("env 0 reuses what another connection fed back", "4.4a")


# ------------------------------------------------------------ reuse


@step("reuse", "10.1a")
def _reuse(target: Target, judge: Judge) -> None:
    """one row of two is reused, then both, in another order"""
    _need_reuse(target)
    with Peer(target, judge) as one:
        one.exchange([0, 1], done=[1])
        one.ask([0, 1], target.observation(1), reuse=np.array([True, False]))
        one.action([0, 1])
        one.tell([0, 1])
        one.ask([1, 0], target.observation(0), reuse=np.array([True, True]))
        one.action([1, 0])
        judge.passed("10.1a", "3 rows were reused")


@step("reuse", "10.1e")
def _no_reuse(target: Target, judge: Judge) -> None:
    """a client that does not use the feature, and one that reuses nothing"""
    _need_reuse(target)
    with Peer(target, judge) as one:
        for reuse in (None, np.array([False, False])):
            one.ask([0, 1], reuse=reuse)
            one.action([0, 1])
            one.tell([0, 1])
        one.ask([0])
        one.action([0])
        judge.passed("10.1e")


@step("reuse", "10.1b")
def _after_the_end(target: Target, judge: Judge) -> None:
    """a terminal observation is reused"""
    _need_reuse(target)
    with Peer(target, judge) as one:
        one.exchange([0, 1], done=[1])
        one.ask([0, 1], target.observation(0), reuse=np.array([True, True]))
        one.refused("env 1 reuses the observation that ended its episode", "10.1b")


@step("reuse", "10.1c")
def _nothing_fed_back(target: Target, judge: Judge) -> None:
    """the first infer of a connection reuses"""
    _need_reuse(target)
    with Peer(target, judge) as one:
        one.ask([0], target.observation(0), reuse=np.array([True]))
        one.refused("env 0 reuses, and fed nothing back", "10.1c")


@step("reuse", "10.1d")
def _bad_reuse(target: Target, judge: Judge) -> None:
    """reuse of integers, of a wrong length, as a list, and beside too many or too few rows"""
    _need_reuse(target)
    for what, rows, reuse in (
        ("reuse is of integers", 1, np.array([1, 0])),
        ("reuse has an entry too many", 1, np.array([True, False, False])),
        ("reuse is a list", 1, [True, False]),
        ("data has the rows that reuse names too", 2, np.array([True, False])),
        ("data lacks a row", 0, np.array([True, False])),
    ):
        with Peer(target, judge) as one:
            one.exchange([0, 1])
            one.ask([0, 1], target.observation(rows), reuse=reuse)
            one.refused(what, "10.1d")


def _need_reuse(target: Target) -> None:
    if not target.reuses:
        raise Skip(f"the server does not list {REUSE}")
