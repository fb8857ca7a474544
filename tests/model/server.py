"""The server of the model: the clauses about the server, as pure functions on a tuple.

Each method takes the state and what happened, and returns the next state and a tuple of effects::

    ("send", socket, frame)   ("end", socket, code)
    ("opened", sid, socket)   ("started", sid, cid, kind)   ("undone", sid, cid)   ("attached", sid)   ("closed", sid)

Tokens are counted per session. ``faults`` names clauses to leave out, for the negative controls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from model.roles import (
    BUSY,
    CANCELLED,
    CAPACITY,
    CLOSED,
    CUT_SHORT,
    FAILED,
    GHOST,
    IDLE,
    MISMATCH,
    OK,
    OUT_OF_ORDER,
    REPLACED,
    RESET,
)

Effects = tuple[tuple[Any, ...], ...]

NOBODY = -1
WELCOMED = -1
GONE = -2


class Ss(NamedTuple):
    """A session. ``over``: why it ended; its slot is held until ``freed``."""

    sid: int
    sock: int
    old: int = 0  # a token that resumes
    new: int = -1  # the one last told, until it was seen to have arrived
    told: int = 0  # tokens made
    high_old: int = 0
    high_new: int = 0
    last: int = 0
    run: tuple[int, str] | None = None
    cancelled: bool = False
    cache: tuple[int, str] | None = None  # (cid, result); cid NOBODY for a call that never came
    called: bool = False
    over: str = ""
    freed: bool = False


class Srv(NamedTuple):
    epoch: int = 1
    sessions: tuple[Ss, ...] = ()
    sids: int = 0
    waiting: bool = False  # somebody was refused for capacity
    roles: tuple[int, ...] = ()  # of each socket: WELCOMED, GONE, or a session


Next = tuple[Srv, Effects]


class Server:
    def __init__(self, *faults: str, capacity: int = 1) -> None:
        self.faults = frozenset(faults)
        self.capacity = capacity

    start = Srv()

    # ---------------------------------------------------------------- what the world asks

    def has_room(self, srv: Srv) -> bool:
        counted = [s for s in srv.sessions if not s.freed and ("leases_free" not in self.faults or s.sock >= 0)]
        return len(counted) < self.capacity

    @staticmethod
    def epoch(srv: Srv) -> int:
        return srv.epoch

    @staticmethod
    def attached(srv: Srv) -> tuple[tuple[int, int], ...]:
        """Sessions and their sockets, for those that believe in one."""
        return tuple((s.sid, s.sock) for s in srv.sessions if s.sock >= 0 and not s.over)

    def inner(self, srv: Srv) -> list[tuple[Any, ...]]:
        """What may happen by itself, sooner or later."""
        events: list[tuple[Any, ...]] = []
        for s in srv.sessions:
            if s.freed:
                continue
            if s.run is not None:
                results = [OK, CANCELLED, CUT_SHORT] if s.cancelled else [OK]
                events += [("finish", s.sid, result) for result in results]
            elif s.over:
                events.append(("free", s.sid))
            if srv.waiting and s.sock == NOBODY and not s.over:
                events.append(("evict", s.sid))
        return events

    @staticmethod
    def timers(srv: Srv) -> list[tuple[Any, ...]]:
        """What a clock may do: leases expire, idle sessions end."""
        live = [s for s in srv.sessions if not s.over and (s.sock == NOBODY or s.run is None)]
        return [("expire", s.sid) for s in live]

    @staticmethod
    def failures(srv: Srv) -> list[tuple[Any, ...]]:
        """What an environment may do: a reset raises."""
        return [("finish", s.sid, FAILED) for s in srv.sessions if s.run is not None and s.run[1] == RESET]

    # ---------------------------------------------------------------- events

    def restart(self, srv: Srv) -> Next:
        return Srv(epoch=srv.epoch + 1, sids=srv.sids, roles=(GONE,) * len(srv.roles)), ()

    def happens(self, srv: Srv, event: tuple[Any, ...]) -> Next:
        s = self._session(srv, event[1])
        assert s is not None
        match event[0]:
            case "finish":
                return self._finish(srv, s, event[2])
            case "free":
                return self._put(srv, Ss(s.sid, NOBODY, over=s.over, freed=True)), (("closed", s.sid),)
            case "evict":
                return self._end(srv, s, "evicted")
            case _:
                return self._end(srv, s, "expired" if s.sock == NOBODY else "idle", IDLE)

    def accept(self, srv: Srv, sock: int) -> Next:
        return self._role(srv, sock, WELCOMED), ()

    def dropped(self, srv: Srv, sock: int) -> Next:
        role = self._role_of(srv, sock)
        srv = self._role(srv, sock, GONE)
        s = self._session(srv, role)
        if s is None or s.sock != sock:
            return srv, ()
        if not s.called:
            return self._end(srv, s._replace(sock=NOBODY), "never_called")
        return self._put(srv, s._replace(sock=NOBODY)), ()

    def frame(self, srv: Srv, sock: int, frame: tuple[Any, ...]) -> Next:
        role = self._role_of(srv, sock)
        if role == GONE:
            return srv, ()
        if role == WELCOMED:
            match frame:
                case ("open",):
                    return self._open(srv, sock)
                case ("release", sid, token):
                    return self._release(srv, sid, token)
                case ("resume", sid, token, last, attempt):
                    return self._resume(srv, sock, sid, token, last, attempt)
            raise AssertionError(frame)
        s = self._session(srv, role)
        if s is None or s.over or (s.sock != sock and "old_sockets" not in self.faults):
            return srv, ()
        if s.new >= 0 and s.sock == sock:  # the new token has arrived
            s = s._replace(old=s.new, high_old=s.high_new, new=-1, high_new=0)
            srv = self._put(srv, s)
        match frame:
            case ("call", n, cid, kind):
                return self._call(srv, s, sock, n, cid, kind)
            case ("cancel", n):
                return self._cancel(srv, s, sock, n)
            case ("close",):
                return self._end(srv, s, "closed", CLOSED)
        raise AssertionError(frame)

    # ---------------------------------------------------------------- opening and resuming

    def _open(self, srv: Srv, sock: int) -> Next:
        if not self.has_room(srv):
            srv = self._role(srv._replace(waiting=True), sock, GONE)
            return srv, (("send", sock, ("full",)), ("end", sock, CAPACITY))
        sid = srv.sids + 1
        srv = srv._replace(sids=sid, sessions=(*srv.sessions, Ss(sid, sock)), waiting=False)
        return self._role(srv, sock, sid), (("opened", sid, sock), ("send", sock, ("opened", sid, 0)))

    def _release(self, srv: Srv, sid: int, token: int) -> Next:
        s = self._session(srv, sid)
        if s is None or s.over or token not in (s.old, s.new):
            return srv, ()
        return self._end(srv, s, "closed", CLOSED)

    def _resume(self, srv: Srv, sock: int, sid: int, token: int, last: int, attempt: int) -> Next:
        s = self._session(srv, sid)
        if s is None or s.over or token not in (s.old, s.new):
            reason = s.over if s is not None and s.over else "unknown"
            return self._role(srv, sock, GONE), (("send", sock, ("lost", reason)), ("end", sock, GHOST))
        if attempt < (s.high_old if token == s.old else s.high_new) and "ghosts" not in self.faults:
            return self._role(srv, sock, GONE), (("end", sock, GHOST),)
        new = s.told + 1
        older, effects = s.sock, ()
        s = s._replace(old=token, high_old=attempt, new=new, high_new=0, told=new, sock=sock)
        if "old_token_dies" in self.faults:
            s = s._replace(old=new, high_old=0, new=-1)
        if older >= 0 and "old_sockets" not in self.faults:
            srv = self._role(srv, older, GONE)
            effects = (("end", older, REPLACED),)
        srv = self._role(self._put(srv, s), sock, sid)
        effects = (*effects, ("attached", sid), ("send", sock, ("resumed", new, s.last)))
        if last < s.last and s.run is None and s.cache is not None:
            effects = (*effects, ("send", sock, ("reply", s.last, *s.cache)))
        return srv, effects

    # ---------------------------------------------------------------- calls

    def _call(self, srv: Srv, s: Ss, sock: int, n: int, cid: int, kind: str) -> Next:
        if n == s.last and "no_dedupe" not in self.faults:
            if s.run is not None:
                same = s.run[0] == cid
                return srv, () if same else (("send", sock, ("reply", n, cid, MISMATCH)),)
            assert s.cache is not None
            if s.cache[0] in (cid, NOBODY):
                return srv, (("send", sock, ("reply", n, cid, s.cache[1])),)
            return srv, (("send", sock, ("reply", n, cid, MISMATCH)),)
        if s.run is not None:
            return srv, (("send", sock, ("reply", n, cid, BUSY)),)
        if n != s.last + 1 and "no_dedupe" not in self.faults:
            return srv, (("send", sock, ("reply", n, cid, OUT_OF_ORDER)),)
        s = s._replace(last=n, run=(cid, kind), cancelled=False, cache=None, called=True)
        return self._put(srv, s), (("started", s.sid, cid, kind),)

    def _cancel(self, srv: Srv, s: Ss, sock: int, n: int) -> Next:
        if s.run is not None:
            return (self._put(srv, s._replace(cancelled=True)), ()) if n == s.last else (srv, ())
        if n != s.last + 1:
            return srv, ()
        if "cancel_forgotten" not in self.faults:
            srv = self._put(srv, s._replace(last=n, cache=(NOBODY, CANCELLED), called=True))
        return srv, (("send", sock, ("reply", n, NOBODY, CANCELLED)),)

    def _finish(self, srv: Srv, s: Ss, result: str) -> Next:
        assert s.run is not None
        cid, _ = s.run
        effects: Effects = (("undone", s.sid, cid),) if result == CANCELLED else ()
        if s.sock >= 0 and not s.over:
            effects = (*effects, ("send", s.sock, ("reply", s.last, cid, result)))
        return self._put(srv, s._replace(run=None, cancelled=False, cache=(cid, result))), effects

    # ---------------------------------------------------------------- ending

    def _end(self, srv: Srv, s: Ss, reason: str, code: int = 0) -> Next:
        effects: Effects = ()
        if s.sock >= 0:
            srv = self._role(srv, s.sock, GONE)
            effects = (("end", s.sock, code),)
        s = Ss(s.sid, NOBODY, last=s.last, run=s.run, cancelled=s.run is not None, over=reason)
        return self._put(srv, s), effects

    # ---------------------------------------------------------------- tuples

    @staticmethod
    def _session(srv: Srv, sid: int) -> Ss | None:
        return next((s for s in srv.sessions if s.sid == sid), None)

    @staticmethod
    def _put(srv: Srv, s: Ss) -> Srv:
        return srv._replace(sessions=tuple(s if one.sid == s.sid else one for one in srv.sessions))

    @staticmethod
    def _role_of(srv: Srv, sock: int) -> int:
        return srv.roles[sock] if sock < len(srv.roles) else GONE

    @staticmethod
    def _role(srv: Srv, sock: int, role: int) -> Srv:
        roles = list(srv.roles) + [GONE] * (sock + 1 - len(srv.roles))
        roles[sock] = role
        while roles and roles[-1] == GONE:
            roles.pop()
        return srv._replace(roles=tuple(roles))
