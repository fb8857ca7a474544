"""Checks of the first words of ``openenv.v1`` (E1 to E6), and of what holds on every socket (E24, E29, E30)."""

from __future__ import annotations

import math
import time

from openenv.conformance.report import Note, Violation
from openenv.conformance.server.target import Plain, Target, check, observation_of
from openenv.conformance.socket import SUBPROTOCOL, Socket, short

__all__ = ["begin_silence"]

FINAL_CODES = (1000, 1013, 4000, 4001, 4002, 4003)
_FIRST_FRAME_S = 10.0
_TOKEN_CHARACTERS = 43
"""Of 256 bits in base64."""


def begin_silence(target: Target) -> None:
    """Open a socket that says nothing, so that the other checks need not wait for its end."""
    target.silent = Socket(target.ws, offers=(SUBPROTOCOL,), timeout_s=target.timeout_s), time.monotonic()


@check("E1")
def _not_offered(target: Target) -> None:
    """a client that offers nothing is spoken to in the plain dialect"""
    with target.plain() as one:
        if one.subprotocol is not None:
            raise Violation("unasked-subprotocol", f"the server chose {one.subprotocol!r}, which was not offered")
        one.quiet("to a client that offered no subprotocol")
        frame = one.ask({"type": "state"})
        if frame["type"] != "state" or "seq" in frame:
            raise Violation("not-plain", f"state was answered by {short(frame)}")


@check("E1")
def _among_others(target: Target) -> None:
    """openenv.v1 is echoed wherever it stands among the offers"""
    with Socket(target.ws, offers=("other.v9", SUBPROTOCOL), timeout_s=target.timeout_s) as one:
        if one.subprotocol != SUBPROTOCOL:
            raise Violation("not-echoed", f"offered other.v9 and openenv.v1, the server chose {one.subprotocol!r}")


@check("E2")
def _welcome(target: Target) -> None:
    """the shape of welcome, and silence after it"""
    with target.v1() as one, target.v1() as two:
        data = one.welcome["data"]
        limits = data.get("limits")
        wrong = [
            name
            for name, fits in (
                ("protocol", data.get("protocol") == 1),
                ("server", isinstance(data.get("server"), str)),
                ("features", isinstance(data.get("features"), list)),
                ("limits", isinstance(limits, dict)),
                ("epoch", isinstance(data.get("epoch"), str) and data.get("epoch")),
                ("grace_s", isinstance(data.get("grace_s"), int | float)),
            )
            if not fits
        ]
        if wrong:
            raise Violation("bad-welcome", f"{', '.join(wrong)} missing or wrong in {short(one.welcome, 300)}")
        if one.epoch != two.epoch:
            raise Violation("epoch-changes", "two sockets of one server were told different epochs")
        one.quiet("after its welcome, before it was asked")
        absent = [name for name in ("max_message_bytes", "max_depth") if not isinstance(limits.get(name), int)]
        if absent:
            raise Note("limits-not-told", f"limits lacks {', '.join(absent)}")


@check("E3")
def _open(target: Target) -> None:
    """release is not answered, open is answered by opened"""
    with target.v1() as one:
        one.release("no-such-session", "no-such-token")
        one.quiet("to a release")
        one.open()
        frame = one.ask({"type": "open", "data": {"uses": []}})
        if frame["type"] == "opened":
            raise Violation("opened-twice", "a second open on one socket was answered by opened")


@check("E3")
def _one_environment_a_socket(target: Target) -> None:
    """calls after opened are answered, and two sessions do not meet"""
    with target.v1().open() as one, target.v1().open() as two:
        first, second = observation_of(one.call("reset")), observation_of(two.call("reset"))
        if one.session == two.session:
            raise Violation("shared-session", "two opens were given one session")
        if target.probe and first["observation"].get("env", one) == second["observation"].get("env", two):
            raise Violation("shared-environment", "two sessions were answered by one environment")


@check("E4")
def _unknown(target: Target) -> None:
    """unknown features and members are ignored"""
    with target.v1() as one:
        one.open("seq", "teleport", novelty={"a": 1})
        observation_of(one.call("reset"))


@check("E4")
def _no_features(target: Target) -> None:
    """a client that uses no feature is served, and its calls have no numbers"""
    with target.v1() as one:
        opened = one.ask({"type": "open", "data": {"uses": []}}, "opened")
        if opened["type"] != "opened":
            raise Violation("not-opened", f"an open that uses nothing was answered by {short(opened)}")
        frame = one.ask({"type": "reset"})
        observation_of(frame)
        if "seq" in frame:
            raise Violation("seq-unused", "a call without a number was answered with one, though seq is not in use")


@check("E5")
def _token(target: Target) -> None:
    """the token is long, fresh, and not told by the session"""
    with target.v1().open() as one, target.v1().open() as two:
        if len(one.token) < _TOKEN_CHARACTERS:
            raise Violation("short-token", f"a token of {len(one.token)} characters holds less than 256 bits")
        if one.token == two.token:
            raise Violation("same-token", "two sessions were given one token")
        if one.token in one.session or one.session in one.token:
            raise Violation("token-in-session", "session and token contain each other")


@check("E6", "resume")
def _never_called(target: Target) -> None:
    """a session that was never called is not leased"""
    with target.v1().open() as one:
        one.cut()
        one.gone("never_called")


@check("E24")
def _protocol(target: Target) -> None:
    """a first frame that is neither release, open nor resume ends the socket with 4003"""
    for first in ('{"type":"reset"}', "not json", '{"type":"cancel","seq":1}'):
        with target.v1() as one:
            one.send(first)
            code, _, frames = one.closed()
            if any(frame["type"] not in ("error",) for frame in frames):
                raise Violation("run-before-open", f"{first!r} before open was answered by {short(frames[0])}")
            if code != 4003:
                raise Violation("wrong-close-code", f"{first!r} as a first frame: close code {code}, not 4003")


@check("E29", probe=True)
def _values(target: Target) -> None:
    """NaN and infinities cross as tokens"""
    with target.v1().open("seq") as one:
        one.call("reset")
        seen = observation_of(one.step("nan"))
        reward = seen.get("reward")
        if not (isinstance(reward, float) and math.isnan(reward)):
            raise Violation("changed-value", f"the reward NaN arrived as {reward!r}")
        one.seq += 1
        one.send(f'{{"type":"step","seq":{one.seq},"data":{{"op":"echo","arg":[NaN,Infinity,-Infinity]}}}}')
        echo = observation_of(one.answer())["observation"].get("echo")
        if not (isinstance(echo, list) and len(echo) == 3 and echo[0] != echo[0] and echo[1:] == [math.inf, -math.inf]):
            raise Violation("changed-value", f"NaN and infinities came back as {short(echo)}")


@check("E30")
def _ending(target: Target) -> None:
    """terminated and truncated stand beside done"""
    with target.v1().open("seq") as one:
        frames = [observation_of(one.call("reset"))]
        if target.probe:
            frames += [observation_of(one.step("done"))]
        for data in frames:
            ends = data.get("terminated"), data.get("truncated")
            if not all(isinstance(end, bool) for end in ends):
                raise Violation("no-ending", f"terminated and truncated must be true or false: {short(data)}")
            if data.get("done") is not any(ends):
                raise Violation("bad-ending", f"done must say that either is true: {short(data)}")


@check("E30")
def _ending_is_not_plain(target: Target) -> None:
    """in the plain dialect they are not there"""
    with Plain(target) as one:
        data = observation_of(one.ask({"type": "reset"}))
        if more := sorted({"terminated", "truncated"} & set(data)):
            raise Note("more-members", f"plain observations have {' and '.join(more)}")
