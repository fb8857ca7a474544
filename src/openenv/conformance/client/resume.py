"""Scenarios in which a connection is lost: resuming, being told that the session is lost, and giving it back."""

from __future__ import annotations

import asyncio
import time

from openenv.conformance.client.calls import cancelled, given_up, need
from openenv.conformance.client.link import Link, step
from openenv.conformance.client.plain import POISON, STOP, begin
from openenv.conformance.client.scenario import scenario
from openenv.conformance.client.sessions import Call, Fault
from openenv.conformance.client.stage import Stage

__all__: list[str] = []

_REFUSING_S = 2.0
_DIALS = 25
_PAUSE_S = 0.7
_LONG_S = 5.0
_RESUME_PATIENCE_S = 1.0


async def _resumable(stage: Stage) -> Link:
    link = await begin(stage)
    need(link, "seq", "resume")
    return link


async def _idle(stage: Stage) -> Link:
    """A resumable session without a call in flight; the next comes after a pause."""
    link = await _resumable(stage)
    await link.reply(await link.call("step"), step(arg="next", wait_s=_PAUSE_S))
    return link


async def _plays_on(stage: Stage, link: Link) -> None:
    """See that the next call comes on this socket, and let the client end."""
    await link.reply(await link.call("step"), STOP)
    await stage.finish(link)


@scenario("E23", "E20", "E21", "E5")
async def _cut_idle(stage: Stage) -> None:
    """the connection is reset between two calls, and resumed"""
    link = await _idle(stage)
    await link.cut()
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq)
    await _plays_on(stage, again)


@scenario("E23")
async def _nobody_waits(stage: Stage) -> None:
    """the client comes back though no call waits for it"""
    link = await _resumable(stage)
    await link.reply(await link.call("step"), step(arg="much later", wait_s=_LONG_S))
    await link.cut()
    try:
        async with asyncio.timeout(_LONG_S / 2):
            again = await stage.asks_to_resume(link.session)
    except TimeoutError:
        raise Fault("E23", "waits-for-a-call", "the client does not come back before its next call") from None
    await stage.resume(again, link.session.last_seq)
    await _plays_on(stage, again)


@scenario("E18")
async def _ended_without_closed(stage: Stage) -> None:
    """the socket is closed with 1000 and not 'closed', and with 1012: the client comes back"""
    await _comes_back(stage, "E18", 1000, 1012)


@scenario("E24")
async def _ends_that_are_not_final(stage: Stage) -> None:
    """the socket is closed with 1001, with 1011, with 3000: each time the client comes back"""
    await _comes_back(stage, "E24", 1001, 1011, 3000)


async def _comes_back(stage: Stage, clause: str, *codes: int) -> None:
    link = await _idle(stage)
    for code in codes:
        await link.close(code)
        try:
            again = await stage.asks_to_resume(link.session)
        except Fault as fault:
            raise Fault(clause, "taken-for-final", f"after close code {code}: {fault.text}") from None
        await stage.resume(again, link.session.last_seq)
        await again.reply(await again.call("step"), step(wait_s=_PAUSE_S))
        link = again
    await _plays_on(stage, link)


@scenario("E9", "E21")
async def _request_lost(stage: Stage) -> None:
    """a request did not arrive: it is sent again, in the very same bytes"""
    link = await _resumable(stage)
    lost = await link.call("step")
    await link.cut()
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq - 1)
    call = await again.call(again=True)
    if (call.kind, call.seq) != (lost.kind, lost.seq):
        raise Fault("E21", "not-sent-again", f"{lost.raw[:100]} was due again, and {call.raw[:100]} came")
    if call.raw != lost.raw:
        raise Fault("E9", "other-bytes", f"sent at first: {lost.raw[:150]}, and then: {call.raw[:150]}")
    await again.reply(call, step(arg="next"))
    await _plays_on(stage, again)


@scenario("E21")
async def _reply_lost(stage: Stage) -> None:
    """a reply did not arrive: it is pushed, and the request is not sent again"""
    link = await _resumable(stage)
    call = await link.call("step")
    await link.cut()
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq)
    await _not_again(again, 0.3)
    await again.reply(call, step(arg="next"))
    await _plays_on(stage, again)


@scenario("E21")
async def _still_running(stage: Stage) -> None:
    """the call still runs: its reply is awaited, through another cut"""
    link = await _resumable(stage)
    call = await link.call("step")
    for _ in range(2):
        await link.cut()
        link = await stage.asks_to_resume(link.session)
        await stage.resume(link, link.session.last_seq, running=True)
        await _not_again(link, 0.5)
    await link.reply(call, step(arg="next"))
    await _plays_on(stage, link)


async def _not_again(link: Link, seconds: float) -> None:
    await link.quiet(seconds, "E21", "sent-again", "though the server has the call already")


@scenario("E21")
async def _impossible_number(stage: Stage) -> None:
    """the server resumes at a number that cannot be: the session is lost"""
    link = await _idle(stage)
    await link.cut()
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq + 5)
    await _lost(stage, again)


async def _lost(stage: Stage, old: Link, *, released: bool | None = None) -> None:
    """See that nothing is sent before a new session is open and reset."""
    link = await stage.session("a new session")
    former = [one for one, _ in link.releases]
    if released is True and old.session.id not in former:
        raise Fault("E25", "not-released", "the client opens a new session and does not release the one it gave up")
    if released is False and old.session.id in former:
        raise Fault("E25", "released-replaced", "the client releases a session that another holder has taken over")
    if any(token not in stage.secrets for one, token in link.releases if one == old.session.id):
        raise Fault("E25", "wrong-token", "a release shows a token that was never told")
    await link.reply(await link.call("reset"), step(arg="after"))
    await link.reply(await link.call("step"), STOP)
    await stage.finish(link)


@scenario("E20", "E23")
async def _broken_resumes(stage: Stage) -> None:
    """resumes that break off are tried again with the same token, and counted; a new token begins anew"""
    link = await _idle(stage)
    await link.cut()
    for _ in range(3):
        broken = await stage.asks_to_resume(link.session)
        await broken.cut(0.0)
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq)
    await again.reply(await again.call("step"), step(wait_s=_PAUSE_S))
    await again.cut()
    third = await stage.asks_to_resume(link.session)
    await stage.resume(third, link.session.last_seq)
    await _plays_on(stage, third)


@scenario("E23")
async def _backoff(stage: Stage) -> None:
    """dials that are cut at once: the client goes on trying, but not in a rush"""
    link = await _idle(stage)
    await link.cut()
    until, dials = time.monotonic() + _REFUSING_S, 0
    while time.monotonic() < until:
        await (await stage.dial("another try")).cut(0.0)
        dials += 1
        if dials > _DIALS:
            text = f"{dials} connections within {_REFUSING_S:g} s, each cut at once: there is no backoff"
            raise Fault("E23", "no-backoff", text)
    while True:
        again = await stage.welcomed("another try")
        kind, data = await stage.first(again)
        if kind == "open":
            raise Fault("E23", "not-resumed", "the client opens a new session, where a resume was due")
        again.session = link.session
        await stage.resume(again, int(data.get("last_reply", 0)))
        return await _plays_on(stage, again)


@scenario("E20", "E27", "P25")
async def _lost_in_flight(stage: Stage) -> None:
    """a step is unanswered, and the session has expired: the step is not sent again"""
    link = await _resumable(stage)
    await link.call("step")
    await _told_lost(stage, link, "expired")


@scenario("E20")
async def _lost_evicted(stage: Stage) -> None:
    """the session was evicted while no call waited"""
    await _told_lost(stage, await _idle(stage), "evicted")


@scenario("E20")
async def _lost_for_a_new_reason(stage: Stage) -> None:
    """the session is lost for a reason that the client does not know"""
    await _told_lost(stage, await _idle(stage), "struck_by_lightning")


async def _told_lost(stage: Stage, link: Link, reason: str) -> None:
    await link.cut()
    again = await stage.asks_to_resume(link.session)
    await again.send({"type": "lost", "data": {"reason": reason}})
    await again.close(1000, "lost")
    await _lost(stage, link)


@scenario("E24", "E15a")
async def _other_epoch(stage: Stage) -> None:
    """the server was restarted: its welcome has another epoch"""
    link = await _idle(stage)
    await link.cut()
    stage.epoch = "another-epoch"
    again = await stage.welcomed("a connection to resume on")
    raw = await stage.bounded(again.next(), "a resume, or the end of the socket")
    if raw is not None and '"resume"' in str(raw):
        await again.send({"type": "lost", "data": {"reason": "epoch"}})
        await again.close(1000, "lost")
    elif raw is not None:
        raise Fault("E24", "wrong-first-frame", f"a server with another epoch was sent {str(raw)[:200]}")
    new = await stage.session("a new session")
    if new.releases:
        raise Fault("E25", "released-elsewhere", "a session of another epoch is released, and its token shown")
    await new.reply(await new.call("reset"), STOP)
    await stage.finish(new)


@scenario("E24")
async def _idle_for_good(stage: Stage) -> None:
    """the server ends the session with 4001"""
    await _final(stage, 4001, "idle")


@scenario("E24")
async def _draining(stage: Stage) -> None:
    """the server ends the session with 4002"""
    await _final(stage, 4002, "draining")


@scenario("E24")
async def _closed_by_the_server(stage: Stage) -> None:
    """the server ends the session with 1000 'closed'"""
    await _final(stage, 1000, "closed")


async def _final(stage: Stage, code: int, reason: str) -> None:
    link = await _idle(stage)
    await link.close(code, reason)
    try:
        await _lost(stage, link)
    except Fault as fault:
        if fault.name == "resumed-again":
            raise Fault("E24", "final-code-ignored", f"the client resumes after close code {code} {reason!r}") from None
        raise


@scenario("E22", "E25")
async def _replaced(stage: Stage) -> None:
    """another holder has taken the session: 4000"""
    link = await _idle(stage)
    await link.close(4000, "replaced")
    try:
        await _lost(stage, link, released=False)
    except Fault as fault:
        if fault.name == "resumed-again":
            raise Fault("E22", "came-back", "the client resumes after it was told 4000") from None
        raise


@scenario("E25")
async def _out_of_time(stage: Stage) -> None:
    """a reset whose time runs out before the session is resumed opens a new one, and gives the old one back"""
    link = await _resumable(stage)
    following = {"call": "reset", "data": {"seed": 1}, "wait_s": _PAUSE_S, "timeout_s": _RESUME_PATIENCE_S}
    await link.reply(await link.call("step"), following)
    await link.cut()
    while True:
        new = await stage.welcomed("another try, and then a new session")
        try:
            kind, data = await stage.first(new)
        except Fault as fault:
            if fault.name == "closed":  # its time ran out just now
                continue
            raise
        if kind == "open":
            break
        await new.cut(0.0)
    await stage.grant(new, data)
    if link.session.id not in [one for one, _ in new.releases]:
        raise Fault("E25", "not-released", "the client opens a new session and does not release the one it gave up")
    if any(token not in stage.secrets for one, token in new.releases if one == link.session.id):
        raise Fault("E25", "wrong-token", "a release shows a token that was never told")
    await new.reply(await new.call("reset"), STOP)
    await stage.finish(new)


@scenario("E25")
async def _reset_resumes_first(stage: Stage) -> None:
    """a reset after a loss resumes, and resets on the same session"""
    link = await _resumable(stage)
    await link.reply(await link.call("step"), {"call": "reset", "data": {"seed": 1}, "wait_s": _PAUSE_S})
    await link.cut()
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq)
    await again.reply(await again.call("reset"), STOP)
    await stage.finish(again)


@scenario("E13", "E21")
async def _given_up_and_cut(stage: Stage) -> None:
    """a call is given up, and the connection is reset: the cancel is sent again, the call is not"""
    link, slow = await _cut_after_giving_up(stage)
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq, running=True)
    await cancelled(again, slow)
    await _late_result(stage, again, slow)


@scenario("E21", "E13")
async def _given_up_and_lost(stage: Stage) -> None:
    """a call is given up and had not arrived: only its cancel is sent"""
    link, slow = await _cut_after_giving_up(stage)
    again = await stage.asks_to_resume(link.session)
    await stage.resume(again, link.session.last_seq - 1)
    raw, frame = await again.frame("cancel")
    if frame["type"] == "step":
        raise Fault("E21", "sent-again", "a call that was given up was sent again")
    if (frame["type"], frame.get("seq")) != ("cancel", slow.seq):
        raise Fault("E13", "no-cancel", f"the cancel of call {slow.seq} was due again, and {raw[:200]} came")
    await again.error(slow, "CANCELLED", applied=False)
    await _plays_on(stage, again)


async def _cut_after_giving_up(stage: Stage) -> tuple[Link, Call]:
    link, slow = await given_up(stage)
    need(link, "cancel", "resume")
    await cancelled(link, slow)
    await link.cut()
    return link, slow


async def _late_result(stage: Stage, link: Link, slow: Call) -> None:
    await asyncio.sleep(0.1)
    await link.send(link.answer(slow, step(POISON)))
    link.session.last_reply = link.session.last_seq
    call = await link.call()
    if POISON in call.raw or call.kind != "reset":
        raise Fault("E15", "late-result-dropped", f"a {call.kind} was sent, though a late result was not handed over")
    await link.reply(call, STOP)
    await stage.finish(link)
