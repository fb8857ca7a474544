"""The ``/ws`` route, dialect ``openenv.v1``: one socket of a session that may have several, one after another.

The socket says which session it is for, then carries its calls; what a session is lives in
`openenv.core.env_server.channel`. It is read all the time, so that a peer that is gone and a caller that gives up
are noticed while a call runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from typing import Any

from fastapi import WebSocket

from openenv._version import __version__
from openenv.core.env_server.calls import CallError, refusal
from openenv.core.env_server.channel import Channel, Channels, call_error
from openenv.core.env_server.frame_socket import FrameSocket, PeerGone, running
from openenv.core.env_server.frames import DECODE_HERE_BYTES, Frame, FrameReader, decode_frame
from openenv.core.env_server.sessions import EVICTION_WAIT_S, EndReason, Session, SessionManager
from openenv.core.env_server.v1_options import V1Options
from openenv.core.exceptions import SessionCapacityError, SessionCreationError
from openenv.core.session.features import Feature, agreed
from openenv.core.session.leases import Ghost, Granted
from openenv.core.wire.json_codec import MalformedFrame, encode
from openenv.core.wire.messages import WSErrorCode
from openenv.core.wire.v1 import (
    SUBPROTOCOL,
    CloseCode,
    Lost,
    LostReason,
    Open,
    Opened,
    Queued,
    Release,
    Resume,
    Welcome,
)

__all__ = ["V1Server", "V1Socket"]

logger = logging.getLogger("openenv.server")

OPENED_AFTER_S = 3.0
"""A session whose environment takes longer to build is told as opened all the same; its first call waits."""
FLUSH_S = 5.0
"""How long the last frames may take before the socket is closed over them."""
MAX_UNSENT_BYTES = 1024 * 1024
"""Past this the socket is not read until its peer has read."""
MAX_AHEAD = 16
"""Most frames that a client may send before its session is opened."""
UNWANTED = 1008
"""Close code of a socket that came too late, or said nothing; it does not end a session."""


class V1Server:
    """What the sockets of one server share.

    Args:
        manager: owns the sessions.
        reader: reads their frames.
        options: what is offered.
        idle_timeout_s: seconds of silence after which a session ends; None for never.
    """

    def __init__(
        self, manager: SessionManager, reader: FrameReader, options: V1Options, idle_timeout_s: float | None
    ) -> None:
        self.manager = manager
        self.options = options
        self.channels = Channels()
        self._reader = reader
        self._idle_timeout_s = idle_timeout_s

    def wanted(self, socket: WebSocket) -> bool:
        """Whether both ends speak ``openenv.v1``."""
        return bool(self.options.features) and SUBPROTOCOL in socket.scope.get("subprotocols", ())

    async def serve(self, socket: WebSocket) -> None:
        """Serve a socket to its end."""
        await V1Socket(socket, self).serve()

    @property
    def welcome(self) -> bytes:
        """The first frame on every socket."""
        options = self.options
        hello = Welcome(
            server=f"openenv/{__version__}",
            features=tuple(sorted(feature.value for feature in options.features)),
            epoch=self.channels.epoch,
            max_message_bytes=options.max_message_bytes,
            grace_s=options.grace_s,
        )
        return encode(hello.frame())

    async def open(self, ask: Open, socket: V1Socket) -> Channel:
        """Open a session for a socket.

        Raises:
            OpenEnvError: there is no place for it.
        """
        uses = agreed(self.options.features, ask.uses)
        if Feature.QUEUE in uses and ask.wait_for_slot_s > 0:
            session = await self.manager.open_in_turn(
                wait_s=ask.wait_for_slot_s,
                told=lambda position: socket.send(encode(Queued(position).frame())),
                idle_timeout_s=self._idle_timeout_s,
            )
        else:
            session = await self.manager.open(idle_timeout_s=self._idle_timeout_s)
        channel = Channel(session, socket, uses, ask.max_message_bytes, self.options, self._reader)
        self.channels.add(channel)
        return channel


class V1Socket:
    """Serves one WebSocket.

    Args:
        socket: not yet accepted.
        server: what it shares with the others.
    """

    def __init__(self, socket: WebSocket, server: V1Server) -> None:
        self._socket = FrameSocket(socket)
        self._server = server
        self._channel: Channel | None = None
        self._released: list[Session] = []
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._changed = asyncio.Event()
        self._ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Serve the socket to its end. The session may outlive it."""
        try:
            await self._socket.accept(SUBPROTOCOL)
            self.send(self._server.welcome)
            await self._serve()
        except PeerGone:
            pass  # while we wrote to it
        finally:
            if self._channel is not None:
                self._channel.drop(self)

    async def _serve(self) -> None:
        async with running(self._read(), self._write()) as (reader, writer):
            ends: set[asyncio.Future[Any]] = {reader, writer, self._ended}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                await asyncio.wait({writer}, timeout=FLUSH_S)
        if self._ended.done():
            await self._socket.close(*self._ended.result())

    # ------------------------------------------------------------ writing

    def send(self, frame: bytes) -> None:
        """Send a frame, after those before it."""
        if not self._ended.done():
            self._unsent.append(frame)
            self._unsent_bytes += len(frame)
            self._changed.set()

    def finish(self, code: int, reason: str, *, flush: bool = True) -> None:
        """Close the socket, after what was sent, or (without ``flush``) without it."""
        if self._ended.done():
            return
        if not flush:
            self._unsent.clear()
        self._ended.set_result((int(code), reason))
        self._changed.set()

    async def _write(self) -> None:
        """Send what there is to send, until the socket is to be closed."""
        while True:
            while self._unsent:
                frame = self._unsent.popleft()
                await self._socket.send(frame)
                self._unsent_bytes -= len(frame)
                self._changed.set()
            if self._ended.done():
                return
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # ------------------------------------------------------------ reading

    async def _read(self) -> None:
        """Read until the peer is gone or the socket is to be closed."""
        try:
            async with asyncio.timeout(self._server.options.first_frame_s):
                asked = await self._first()
        except TimeoutError:
            return self.finish(UNWANTED, "no open or resume came in time")
        match asked:
            case None:
                return None
            case Open():
                await self._open(asked)
            case Resume():
                self._resume(asked)
        while self._channel is not None and not self._ended.done():
            frame = await self._socket.receive()
            if frame is None:
                return None
            await self._take(frame, self._channel)
            while self._unsent_bytes > MAX_UNSENT_BYTES and not self._ended.done():
                await self._change()
        return None

    async def _take(self, frame: Frame, channel: Channel) -> None:
        """One frame of an open session."""
        if channel.peer is not self:
            return None  # another socket has taken over (E22)
        channel.tokens.arrived()
        channel.session.touch()
        try:
            small = len(frame) <= DECODE_HERE_BYTES
            binary = Feature.MSGPACK in channel.uses
            message, digest = _decode(frame, binary) if small else await asyncio.to_thread(_decode, frame, binary)
        except CallError as error:
            return channel.refuse(None, error)
        match message.get("type"):
            case "close":
                return channel.session.end(EndReason.CLOSED)
            case "cancel" if Feature.CANCEL in channel.uses:
                return channel.cancel(message.get("seq"))
        if not channel.ready.done():
            channel.waiting_seq = message.get("seq")
            await asyncio.wait({channel.ready})
        if channel.peer is not self:
            return None  # read, but not started: dropped (E19)
        return channel.call(message, digest)

    # ------------------------------------------------------------ the first words

    async def _first(self) -> Open | Resume | None:
        """Read frames up to the one that says what the socket is for; None if there is none."""
        while (frame := await self._socket.receive()) is not None:
            try:
                message = decode_frame(frame)
                kind, data = message.get("type"), message.get("data") or {}
                if not isinstance(data, dict):
                    raise MalformedFrame("'data' must be an object")
                match kind:
                    case "open":
                        return Open.read(data)
                    case "resume":
                        return Resume.read(data)
                    case "release":
                        self._release(Release.read(data))
                        continue
                    case "close":
                        self.finish(CloseCode.CLOSED, "closed")
                        return None
                text = "the first frame of a socket must be 'open' or 'resume'"
                raise CallError(WSErrorCode.UNKNOWN_TYPE, text)
            except MalformedFrame as error:
                self.send(call_error(None, CallError(WSErrorCode.VALIDATION_ERROR, f"Invalid message: {error}")))
            except CallError as error:
                self.send(call_error(None, error))
            self.finish(CloseCode.PROTOCOL, "protocol")
            return None
        return None

    def _release(self, ask: Release) -> None:
        session = self._server.channels.release(ask.session, ask.token)
        if session is not None:
            self._released.append(session)

    async def _open(self, ask: Open) -> None:
        if self._released:  # the newcomer's own former sessions must not lock it out (E25)
            await asyncio.wait([session.closed for session in self._released], timeout=EVICTION_WAIT_S)
        opening = asyncio.ensure_future(self._server.open(ask, self))
        try:
            if not await self._stays_for(opening):
                return None
            channel = self._channel = opening.result()
        except SessionCapacityError as error:
            retry_after_s = round(self._server.manager.retry_after_s, 3)
            told = refusal(error)
            told.extra["retry_after_s"] = retry_after_s
            self.send(call_error(None, told))
            return self.finish(CloseCode.CAPACITY, "capacity")
        except SessionCreationError:
            return self.finish(CloseCode.DRAINING, "draining")
        await asyncio.wait({channel.ready}, timeout=OPENED_AFTER_S)
        return self.send(encode(Opened(channel.session.id, channel.tokens.first).frame()))

    async def _stays_for(self, opening: asyncio.Future[Channel]) -> bool:
        """Wait for a session to be opened, and read meanwhile: a client that leaves gives its place up at once."""
        reading = asyncio.ensure_future(self._socket.look_ahead())
        try:
            while not opening.done():
                either: set[asyncio.Future[Any]] = {opening, reading}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    if reading.result() is None or self._socket.ahead > MAX_AHEAD:
                        opening.cancel()
                        await asyncio.wait({opening})
                        return not opening.cancelled()
                    reading = asyncio.ensure_future(self._socket.look_ahead())
            return True
        finally:
            reading.cancel()
            opening.cancel()

    def _resume(self, ask: Resume) -> None:
        channels = self._server.channels
        if ask.lease.epoch != channels.epoch:
            return self._lost(LostReason.EPOCH)
        channel = channels.find(ask.lease.session)
        if isinstance(channel, LostReason):
            return self._lost(channel)
        match channel.tokens.present(ask.lease.token, ask.attempt):
            case Granted(token):
                self._channel = channel
                return channel.resume(self, token, ask.last_reply)
            case Ghost():
                return self.finish(UNWANTED, "a later resume came first")
        return self._lost(LostReason.UNKNOWN)

    def _lost(self, reason: LostReason) -> None:
        self.send(encode(Lost(reason).frame()))
        self.finish(1000, "lost")


def _decode(frame: Frame, binary: bool) -> tuple[dict[str, Any], bytes]:
    message = decode_frame(frame, binary=binary)
    return message, hashlib.sha256(frame.encode("utf-8") if isinstance(frame, str) else frame).digest()
