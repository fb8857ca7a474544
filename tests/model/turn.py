"""One move of a world: what client and server do is carried out, and judged by an onlooker.

The onlooker counts what ran where, and compares it with what the callers were told. It knows no machine's insides.
"""

from __future__ import annotations

from typing import Any

from model.roles import CANCELLED, NOT_APPLIED, RESET, SETTLE, STEP, UNKNOWN
from model.state import NOBODY, Bounds, Env, Rec, Sk, Violation, W


class Turn:
    """One move under way: the parts of a state, to be changed, and the onlooker's judgement of each change."""

    def __init__(self, bounds: Bounds, server: Any, w: W) -> None:
        self.bounds, self.server = bounds, server
        self.srv, self.left, self.attaches = w.srv, w.left, w.attaches
        self.clients, self.socks, self.envs, self.recs = list(w.clients), list(w.socks), list(w.envs), list(w.recs)
        self.pending, self.seen, self.owed, self.makes = list(w.pending), list(w.seen), list(w.owed), list(w.makes)
        self.giving_up = False

    def done(self) -> W:
        while self.socks and self.socks[-1] is None:
            self.socks.pop()
        return W(
            self.srv,
            tuple(self.clients),
            tuple(self.socks),
            tuple(self.envs),
            tuple(self.recs),
            tuple(self.pending),
            tuple(self.seen),
            tuple(self.owed),
            tuple(self.makes),
            self.left,
            self.attaches,
        )

    def spent(self, name: str) -> bool:
        """Whether such a thing has happened."""
        return getattr(self.left, name) < getattr(self.bounds.left, name)

    # ---------------------------------------------------------------- sockets

    def socket(self, sock: Sk) -> int:
        k = self.socks.index(None) if None in self.socks else len(self.socks)
        self.socks[k : k + 1] = [sock]
        self.server_does(self.server.accept(self.srv, k))
        return k

    def current(self, c: int) -> int:
        return next((k for k, sock in enumerate(self.socks) if sock is not None and sock.mine and sock.owner == c), -1)

    def let_go(self, k: int) -> None:
        """The client drops its end."""
        sock = self.socks[k]
        self.socks[k] = None if sock.gone else sock._replace(mine=False, broken=True, s2c=())

    def server_gone(self, k: int) -> None:
        """The server drops its end."""
        sock = self.socks[k]
        if sock is not None:
            self.socks[k] = sock._replace(gone=True, c2s=()) if sock.mine else None

    # ---------------------------------------------------------------- the client's effects

    def client_does(self, c: int, step: tuple[Any, tuple[Any, ...]]) -> None:
        self.clients[c], effects = step
        for effect in effects:
            getattr(self, "_c_" + effect[0])(c, *effect[1:])

    def _c_send(self, c: int, frame: tuple[Any, ...]) -> None:
        k = self.current(c)
        if frame[0] == "call" and frame[3] == STEP and self.owed[c] is not None:
            raise Violation(f"step (call {frame[2]}) was sent, and the fate of call {self.owed[c][0]} never told")
        if frame[0] == "call" and frame[3] == RESET and self.owed[c] and self.owed[c][1]:
            self.owed[c] = None  # reset() discards what was late
        if k < 0:
            raise Violation(f"client {c} sends {frame} on no socket")
        sock = self.socks[k]
        if not sock.broken and not sock.gone:
            self.socks[k] = sock._replace(c2s=(*sock.c2s, frame))

    def _c_drop(self, c: int) -> None:
        k = self.current(c)
        if k >= 0:
            self.let_go(k)

    def _c_goodbye(self, c: int) -> None:
        if self.current(c) >= 0:
            self._c_send(c, ("close",))
            self._c_drop(c)

    def _c_say_release(self, c: int, sid: int, token: int) -> None:
        self.socket(Sk(c, mine=False, broken=True, c2s=(("release", sid, token),)))

    def _ends(self, c: int, cid: int, told: str) -> Rec:
        if self.pending[c] != cid:
            raise Violation(f"call {cid} of client {c} ended, and call {self.pending[c]} was in flight")
        self.pending[c] = NOBODY
        rec = self.recs[cid] = self.recs[cid]._replace(told=told)
        return rec

    def _c_ok(self, c: int, cid: int, payload: int) -> None:
        rec = self._ends(c, cid, "ok")
        if payload != cid:
            raise Violation(f"call {cid} got the answer of call {payload}")
        if not rec.runs:
            raise Violation(f"call {cid} got an answer, and never ran")
        if rec.kind == RESET:
            self.seen[c] = cid
            self.owed[c] = None

    def _c_fail(self, c: int, cid: int, outcome: str) -> None:
        rec = self._ends(c, cid, outcome)
        if outcome == NOT_APPLIED and rec.runs:
            raise Violation(f"call {cid} ran, and its caller was told that it did not")
        if outcome == UNKNOWN and self.giving_up and rec.kind != SETTLE:
            self.owed[c] = (cid, False)

    def _c_late(self, c: int, cid: int, late: int | None) -> None:
        rec = self._ends(c, cid, NOT_APPLIED)
        if rec.runs:
            raise Violation(f"call {cid} ran, and its caller was told of a late result")
        self._told_late(c, late)

    def _c_settled(self, c: int, cid: int, late: int | None) -> None:
        self._ends(c, cid, "ok")
        self._told_late(c, late)

    def _told_late(self, c: int, late: int | None) -> None:
        owed, self.owed[c] = self.owed[c], None
        if late is None:
            if owed is not None and owed[1]:
                raise Violation(f"the late result of call {owed[0]} had arrived, and was dropped")
            return
        if owed is None or owed[0] != late:
            raise Violation(f"the late result of call {late} was told, and {owed} was owed")
        self.recs[late] = self.recs[late]._replace(told="ok")
        if self.recs[late].kind == RESET:
            self.seen[c] = late

    def _c_lost(self, c: int, reason: str) -> None:
        causes = {
            "epoch": self.spent("restarts"),
            "expired": self.spent("timers"),
            "idle": self.spent("timers"),
            "evicted": self.bounds.evicts,
            "replaced": self.spent("clones"),
            "unknown": self.spent("clones"),
            "protocol": self.spent("clones"),
            "closed": self.spent("clones"),
            "connection": self.spent("clones"),  # the other holder has closed it
            "never_called": self.spent("cuts"),
            "unreachable": self.giving_up,
        }
        if not causes.get(reason):
            raise Violation(f"client {c} lost its session without need: {reason}")
        if self.owed[c] is not None and not self.owed[c][1]:
            self.owed[c] = None  # its outcome is unknown, and so it was told

    def arrived(self, c: int, frame: tuple[Any, ...]) -> None:
        """A frame reaches a client: the fate of a call that was given up may be in it."""
        owed = self.owed[c]
        if owed is None or frame[0] != "reply" or frame[2] not in (owed[0], NOBODY):
            return
        if frame[3] != CANCELLED:
            self.owed[c] = (owed[0], frame[3] == "ok")
            return
        self.owed[c] = None
        if self.recs[owed[0]].kind == RESET:
            return  # an earlier session may have seen it
        rec = self.recs[owed[0]] = self.recs[owed[0]]._replace(told=NOT_APPLIED)
        if rec.runs:
            raise Violation(f"call {owed[0]} ran, and its client was told that it did not")

    # ---------------------------------------------------------------- the server's effects

    def server_does(self, step: tuple[Any, tuple[Any, ...]]) -> None:
        self.srv, effects = step
        for effect in effects:
            getattr(self, "_s_" + effect[0])(*effect[1:])

    def _s_send(self, k: int, frame: tuple[Any, ...]) -> None:
        sock = self.socks[k]
        if sock is not None and sock.mine and not sock.broken and not sock.gone:
            self.socks[k] = sock._replace(s2c=(*sock.s2c, frame))

    def _s_end(self, k: int, code: int) -> None:
        self._s_send(k, ("end", code))
        self.server_gone(k)

    def _s_opened(self, sid: int, k: int) -> None:
        self.envs.append(Env(sid, self.socks[k].owner))
        if len(self.envs) > self.server.capacity:
            raise Violation("more environments than the capacity allows")

    def _s_closed(self, sid: int) -> None:
        if all(env.sid != sid for env in self.envs):
            raise Violation(f"the environment of session {sid} was closed twice")
        self.envs = [env for env in self.envs if env.sid != sid]

    def _s_attached(self, sid: int) -> None:
        self.attaches += 1
        all_, left = self.bounds.left, self.left
        if self.attaches > all_.cuts - left.cuts + all_.clones - left.clones:
            raise Violation("two holders take the session from each other without end")

    def _s_started(self, sid: int, cid: int, kind: str) -> None:
        rec = self.recs[cid]
        env = next((env for env in self.envs if env.sid == sid), None)
        if env is None:
            raise Violation(f"call {cid} ran on a closed environment")
        if rec.runs and (kind == STEP or rec.sid == sid):
            raise Violation(f"call {cid} ran twice")
        if rec.told == NOT_APPLIED:
            raise Violation(f"call {cid} ran after its caller was told that it did not")
        self.recs[cid] = rec._replace(runs=rec.runs + 1, sid=sid)
        if kind == RESET:
            self.envs = [one._replace(episode=cid) if one is env else one for one in self.envs]
        elif env.episode != rec.episode:
            raise Violation(f"step {cid} means the episode of reset {rec.episode}, and ran in that of {env.episode}")

    def _s_undone(self, sid: int, cid: int) -> None:
        self.recs[cid] = self.recs[cid]._replace(runs=self.recs[cid].runs - 1)
