"""Everything that can happen next: to the lossy network, to the server, and by the callers.

A socket is two queues. A cut marks it broken: from then on each end may, at any moment, read the next frame or meet
the end of the socket, so that any suffix is lost in either direction, and each end learns of it in its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from model.state import NOBODY, Bounds, Left, Rec, Sk, Violation, W
from model.turn import Turn

Move = tuple[str, Callable[[], W]]


class World:
    """Client, server and bounds together."""

    def __init__(self, client: Any, server: Any, bounds: Bounds) -> None:
        self.client, self.server, self.bounds = client, server, bounds

    def start(self) -> W:
        n = len(self.bounds.calls)
        none = (NOBODY,) * n
        makes = self.bounds.calls
        return W(
            self.server.start, (self.client.start,) * n, (), (), (), none, none, (None,) * n, makes, self.bounds.left
        )

    # ---------------------------------------------------------------- what can happen

    def moves(self, w: W) -> Iterator[Move]:
        """Everything that can happen next, with a name.

        Raises:
            Violation: at the end, if nothing happens by itself any more and somebody waits all the same.
        """
        fair = list(self.fair(w))
        yield from fair
        yield from self._users(w)
        yield from self._faults(w)
        if not fair:
            self._check_rest(w)

    def fair(self, w: W) -> Iterator[Move]:
        """What happens sooner or later, if nothing else does."""
        held = set()
        for k, sock in enumerate(w.socks):
            if sock is None:
                continue
            if sock.mine:
                held.add(sock.owner)
                if sock.s2c:
                    yield f"client {sock.owner} reads {sock.s2c[0]}", lambda k=k: self._client_reads(w, k)
                if sock.broken and not (sock.s2c and sock.s2c[0][0] == "end"):
                    yield f"client {sock.owner} loses socket {k}", lambda k=k: self._client_loses(w, k, 0)
            if not sock.gone:
                if sock.c2s:
                    yield f"server reads {sock.c2s[0]} on {k}", lambda k=k: self._server_reads(w, k)
                if sock.broken:
                    yield f"server loses socket {k}", lambda k=k: self._server_loses(w, k)
        for c, cl in enumerate(w.clients):
            if c in held or not self.client.wants_dial(cl):
                continue
            if not self.client.waits_for_room(cl) or self.server.has_room(w.srv):
                yield f"client {c} dials", lambda c=c: self._dial(w, c)
        for event in self.server.inner(w.srv):
            if event[0] != "evict" or self.bounds.evicts:
                yield f"server: {event}", lambda event=event: self._inside(w, event, w.left)

    def _users(self, w: W) -> Iterator[Move]:
        client, left = self.client, w.left
        for c, cl in enumerate(w.clients):
            if c and left.clones:
                continue  # the second one is not there yet
            if w.pending[c] == NOBODY:
                if w.makes[c]:
                    for kind in self.bounds.kinds:
                        yield f"caller {c}: {kind}", lambda c=c, kind=kind: self._make(w, c, kind)
            elif left.give_ups:
                fewer = left._replace(give_ups=left.give_ups - 1)
                yield f"caller {c} gives up", lambda c=c, fewer=fewer: self._user(w, c, client.give_up, fewer)
                if client.may_open_elsewhere(cl):
                    yield (
                        f"caller {c}: no more time for the old session",
                        lambda c=c, fewer=fewer: self._user(w, c, client.open_elsewhere, fewer),
                    )
            if left.closes and cl != client.start:
                fewer = left._replace(closes=left.closes - 1)
                yield f"caller {c} closes", lambda c=c, fewer=fewer: self._close(w, c, fewer)
        if left.clones and client.may_be_cloned(w.clients[0]):
            yield "a second holder of the token", lambda: self._clone(w)

    def _faults(self, w: W) -> Iterator[Move]:
        left, server = w.left, self.server
        if left.cuts:
            for k, sock in enumerate(w.socks):
                if sock is not None and not sock.broken:
                    yield f"cut {k}", lambda k=k: self._cut(w, k)
        if left.timers:
            for event in server.timers(w.srv):
                fewer = left._replace(timers=left.timers - 1)
                yield f"server: {event}", lambda event=event, fewer=fewer: self._inside(w, event, fewer)
        if left.failures:
            for event in server.failures(w.srv):
                fewer = left._replace(failures=left.failures - 1)
                yield f"server: {event}", lambda event=event, fewer=fewer: self._inside(w, event, fewer)
        if left.restarts:
            yield "the server restarts", lambda: self._restart(w)

    # ---------------------------------------------------------------- moves

    def _client_reads(self, w: W, k: int) -> W:
        t = Turn(self.bounds, self.server, w)
        sock = t.socks[k]
        frame = sock.s2c[0]
        if frame[0] == "end":
            return self._client_loses(w, k, frame[1])
        t.socks[k] = sock._replace(s2c=sock.s2c[1:])
        t.arrived(sock.owner, frame)
        t.client_does(sock.owner, self.client.frame(w.clients[sock.owner], frame))
        return t.done()

    def _client_loses(self, w: W, k: int, code: int) -> W:
        t = Turn(self.bounds, self.server, w)
        c = w.socks[k].owner  # type: ignore[union-attr]
        t.let_go(k)
        t.client_does(c, self.client.dropped(w.clients[c], code))
        return t.done()

    def _server_reads(self, w: W, k: int) -> W:
        t = Turn(self.bounds, self.server, w)
        sock = t.socks[k]
        t.socks[k] = sock._replace(c2s=sock.c2s[1:])
        t.server_does(self.server.frame(w.srv, k, sock.c2s[0]))
        return t.done()

    def _server_loses(self, w: W, k: int) -> W:
        t = Turn(self.bounds, self.server, w)
        t.server_gone(k)
        t.server_does(self.server.dropped(w.srv, k))
        return t.done()

    def _dial(self, w: W, c: int) -> W:
        t = Turn(self.bounds, self.server, w)
        t.socket(Sk(c))
        t.client_does(c, self.client.connected(w.clients[c], self.server.epoch(w.srv)))
        return t.done()

    def _inside(self, w: W, event: tuple[Any, ...], left: Left) -> W:
        t = Turn(self.bounds, self.server, w._replace(left=left))
        t.server_does(self.server.happens(w.srv, event))
        return t.done()

    def _make(self, w: W, c: int, kind: str) -> W:
        t = Turn(self.bounds, self.server, w)
        cid = len(t.recs)
        t.recs.append(Rec(kind, c, t.seen[c]))
        t.pending[c] = cid
        t.makes[c] -= 1
        t.client_does(c, self.client.make(w.clients[c], cid, kind))
        return t.done()

    def _user(self, w: W, c: int, rule: Callable[[Any], Any], left: Left) -> W:
        t = Turn(self.bounds, self.server, w._replace(left=left))
        t.giving_up = True
        t.client_does(c, rule(w.clients[c]))
        return t.done()

    def _close(self, w: W, c: int, left: Left) -> W:
        t = Turn(self.bounds, self.server, w._replace(left=left))
        t.client_does(c, self.client.close(w.clients[c]))
        if t.pending[c] != NOBODY:
            raise Violation("close() left a call without an end")
        t.owed[c] = t.owed[c] if t.owed[c] and t.owed[c][1] else None
        return t.done()

    def _clone(self, w: W) -> W:
        t = Turn(self.bounds, self.server, w._replace(left=w.left._replace(clones=w.left.clones - 1)))
        t.clients[1] = self.client.cloned(w.clients[0])
        t.seen[1] = t.seen[0]
        return t.done()

    def _cut(self, w: W, k: int) -> W:
        socks = list(w.socks)
        socks[k] = socks[k]._replace(broken=True)  # type: ignore[union-attr]
        return w._replace(socks=tuple(socks), left=w.left._replace(cuts=w.left.cuts - 1))

    def _restart(self, w: W) -> W:
        t = Turn(self.bounds, self.server, w._replace(left=w.left._replace(restarts=w.left.restarts - 1)))
        for k, sock in enumerate(t.socks):
            if sock is not None:
                t.socks[k] = sock._replace(broken=True)
                t.server_gone(k)
        t.envs = []
        t.server_does(self.server.restart(w.srv))
        return t.done()

    # ---------------------------------------------------------------- at rest

    def _check_rest(self, w: W) -> None:
        """Nothing happens any more unless somebody starts it."""
        for c, cid in enumerate(w.pending):
            if cid != NOBODY and not self._waits_for_others(w, c):
                raise Violation(f"caller {c} waits for ever for its {w.recs[cid].kind} (call {cid})")
        for sid, k in self.server.attached(w.srv):
            sock = w.socks[k] if k < len(w.socks) else None
            if sock is None or not sock.mine:
                raise Violation(f"session {sid} believes in a socket that is gone")

    def _waits_for_others(self, w: W, c: int) -> bool:
        """It waits for a slot, and somebody else has it."""
        return self.client.waits_for_room(w.clients[c]) and all(env.owner != c for env in w.envs)
