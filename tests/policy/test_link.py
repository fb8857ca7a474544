"""The client's rules over all connections: the machine walked breadth first, beside its caller and the network."""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass, field, replace

import pytest

from openenv.core.exceptions import (
    ConnectionReplaced,
    PolicyProtocolError,
    PolicyUsageError,
    ServerStopped,
    SessionClosedError,
)
from openenv.policy import link
from openenv.policy.closing import Ending
from openenv.policy.link import Dial, Done, Effect, Fail, LinkMachine, Send
from openenv.policy.link_states import TABLE, IllegalLinkEvent, LinkEvent, LinkState
from openenv.policy.messages import SERVER_RESYNC, SERVER_STOP
from openenv.policy.protocol import IllegalEvent

STOP = Ending(1001, SERVER_STOP)
RESYNC = Ending(1001, SERVER_RESYNC)
CUT = Ending()
BOTH, ONE, OTHER = frozenset({0, 1}), frozenset({0}), frozenset({1})

CALLS = [("connect", frozenset()), *[(name, some) for name in ("infer", "feedback") for some in (BOTH, ONE, OTHER)]]
EVENTS = [("opened", None), ("sent", None), ("close", None), ("answered", None)]
EVENTS += [(name, ending) for name in ("dropped", "gave_up") for ending in (STOP, RESYNC, CUT)]
EVENTS += [("broke", None)]


@dataclass(frozen=True)
class World:
    """What the caller and the network know; no code of the machine is used to keep it."""

    opened: int = 0  # connections so far
    up: bool = False
    executing: dict[int, int] = field(default_factory=dict)  # environment: connection that brought its chunk
    asking: frozenset[int] = frozenset()
    call: str = ""
    told: bool = True  # the caller knows of every lost connection that had brought actions
    ever: frozenset[int] = frozenset()
    must_name_all: bool = False
    over: str = ""

    def key(self) -> tuple:
        age = {(env, number == self.opened) for env, number in self.executing.items()}
        return (self.up, frozenset(age), self.asking, self.call, self.told, self.ever, self.must_name_all)


def state_of(machine: LinkMachine) -> tuple:
    fresh = None if machine.actions_from is None else machine.actions_from == machine.connection
    talk = machine.conversation
    return (machine.state, fresh, machine.owed, talk.state, talk.holding, talk.asked)


def copy_of(machine: LinkMachine) -> LinkMachine:
    twin = copy(machine)
    twin.conversation = copy(machine.conversation)
    return twin


def everything(machine: LinkMachine) -> dict:
    """All that the machine knows, comparable; errors and conversations compare by identity."""
    return {**vars(machine), "conversation": vars(machine.conversation), "_final": repr(machine._final)}


def step(machine: LinkMachine, world: World, name: str, given: object) -> tuple[Effect | None, World]:
    """Give one event to the machine, and check what follows against what the world knows."""
    if name in ("infer", "feedback", "connect"):
        call, envs = name, given
        effect = machine.connect() if name == "connect" else getattr(machine, name)(envs)
    else:
        call, envs = world.call, world.asking
        if name == "answered":
            effect = machine.answered(world.asking)
        elif name == "broke":
            effect = machine.broke(PolicyProtocolError("nonsense"))
        elif given is None:
            effect = getattr(machine, name)()
        else:
            effect = getattr(machine, name)(given)
    world = replace(world, call=call, asking=envs)
    if name == "opened" and world.over != "closed":
        world = replace(world, opened=world.opened + 1, up=True)
    if name in ("dropped", "gave_up", "broke") and world.up:
        world = replace(world, up=False, told=world.told and not world.executing)
    if name == "answered" and world.over != "closed":
        fresh = dict.fromkeys(world.asking, world.opened)
        world = replace(
            world,
            executing={**world.executing, **fresh},
            told=False if world.executing and not world.told else world.told,
            ever=world.ever | world.asking,
            must_name_all=False,
        )
    if name == "sent" and world.over != "closed":
        left = {env: number for env, number in world.executing.items() if env not in world.asking}
        world = replace(world, executing=left)
    if name == "close":
        world = replace(world, up=False, over="closed")
    if name == "broke" and not world.over:
        world = replace(world, over="broken")
    assert machine.state in (LinkState.CLOSED, *AFTER.get(name, LinkState))
    world = check(effect, name, call, world)
    return effect, world if isinstance(effect, Dial | Send) else replace(world, call="")


DONE = {("connect", "connect"), ("opened", "connect"), ("answered", "infer"), ("sent", "feedback")}
DONE |= {("dropped", "")}
DONE |= {(event, call) for event in ("gave_up", "close") for call in ("", "connect", "infer", "feedback")}
AFTER = {"close": (), "gave_up": (LinkState.DOWN,), "sent": (LinkState.READY,), "broke": (LinkState.BROKEN,)}


def check(effect: Effect | None, event: str, call: str, world: World) -> World:
    if isinstance(effect, Send):
        assert world.up, "sent without a connection"
        current = {number == world.opened for number in world.executing.values()}
        assert current <= {True}, "sent while the caller executes actions of an older connection"
        if call == "infer":
            assert not world.asking & world.executing.keys()
            if world.must_name_all:
                assert world.ever <= world.asking, "the first infer on a new connection leaves an environment out"
        else:
            assert world.asking <= world.executing.keys()
    if isinstance(effect, Done):
        assert (event, call) in DONE, "a call returned although nothing was done"
        assert not world.over or event in ("close", "gave_up"), "a call on a link that is over returned"
    if isinstance(effect, Dial):
        assert call != "feedback", "a feedback dialled"
        assert not world.up
    if isinstance(effect, Fail) and isinstance(effect.error, ConnectionReplaced):
        assert frozenset(effect.error.env_ids) == world.ever, "an environment is not named"
        world = replace(world, executing={}, told=True, must_name_all=bool(world.ever))
    if isinstance(effect, Fail) and isinstance(effect.error, ServerStopped):
        world = replace(world, over="stopped", up=False)
    return world


@pytest.mark.parametrize("waits", [False, True])
def test_every_sequence_keeps_the_promises(waits: bool) -> None:
    start = LinkMachine(reconnect_on_server_stop=waits)
    queue = deque([(start, World())])
    known, cells = {(state_of(start), World().key())}, set()
    while queue:
        machine, world = queue.popleft()
        for name, given in [*CALLS, *EVENTS]:
            event = EVENT_OF[name]
            twin = copy_of(machine)
            before = everything(copy_of(machine))
            try:
                _, following = step(twin, world, name, given)
            except IllegalLinkEvent:
                assert (machine.state, event) not in TABLE
                assert everything(twin) == before, "an illegal event changed something"
                continue
            except PolicyUsageError:
                assert everything(twin) == before, "a refused call changed something"
                cells.add((machine.state, event))
                continue
            cells.add((machine.state, event))
            key = (state_of(twin), following.key())
            if key not in known:
                known.add(key)
                queue.append((twin, following))
    reachable = {cell for cell in TABLE if waits is False or cell[0] is not LinkState.STOPPED}
    assert cells == reachable
    assert len(known) > 100


EVENT_OF = {
    "connect": LinkEvent.CONNECT,
    "infer": LinkEvent.INFER,
    "feedback": LinkEvent.FEEDBACK,
    "opened": LinkEvent.OPENED,
    "answered": LinkEvent.ANSWERED,
    "sent": LinkEvent.SENT,
    "dropped": LinkEvent.DROPPED,
    "gave_up": LinkEvent.GAVE_UP,
    "broke": LinkEvent.BROKE,
    "close": LinkEvent.CLOSE,
}


CELLS = [
    pytest.param(*cell, id=f"{cell[0].name}-{cell[1].name}")
    for cell, rule in TABLE.items()
    if rule not in ("stay", "already_open")
]


@pytest.mark.parametrize(("row", "event"), CELLS)
def test_a_cell_that_does_nothing_is_noticed(row: LinkState, event: LinkEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk above goes red when a rule is taken out of the table."""
    monkeypatch.setattr(link, "TABLE", {**TABLE, (row, event): "stay"})
    with pytest.raises((AssertionError, AttributeError, IllegalEvent)):
        test_every_sequence_keeps_the_promises(False)


# ------------------------------------------------------------------ told, one by one


def fail(effect: Effect, kind: type) -> object:
    assert isinstance(effect, Fail)
    assert isinstance(effect.error, kind)
    return effect.error


def acting(envs: frozenset[int] = BOTH, **options: bool) -> LinkMachine:
    """A machine whose caller executes actions."""
    machine = LinkMachine(**options)
    assert isinstance(machine.infer(envs), Dial)
    assert isinstance(machine.opened(), Send)
    assert isinstance(machine.answered(envs), Done)
    return machine


def fed(envs: frozenset[int] = BOTH, **options: bool) -> LinkMachine:
    """A machine whose caller has fed back."""
    machine = acting(envs, **options)
    assert isinstance(machine.feedback(envs), Send)
    assert isinstance(machine.sent(), Done)
    return machine


def test_a_lost_connection_is_told_once_and_then_all_are_named() -> None:
    machine = fed()
    assert isinstance(machine.infer(ONE), Send)
    assert isinstance(machine.dropped(RESYNC), Dial)
    error = fail(machine.opened(), ConnectionReplaced)
    assert (error.env_ids, error.lost_connection, error.connection) == ((0, 1), 1, 2)
    assert (error.operation, error.reason, error.close_code) == ("infer", "resync", 1001)
    with pytest.raises(PolicyUsageError, match=r"missing: 1") as caught:
        machine.infer(ONE)
    assert caught.value.field == "env_indices"
    assert isinstance(machine.infer(BOTH), Send)


def test_without_chunks_in_flight_a_lost_infer_is_asked_again() -> None:
    machine = LinkMachine()
    machine.infer(BOTH)
    machine.opened()
    assert isinstance(machine.dropped(CUT), Dial)
    assert isinstance(machine.opened(), Send)


@pytest.mark.parametrize("ending", [RESYNC, CUT, Ending(1000), Ending(1011, "Internal server error."), STOP], ids=str)
def test_a_feedback_that_fails_is_told_and_nothing_is_dialled(ending: Ending) -> None:
    machine = acting(reconnect_on_server_stop=True)
    machine.feedback(ONE)
    error = fail(machine.dropped(ending), ConnectionReplaced)
    assert (error.operation, error.outcome, error.connection) == ("feedback", "unknown", None)
    assert machine.state is LinkState.DOWN
    assert isinstance(machine.infer(BOTH), Dial)
    assert isinstance(machine.opened(), Send), "the caller has been told, so its next infer goes out"


def test_a_stop_during_feedback_ends_a_client_that_does_not_wait() -> None:
    machine = acting()
    machine.feedback(BOTH)
    fail(machine.dropped(STOP), ServerStopped)
    for call in (machine.infer, machine.feedback):
        fail(call(BOTH), ServerStopped)


def test_a_feedback_without_a_connection_is_told_that_it_was_replaced() -> None:
    machine = LinkMachine()
    fail(machine.feedback(BOTH), ConnectionReplaced)
    assert machine.state is LinkState.DOWN


def test_the_reason_is_that_of_the_connection_that_brought_the_actions() -> None:
    machine = fed()
    machine.infer(BOTH)
    machine.dropped(RESYNC)
    machine.dropped(CUT)  # of the dial that followed
    assert fail(machine.opened(), ConnectionReplaced).reason == "resync"


def test_a_call_given_up_voids_the_chunks_too() -> None:
    machine = fed()
    machine.infer(ONE)
    machine.gave_up(Ending(cause="timeout"))
    machine.infer(ONE)
    assert fail(machine.opened(), ConnectionReplaced).reason == "timeout"


def test_a_retired_environment_need_not_be_named() -> None:
    machine = fed()
    machine.retire({1})
    machine.infer(ONE)
    machine.dropped(CUT)
    assert fail(machine.opened(), ConnectionReplaced).env_ids == (0,)
    assert isinstance(machine.infer(ONE), Send)


def test_an_env_may_neither_ask_twice_nor_feed_back_what_it_does_not_hold() -> None:
    machine = acting(ONE)
    with pytest.raises(PolicyUsageError, match=r"feedback\(\) is due"):
        machine.infer(OTHER)
    with pytest.raises(PolicyUsageError, match="hold no action"):
        machine.feedback(BOTH)
    machine.feedback(ONE)
    machine.sent()
    with pytest.raises(PolicyUsageError, match=r"infer\(\) is due"):
        machine.feedback(ONE)


def test_a_broken_server_is_told_of_again_and_again() -> None:
    machine = acting()
    machine.feedback(BOTH)
    machine.sent()
    machine.infer(BOTH)
    fail(machine.broke(PolicyProtocolError("nonsense")), PolicyProtocolError)
    fail(machine.infer(BOTH), PolicyProtocolError)
    machine.close()
    fail(machine.infer(BOTH), SessionClosedError)
