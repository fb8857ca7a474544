"""What is tried with a server by a client that breaks the rules; each error must cost one connection, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from websockets.exceptions import ConnectionClosed

from openenv.conformance.policy.judge import Fault, Judge
from openenv.conformance.policy.messages import read_message
from openenv.conformance.policy.server.peer import RESYNC, Peer, Target, ended
from openenv.conformance.policy.server.phases import step

__all__: list[str] = []

_UNASKED = 7


def _each(target: Target, judge: Judge, clause: str, tries: list[tuple[str, Callable[[Peer], None]]]) -> None:
    """Try one after another, on connections of their own; a new one must be greeted after each."""
    for what, provoke in tries:
        with Peer(target, judge) as one:
            provoke(one)
            one.refused(what, clause)
        _alive(target, judge, what)


def _alive(target: Target, judge: Judge, what: str) -> None:
    """A new connection is greeted."""
    before, judge.main = judge.main, "7.2e"
    try:
        with Peer(target, judge):
            judge.passed("7.2e")
    except Fault as fault:
        raise Fault("7.2e", fault.name, f"after an error ({what}): {fault.text}") from None
    judge.main = before


@step("errors", "7.2a")
def _bad_infer(target: Target, judge: Judge) -> None:
    """an infer without env_indices, one without data, one whose rows do not fit"""
    tries: list[tuple[str, Callable[[Peer], None]]] = [
        ("an infer without env_indices", lambda one: one.ask([0], env_indices=None)),
        ("an infer without data", lambda one: one.send(_bare_infer())),
        ("an infer of two envs with one row", lambda one: one.ask([0, 1], target.observation(1))),
    ]
    _each(target, judge, "7.2a", tries)


def _bare_infer() -> dict[str, Any]:
    return {"message_type": "infer", "env_indices": np.zeros(1, "<i8"), "step_ids": np.zeros(1, "<i8")}


@step("errors", "7.2b")
def _second_infer(target: Target, judge: Judge) -> None:
    """a second infer where feedback is due"""

    def provoke(one: Peer) -> None:
        one.ask([0])
        one.action([0])
        one.ask([0])

    _each(target, judge, "7.2b", [("a second infer where feedback is due", provoke)])


@step("errors", "7.2c")
def _bad_feedback(target: Target, judge: Judge) -> None:
    """info that cannot be split, and rewards, flags and observations of a wrong length"""

    def told(**data: Any) -> Callable[[Peer], None]:
        def provoke(one: Peer) -> None:
            one.ask([0, 1])
            one.action([0, 1])
            one.tell([0, 1], **data)

        return provoke

    tries = [
        ("info without an array for two envs", told(info={"task": "pick"})),
        ("info of three envs for two", told(info={"episode": {"r": np.zeros(3, "<f4")}})),
        ("one reward for two envs", told(rewards=np.ones(1, "<f4"))),
        ("three flags for two envs", told(terminated=np.zeros(3, bool))),
        ("one observation for two envs", told(obs=target.observation(1))),
    ]
    _each(target, judge, "7.2c", tries)


@step("errors", "7.2d")
def _no_messages(target: Target, judge: Judge) -> None:
    """a text frame, noise, an unknown type, a forged array, an array of objects"""

    def sent(frame: str | bytes) -> Callable[[Peer], None]:
        return lambda one: one.send(frame)

    tries = [
        ("a text frame", sent('{"message_type": "infer"}')),
        ("an empty frame", sent(b"")),
        ("a frame of noise", sent(b"\xc1\xff\x00 noise")),
        ("a number", sent(msgpack.packb(7))),
        ("a message of an unknown type", sent(msgpack.packb({"message_type": "reset"}))),
        ("an array of a terabyte in eight bytes", sent(_forged("<f8", [1 << 40, 3]))),
        ("an array with a negative size", sent(_forged("<f8", [-1]))),
        ("an array of objects", sent(_forged("|O", [1]))),
    ]
    _each(target, judge, "7.2d", tries)


def _forged(dtype: str, shape: list[int]) -> bytes:
    array = {b"__ndarray__": True, b"data": bytes(8), b"dtype": dtype, b"shape": shape}
    index = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<i8", b"shape": [1]}
    data = {"images": {}, "states": {"obs": array}, "text": ["probe"]}
    message = {"message_type": "infer", "data": data, "env_indices": index, "step_ids": index}
    packed: bytes = msgpack.packb(message)
    return packed


@step("errors", "7.6a")
def _feedback_first(target: Target, judge: Judge) -> None:
    """feedback as the first message of a connection"""
    _each(target, judge, "7.6a", [("feedback came first", lambda one: one.tell([0]))])


@step("errors", "7.6g")
def _unasked_feedback(target: Target, judge: Judge) -> None:
    """feedback that also names an env that holds no action"""
    with Peer(target, judge) as one:
        one.exchange([0], told=[0, _UNASKED])
        one.ask([0])
        _survives(one, judge, "7.6g", "feedback of an env without an action", "")
    _alive(target, judge, "feedback of an env without an action")


@step("errors", "7.2f")
def _odd_indices(target: Target, judge: Judge) -> None:
    """an env that is named twice, and an infer of no env"""
    for what, envs in (("an env that is named twice", [0, 0]), ("an infer of no env", [])):
        with Peer(target, judge) as one:
            one.ask(envs)
            _survives(one, judge, "7.2f", what, "accepted")
        _alive(target, judge, what)


def _survives(one: Peer, judge: Judge, clause: str, what: str, note: str) -> None:
    """The answer may be an action or a resync, and nothing else."""
    limit = one.target.left()
    try:
        read_message(one.ws.recv(limit))
    except TimeoutError:
        judge.need(False, clause, "no-answer", f"{what}: nothing came within {limit:.3g} s")
    except ConnectionClosed as closed:
        text = f"{what}: closed with {ended(closed)}, not with 1001 'plugrl-server-resync'"
        judge.need(ended(closed) == RESYNC, clause, "crashed", text)
    else:
        if note:
            judge.note(clause, note, f"{what} is accepted")
    judge.passed(clause)


@step("errors", "7.2e")
def _witness(target: Target, judge: Judge) -> None:
    """another connection lives on when one is resynced"""
    with Peer(target, judge) as other:
        with Peer(target, judge) as one:
            one.ask([0], env_indices=None)
            try:
                one.refused("an infer without env_indices", "7.2a")
            except Fault:
                return  # said elsewhere
        other.exchange([0])
        other.ask([0])
        other.action([0])
        judge.passed("7.2e")
