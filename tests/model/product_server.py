"""The package's own server, in the place of the model's: `Channel` with its ledger and tokens, `Session` with its
table, and what `V1Socket` does with frames. The event loop and the environment are stand-ins.

A session is kept as a tuple of its memory, so that states can be compared, and rebuilt for each event.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from model.roles import (
    BUSY,
    CANCELLED,
    CAPACITY,
    CUT_SHORT,
    FAILED,
    MISMATCH,
    OK,
    OUT_OF_ORDER,
    RESET,
)
from openenv.core.env_server import channel as channel_module
from openenv.core.env_server.channel import Channel, Channels
from openenv.core.env_server.frames import FrameReader
from openenv.core.env_server.session import EndReason, Session, Setup
from openenv.core.env_server.tools import Tools
from openenv.core.env_server.types import Action
from openenv.core.env_server.ws_v1 import V1Socket
from openenv.core.session.features import Feature
from openenv.core.session.leases import EndedSessions, TokenRing, _Token, digest_of
from openenv.core.session.ledger import Ledger, error_frame
from openenv.core.session.server import Effect, Event, ServerSession, State
from openenv.core.wire.v1 import Lease, Opened, Release, Resume

_SETUP = Setup(lambda: None, "none")
_READER = FrameReader(Action, Tools(Action))
NOBODY = -1
WELCOMED = -1
GONE = -2

_CODES = {"BUSY": BUSY, "SEQ_MISMATCH": MISMATCH, "SEQ_OUT_OF_ORDER": OUT_OF_ORDER, "EXECUTION_ERROR": FAILED}


class Kept(NamedTuple):
    """A session between events. ``ring``: digests and attempts of its tokens; ``ledger``: the fields of its ledger."""

    sid: int
    sock: int
    state: State = State.IDLE
    ring: tuple[Any, ...] = ()
    ledger: tuple[Any, ...] = ()
    drawn: int = 0
    run: tuple[int, str] | None = None
    cancelled: bool = False
    over: EndReason | None = None


class PS(NamedTuple):
    epoch: int = 1
    sessions: tuple[Kept, ...] = ()
    sids: int = 0
    waiting: bool = False
    roles: tuple[int, ...] = ()
    ended: tuple[tuple[bytes, Any], ...] = ()


Next = tuple[PS, tuple[tuple[Any, ...], ...]]


class ProductServer:
    """Same methods as `model.server.Server`."""

    start = PS()

    def __init__(self, capacity: int = 1) -> None:
        self.capacity = capacity

    # ---------------------------------------------------------------- what the world asks

    def has_room(self, srv: PS) -> bool:
        return len(srv.sessions) < self.capacity

    @staticmethod
    def epoch(srv: PS) -> int:
        return srv.epoch

    @staticmethod
    def attached(srv: PS) -> tuple[tuple[int, int], ...]:
        return tuple((s.sid, s.sock) for s in srv.sessions if s.sock >= 0 and not s.over)

    @staticmethod
    def inner(srv: PS) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = []
        for s in srv.sessions:
            if s.run is not None:
                results = [OK, CANCELLED, CUT_SHORT] if s.cancelled else [OK]
                events += [("finish", s.sid, result) for result in results]
            elif s.over:
                events.append(("free", s.sid))
            if srv.waiting and s.sock == NOBODY and not s.over:
                events.append(("evict", s.sid))
        return events

    @staticmethod
    def timers(srv: PS) -> list[tuple[Any, ...]]:
        live = [s for s in srv.sessions if not s.over and (s.sock == NOBODY or s.run is None)]
        return [("expire", s.sid) for s in live]

    @staticmethod
    def failures(srv: PS) -> list[tuple[Any, ...]]:
        return [("finish", s.sid, FAILED) for s in srv.sessions if s.run is not None and s.run[1] == RESET]

    # ---------------------------------------------------------------- events

    def restart(self, srv: PS) -> Next:
        return PS(epoch=srv.epoch + 1, sids=srv.sids, roles=(GONE,) * len(srv.roles)), ()

    def happens(self, srv: PS, event: tuple[Any, ...]) -> Next:
        with _Turn(srv) as turn:
            one = turn.live[event[1]]
            match event[0]:
                case "finish":
                    turn.finish(one, event[2])
                case "free":
                    turn.free(one)
                case "evict":
                    one.session.end(EndReason.EVICTED)
                case _:
                    one.session.end(EndReason.IDLE if one.channel.peer is not None else EndReason.EXPIRED)
            return turn.done()

    def accept(self, srv: PS, sock: int) -> Next:
        with _Turn(srv) as turn:
            turn.role(sock, WELCOMED)
            return turn.done()

    def dropped(self, srv: PS, sock: int) -> Next:
        with _Turn(srv) as turn:
            peer = turn.peer(sock)
            turn.role(sock, GONE)
            if peer._channel is not None:
                peer._channel.drop(peer)
            return turn.done()

    def frame(self, srv: PS, sock: int, frame: tuple[Any, ...]) -> Next:
        with _Turn(srv) as turn:
            peer = turn.peer(sock)
            role = turn.role_of(sock)
            if role == GONE:
                return turn.done()
            match frame:
                case ("open",):
                    turn.open(peer, self.has_room(srv))
                case ("release", sid, token):
                    peer._release(Release(str(sid), f"{sid}.{token}"))
                case ("resume", sid, token, last, attempt):
                    peer._resume(Resume(Lease(str(sid), f"{sid}.{token}", turn.channels.epoch), last, attempt))
                    if peer._channel is not None:
                        turn.role(sock, sid)
                case _:
                    turn.take(peer, frame)
            return turn.done()


# ---------------------------------------------------------------- one event


class _Loop:
    """Stands in for the event loop: time stands still, timers are the world's."""

    def time(self) -> float:
        return 0.0

    def call_later(self, *_: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def create_task(self, work: Any, **_: Any) -> Any:
        work.close()
        return SimpleNamespace(add_done_callback=lambda _: None)


_LOOP = _Loop()
_ASYNCIO = SimpleNamespace(get_running_loop=lambda: _LOOP)


class _Future:
    """Stands in for a future; its callback is called at once."""

    def __init__(self, value: Any = None) -> None:
        self._value, self._callback = value, lambda _: None

    def done(self) -> bool:
        return self._value is not None

    def result(self) -> Any:
        return self._value

    def set_result(self, value: Any) -> None:
        self._value = value
        self._callback(self)

    def add_done_callback(self, callback: Any) -> None:
        self._callback = callback


class _Peer(V1Socket):
    """A socket of the world: the package's socket with its two ways out replaced."""

    def __init__(self, turn: _Turn, sock: int) -> None:
        self._turn, self._sock = turn, sock
        self._server: Any = SimpleNamespace(channels=turn.channels)
        self._channel: Channel | None = None
        self._released = []

    def send(self, frame: bytes) -> None:
        shown = _shown(json.loads(frame))
        if self._turn.role_of(self._sock) != GONE and shown is not None:
            self._turn.effects.append(("send", self._sock, shown))

    def finish(self, code: int, reason: str, *, flush: bool = True) -> None:
        if self._turn.role_of(self._sock) != GONE:
            final = code if code != 1000 or reason == "closed" else 0
            self._turn.effects.append(("end", self._sock, int(final)))
            self._turn.role(self._sock, GONE)


class _Live(NamedTuple):
    session: Any
    channel: Channel
    kept: Kept
    drawn: list[int]


class _Turn:
    """One event of the server; as long as the block lasts, channels have a loop that stands still."""

    def __init__(self, srv: PS) -> None:
        self.srv = srv
        self.effects: list[tuple[Any, ...]] = []
        self.roles = list(srv.roles)
        self.channels = Channels.__new__(Channels)
        self.channels.epoch = str(srv.epoch)
        self.channels.ended = EndedSessions()
        self.channels.ended._reasons.update(srv.ended)
        self.channels._channels = {}
        self.peers: dict[int, _Peer] = {}
        self.live = {kept.sid: self._live(kept) for kept in srv.sessions}
        self.runs = {kept.sid: (kept.run, kept.cancelled) for kept in srv.sessions}
        self.sids, self.waiting = srv.sids, srv.waiting
        self._patch = patch.object(channel_module, "asyncio", _ASYNCIO)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def done(self) -> Next:
        for sid, one in self.live.items():
            running, before = one.channel._ledger.running, self.runs[sid][0]
            assert running == (self.runs[sid][0] is not None), (running, before)
        while self.roles and self.roles[-1] == GONE:
            self.roles.pop()
        sessions = tuple(self._kept(one) for one in self.live.values())
        ended = tuple(self.channels.ended._reasons.items())
        srv = PS(self.srv.epoch, sessions, self.sids, self.waiting, tuple(self.roles), ended)
        return srv, tuple(self.effects)

    # ---------------------------------------------------------------- memory

    def _live(self, kept: Kept) -> _Live:
        session: Any = Session.__new__(Session)
        session.id = str(kept.sid)
        session.machine = ServerSession()
        session.machine.state = kept.state
        session.leased_at = None
        session._loop = _LOOP
        session._setup = _SETUP
        session._close_env = SimpleNamespace(set=lambda: None)
        session._runner = SimpleNamespace(cancel=lambda: self._cancelled(kept.sid))
        session.ending, session.closed = _Future(kept.over), _Future()
        channel = Channel.__new__(Channel)
        channel.session, channel.uses = session, frozenset(Feature)
        channel._numbered, channel._grace_s, channel._lease, channel._last_words = True, 600.0, None, None
        channel._binary = False
        channel.ready = SimpleNamespace(done=lambda: True)  # type: ignore[assignment]
        channel.waiting_seq = None
        channel._reader = _READER
        drawn = [kept.drawn]
        channel.tokens = _ring(kept, drawn)
        channel._ledger = _ledger(kept.ledger)
        channel.peer = self.peer(kept.sock) if kept.sock >= 0 else None
        if channel.peer is not None:
            channel.peer._channel = channel  # type: ignore[attr-defined]
        if kept.over is None:
            self.channels.add(channel)
        else:
            self.channels._channels[session.id] = channel
        return _Live(session, channel, kept, drawn)

    def _kept(self, one: _Live) -> Kept:
        ring, ledger, peer = one.channel.tokens, one.channel._ledger, one.channel.peer
        tokens = [(token.digest, token.attempt) for token in (ring._current, ring._told) if token is not None]
        run, cancelled = self.runs[one.kept.sid]
        over = one.session.ending.result()
        assert (over is not None) == one.session.machine.over
        return Kept(
            one.kept.sid,
            NOBODY if over is not None or peer is None else peer._sock,  # type: ignore[attr-defined]
            one.session.machine.state,
            tuple(tokens),
            (ledger.last_seq, ledger.running, ledger._digest, ledger._reply),
            one.drawn[0],
            run,
            cancelled,
            over,
        )

    def peer(self, sock: int) -> _Peer:
        if sock not in self.peers:
            peer = self.peers[sock] = _Peer(self, sock)
            sid = self.role_of(sock)
            if sid >= 0 and hasattr(self, "live") and sid in self.live:
                peer._channel = self.live[sid].channel
        return self.peers[sock]

    def role_of(self, sock: int) -> int:
        return self.roles[sock] if sock < len(self.roles) else GONE

    def role(self, sock: int, role: int) -> None:
        self.roles += [GONE] * (sock + 1 - len(self.roles))
        self.roles[sock] = role

    # ---------------------------------------------------------------- what happens

    def _cancelled(self, sid: int) -> bool:
        run, _ = self.runs[sid]
        self.runs[sid] = (run, run is not None)
        return True

    def open(self, peer: _Peer, room: bool) -> None:
        """What `V1Socket._open` does, with an environment that is built at once."""
        if not room:
            self.waiting = True
            self.effects.append(("send", peer._sock, ("full",)))
            return peer.finish(CAPACITY, "capacity")
        self.waiting = False
        self.sids = sid = self.sids + 1
        first = ((digest_of(f"{sid}.0"), 0),)
        one = self._live(Kept(sid, NOBODY, ring=first, ledger=(0, False, None, None)))
        self.live[sid], self.runs[sid] = one, (None, False)
        one.channel.peer, peer._channel = peer, one.channel
        self.role(peer._sock, sid)
        self.effects.append(("opened", sid, peer._sock))
        return peer.send(json.dumps(Opened(str(sid), f"{sid}.0").frame()).encode())

    def take(self, peer: _Peer, frame: tuple[Any, ...]) -> None:
        """A frame of an open session, through the package's `V1Socket._take`."""
        channel = peer._channel
        if channel is None:
            return
        sid = int(channel.session.id)
        ran = channel._ledger.running
        try:
            peer._take(_bytes(frame), channel).send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("a small frame is taken without waiting")
        if channel._ledger.running and not ran:
            self.runs[sid] = ((frame[2], frame[3]), False)
            self.effects.append(("started", sid, frame[2], frame[3]))

    def finish(self, one: _Live, result: str) -> None:
        """What `Session._run` and `Channel._ran` do when a call has ended."""
        sid = one.kept.sid
        run, _ = self.runs[sid]
        assert run is not None
        self.runs[sid] = (None, False)
        if result == CANCELLED:
            self.effects.append(("undone", sid, run[0]))
        effect = one.session.machine.receive(Event.CALL_DONE)
        assert (effect is Effect.CLOSE_ENV) == (one.kept.over is not None)
        one.channel._reply(_reply(one.channel._ledger.last_seq, run[0], result))

    def free(self, one: _Live) -> None:
        one.session.machine.receive(Event.ENV_CLOSED)
        del self.live[one.kept.sid]
        self.effects.append(("closed", one.kept.sid))


def _ring(kept: Kept, drawn: list[int]) -> TokenRing:
    def draw() -> str:
        drawn[0] += 1
        return f"{kept.sid}.{drawn[0]}"

    ring = TokenRing.__new__(TokenRing)
    ring._draw, ring.first = draw, f"{kept.sid}.0"
    tokens = [_Token(digest, attempt) for digest, attempt in kept.ring]
    ring._current, ring._told = tokens[0], tokens[1] if len(tokens) > 1 else None
    return ring


def _ledger(fields: tuple[Any, ...]) -> Ledger:
    ledger = Ledger()
    ledger.last_seq, ledger.running, ledger._digest, ledger._reply = fields
    return ledger


# ---------------------------------------------------------------- frames of the package, frames of the model


def _bytes(frame: tuple[Any, ...]) -> str:
    match frame:
        case ("call", n, cid, "reset"):
            return json.dumps({"type": "reset", "seq": n, "data": {"cid": cid}})
        case ("call", n, cid, "step"):
            return json.dumps({"type": "step", "seq": n, "data": {"cid": cid}})
        case ("cancel", n):
            return json.dumps({"type": "cancel", "seq": n})
        case ("close",):
            return json.dumps({"type": "close"})
    raise AssertionError(frame)


def _reply(n: int, cid: int, result: str) -> bytes:
    match result:
        case "ok":
            return json.dumps({"type": "observation", "seq": n, "data": {"cid": cid}}).encode()
        case "failed":
            return error_frame(n, "EXECUTION_ERROR", "boom", applied=None, cid=cid)
    return error_frame(n, "CANCELLED", "cut short", applied=False if result == CANCELLED else None, cid=cid)


def _shown(frame: dict[str, Any]) -> tuple[Any, ...] | None:
    data = frame.get("data", {})
    match frame["type"]:
        case "opened":
            return ("opened", int(data["session"]), 0)
        case "resumed":
            return ("resumed", int(data["token"].rpartition(".")[2]), data["last_seq"])
        case "lost":
            return ("lost", data["reason"])
        case "observation":
            return ("reply", frame["seq"], data["cid"], OK)
        case "error":
            code = data["code"]
            cut = CANCELLED if data["applied"] is False else CUT_SHORT
            return ("reply", frame["seq"], data.get("cid", NOBODY), cut if code == "CANCELLED" else _CODES[code])
    raise AssertionError(frame)
