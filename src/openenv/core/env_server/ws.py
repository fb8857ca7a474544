"""The ``/ws`` route, plain dialect: one socket, one session; one frame, one reply, in order.

The socket is read all the time, so that a peer that is gone is noticed at once, also while its step runs.
Frames that wait when that happens are dropped, not run. A frame that makes no sense costs one error frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from fastapi import WebSocket

from openenv.core.env_server.calls import Call, CallError, refusal
from openenv.core.env_server.frame_socket import FrameSocket, PeerGone, running
from openenv.core.env_server.frames import DECODE_HERE_BYTES, Answer, Frame, FrameReader, ToolFrame, decode_frame
from openenv.core.env_server.mcp_sessions import HeldSession, HeldSessions, wanted_session
from openenv.core.env_server.runner import EnvRunner
from openenv.core.env_server.sessions import EndReason, Session, SessionManager
from openenv.core.exceptions import OpenEnvError, SessionNotFoundError
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import reply_frame
from openenv.core.wire.v1 import CloseCode

__all__ = ["FrameHandler", "PlainSocket"]

logger = logging.getLogger("openenv.server")

MAX_WAITING_FRAMES = 1024
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Past either of these the socket is not read until some frames have been answered."""

SERVICE_RESTART = 1012
"""Close code of a server that stops (IANA registry of close codes); ``openenv.v1`` has one of its own."""

_END_CODES: Mapping[EndReason, int] = {EndReason.IDLE: CloseCode.IDLE, EndReason.DRAINING: SERVICE_RESTART}


class Inbox:
    """Frames that were read and not yet answered, up to a bound."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._shut = False

    async def put(self, frame: Frame) -> None:
        """Add a frame, when there is room."""
        while not self._shut and (len(self._frames) >= MAX_WAITING_FRAMES or self._size >= MAX_WAITING_BYTES):
            await self._wait()
        self._frames.append(frame)
        self._size += len(frame)
        self._changed.set()

    async def get(self) -> Frame | None:
        """Take the oldest frame; None when the inbox is shut."""
        while not self._frames and not self._shut:
            await self._wait()
        if self._shut:
            return None
        frame = self._frames.popleft()
        self._size -= len(frame)
        self._changed.set()
        return frame

    def shut(self) -> None:
        """Drop what waits; `get` gives None from now on."""
        self._shut = True
        self._frames.clear()
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class PlainSocket:
    """Serves one WebSocket: a session of its own, or (see `HeldSessions`) one that it is attached to.

    Args:
        socket: not yet accepted.
        manager: owns the sessions.
        held: the sessions that a socket may attach to.
        reader: reads its frames.
        idle_timeout_s: seconds of silence after which a session of its own ends; None for never.
    """

    def __init__(
        self,
        socket: WebSocket,
        manager: SessionManager,
        held: HeldSessions,
        reader: FrameReader,
        idle_timeout_s: float | None,
    ) -> None:
        self._socket = FrameSocket(socket)
        self._wanted = wanted_session(socket.headers, socket.query_params.get("session_id"))
        self._manager = manager
        self._held = held
        self._reader = reader
        self._idle_timeout_s = idle_timeout_s
        self._inbox = Inbox()
        self._session: Session | None = None
        self._attached: HeldSession | None = None
        self._replaced: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Serve the socket to its end. The session may outlive this call: while its environment closes, or because it
        belongs to no socket."""
        try:
            await self._socket.accept()
            await self._serve()
            if self._replaced.done():
                await self._socket.close(CloseCode.REPLACED, "replaced")
        except PeerGone:
            pass  # while we wrote to it
        finally:
            if self._attached is not None:
                self._attached.detach(self)
            elif self._session is not None:
                self._session.end(EndReason.DROPPED)

    def replace(self) -> None:
        """Another socket has attached to the session: stop, and leave a call that runs alone."""
        if not self._replaced.done():
            self._replaced.set_result(None)

    async def _serve(self) -> None:
        async with running(self._read(), self._work()) as tasks:
            await asyncio.wait({*tasks, self._replaced}, return_when=asyncio.FIRST_COMPLETED)

    async def _read(self) -> None:
        """Read until the peer is gone."""
        while (frame := await self._socket.receive()) is not None:
            await self._inbox.put(frame)

    async def _work(self) -> None:
        """Open the session and answer its frames, until it ends or the client says close."""
        try:
            session = await self._open()
        except (OpenEnvError, CallError) as error:
            await self._socket.send(self._error_frame(error))
            await self._socket.close(1000)
            return
        session.ending.add_done_callback(lambda _: self._inbox.shut())
        code, reason = await self._answer_all(session)
        if code is not None:
            await self._socket.close(code, reason)

    async def _open(self) -> Session:
        if self._wanted is not None:
            held = self._held.find(*self._wanted)
            held.attach(self)
            self._attached = held
            return held.session
        self._session = await self._manager.open(idle_timeout_s=self._idle_timeout_s)
        await self._session.ready()
        return self._session

    async def _answer_all(self, session: Session) -> tuple[int | None, str]:
        """Answer frame after frame. Returns the close code and reason."""
        while (frame := await self._inbox.get()) is not None:
            handler = self._handler(frame, session.id)
            try:
                reply = await session.call(handler)
            except CallError as error:
                reply = self._error_frame(error)
            except SessionNotFoundError:
                break
            if handler.close:
                if self._attached is None:
                    session.end(EndReason.CLOSED)
                return 1000, ""
            if reply:
                await self._socket.send(reply)
        if not session.ending.done():
            return None, ""  # the peer is gone
        reason = session.ending.result()
        return _END_CODES.get(reason, 1000), str(reason)

    def _handler(self, frame: Frame, session_id: str) -> FrameHandler:
        return FrameHandler(frame, self._reader, session_id)

    def _error_frame(self, error: OpenEnvError | CallError) -> bytes:
        told = error if isinstance(error, CallError) else refusal(error)
        return encode(reply_frame("error", told.data))


class FrameHandler:
    """One frame as a session request. ``close`` is set if it was the client's close."""

    def __init__(self, frame: Frame, reader: FrameReader, session_id: str) -> None:
        self._frame = frame
        self._reader = reader
        self._session_id = session_id
        self.close = False

    async def __call__(self, runner: EnvRunner) -> bytes:
        small = len(self._frame) <= DECODE_HERE_BYTES
        asked = self._read() if small else await runner.on_thread(lambda env: self._read())
        if asked is None:
            self.close = True
            return b""
        if isinstance(asked, Answer):
            return encode(reply_frame(asked.kind, asked.data))
        return await self._reader.work(asked, _reply)(runner)

    def _read(self) -> Call | ToolFrame | Answer | None:
        return self._reader.read(decode_frame(self._frame), self._session_id)


def _reply(kind: str, data: dict[str, Any]) -> bytes:
    return encode(reply_frame(kind, data))
