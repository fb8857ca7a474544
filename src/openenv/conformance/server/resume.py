"""Checks of sessions that outlive their socket (E17 to E22, E25)."""

from __future__ import annotations

import time

from openenv.conformance.report import Violation
from openenv.conformance.server.calls import SLEEP_S, numbered
from openenv.conformance.server.opening import FINAL_CODES
from openenv.conformance.server.target import V1, Target, check, observation_of
from openenv.conformance.socket import short

__all__: list[str] = []


def _called(target: Target, *uses: str) -> V1:
    """A session that was reset."""
    one = target.v1().open(*uses)
    observation_of(one.call("reset"))
    return one


def _goes_on(other: V1, count: int) -> None:
    """See that it is the same environment: its next step is number ``count``."""
    other.call("state")
    if other.target.probe and (seen := other.count(other.step())) != count:
        raise Violation("other-environment", f"the resumed session has counted {seen}, where {count} was due")


@check("E17", "resume")
def _not_asked_for(target: Target) -> None:
    """a session that does not use resume ends with its socket"""
    with _called(target, "seq", "cancel") as one:
        one.cut()
        deadline = time.monotonic() + target.timeout_s
        while True:  # the server may not have noticed yet
            other, frame = one.resumed()
            other.cut()
            if frame["type"] == "lost":
                return
            if time.monotonic() > deadline or frame["type"] == "resumed":
                raise Violation("leased-unasked", f"a session that does not use resume: {short(frame)}")


@check("E18", "resume")
def _ends_that_lease(target: Target) -> None:
    """a reset connection, 1000 without close, and 1001 leave the session to be resumed"""
    for code in (None, 1000, 1001):
        with _called(target) as one:
            if code is None:
                one.cut()
            else:
                one.close(code)
            other, _ = one.back()
            with other:
                _goes_on(other, 1)


@check("E18", "resume")
def _close(target: Target) -> None:
    """'close' is answered by 1000 'closed' and ends the session for good"""
    with _called(target) as one:
        one.send({"type": "close"})
        code, reason, frames = one.closed()
        if (code, reason) != (1000, "closed"):
            raise Violation("wrong-close-code", f"close was answered by {code} {reason!r}, not 1000 'closed'")
        if frames:
            raise Violation("close-answered", f"close was answered by {short(frames[0])}")
        one.gone("closed")


@check("E19", "resume", probe=True)
def _runs_on(target: Target) -> None:
    """a call runs on without its socket, and its reply is kept"""
    with _called(target) as one:
        one.send(one.request("step", op="sleep", arg=SLEEP_S))
        one.ping()
        one.cut()
        time.sleep(SLEEP_S * 2)
        other, data = one.back(last_reply=1)
        with other:
            if data.get("last_seq") != 2:
                raise Violation("wrong-last-seq", f"last_seq is {data.get('last_seq')}, where 2 was due")
            frame = numbered(other.answer(), 2)
            if other.count(frame) != 1:
                raise Violation("lost-reply", f"the reply of the running call is {short(frame)}")


@check("E20", "resume")
def _rotation(target: Target) -> None:
    """the old token is good until a frame comes from who was told the new one"""
    with _called(target) as one:
        one.cut()
        two, _ = one.back()
        if two.token == one.token:
            raise Violation("same-token", "resumed told the token that was shown")
        two.cut()
        three, _ = one.back(attempt=2)
        three.call("state")
        three.cut()
        fresh = three.token
        one.gone("unknown", attempt=3)
        three.token = fresh
        target.leases[one.session] = fresh
        four, _ = three.back()
        with four:
            _goes_on(four, 1)


@check("E20", "resume")
def _lost(target: Target) -> None:
    """a wrong token, session or epoch"""
    with _called(target) as one:
        token, session, epoch = one.token, one.session, one.epoch
        one.token = token[:-4] + ("aaaa" if not token.endswith("aaaa") else "bbbb")
        one.gone("unknown")
        one.token, one.session = token, "no-such-session"
        one.gone("unknown")
        one.session, one.epoch = session, epoch + "x"
        one.gone("epoch")
        one.epoch = epoch
        if one.call("state")["type"] != "state":
            raise Violation("session-lost", "a session did not outlive resumes that were refused")


@check("E20", "resume")
def _ghost(target: Target) -> None:
    """a resume with a lower attempt changes nothing, one with an equal attempt is accepted"""
    with _called(target) as one:
        one.cut()
        holder, _ = one.back(attempt=5)
        with holder:
            ghost, frame = _unanswered(one, 3)
            if frame is not None:
                raise Violation("ghost-attached", f"a resume of attempt 3 after attempt 5 was answered by {frame}")
            code, _, _ = ghost.closed()
            if code in FINAL_CODES:
                raise Violation("ghost-final-code", f"a ghost's socket was closed with {code}, which is final")
            try:
                holder.ping()
            except Violation as said:
                raise Violation("ghost-replaced", f"a ghost took the session from its holder: {said.text}") from None
            again, _ = one.back(attempt=5)
            with again:
                _goes_on(again, 1)


def _unanswered(one: V1, attempt: int) -> tuple[V1, str | None]:
    """Resume where no answer is due. Returns the socket, and the answer if there is one."""
    ghost = V1(one.target)
    known = {"session": one.session, "token": one.token, "epoch": one.epoch, "last_reply": one.seq}
    ghost.send({"type": "resume", "data": {**known, "attempt": attempt}})
    try:
        return ghost, short(ghost.recv())
    except Violation as said:
        return ghost, None if said.name == "closed" else said.text


@check("E21", "resume", probe=True)
def _pushed(target: Target) -> None:
    """a reply that did not arrive is pushed, byte for byte, and once"""
    with _called(target) as one:
        one.step()
        reply = one.raw
        one.cut()
        two, data = one.back(last_reply=1)
        with two:
            if data.get("last_seq") != 2 or data.get("running") is not False:
                raise Violation("bad-resumed", f"last_seq 2 and running false were due: {short(data)}")
            two.answer()
            if two.raw != reply:
                raise Violation("other-reply", f"the pushed reply is {short(two.raw)} and was {short(reply)}")
            two.quiet("after the reply that it pushed")
            _goes_on(two, 2)


@check("E21", "resume", probe=True)
def _not_pushed(target: Target) -> None:
    """a reply that arrived is not pushed"""
    with _called(target) as one:
        one.step()
        one.cut()
        two, data = one.back(last_reply=2)
        with two:
            if data.get("last_seq") != 2:
                raise Violation("wrong-last-seq", f"last_seq is {data.get('last_seq')}, where 2 was due")
            two.quiet("after resumed, though no reply is missing")
            _goes_on(two, 2)


@check("E21", "resume", probe=True)
def _pushed_when_ready(target: Target) -> None:
    """the reply of a call that still runs is pushed when it is there"""
    with _called(target) as one:
        one.send(one.request("step", op="sleep", arg=SLEEP_S * 2))
        one.ping()
        one.cut()
        two, data = one.back(last_reply=1)
        with two:
            if data.get("last_seq") != 2 or data.get("running") is not True:
                raise Violation("bad-resumed", f"last_seq 2 and running true were due: {short(data)}")
            if two.count(numbered(two.answer(), 2)) != 1:
                raise Violation("run-twice", "the running call was run again, or on another environment")
            _goes_on(two, 2)


@check("E22", "resume")
def _replaced(target: Target) -> None:
    """the older socket is closed with 4000, and its frames are ignored"""
    with _called(target) as one:
        two, _ = one.back()
        with two:
            code, _, _ = one.closed()
            if code != 4000:
                raise Violation("wrong-close-code", f"the older socket was closed with {code}, not 4000")
            _goes_on(two, 1)


@check("E22", "resume", probe=True)
def _reply_to_the_newest(target: Target) -> None:
    """the reply of a running call goes to the newest socket"""
    with _called(target) as one:
        one.send(one.request("step", op="sleep", arg=SLEEP_S * 2))
        one.ping()
        two, _ = one.back(last_reply=1)
        with two:
            _, _, frames = one.closed()
            if any(frame["type"] == "observation" for frame in frames):
                raise Violation("old-socket-answered", "the reply went to the socket that was replaced")
            numbered(two.answer(), 2)


@check("E25", "resume")
def _release(target: Target) -> None:
    """who holds the token may end the session; another may not"""
    with _called(target) as one:
        one.cut()
        with target.v1() as stranger:
            stranger.release(one.session, one.token[:-4] + ("aaaa" if one.token[-4:] != "aaaa" else "bbbb"))
            stranger.open()
        two, _ = one.back()
        two.call("state")
        two.cut()
        with target.v1() as owner:
            owner.release(two.session, two.token)
            owner.open()
            two.gone("closed")
