"""Scenarios of the plain dialect: what a client sends, and what it does when the connection fails."""

from __future__ import annotations

from openenv.conformance.client.link import Link, observation, step
from openenv.conformance.client.scenario import scenario
from openenv.conformance.client.sessions import Call, Fault
from openenv.conformance.client.stage import Stage

__all__ = ["STOP", "begin", "reset_again", "told"]

STOP = {"call": "close"}
POISON = "poison"
_GIVE_UP_S = 0.5
_LATE_S = 1.5


async def begin(stage: Stage) -> Link:
    """A session that was reset and has taken a step; its next call is due."""
    link = await stage.session()
    await link.reply(await link.call("reset"), step(arg="first"))
    return link


def told(call: Call, expected: dict[str, object]) -> None:
    """See that a step carries the action that the driver was told."""
    for name, value in expected.items():
        if call.data.get(name) != value:
            raise Fault("P8", "other-action", f"the driver was told {expected} and the client sent {call.raw[:200]}")


async def reset_again(stage: Stage, what: str = "a new session and a reset") -> Link:
    """See that the client goes on with a reset on a new session, and let it end."""
    link = await stage.session(what)
    await link.reply(await link.call("reset"), step(arg="after"))
    told(await _answered(link), {"op": "inc", "arg": "after"})
    await stage.finish(link)
    return link


async def _answered(link: Link) -> Call:
    call = await link.call("step")
    await link.reply(call, STOP)
    return call


@scenario("P2", "P7", "P8", "P9", "P14", "P15", "P25", "E1", plain=True)
async def _play(stage: Stage) -> None:
    """two episodes, every kind of call, and the end"""
    link = await stage.session()
    first = await link.call("reset")
    if first.data:
        raise Fault("P9", "bad-data", f"a reset without arguments has the data {first.raw[:200]}")
    await link.reply(first, step("echo", arg={"deep": [1, None, "é"], "big": 2**53}))
    call = await link.call("step")
    told(call, {"op": "echo", "arg": {"deep": [1, None, "é"], "big": 2**53}})
    await link.reply(call, {"call": "state"})
    await link.reply(await link.call("state"), step("done"))
    await link.reply(await link.call("step"), {"call": "reset", "data": {"seed": 3}}, done=True)
    call = await link.call("reset")
    if call.data != {"seed": 3}:
        raise Fault("P9", "bad-data", f"a reset with seed=3 has the data {call.raw[:200]}")
    await link.reply(call, step())
    await link.reply(await link.call("step"), STOP)
    await stage.finish(link)
    if stage.dials > 1:
        raise Fault("P2", "two-sockets", f"one client made {stage.dials} connections, though none was lost")


@scenario("P24", plain=True)
async def _together(stage: Stage) -> None:
    """three calls at the same time"""
    link = await stage.session()
    calls = [step(arg="a"), {"call": "state"}, step(arg="b")]
    await link.reply(await link.call("reset"), {"call": "together", "calls": calls})
    for _ in range(3):
        call = await link.call("step", "state")
        await link.alone(0.4)
        await link.reply(call, STOP)
    await stage.finish(link)


@scenario("P13", plain=True)
async def _errors(stage: Stage) -> None:
    """calls that are answered by an error: the session goes on"""
    link = await begin(stage)
    await link.error(await link.call("step"), "EXECUTION_ERROR", "boom")
    await link.reply(await link.call("step"), step(arg="second"))
    errors = [{"type": "missing", "loc": ["op"], "msg": "Field required", "input": {}, "url": "https://example.org"}]
    await link.error(await link.call("step"), "VALIDATION_ERROR", "Invalid message", errors=errors)
    await link.reply(await link.call("step"), STOP)
    await stage.finish(link)


@scenario("P25", plain=True)
async def _cut_while_idle(stage: Stage) -> None:
    """the connection is reset between two steps"""
    link = await begin(stage)
    await link.reply(await link.call("step"), step(arg="lost", wait_s=0.6))
    await link.cut()
    await reset_again(stage)


@scenario("P25", plain=True)
async def _closed_while_idle(stage: Stage) -> None:
    """the server closes the connection between two calls, with 1000; the next call is a state"""
    link = await begin(stage)
    await link.reply(await link.call("step"), {"call": "state", "wait_s": 0.6})
    await link.close(1000)
    await reset_again(stage)


@scenario("P25", plain=True)
async def _restarted_after_done(stage: Stage) -> None:
    """the server restarts after an episode has ended; the next call is a step all the same"""
    link = await begin(stage)
    await link.reply(await link.call("step"), step(arg="lost", wait_s=0.6), done=True)
    await link.close(1012)
    await reset_again(stage)


@scenario("P27", "P25", plain=True)
async def _cut_before_the_reply(stage: Stage) -> None:
    """the connection is reset while a step is unanswered"""
    link = await begin(stage)
    await link.call("step")
    await link.cut()
    try:
        await reset_again(stage)
    except Fault as fault:
        if fault.name == "silent-reconnect":
            stage.kept.add("P27")  # it was the driver, not the client, that tried again
        raise


@scenario("P25", plain=True)
async def _cut_in_reset(stage: Stage) -> None:
    """the connection is reset while a reset is unanswered"""
    link = await stage.session()
    await link.call("reset")
    await link.cut()
    await reset_again(stage)


@scenario("P26", plain=True)
async def _late(stage: Stage) -> None:
    """a reply that comes after its caller gave up"""
    await _given_up(stage, "P26")


@scenario("E16", plain=True)
async def _plain_give_up(stage: Stage) -> None:
    """a call whose caller gives up"""
    await _given_up(stage, "E16")


async def _given_up(stage: Stage, clause: str) -> None:
    link = await begin(stage)
    await link.reply(await link.call("step"), step(arg="slow", timeout_s=_GIVE_UP_S))
    slow = await link.call("step")
    try:
        await link.quiet(_LATE_S, clause, "session-kept", "on a session whose reply is late")
        await link.send(link.answer(slow, step(POISON)))
        await reset_again(stage)
    except Fault as fault:
        name = "session-kept" if fault.name == "silent-client" else fault.name
        raise Fault(clause, name, fault.text) from None


@scenario("P26", plain=True)
async def _unasked_reply(stage: Stage) -> None:
    """a reply that nobody asked for"""
    link = await begin(stage)
    call = await link.call("step")
    await link.reply(call, step(arg="real", wait_s=0.4))
    await link.send({"type": "observation", "data": observation(step(POISON))})
    await _unpoisoned(stage, link, "shifted-reply", "a reply that nobody asked for was taken for the next answer")


@scenario("P26", plain=True)
async def _wrong_type(stage: Stage) -> None:
    """a state is answered by an observation, and a step by a state"""
    link = await begin(stage)
    await link.call("step")
    poison = {**observation(step(POISON)), "step_count": 0, "next": step(POISON)}
    await link.send({"type": "state", "data": poison})
    await _unpoisoned(stage, link, "wrong-type-taken", "a reply of the wrong type was taken for an answer")


async def _unpoisoned(stage: Stage, link: Link, name: str, text: str) -> None:
    """Answer what comes on the old socket, until it ends; then a reset on a new one is due."""
    while (raw := await stage.bounded(link.next(), "the end of the socket, or another call")) is not None:
        if POISON in str(raw):
            raise Fault("P26", name, text)
        call = link.taken(raw)
        if call.kind == "reset":  # asked for on the same socket: its client has kept the session
            raise Fault("P26", "session-kept", f"the client goes on with a session in doubt, after {text}")
        await link.send(link.answer(call, STOP))
    await reset_again(stage)


@scenario("P17", "P25", plain=True)
async def _full(stage: Stage) -> None:
    """the server is full at first, and says so and closes"""
    for _ in range(2):
        link = await stage.dial()
        await link.call("reset")
        data = {"message": "full", "code": "CAPACITY_REACHED", "active_sessions": 1, "max_sessions": 1}
        await link.send({"type": "error", "data": data})
        await link.close(1000)
    link = await stage.session("another try")
    await link.reply(await link.call("reset"), STOP)
    await stage.finish(link)
