"""The client's session machine against a model server, in random play.

The model has sessions, environments and two queues of frames a connection, and shares no code with the machine. It
speaks the plain dialect, and numbered calls with and without ``cancel`` and ``resume``. Its log is the oracle: what
was applied, where, and how often.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openenv.core.exceptions import CapacityError, ConnectError, LateResultError, Outcome, SessionLostError
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
    SayRelease,
    Send,
    SendCancel,
    Tell,
)
from openenv.core.session.features import Feature
from openenv.core.session.opening import SessionOpened
from openenv.core.wire.messages import Reply
from openenv.core.wire.v1 import Lease, Resumed
from support.machine import ASKS, error_frame, make

SEQ, CANCEL, RESUME = Feature.SEQ, Feature.CANCEL, Feature.RESUME
DIALECTS = [(), (SEQ, CANCEL), (SEQ, RESUME), (SEQ, CANCEL, RESUME), (SEQ, CANCEL, RESUME)]
ENDS = ["done", "done", "done", "failed", "too large", "cancelled: True", "cancelled: False", "cancelled: None"]
ERRORS = {"failed": "EXECUTION_ERROR", "too large": "REPLY_TOO_LARGE"}


@dataclass(eq=False)
class Session:
    """One environment on the model server."""

    name: int
    features: frozenset[Feature] = frozenset()
    resets: int = 0
    last_seq: int = 0
    running: tuple[str, int] | None = None  # what, mark
    cancelled: bool = False  # the running call was asked to end
    cached: Reply | None = None
    over: str = ""
    taken: bool = False  # another client holds it
    wire: Wire | None = None  # the connection that is attached

    @property
    def numbered(self) -> bool:
        return SEQ in self.features

    @property
    def resumable(self) -> bool:
        return RESUME in self.features


@dataclass(eq=False)
class Wire:
    """One connection: requests on their way in, replies on their way out."""

    session: Session
    full: bool = False
    inbox: deque[tuple[str, int, int]] = field(default_factory=deque)  # what, mark, number
    outbox: deque[Reply] = field(default_factory=deque)


class Server:
    """Runs requests in order, each in its own session; ``ran`` is the log of what was applied."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.ran: list[tuple[Session, str, int, int]] = []  # session, what, mark, resets so far in that session

    def accept(self, features: frozenset[Feature], full: bool) -> Wire:
        session = Session(len(self.sessions) + 1, features)
        self.sessions.append(session)
        session.wire = Wire(session, full)
        return session.wire

    def read(self, wire: Wire, end: str = "done") -> None:
        """Read one frame. A plain server runs it at once; a numbered one starts it."""
        what, mark, seq = wire.inbox.popleft()
        session = wire.session
        if wire.full:
            wire.inbox.clear()
            wire.outbox.append(error_frame("CAPACITY_REACHED", active_sessions=1, max_sessions=1))
        elif session.over or session.wire not in (wire, None):
            return
        elif what == "cancel":
            self.cancel(session, seq)
        elif session.numbered:
            assert session.running is None, "a second call while one runs"
            assert seq == session.last_seq + 1, f"request {seq} came after {session.last_seq}"  # never again (E21)
            session.last_seq, session.running, session.cancelled, session.cached = seq, (what, mark), False, None
        else:
            session.running = (what, mark)
            self.finish(session, end if end == "failed" else "done")

    def cancel(self, session: Session, seq: int) -> None:
        if session.running is not None and seq == session.last_seq:
            session.cancelled = True
        elif seq == session.last_seq + 1:
            session.last_seq = seq
            self.answer(session, error_frame("CANCELLED", applied=False))
        else:
            assert seq == session.last_seq, f"cancel {seq} came after {session.last_seq}"

    def finish(self, session: Session, end: str) -> None:
        """The running call ends, in one of the ways it may."""
        assert session.running is not None
        (what, mark), session.running = session.running, None
        if end in ("done", "too large", "cancelled: True"):
            session.resets += what == "reset"
            self.ran.append((session, what, mark, session.resets))
        if end == "done":
            self.answer(session, Reply("state" if what == "state" else "observation", {"mark": mark}))
        elif end in ERRORS:
            self.answer(session, error_frame(ERRORS[end]))
        else:
            self.answer(session, error_frame("CANCELLED", applied={"True": True, "False": False}.get(end[11:])))

    def answer(self, session: Session, reply: Reply) -> None:
        if session.numbered:
            reply = Reply(reply.kind, reply.data, session.last_seq)
        session.cached = reply
        if session.wire is not None:
            session.wire.outbox.append(reply)

    def resume(self, session: Session, last_reply: int) -> Wire:
        """Attach a new connection, and push the reply that was missed."""
        session.wire = Wire(session)
        if session.running is None and last_reply < session.last_seq:
            assert session.cached is not None
            session.wire.outbox.append(session.cached)
        return session.wire


class ClientAgainstServer(RuleBasedStateMachine):
    """The driver: a queue of calls, one dial, one connection."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = make()
        self.server = Server()
        self.dialect: tuple[Feature, ...] = ()
        self.expires = False
        self.heard = True  # the last words on a socket arrive
        self.wire: Wire | None = None
        self.session: Session | None = None
        self.ghosts: list[Wire] = []  # connections the client has let go of; what is in their inbox may still run
        self.dial: Dial | None = None
        self.queue: deque[Call] = deque()
        self.running: Call | None = None
        self.marks: dict[int, int] = {}
        self.ends: Counter[int] = Counter()
        self.told: Counter[int] = Counter()  # how often the result of a call reached its user
        self.denied: set[int] = set()  # calls of which the user was told that they were not applied
        self.calls: list[Call] = []
        self.reset_before: dict[int, bool] = {}
        self.reset_done = False
        self.untaken: tuple[Call, Reply | None] | None = None  # the call that ended last, and its answer
        self.given_up: Call | None = None  # it was sent, and nothing has been said of its fate yet

    # -------------------------------------------------------------- the driver

    def feed(self, event: Event, payload: Any = None) -> None:
        for effect in self.machine.handle(event, payload, 0.0):
            self.carry_out(effect)
        self.next_turn()

    def carry_out(self, effect: Any) -> None:
        match effect:
            case Send(call):
                assert self.wire is not None
                self.nothing_untold()
                self.wire.inbox.append((call.op.value, self.mark(call), call.seq))
            case SendCancel(seq):
                assert self.wire is not None
                self.wire.inbox.append(("cancel", -1, seq))
            case Dial():
                self.dial = effect
            case CloseSocket(goodbye):
                self.let_go(goodbye)
                self.dial = self.given_up = None
            case SayRelease():
                if self.heard:
                    self.release(self.machine.farewells())
            case Complete(call, reply):
                self.end(call, reply)
                self.check_answer(call, reply)
            case Fail(call, error):
                self.end(call, None)
                self.check_error(call, error)
            case Log(text):
                assert text
                if text.startswith("a late result"):
                    self.given_up = None
            case Tell(loss):
                assert loss is None or str(loss.error())

    def mark(self, call: Call) -> int:
        return self.marks[id(call)]

    def end(self, call: Call, reply: Reply | None) -> None:
        assert call is self.running
        self.ends[self.mark(call)] += 1
        self.running, self.untaken = None, (call, reply)

    def check_answer(self, call: Call, reply: Reply | None) -> None:
        if call.op is Op.SETTLE:
            if reply is None:
                self.nothing_untold()
            else:
                self.take_late(reply)
        elif call.op is not Op.CONNECT:
            assert reply is not None
            assert reply.data["mark"] == self.mark(call)
            self.told[self.mark(call)] += 1
            self.reset_done |= call.op is Op.RESET

    def take_late(self, reply: Reply) -> None:
        """The late result of a call that its caller had given up."""
        mark = reply.data["mark"]
        assert self.calls[mark].op is not Op.STATE
        assert self.calls[mark] is not self.running
        self.told[mark] += 1
        self.given_up = None

    def nothing_untold(self) -> None:
        """The client goes on as if nothing were left to tell: so the call that was given up was not applied."""
        call, self.given_up = self.given_up, None
        if call is not None and call.op is not Op.STATE:
            self.denied.add(self.mark(call))

    def check_error(self, call: Call, error: Any) -> None:
        assert not (call.op is Op.RESET and isinstance(error, SessionLostError))
        assert str(error)
        mark = self.mark(call)
        if isinstance(error, LateResultError):
            self.take_late(error.reply)
            self.denied.add(mark)
        elif not call.sends and error.outcome is Outcome.APPLIED:
            self.given_up = None  # it tells of the call before
            self.denied.add(mark)
        elif error.outcome is Outcome.NOT_APPLIED and call.op is not Op.SETTLE:
            if call.op is not Op.RESET or call.sends <= 1:  # of a reset sent again, the last session alone counts
                self.denied.add(mark)
        elif error.outcome is Outcome.APPLIED:
            assert any(ran == mark for _, _, ran, _ in self.server.ran)
        elif not call.sends and not self.machine.abandoned:
            self.given_up = None

    def next_turn(self) -> None:
        if self.running is None and self.queue:
            self.running, self.untaken = self.queue.popleft(), None
            self.feed(ASKS.get(self.running.op, Event.CALL), self.running)

    def let_go(self, goodbye: bool = False) -> None:
        """The client drops its connection; the server reads on for a while, unless it has heard a goodbye."""
        wire, self.wire = self.wire, None
        if wire is None:
            return
        wire.outbox.clear()
        wire.session.wire = None
        if goodbye and self.heard:
            wire.session.over = wire.session.over or "closed"
            if wire.session.numbered:
                return
        if wire.session.numbered and not wire.session.resumable:
            wire.session.over = wire.session.over or "unknown"
        self.ghosts.append(wire)

    def release(self, leases: Any) -> None:
        for lease in leases:
            session = self.server.sessions[int(lease.session) - 1]
            assert not session.taken, "a session of another client was released"
            session.over = session.over or "closed"

    # -------------------------------------------------------------- the user

    @precondition(lambda self: len(self.queue) < 3)
    @rule(op=st.sampled_from([Op.CONNECT, Op.RESET, Op.STEP, Op.STEP, Op.STEP, Op.STATE, Op.SETTLE]))
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
    @rule(ops=st.lists(st.sampled_from([Op.RESET, Op.RESET, Op.STEP, Op.STATE, Op.SETTLE]), min_size=1, max_size=3))
    def calls_that_meet_no_trouble(self, ops: list[Op]) -> None:
        for op in ops:
            self.ask(op)
            while self.running is not None:
                self.go_on()

    def go_on(self) -> None:
        """The next thing that happens by itself where nothing goes wrong."""
        if self.dial is not None:
            self.resume() if self.dial.resume else self.dial_succeeds(full=False)
            return
        assert self.wire is not None
        if self.wire.outbox:
            self.deliver(oversized=False)
        elif self.wire.session.running is not None:
            self.server.finish(self.wire.session, "done")
        else:
            assert self.wire.inbox, "the client waits for what will never come"
            self.server.read(self.wire)

    @precondition(lambda self: self.running is not None)
    @rule(cause=st.sampled_from(["timeout", "cancelled"]))
    def give_up(self, cause: str) -> None:
        call = self.running
        assert call is not None
        self.given_up = self.given_up or (call if call.seq and self.machine.numbered else None)
        self.feed(Event.GAVE_UP, GaveUp(cause, call))

    @precondition(lambda self: self.machine.row.name == "IDLE" and self.machine.numbered and not self.queue)
    @rule(
        op=st.sampled_from([Op.STEP, Op.STEP, Op.RESET, Op.STATE]),
        read=st.booleans(),
        given_up=st.sampled_from([True, True, False]),
        cut=st.booleans(),
        then=st.sampled_from([None, Op.STEP, Op.SETTLE, Op.RESET]),
    )
    def a_call_meets_trouble(self, op: Op, read: bool, given_up: bool, cut: bool, then: Op | None) -> None:
        self.ask(op)
        if self.running is None:
            return
        if read and self.wire.inbox:
            self.server.read(self.wire)
        if given_up:
            self.give_up("timeout")
        if cut:
            self.cut(code=None, read=0, end="")
        if then is not None:
            self.ask(then)

    @precondition(lambda self: self.untaken is not None and self.running is None)
    @rule(really=st.sampled_from([False, True]))
    def answer_not_taken(self, really: bool) -> None:
        if not really:
            return
        (call, reply), self.untaken = self.untaken, None
        kept = self.machine.row.name in ("IDLE", "SUSPENDED") and (self.machine.numbered or call.op is Op.SETTLE)
        late = reply if kept and call.op is not Op.STATE else None
        if call.handed is not None and self.machine.row.name in ("IDLE", "SUSPENDED"):
            late = call.handed.reply  # it was told of an earlier call
        if late is not None:
            self.told[late.data["mark"]] -= 1
        self.feed(Event.GAVE_UP, GaveUp("cancelled", call, reply))

    @rule(really=st.sampled_from([False] * 5 + [True]), connect_next=st.booleans(), heard=st.booleans())
    def close(self, really: bool, connect_next: bool, heard: bool) -> None:
        if not really:
            return
        self.heard = heard
        self.feed(Event.CLOSE)
        if connect_next and self.running is None:
            self.ask(Op.CONNECT)

    @rule(really=st.sampled_from([False] * 7 + [True]))
    def loop_closed(self, really: bool) -> None:
        if really:
            self.feed(Event.LOOP_CLOSED)

    @precondition(lambda self: self.dial is not None and self.running is not None)
    @rule(really=st.sampled_from([False, False, True]))
    def opening_over(self, really: bool) -> None:
        if really:
            self.feed(Event.OPENING_OVER)

    # -------------------------------------------------------------- the network

    @precondition(lambda self: self.dial is not None and not self.dial.resume)
    @rule(full=st.sampled_from([False, False, False, True]))
    def dial_succeeds(self, full: bool) -> None:
        self.dial = None
        if self.dialect:
            self.release(self.machine.opening().releases)
            for session in self.server.sessions:
                if session.last_seq == 0 and session.numbered:  # E6
                    session.over = session.over or "never_called"
            left = [one.name for one in self.server.sessions if one.last_seq and not (one.over or one.taken)]
            assert not left, f"sessions {left} are kept for nobody, and could lock this client out"
        else:  # a server that knows no sessions of another dialect
            for session in self.server.sessions:
                session.over = session.over or "unknown"
        features = frozenset(self.dialect)
        self.wire = self.server.accept(features, full and not features)
        self.session = self.wire.session
        lease = Lease(str(self.session.name), "token-1", "epoch-1") if features else None
        self.feed(Event.OPENED, SessionOpened(features, lease))

    @precondition(lambda self: self.dial is not None)
    @rule(retryable=st.booleans(), full=st.booleans())
    def dial_fails(self, retryable: bool, full: bool) -> None:
        self.dial = None
        error = CapacityError() if full else ConnectError("refused")
        self.feed(Event.DIAL_FAILED, DialFailure(error, retryable=retryable))

    @precondition(lambda self: self.dial is not None and self.dial.resume)
    @rule()
    def resume(self) -> None:
        asked = self.machine.opening().resume
        session, self.dial = self.session, None
        assert asked is not None
        assert session is not None
        assert asked.lease.session == str(session.name)
        if session.last_seq == 0:
            session.over = session.over or "never_called"
        if session.over:
            self.feed(Event.RESUME_LOST, session.over)
            return
        self.ghosts = [ghost for ghost in self.ghosts if ghost.session is not session]  # E22
        self.wire = self.server.resume(session, asked.last_reply)
        self.feed(Event.RESUMED, Resumed("token-2", session.last_seq, session.running is not None))

    @precondition(lambda self: self.wire is not None)
    @rule(
        code=st.sampled_from([None, None, 1000, 1006, 1006, 1009, 1012, 4000, 4001]),
        read=st.integers(0, 2),
        end=st.sampled_from([*ENDS, ""]),
    )
    def cut(self, code: int | None, read: int, end: str) -> None:
        """The connection ends; the server may have read some more, and finished it, before it sees that."""
        wire = self.wire
        assert wire is not None
        session = wire.session
        if code == 1009 and (not wire.inbox or wire.inbox[0][0] == "cancel" or session.running):
            code = None
        if code == 1009:
            wire.inbox.clear()  # the server refused the frame unread
        for _ in range(min(read, len(wire.inbox))):
            self.server.read(wire)
        if end and session.running is not None:
            self.finish(session, end)
        if session.numbered and code in (4000, 4001):
            session.over, session.taken = "idle" if code == 4001 else "", code == 4000
        self.let_go()
        self.feed(Event.DROPPED, Drop(code, "replaced" if code == 4000 else ""))

    @precondition(lambda self: self.wire is not None and self.wire.outbox)
    @rule(oversized=st.sampled_from([False, False, False, True]))
    def deliver(self, oversized: bool) -> None:
        assert self.wire is not None
        frame = self.wire.outbox.popleft()
        if oversized and not frame.is_error and not self.wire.session.numbered:
            self.feed(Event.OVERSIZED, Oversized(2, 1))
        else:
            self.feed(Event.RECEIVED, frame)

    @precondition(lambda self: self.wire is not None and (self.machine.row.name != "BUSY" or self.wire.inbox))
    @rule(kind=st.sampled_from(["state", "mcp", "error", "malformed"]), really=st.sampled_from([False, False, True]))
    def stray_frame(self, kind: str, really: bool) -> None:
        if not really:
            return
        plain = self.running is not None and not self.machine.numbered
        if plain and (kind == "error" or self.running.op.value in (kind, "state")):
            return  # nobody could tell it from the answer
        self.feed(Event.RECEIVED, Reply(kind, {"mark": -1}))

    # -------------------------------------------------------------- the server

    @initialize(dialect=st.sampled_from(DIALECTS), expires=st.booleans(), begun=st.booleans())
    def server_starts(self, dialect: tuple[Feature, ...], expires: bool, begun: bool) -> None:
        self.dialect, self.expires = dialect, expires
        if begun:
            self.calls_that_meet_no_trouble([Op.RESET])

    @rule(dialect=st.sampled_from(DIALECTS), really=st.sampled_from([False, True]))
    def server_changes(self, dialect: tuple[Feature, ...], really: bool) -> None:
        if really and self.expires:
            self.dialect = dialect

    @precondition(lambda self: self.wire is not None and self.wire.inbox)
    @rule(end=st.sampled_from(["done", "done", "failed"]))
    def server_reads(self, end: str) -> None:
        assert self.wire is not None
        self.server.read(self.wire, end)

    @precondition(lambda self: self.session is not None and self.session.running is not None)
    @rule(end=st.sampled_from(ENDS))
    def server_finishes(self, end: str) -> None:
        assert self.session is not None
        if not self.session.over:
            self.finish(self.session, end)

    def finish(self, session: Session, end: str) -> None:
        self.server.finish(session, "done" if end.startswith("cancelled") and not session.cancelled else end)

    @precondition(lambda self: any(ghost.inbox for ghost in self.ghosts))
    @rule()
    def a_late_frame_runs(self) -> None:
        ghost = next(ghost for ghost in self.ghosts if ghost.inbox)
        self.server.read(ghost)

    @precondition(lambda self: self.expires and self.session is not None and self.session.wire is None)
    @rule(reason=st.sampled_from(["expired", "evicted", "epoch"]))
    def session_expires(self, reason: str) -> None:
        assert self.session is not None
        if self.session.numbered:
            self.session.over = self.session.over or reason

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
        resets = [(session.name, mark) for session, what, mark, _ in self.server.ran if what == "reset"]
        assert len(resets) == len(set(resets))

    @invariant()
    def each_call_has_one_end(self) -> None:
        open_calls = {self.mark(call) for call in [*self.queue, *([self.running] if self.running else [])]}
        for mark, ends in self.ends.items():
            assert ends == (0 if mark in open_calls else 1)

    @invariant()
    def what_reached_its_user_was_applied_and_came_once(self) -> None:
        ran = {mark for _, _, mark, _ in self.server.ran}
        for mark, told in self.told.items():
            assert told in (0, 1)
            assert not told or mark in ran

    @invariant()
    def what_was_not_applied_was_not_applied(self) -> None:
        for session, what, mark, _ in self.server.ran:
            assert mark not in self.denied or what == "state", f"{what} {mark} ran in session {session.name}"

    @invariant()
    def a_closed_client_has_no_connection(self) -> None:
        if self.machine.state.value == "closed":
            assert self.wire is None
            assert self.dial is None


ClientAgainstServer.TestCase.settings = settings(
    max_examples=800, stateful_step_count=50, deadline=None, derandomize=True
)
TestClientAgainstServer = ClientAgainstServer.TestCase
