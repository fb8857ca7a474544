"""Scenarios of ``openenv.v1`` on a connection that holds: opening, numbers, giving up."""

from __future__ import annotations

from typing import Any

from openenv.conformance.client.link import Link, step
from openenv.conformance.client.plain import POISON, STOP, begin, told
from openenv.conformance.client.scenario import ALL_FEATURES, scenario
from openenv.conformance.client.sessions import Call, Fault
from openenv.conformance.client.stage import Stage
from openenv.conformance.report import Skip

__all__ = ["need"]

_SMALL = 2000
_GIVE_UP_S = 0.4
_HOLD_S = 0.6
_FULL = {"message": "full", "code": "CAPACITY_REACHED", "active_sessions": 1, "max_sessions": 1}


def need(link: Link, *features: str) -> None:
    """Skip what a client that does not use a feature gives no occasion for."""
    if unused := [one for one in features if one not in link.session.uses]:
        raise Skip(f"the client does not use {', '.join(unused)}")


@scenario("E2", "E3", "E4", "E5", "E7", "E18")
async def _play_numbered(stage: Stage) -> None:
    """an episode with numbered calls, unknown features and members, and the end"""
    link = await stage.session()
    if link.releases:
        raise Fault("E3", "unknown-release", "a client that never had a session releases one")
    await link.reply(await link.call("reset"), step("echo", arg=[1, "é"]))
    call = await link.call("step")
    told(call, {"op": "echo", "arg": [1, "é"]})
    await link.reply(call, {"call": "state"})
    await link.reply(await link.call("state"), step("done"))
    await link.reply(await link.call("step"), {"call": "reset", "data": {"seed": 3}}, done=True)
    await link.reply(await link.call("reset"), step())
    await link.reply(await link.call("step"), STOP)
    await stage.finish(link)
    if stage.dials > 1:
        raise Fault("E3", "two-sockets", f"one client made {stage.dials} connections, though none was lost")


@scenario("E1", plain=True)
async def _not_echoed(stage: Stage) -> None:
    """the server does not echo the offer: the client speaks the plain dialect, on this connection or on another"""
    link = await stage.dial()
    if "openenv.v1" not in link.offers:
        raise Skip("the client does not offer openenv.v1")
    link = await _redialled(stage, link)
    call = await link.call("reset")
    await link.reply(call, STOP)
    await stage.finish(link)


async def _redialled(stage: Stage, link: Link) -> Link:
    """The connection that the client keeps. One that cannot take a refused offer dials again without it."""
    try:
        again = await stage.second(1.0)
    except TimeoutError:
        return link
    if again.offers:
        raise Fault("E1", "offered-again", f"the second dial offers {', '.join(again.offers)} again")
    return again


@scenario("E4", features=())
async def _nothing_offered(stage: Stage) -> None:
    """a server that speaks openenv.v1 and lists no feature: no numbers, no cancel, no resume"""
    link = await begin(stage)
    await link.reply(await link.call("step"), step(arg="lost", wait_s=0.6))
    await link.cut()
    link = await stage.session("a new session")
    await link.reply(await link.call("reset"), STOP)
    await stage.finish(link)


@scenario("E4", features=("seq",))
async def _only_numbers_offered(stage: Stage) -> None:
    """a server that lists only seq: a call that is given up is not cancelled"""
    link = await begin(stage)
    await link.reply(await link.call("step"), step(arg="slow", timeout_s=_GIVE_UP_S))
    slow = await link.call("step")
    await link.quiet(_HOLD_S * 2, "E4", "unlisted-feature", "though neither cancel nor resume is listed")
    await link.send(link.answer(slow, step(POISON)))
    await _after_a_late_result(stage, link)


@scenario("E3")
async def _refused(stage: Stage) -> None:
    """the server is full at first: CAPACITY_REACHED and close code 1013"""
    for _ in range(2):
        link = await stage.welcomed()
        kind, _ = await stage.first(link)
        if kind != "open":
            raise Fault("E3", "wrong-first-frame", f"open was due, and {kind} came")
        await link.send({"type": "error", "data": {**_FULL, "retry_after_s": 0.1, "applied": False}})
        await link.quiet(0.1, "E3", "call-before-opened", "though it was refused")
        await link.close(1013, "capacity")
    link = await stage.session("another try")
    await link.reply(await link.call("reset"), STOP)
    await stage.finish(link)


@scenario("E3")
async def _slow_to_open(stage: Stage) -> None:
    """the server takes its time to open: nothing is sent meanwhile"""
    link = await stage.welcomed()
    _, data = await stage.first(link)
    await link.quiet(0.5, "E3", "call-before-opened", "before opened came")
    await stage.grant(link, data)
    await link.reply(await link.call("reset"), STOP)
    await stage.finish(link)


@scenario("E7")
async def _wrong_number(stage: Stage) -> None:
    """a reply with another number answers nothing"""
    link = await begin(stage)
    need(link, "seq")
    call = await link.call("step")
    await link.send(link.answer(Call("step", "", {}, (call.seq or 0) + 1), step(POISON)))
    while (raw := await stage.bounded(link.next(), "the end of the socket")) is not None:
        if POISON in str(raw):
            raise Fault("E7", "wrong-number-taken", "a reply with another number was taken for the answer")
        if '"reset"' in str(raw):
            raise Fault("E7", "session-kept", "the client goes on with a session whose numbers do not fit")
    link = await stage.session("a new session")
    await link.reply(await link.call("reset"), STOP)
    await stage.finish(link)


@scenario("E10")
async def _request_too_large(stage: Stage) -> None:
    """a step over the server's limit is not sent, and the session goes on"""
    stage.limits = {"max_message_bytes": _SMALL, "max_depth": 200}
    link = await begin(stage)
    large = {"call": "step", "action": {"op": "echo", "arg": "x" * 2 * _SMALL}}
    await link.reply(await link.call("step"), {**large, "else": step(arg="small")})
    call = await link.call()
    if len(call.raw) > _SMALL:
        raise Fault("E10", "oversized-sent", f"a request of {len(call.raw)} bytes came, where {_SMALL} is the limit")
    told(call, {"op": "inc", "arg": "small"})
    await link.reply(call, STOP)
    await stage.finish(link)


@scenario("E10")
async def _reply_too_large(stage: Stage) -> None:
    """a reply was too large: the session goes on"""
    link = await begin(stage)
    error: dict[str, Any] = {"size": 10**9, "limit": 10**8, "applied": True}
    await link.error(await link.call("step"), "REPLY_TOO_LARGE", **error)
    await link.reply(await link.call("step", "reset"), STOP)
    await stage.finish(link)


@scenario("E12")
async def _together_numbered(stage: Stage) -> None:
    """three calls at the same time"""
    link = await stage.session()
    calls = [step(arg="a"), {"call": "state"}, step(arg="b")]
    await link.reply(await link.call("reset"), {"call": "together", "calls": calls})
    for _ in range(3):
        call = await link.call("step", "state")
        await link.alone(0.4)
        await link.reply(call, STOP)
    await stage.finish(link)


@scenario("E15a")
async def _failed_reset(stage: Stage) -> None:
    """a reset is answered by an error: no step may follow before another"""
    link = await begin(stage)
    following = {"call": "reset", "data": {"seed": 1}, "else": step(arg="after a reset that failed")}
    await link.reply(await link.call("step"), following)
    await link.error(await link.call("reset"), "EXECUTION_ERROR", "no board", applied=None)
    call = await link.call()
    if call.kind != "reset":
        raise Fault("E15a", "step-without-reset", f"a {call.kind} came after a reset that had failed")
    await link.reply(call, STOP)
    await stage.finish(link)


# ---------------------------------------------------------------- giving up


async def given_up(stage: Stage, call: str = "step") -> tuple[Link, Call]:
    """A session in which a caller has given up a call. Returns it, and the call."""
    link = await begin(stage)
    need(link, "seq")
    slow = step(arg="slow") if call == "step" else {"call": call}
    await link.reply(await link.call("step"), {**slow, "timeout_s": _GIVE_UP_S})
    return link, await link.call(call)


async def cancelled(link: Link, call: Call) -> None:
    """Wait for the cancel of a call."""
    raw, frame = await link.frame("cancel")
    if frame["type"] != "cancel":
        clause = "E13" if frame["type"] not in ("reset", "step", "state") else "E14"
        raise Fault(clause, "no-cancel", f"cancel was due, and {raw[:200]} came")
    if frame.get("seq") != call.seq:
        raise Fault("E13", "wrong-cancel", f"the cancel of call {call.seq} is {raw[:200]}")


async def _cancel_if_used(link: Link, call: Call) -> None:
    if "cancel" in link.session.uses:
        await cancelled(link, call)


async def _after_a_late_result(stage: Stage, link: Link) -> None:
    """Once a late result is there, the next call raises and sends nothing: then the driver resets."""
    call = await link.call()
    if POISON in call.raw:
        raise Fault("E15", "late-result-taken", "a late result was taken for the answer of another call")
    if call.kind != "reset":
        raise Fault("E15", "late-result-dropped", f"a {call.kind} was sent before a late result was handed over")
    await link.reply(call, STOP)
    await stage.finish(link)


@scenario("E13", "E14", "E15")
async def _given_up_late(stage: Stage) -> None:
    """a step is given up, and ends with its result"""
    link, slow = await given_up(stage)
    need(link, "cancel")
    await cancelled(link, slow)
    await link.quiet(_HOLD_S, "E14", "sent-unsettled", "while the fate of a call that was given up is unknown")
    await link.send(link.answer(slow, step(POISON)))
    link.session.last_reply = link.session.last_seq
    await _after_a_late_result(stage, link)


@scenario("E14")
async def _given_up_running(stage: Stage) -> None:
    """the server says that the call still runs: the next call waits"""
    link, slow = await given_up(stage)
    await _cancel_if_used(link, slow)
    await link.send({"type": "running", "seq": slow.seq, "data": {}})
    await link.quiet(_HOLD_S, "E14", "sent-unsettled", "while the fate of a call that was given up is unknown")
    await link.send(link.answer(slow, step(POISON)))
    await _after_a_late_result(stage, link)


@scenario("E15")
async def _given_up_not_applied(stage: Stage) -> None:
    """a step is given up, and was not applied: the next one is sent"""
    link, slow = await given_up(stage)
    await _cancel_if_used(link, slow)
    await link.error(slow, "CANCELLED", applied=False)
    call = await link.call()
    if call.kind != "step":
        raise Fault("E15", "not-applied-raised", "a step that was not applied made the next call raise")
    await link.reply(call, STOP)
    await stage.finish(link)


@scenario("E15")
async def _given_up_unknown(stage: Stage) -> None:
    """a step is given up, and nobody knows whether it was applied: the next call raises, once"""
    link, slow = await given_up(stage)
    await _cancel_if_used(link, slow)
    await link.error(slow, "CANCELLED", applied=None)
    call = await link.call()
    if call.kind != "reset":
        raise Fault("E15", "unknown-outcome-dropped", f"a {call.kind} was sent, though the outcome was not told")
    await link.reply(call, STOP)
    await stage.finish(link)


@scenario("E15")
async def _given_up_state(stage: Stage) -> None:
    """a state is given up, and its late reply is of no interest"""
    link, slow = await given_up(stage, "state")
    await _cancel_if_used(link, slow)
    await link.send(link.answer(slow, step(POISON)))
    call = await link.call()
    if POISON in call.raw:
        raise Fault("E15", "late-result-taken", "a late state was taken for the answer of another call")
    await link.reply(call, STOP)
    await stage.finish(link)


# ---------------------------------------------------------------- the queue


@scenario("E28", features=(*ALL_FEATURES, "queue"))
async def _queued(stage: Stage) -> None:
    """the server is full, and tells the client its position until there is a slot"""
    link, data = await _asked_to_wait(stage)
    for position in (3, 2, 1):
        await link.send({"type": "queued", "data": {"position": position}})
        await link.quiet(0.2, "E28", "left-the-queue", "while it waits for a slot")
    await stage.grant(link, data)
    await link.reply(await link.call("reset"), STOP)
    await stage.finish(link)


@scenario("E28", features=(*ALL_FEATURES, "queue"))
async def _queued_in_vain(stage: Stage) -> None:
    """a place in the queue, and then a refusal: the client asks again"""
    link, _ = await _asked_to_wait(stage)
    await link.send({"type": "queued", "data": {"position": 1}})
    await link.send({"type": "error", "data": {**_FULL, "retry_after_s": 0.1, "applied": False}})
    await link.close(1013, "capacity")
    link = await stage.session("another try")
    await link.reply(await link.call("reset"), STOP)
    await stage.finish(link)


async def _asked_to_wait(stage: Stage) -> tuple[Link, dict[str, Any]]:
    link = await stage.welcomed()
    _, data = await stage.first(link)
    uses, wait_s = data.get("uses"), data.get("wait_for_slot_s", 0)
    if not isinstance(uses, list) or "queue" not in uses or not wait_s:
        raise Skip("the client does not wait for a slot; let the driver ask for it")
    return link, data
