"""What is played with a client: exchanges in every legal form, and every end that a connection can have.

A scenario says which clause it is at (``stage.judge.main``), so that a client that goes silent or away there is blamed
under that clause.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from openenv.conformance.policy.clauses import REUSE
from openenv.conformance.policy.client.stage import RESYNC, STOP, Answer, End, Link, Stage
from openenv.conformance.policy.codec import Form
from openenv.conformance.policy.judge import Fault
from openenv.conformance.policy.probe import DTYPES

__all__ = ["SCENARIOS", "Scenario"]

_BASIC_EARLY_S = 0.3
_PADDING = 2 * 1024 * 1024
_ROUNDS = 4
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Scenario:
    """One program run.

    Attributes:
        name: its name.
        main: the clause that it begins at.
        text: what happens, in one line.
        run: plays it.
        needs: features that must be offered.
    """

    name: str
    main: str
    text: str
    run: Callable[[Stage], Awaitable[None]]
    needs: tuple[str, ...] = ()


SCENARIOS: list[Scenario] = []
"""All scenarios, in order."""


def _scenario(
    main: str, *needs: str
) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[Stage], Awaitable[None]]]:
    def add(run: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
        name = run.__name__.strip("_").replace("_", "-")
        SCENARIOS.append(Scenario(name, main, (run.__doc__ or "").strip(), run, needs))
        return run

    return add


@_scenario("4a")
async def _basic(stage: Stage) -> None:
    """many exchanges after two megabytes of metadata, then a stop"""
    data = {**stage.metadata(stage.settings.features), "conformance_padding": "x" * _PADDING}
    link = await stage.connect(data=data, early_s=_BASIC_EARLY_S)
    await link.exchange(stage.settings.steps)
    stage.judge.passed("1.1b")
    if len(stage.ledger.envs) > 1 and stage.settings.horizon > 1:
        stage.judge.passed("4.3b")
        if not stage.ledger.differed:
            text = "feedback always named the envs that had just asked; envs that end apart were not seen"
            stage.judge.note("4.3b", "same-sets", text)
    if REUSE in stage.settings.features and stage.ledger.reusable and not stage.ledger.reused:
        stage.judge.note("10.1a", "never-used", f"{REUSE} is offered, and never used")
    await stage.stop(link)
    for clause in ("4.3c", "4.3d"):
        stage.judge.expect(True, clause)
    stage.judge.passed("7.1b")


@_scenario("5.1b")
async def _bare(stage: Stage) -> None:
    """metadata without a key, then with keys of wrong types, then of another version; actions without env_ids"""
    link = await stage.connect(data={}, features=())
    await link.exchange(1)
    stage.judge.passed("5.1b")
    stage.judge.main = "5.3d"
    await link.exchange(_ROUNDS, Answer(env_ids=False))
    stage.judge.passed("5.3d")
    wrong = {
        "protocol_version": "one",
        "server": 7,
        "server_version": [1, 2],
        "algorithm": None,
        "policy": {"name": "p"},
        "action_horizon": "four",
        "action_dim": -1.5,
        "features": f"no-{REUSE}",
        "novelty": {"nested": [1, {"a": b"\0"}]},
    }
    for clause, data in (("5.1c", wrong), ("5.1b", {"protocol_version": 7, "features": ["teleport"]})):
        stage.judge.main = "7.6f"
        await link.end(RESYNC)
        stage.judge.main = clause
        link = await stage.connect("a connection after a resync", data=data, features=())
        await link.exchange(_ROUNDS)
        stage.judge.passed(clause)
    await stage.stop(link)


@_scenario("5.3b")
async def _values(stage: Stage) -> None:
    """actions of several dtypes and byte orders, their keys in reverse order"""
    link = await stage.connect()
    for dtype in DTYPES:
        for order in "<>":
            stage.judge.main = "3.1b" if order == ">" else "5.3b"
            stage.ledger.values = stage.judge.main
            await link.exchange(2, Answer(dtype, Form(order, reverse=True)))
            stage.judge.passed(stage.judge.main)
    await stage.stop(link)


@_scenario("4.3a")
async def _order(stage: Stage) -> None:
    """actions whose rows and env_ids stand in another order than the request"""
    link = await stage.connect()
    await link.exchange(1)
    stage.judge.main = "4.3a"
    try:
        await link.exchange(_ROUNDS, Answer(reverse=True))
    except Fault as fault:
        if fault.name not in ("client-closed", "client-ended"):
            raise
        stage.judge.note("4.3a", "refused", f"env_ids in another order are refused: {fault.text}")
        return
    await stage.stop(link)


# ------------------------------------------------------------ connections that end


async def _in_mid_chunk(stage: Stage, link: Link, end: End) -> None:
    """End it behind actions; best where the feedback that is lost is of an episode that has ended."""
    infer = await link.infer()
    for tries in range(_TRIES):
        if stage.ledger.ends_first(infer) or (tries > 1 and stage.ledger.ends_soon(infer)):
            break
        await link.act(infer)
        await link.feedback()
        infer = await link.infer()
    await link.act_and_end(infer, end)


async def _unanswered(stage: Stage, link: Link, end: End) -> None:
    """End it in place of an action."""
    await link.exchange(1)
    await link.infer()
    await link.end(end)


async def _fed_back(stage: Stage, link: Link, end: End) -> None:
    """End it when a feedback was read."""
    await link.exchange(2)
    await link.end(end)


_POINTS = (_in_mid_chunk, _unanswered, _fed_back)


async def _goes_on(stage: Stage, what: str) -> Link:
    """The client comes back, and every env goes on."""
    link = await stage.connect(f"a connection after {what}")
    stage.judge.passed(stage.judge.main)
    stage.judge.main = "7.6a"
    await link.exchange(_ROUNDS)
    for clause in ("7.6b", "7.6c", *(("7.6d", "7.6e") if stage.settings.probe else ())):
        stage.judge.passed(clause)
    return link


@_scenario("4a")
async def _resync(stage: Stage) -> None:
    """resyncs: in mid-chunk, in place of an action, and after feedback"""
    link = await stage.connect()
    for count in range(stage.settings.resyncs):
        await _POINTS[count % len(_POINTS)](stage, link, RESYNC)
        stage.judge.main = "7.6f"
        link = await _goes_on(stage, "a resync")
    await stage.stop(link)


@_scenario("4a")
async def _closes(stage: Stage) -> None:
    """other ends: a feedback timeout, a plain 1000, a cut, and 1011, which a client may give up on"""
    link = await stage.connect()
    for clause, what, end in (
        ("7.3a", "1001 'Feedback timeout'", (1001, "Feedback timeout")),
        ("7.6f", "close 1000", (1000, "")),
        ("7.6f", "a cut", None),
        ("7.6f", "1001 without a reason", (1001, "")),
        ("7.6f", "close 1011", (1011, "Internal server error.")),
    ):
        await _in_mid_chunk(stage, link, end)
        stage.judge.main = clause
        try:
            link = await _goes_on(stage, what)
        except Fault as fault:
            if what != "close 1011" or fault.name != "client-ended":
                raise
            stage.judge.note("7.6f", "gives-up", "after close 1011 the client gives up")
            return
    await stage.stop(link)


# ------------------------------------------------------------ the end of the run


@_scenario("4a")
async def _stop_feedback(stage: Stage) -> None:
    """a stop while the client executes a chunk, so that its feedback meets it"""
    link = await stage.connect()
    await link.exchange(2)
    await link.act_and_end(await link.infer(), STOP)
    await stage.stopped("7.1c")


@_scenario("4a")
async def _stop_action(stage: Stage) -> None:
    """a stop in place of an action"""
    link = await stage.connect()
    await link.exchange(2)
    await link.infer()
    await stage.stop(link, "7.1a")


@_scenario("4a")
async def _stop_dial(stage: Stage) -> None:
    """a stop in place of the metadata of a reconnect"""
    link = await stage.connect()
    await link.exchange(2)
    await link.end(RESYNC)
    stage.judge.main = "7.6f"
    link = await stage.dial("a connection after a resync")
    await link.end(STOP)
    await stage.stopped("7.1c")


@_scenario("4a")
async def _text(stage: Stage) -> None:
    """a text frame in place of an action"""
    link = await stage.connect()
    await link.infer()
    await link.text("ValueError: the policy failed")
    stage.judge.main = "7.4a"
    try:
        frame = await link.silence(stage.settings.wait_s)
    except TimeoutError:
        stage.judge.need(False, "7.4a", "stays", "the client keeps its connection after a text frame")
    stage.judge.need(frame is None, "7.4a", "speaks-on", "the client sends a frame after a text frame")
    left = await stage.leaves()
    stage.judge.need(left != "dial", "7.4a", "dials-again", "the client dials again after a text frame")
    stage.judge.passed("7.4a")
    if left != "exit":
        stage.judge.note("7.4a", "runs-on", f"the client still runs {stage.settings.wait_s:g} s after a text frame")


# ------------------------------------------------------------ reuse


@_scenario("10.1a", REUSE)
async def _reuse(stage: Stage) -> None:
    """the feature listed on two connections, and no longer on a third"""
    link = await stage.connect()
    for features in (None, ()):
        await link.exchange(3 * _ROUNDS)
        await _in_mid_chunk(stage, link, RESYNC)
        stage.judge.main = "7.6f"
        link = await stage.connect("a connection after a resync", features=features)
        stage.judge.main = "10.1a"
    await link.exchange(2 * _ROUNDS)
    for clause in ("10.1b", "10.1c") if stage.ledger.reused else ():
        stage.judge.passed(clause)
    await stage.stop(link)
