"""The client of the model: the clauses about the client, as pure functions on a tuple.

Each method takes the state and what happened, and returns the next state and a tuple of effects::

    ("send", frame)   ("drop",)   ("goodbye",)   ("say_release", sid, token)
    ("ok", cid, payload)   ("fail", cid, outcome)   ("late", cid, late)   ("settled", cid, late)   ("lost", reason)

``faults`` names clauses to leave out, for the negative controls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model.roles import (
    CANCELLED,
    CUT_SHORT,
    FAILED,
    FINAL,
    NOT_APPLIED,
    OK,
    REPLACED,
    RESET,
    SETTLE,
    STEP,
    UNKNOWN,
)

Effects = tuple[tuple[Any, ...], ...]

NEW, OPENING, OPEN, SUSPENDED, LOST, CLOSED = "new", "opening", "open", "suspended", "lost", "closed"


class Call(NamedTuple):
    """A call of the user. ``n``: its number in the session, 0 while unsent; ``sent``: it was sent in any session."""

    cid: int
    kind: str
    n: int = 0
    sent: bool = False


class Cl(NamedTuple):
    """What a client knows."""

    st: str = NEW
    sid: int = 0
    token: int = 0
    epoch: int = 0
    attempt: int = 0
    seq: int = 0
    last: int = 0
    call: Call | None = None
    abandoned: Call | None = None
    due: tuple[Any, ...] | None = None  # (cid, kind, has a result)
    needs_reset: bool = False
    reset_begun: bool = False
    lost: bool = False
    touched: bool = False
    former: bool = False  # has had a session
    kept: tuple[tuple[int, int, int], ...] = ()
    full: bool = False  # refused for capacity, waits
    back: str = NEW  # where a failed opening leads


Next = tuple[Cl, Effects]


class Client:
    """The rules. One instance serves all clients."""

    def __init__(self, *faults: str) -> None:
        self.faults = frozenset(faults)

    start = Cl()

    # ---------------------------------------------------------------- what the world asks

    @staticmethod
    def wants_dial(cl: Cl) -> bool:
        return cl.st in (OPENING, SUSPENDED)

    @staticmethod
    def waits_for_room(cl: Cl) -> bool:
        return cl.full

    @staticmethod
    def may_be_cloned(cl: Cl) -> bool:
        return cl.st in (OPEN, SUSPENDED) and cl.touched and cl.abandoned is None and cl.due is None

    @staticmethod
    def cloned(cl: Cl) -> Cl:
        """A second holder of the same token, as after a restart from a checkpoint."""
        return cl._replace(st=SUSPENDED, call=None, seq=cl.last)

    @staticmethod
    def may_open_elsewhere(cl: Cl) -> bool:
        """A reset waits for a resume, and its own time for that may run out (E25)."""
        return cl.st == SUSPENDED and cl.call is not None and cl.call.kind == RESET and not cl.call.n

    # ---------------------------------------------------------------- the user

    def make(self, cl: Cl, cid: int, kind: str) -> Next:
        call = Call(cid, kind)
        if kind == RESET:
            cl = cl._replace(reset_begun=True, needs_reset=True)
        if cl.st == SUSPENDED:
            return cl._replace(call=call), ()
        if cl.st == OPEN:
            return self._ask(cl, call)
        if kind == SETTLE:
            return self._pay(cl, call)
        if kind == STEP and (cl.st in (LOST, CLOSED) or self._refuses(cl)):
            return cl, (("fail", cid, NOT_APPLIED),)
        return self._open(cl, call, LOST if cl.st == LOST else NEW), ()

    def give_up(self, cl: Cl) -> Next:
        call = cl.call
        assert call is not None
        cl = cl._replace(call=None)
        if call.n:
            told: Effects = (("fail", call.cid, UNKNOWN),)
            if "no_abandoned" in self.faults:
                return cl, told
            cancel: Effects = (("send", ("cancel", call.n)),) if cl.st == OPEN else ()
            return cl._replace(abandoned=call), cancel + told
        told = (("fail", call.cid, UNKNOWN if call.sent else NOT_APPLIED),)
        if cl.st != OPENING:
            return cl, told
        return cl._replace(st=cl.back, full=False), (("drop",), *told)

    def open_elsewhere(self, cl: Cl) -> Next:
        return self._lose(cl, "unreachable")

    def close(self, cl: Cl) -> Next:
        call = cl.call
        effects: Effects = (("goodbye",),) if cl.st == OPEN else (("drop",),)
        if cl.st == SUSPENDED:
            effects += (("say_release", cl.sid, cl.token),)
        if call is not None:
            effects += (("fail", call.cid, UNKNOWN if call.sent else NOT_APPLIED),)
        had_episode = cl.needs_reset or cl.reset_begun or cl.lost
        cl = self._keep(cl)._replace(
            st=CLOSED, call=None, abandoned=None, lost=False, needs_reset=had_episode, full=False
        )
        return cl, effects

    # ---------------------------------------------------------------- the network

    def connected(self, cl: Cl, epoch: int) -> Next:
        """A dial succeeded, and the server's welcome names its epoch."""
        if cl.st == SUSPENDED:
            if epoch != cl.epoch:
                return self._lose(cl, "epoch")
            cl = cl._replace(attempt=cl.attempt + 1)
            return cl, (("send", ("resume", cl.sid, cl.token, cl.last, cl.attempt)),)
        mine = [] if "no_release" in self.faults else [lease for lease in cl.kept if lease[2] == epoch]
        releases = tuple(("send", ("release", sid, token)) for sid, token, _ in mine)
        return cl._replace(full=False, epoch=epoch), (*releases, ("send", ("open",)))

    def dropped(self, cl: Cl, code: int) -> Next:
        """The socket ended; ``code`` is 0 if the server did not send one."""
        final = FINAL.get(code)
        if "comes_back" in self.faults and code == REPLACED:
            final = None
        if cl.st == OPENING:
            return cl, ()
        if final:
            return self._lose(cl, final)
        if cl.st == OPEN and not cl.touched:
            assert cl.call is None
            return cl._replace(st=NEW), ()
        return cl._replace(st=SUSPENDED), ()

    def frame(self, cl: Cl, frame: tuple[Any, ...]) -> Next:
        match frame:
            case ("opened", sid, token):
                return self._opened(cl, sid, token)
            case ("full",):
                return self._full(cl)
            case ("resumed", token, m):
                return self._resumed(cl, token, m)
            case ("lost", reason):
                return self._lose(cl, reason)
            case ("reply", n, cid, result):
                return self._reply(cl, n, cid, result)
        raise AssertionError(frame)

    # ---------------------------------------------------------------- opening

    @staticmethod
    def _open(cl: Cl, call: Call, back: str) -> Cl:
        return cl._replace(st=OPENING, call=call._replace(n=0), back=back, full=False)

    def _opened(self, cl: Cl, sid: int, token: int) -> Next:
        call = cl.call
        assert call is not None
        cl = cl._replace(st=OPEN, sid=sid, token=token, attempt=0, seq=0, last=0, touched=False, kept=(), former=True)
        if cl.reset_begun and "no_needs_reset" not in self.faults:
            cl = cl._replace(needs_reset=True)
        return self._send(cl, call)

    @staticmethod
    def _full(cl: Cl) -> Next:
        """No slot: a client whose former session may still hold one waits for it, a newcomer is told (E3)."""
        call = cl.call
        assert call is not None
        if cl.former:
            return cl._replace(full=True), (("drop",),)
        outcome = UNKNOWN if call.sent else NOT_APPLIED
        return cl._replace(st=cl.back, call=None), (("drop",), ("fail", call.cid, outcome))

    # ---------------------------------------------------------------- asking

    def _refuses(self, cl: Cl) -> bool:
        return (cl.lost or cl.needs_reset) and "no_needs_reset" not in self.faults

    def _ask(self, cl: Cl, call: Call) -> Next:
        if cl.abandoned is not None:
            return cl._replace(call=call), ()
        cl = cl._replace(call=None)
        if call.kind == SETTLE:
            return self._pay(cl, call)
        if call.kind == RESET:
            return self._send(cl, call)
        if self._refuses(cl):
            return cl, (("fail", call.cid, NOT_APPLIED),)
        return self._send(cl, call) if cl.due is None else self._pay(cl, call)

    @staticmethod
    def _send(cl: Cl, call: Call) -> Next:
        n = cl.seq + 1
        if call.kind == RESET:
            cl = cl._replace(due=None, needs_reset=True)
        call = call._replace(n=n, sent=True)
        return cl._replace(seq=n, call=call, touched=True), (("send", ("call", n, call.cid, call.kind)),)

    @staticmethod
    def _pay(cl: Cl, call: Call) -> Next:
        """What an abandoned call left is told once (E15)."""
        due, cl = cl.due, cl._replace(due=None)
        if due is None:
            return cl, (("settled", call.cid, None),)
        return cl, (("settled" if call.kind == SETTLE else "late", call.cid, due[0] if due[2] else None),)

    # ---------------------------------------------------------------- answers

    def _reply(self, cl: Cl, n: int, cid: int, result: str) -> Next:
        call = cl.call
        if call is not None and call.n == n:
            return self._answer(cl._replace(call=None, last=n), call, cid, result)
        call = cl.abandoned
        if call is not None and call.n == n:
            return self._fate(cl._replace(abandoned=None, last=n), call, cid, result)
        if "no_abandoned" in self.faults:
            return cl, ()
        return self._lose(cl, "protocol")

    def _answer(self, cl: Cl, call: Call, cid: int, result: str) -> Next:
        if result == OK:
            return self._note(cl, call), (("ok", call.cid, cid),)
        if result in (CANCELLED, CUT_SHORT, FAILED):
            outcome = NOT_APPLIED if result == CANCELLED else UNKNOWN
            return cl, (("fail", call.cid, outcome),)
        return self._lose(cl._replace(call=call), "protocol")

    def _fate(self, cl: Cl, call: Call, cid: int, result: str) -> Next:
        if result == OK:
            cl = self._note(cl, call)._replace(due=(cid, call.kind, True))
        elif result in (CUT_SHORT, FAILED):
            cl = cl._replace(due=(call.cid, call.kind, False))
        if "drops_late" in self.faults:
            cl = cl._replace(due=None)
        waiting = cl.call
        return (cl, ()) if waiting is None else self._ask(cl, waiting)

    @staticmethod
    def _note(cl: Cl, call: Call) -> Cl:
        return cl._replace(lost=False, needs_reset=False) if call.kind == RESET else cl

    # ---------------------------------------------------------------- losing, resuming

    def _keep(self, cl: Cl, reason: str = "") -> Cl:
        if cl.sid and reason != "replaced":
            return cl._replace(kept=(*cl.kept, (cl.sid, cl.token, cl.epoch)), sid=0, token=0, epoch=0, attempt=0)
        return cl._replace(sid=0, token=0, epoch=0, attempt=0)

    def _lose(self, cl: Cl, reason: str) -> Next:
        call = cl.call
        cl = self._keep(cl, reason)._replace(call=None, abandoned=None, touched=False, seq=0, last=0)
        told: Effects = (("drop",), ("lost", reason))
        if reason == "never_called" and not cl.reset_begun:
            cl = cl._replace(st=NEW)
            return cl, told if call is None else (*told, ("fail", call.cid, NOT_APPLIED))
        cl = cl._replace(st=LOST, lost=True, needs_reset=True)
        if call is None:
            return cl, told
        if call.kind == RESET:
            return self._open(cl, call, LOST), told
        if call.kind == SETTLE:
            if cl.due is None:
                return cl, (*told, ("fail", call.cid, UNKNOWN))
            cl, paid = self._pay(cl, call)
            return cl, told + paid
        outcome = UNKNOWN if call.sent and reason != "never_called" else NOT_APPLIED
        return cl, (*told, ("fail", call.cid, outcome))

    def _resumed(self, cl: Cl, token: int, m: int) -> Next:
        open_call = cl.call if cl.call is not None and cl.call.n else cl.abandoned
        expected = (cl.last,) if open_call is None else (open_call.n - 1, open_call.n)
        if m not in expected and "no_check_at_resume" not in self.faults:
            return self._lose(cl, "protocol")
        cl = cl._replace(st=OPEN, token=token, attempt=0)
        if open_call is None:
            waiting, cl = cl.call, cl._replace(call=None)
            return (cl, ()) if waiting is None else self._ask(cl, waiting)
        if open_call is cl.abandoned:
            return cl, (("send", ("cancel", open_call.n)),)
        if m == open_call.n and "resends" not in self.faults:
            return cl, ()
        return cl, (("send", ("call", open_call.n, open_call.cid, open_call.kind)),)
