"""The client's session machine against a model server, in random play.

The model has sessions, environments and two queues of frames a connection, and shares no code with the machine.
Its log is the oracle: what ran, where, and how often.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openenv.core.exceptions import CapacityError, ConnectError, SessionLostError
from openenv.core.session.events import (
    Call,
    CloseSocket,
    Complete,
    Dial,
    DialFailure,
    Drop,
    Event,
    Fail,
    GaveUp,
    Log,
    Op,
    Oversized,
    Resumed,
    Send,
)
from openenv.core.wire.messages import Reply
from support.machine import error_frame, make


@dataclass
class Session:
    """One environment on the model server."""

    name: int
    resets: int = 0
    started: int = 0
    cached: dict[str, Any] | None = None
    over: bool = False


@dataclass
class Wire:
    """One connection: requests on their way in, replies on their way out."""

    session: Session
    full: bool = False
    inbox: deque[tuple[str, int]] = field(default_factory=deque)
    outbox: deque[dict[str, Any]] = field(default_factory=deque)


class Server:
    """Runs requests in order, each on its connection's own environment; ``ran`` is its log."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.ran: list[tuple[Session, str, int, int]] = []  # session, what, mark, resets so far in that session

    def accept(self, full: bool) -> Wire:
        self.sessions.append(Session(len(self.sessions) + 1))
        return Wire(self.sessions[-1], full)

    def work(self, wire: Wire, fail: bool) -> None:
        what, mark = wire.inbox.popleft()
        session = wire.session
        if wire.full:
            wire.inbox.clear()
            wire.outbox.append({"kind": "full", "mark": mark})
            return
        if session.over:
            return
        session.started += 1
        if what == "reset" and not fail:
            session.resets += 1
        self.ran.append((session, what, mark, session.resets))
        kind = "failed" if fail else "state" if what == "state" else "observation"
        session.cached = {"kind": kind, "mark": mark}
        wire.outbox.append(session.cached)


class ClientAgainstServer(RuleBasedStateMachine):
    """The driver: a queue of calls, one dial, one connection."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = make()
        self.server = Server()
        self.keeps = False  # the server keeps sessions whose socket is gone
        self.wire: Wire | None = None
        self.kept: Wire | None = None
        self.ghosts: list[Wire] = []  # connections the client has let go of; what is in their inbox may still run
        self.dial: Dial | None = None
        self.queue: deque[Call] = deque()
        self.running: Call | None = None
        self.marks: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.calls: list[Call] = []
        self.reset_before: dict[int, bool] = {}
        self.reset_done = False
        self.last_done: Call | None = None

    # -------------------------------------------------------------- the driver

    def feed(self, event: Event, payload: Any = None) -> None:
        for effect in self.machine.handle(event, payload, 0.0):
            match effect:
                case Send(call):
                    assert self.wire is not None
                    self.wire.inbox.append((call.op.value, self.marks[id(call)]))
                case Dial():
                    self.dial = effect
                case CloseSocket():
                    self.let_go()
                    self.dial = None
                case Complete(call, reply):
                    self.end(call)
                    self.check_answer(call, reply)
                case Fail(call, error):
                    self.end(call)
                    assert not (call.op is Op.RESET and isinstance(error, SessionLostError))
                    assert str(error)
                case Log(text):
                    assert text
        self.next_turn()

    def end(self, call: Call) -> None:
        assert call is self.running
        self.ends[self.marks[id(call)]] += 1
        self.running, self.last_done = None, call

    def check_answer(self, call: Call, reply: Reply | None) -> None:
        if call.op is Op.CONNECT:
            return
        assert reply is not None
        assert reply.data["mark"] == self.marks[id(call)]
        self.reset_done |= call.op is Op.RESET

    def next_turn(self) -> None:
        if self.running is None and self.queue:
            self.running = self.queue.popleft()
            events = {Op.CONNECT: Event.CONNECT, Op.RESET: Event.RESET}
            self.feed(events.get(self.running.op, Event.CALL), self.running)

    def let_go(self) -> None:
        if self.wire is not None:
            self.wire.outbox.clear()
            self.ghosts.append(self.wire)
        self.wire = None

    # -------------------------------------------------------------- the user

    @precondition(lambda self: len(self.queue) < 3)
    @rule(op=st.sampled_from([Op.CONNECT, Op.RESET, Op.STEP, Op.STEP, Op.STATE]))
    def ask(self, op: Op) -> None:
        call = self.machine.new_call(op)
        mark = len(self.calls)
        self.calls.append(call)
        self.marks[id(call)] = mark
        self.ends[mark] = 0
        self.reset_before[mark] = self.reset_done
        self.queue.append(call)
        self.next_turn()

    @precondition(lambda self: not self.queue and self.running is None)
    @rule(ops=st.lists(st.sampled_from([Op.RESET, Op.RESET, Op.STEP, Op.STATE]), min_size=1, max_size=3))
    def calls_that_meet_no_trouble(self, ops: list[Op]) -> None:
        for op in ops:
            self.ask(op)
            while self.running is not None:
                if self.dial is not None and self.dial.resume:
                    self.resume() if self.kept is not None else self.resume_lost()
                elif self.dial is not None:
                    self.dial_succeeds(full=False)
                elif self.wire.outbox:
                    self.deliver(oversized=False)
                else:
                    self.server.work(self.wire, fail=False)

    @precondition(lambda self: self.running is not None)
    @rule(cause=st.sampled_from(["timeout", "cancelled"]))
    def give_up(self, cause: str) -> None:
        self.feed(Event.GAVE_UP, GaveUp(cause, self.running))

    @precondition(lambda self: self.last_done is not None and self.machine.row.name in ("IDLE", "LOST", "CLOSED"))
    @rule()
    def answer_not_taken(self) -> None:
        self.feed(Event.GAVE_UP, GaveUp("cancelled", self.last_done))

    @rule(really=st.sampled_from([False, False, True]), connect_next=st.booleans())
    def close(self, really: bool, connect_next: bool) -> None:
        if not really:
            return
        self.kept = None
        self.feed(Event.CLOSE)
        if connect_next and self.running is None:
            self.ask(Op.CONNECT)

    @rule(really=st.sampled_from([False, False, False, True]))
    def loop_closed(self, really: bool) -> None:
        if not really:
            return
        self.kept = None
        self.feed(Event.LOOP_CLOSED)

    # -------------------------------------------------------------- the network

    @precondition(lambda self: self.dial is not None and not self.dial.resume)
    @rule(full=st.sampled_from([False, False, False, True]))
    def dial_succeeds(self, full: bool) -> None:
        self.dial = None
        self.wire = self.server.accept(full and not self.keeps)
        self.feed(Event.OPENED, self.keeps)

    @precondition(lambda self: self.dial is not None)
    @rule(retryable=st.booleans(), full=st.booleans())
    def dial_fails(self, retryable: bool, full: bool) -> None:
        self.dial = None
        error = CapacityError() if full else ConnectError("refused")
        self.feed(Event.DIAL_FAILED, DialFailure(error, retryable=retryable))

    @precondition(lambda self: self.dial is not None and self.dial.resume and self.kept is not None)
    @rule()
    def resume(self) -> None:
        self.dial = None
        session = self.kept.session
        self.wire, self.kept = Wire(session), None
        call = self.running
        waited_for = call is not None and call.seq == session.started and call.seq > 0
        if waited_for:
            self.wire.outbox.append(session.cached)
        self.feed(Event.RESUMED, Resumed(session.started))

    @precondition(lambda self: self.dial is not None and self.dial.resume)
    @rule()
    def resume_lost(self) -> None:
        self.dial, self.kept = None, None
        self.feed(Event.RESUME_LOST, "expired")

    @precondition(lambda self: self.wire is not None)
    @rule(code=st.sampled_from([None, 1000, 1006, 1009, 1012, 4000]), started=st.booleans())
    def cut(self, code: int | None, started: bool) -> None:
        wire, self.wire = self.wire, None
        wire.outbox.clear()
        if started and wire.inbox:  # it had arrived just before the end
            self.server.work(wire, fail=False)
        wire.outbox.clear()
        if self.keeps and self.machine.resumable:
            wire.inbox.clear()
            self.kept = wire
        elif code == 1009:
            wire.inbox.clear()  # the server refused the frame unread
        else:
            self.ghosts.append(wire)
        self.feed(Event.DROPPED, Drop(code))

    @precondition(lambda self: self.wire is not None and self.wire.outbox)
    @rule(oversized=st.sampled_from([False, False, False, True]))
    def deliver(self, oversized: bool) -> None:
        frame = self.wire.outbox.popleft()
        if frame["kind"] == "full":
            self.feed(Event.RECEIVED, error_frame("CAPACITY_REACHED", active_sessions=1, max_sessions=1))
        elif frame["kind"] == "failed":
            self.feed(Event.RECEIVED, error_frame("EXECUTION_ERROR"))
        elif oversized:
            self.feed(Event.OVERSIZED, Oversized(2, 1))
        else:
            self.feed(Event.RECEIVED, Reply(frame["kind"], {"mark": frame["mark"]}))

    @precondition(lambda self: self.wire is not None and (self.machine.row.name != "BUSY" or self.wire.inbox))
    @rule(kind=st.sampled_from(["state", "mcp", "error", "malformed"]))
    def stray_frame(self, kind: str) -> None:
        if self.running is not None and self.running.op.kind.value in (kind, "state"):
            return  # nobody could tell it from the answer
        if kind == "error" and self.running is not None:
            return
        self.feed(Event.RECEIVED, Reply(kind, {"mark": -1}))

    # -------------------------------------------------------------- the server

    @initialize(keeps=st.booleans())
    def server_starts(self, keeps: bool) -> None:
        self.keeps = keeps

    @rule(keeps=st.booleans())
    def server_changes(self, keeps: bool) -> None:
        self.keeps = keeps

    @precondition(lambda self: self.wire is not None and self.wire.inbox)
    @rule(fail=st.sampled_from([False, False, False, True]))
    def server_works(self, fail: bool) -> None:
        self.server.work(self.wire, fail)

    @precondition(lambda self: any(ghost.inbox for ghost in self.ghosts))
    @rule()
    def a_late_frame_runs(self) -> None:
        ghost = next(ghost for ghost in self.ghosts if ghost.inbox)
        self.server.work(ghost, fail=False)

    # -------------------------------------------------------------- the oracle

    @invariant()
    def no_step_runs_where_this_client_did_not_reset(self) -> None:
        for session, what, mark, resets in self.server.ran:
            if what in ("step", "state") and self.reset_before[mark]:
                assert resets > 0, f"{what} {mark} ran in session {session.name}, which was never reset"

    @invariant()
    def nothing_but_a_reset_runs_twice(self) -> None:
        marks = [mark for _, what, mark, _ in self.server.ran if what != "reset"]
        assert len(marks) == len(set(marks))

    @invariant()
    def each_call_has_one_end(self) -> None:
        open_calls = {self.marks[id(call)] for call in [*self.queue, *([self.running] if self.running else [])]}
        for mark, ends in self.ends.items():
            assert ends == (0 if mark in open_calls else 1)

    @invariant()
    def a_closed_client_has_no_connection(self) -> None:
        if self.machine.state.value == "closed":
            assert self.wire is None
            assert self.dial is None


ClientAgainstServer.TestCase.settings = settings(
    max_examples=800, stateful_step_count=50, deadline=None, derandomize=True
)
TestClientAgainstServer = ClientAgainstServer.TestCase
