"""The ``/ws`` route, plain dialect: one socket, one session; one frame, one reply, in order.

The socket is read all the time, so that a peer that is gone is noticed at once, also while its step runs.
Frames that wait when that happens are dropped, not run. A frame that makes no sense costs one error frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from openenv.core.env_server.calls import Call, CallError, refusal, run_call
from openenv.core.env_server.frames import DECODE_HERE_BYTES, Answer, Frame, decode_frame, read_request
from openenv.core.env_server.runner import EnvRunner
from openenv.core.env_server.sessions import EndReason, Session, SessionManager
from openenv.core.env_server.types import Action
from openenv.core.exceptions import OpenEnvError, SessionNotFoundError
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import REPLY_TYPE

__all__ = ["PlainSocket"]

logger = logging.getLogger("openenv.server")

MAX_WAITING_FRAMES = 1024
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Past either of these the socket is not read until some frames have been answered."""

_END_CODES: Mapping[EndReason, int] = {EndReason.IDLE: 4001, EndReason.DRAINING: 1012}


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


class PeerGone(Exception):
    """Nothing more can be sent on the socket."""


class PlainSocket:
    """Serves one WebSocket.

    Args:
        socket: not yet accepted.
        manager: owns the sessions.
        action_cls: the environment's action class.
        idle_timeout_s: seconds of silence after which the session ends; None for never.
    """

    def __init__(
        self,
        socket: WebSocket,
        manager: SessionManager,
        action_cls: type[Action],
        idle_timeout_s: float | None,
    ) -> None:
        self._socket = socket
        self._manager = manager
        self._action_cls = action_cls
        self._idle_timeout_s = idle_timeout_s
        self._inbox = Inbox()
        self._session: Session | None = None

    async def serve(self) -> None:
        """Serve the socket to its end. The session may outlive this call while its environment closes."""
        try:
            await self._socket.accept()
            await self._serve()
        except (PeerGone, WebSocketDisconnect, OSError):
            pass  # the peer is gone while we wrote to it
        finally:
            if self._session is not None:
                self._session.end(EndReason.DROPPED)

    async def _serve(self) -> None:
        reader = asyncio.create_task(self._read())
        worker = asyncio.create_task(self._work())
        tasks: set[asyncio.Task[None]] = {reader, worker}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            done, _ = await asyncio.wait(tasks)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _read(self) -> None:
        """Read until the peer is gone."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            await self._inbox.put(text if text is not None else bytes(message.get("bytes") or b""))

    async def _work(self) -> None:
        """Open the session and answer its frames, until it ends or the client says close."""
        try:
            session = await self._open()
        except OpenEnvError as error:
            await self._send(_error_frame(refusal(error)))
            await self._close(1000)
            return
        session.ending.add_done_callback(lambda _: self._inbox.shut())
        code, reason = await self._answer_all(session)
        if code is not None:
            await self._close(code, reason)

    async def _open(self) -> Session:
        wanted = self._socket.query_params.get("session_id")
        if wanted:
            raise SessionNotFoundError(wanted[:200])
        self._session = await self._manager.open(idle_timeout_s=self._idle_timeout_s)
        await self._session.ready()
        return self._session

    async def _answer_all(self, session: Session) -> tuple[int | None, str]:
        """Answer frame after frame. Returns the close code and reason."""
        while (frame := await self._inbox.get()) is not None:
            handler = _FrameHandler(frame, self._action_cls)
            try:
                reply = await session.call(handler)
            except CallError as error:
                reply = _error_frame(error)
            except SessionNotFoundError:
                break
            if handler.close:
                session.end(EndReason.CLOSED)
                return 1000, ""
            await self._send(reply)
        if not session.ending.done():
            return None, ""  # the peer is gone
        reason = session.ending.result()
        return _END_CODES.get(reason, 1000), str(reason)

    async def _send(self, frame: bytes) -> None:
        try:
            await self._socket.send_text(frame.decode("utf-8"))
        except RuntimeError as error:  # what ASGI servers raise for a socket that is being closed
            raise PeerGone from error

    async def _close(self, code: int, reason: str = "") -> None:
        try:
            await self._socket.close(code, reason)
        except RuntimeError as error:  # as above
            raise PeerGone from error


class _FrameHandler:
    """One frame as a session request. ``close`` is set if it was the client's close."""

    def __init__(self, frame: Frame, action_cls: type[Action]) -> None:
        self._frame = frame
        self._action_cls = action_cls
        self.close = False

    async def __call__(self, runner: EnvRunner) -> bytes:
        small = len(self._frame) <= DECODE_HERE_BYTES
        call = self._read() if small else await runner.on_thread(lambda env: self._read())
        if call is None:
            self.close = True
            return b""
        if isinstance(call, Answer):
            return encode({"type": call.kind, "data": call.data})
        reply_type = REPLY_TYPE[call.kind]
        return await run_call(runner, call, self._action_cls, lambda data: encode({"type": reply_type, "data": data}))

    def _read(self) -> Call | Answer | None:
        return read_request(decode_frame(self._frame))


def _error_frame(error: CallError) -> bytes:
    return encode({"type": "error", "data": error.data})
