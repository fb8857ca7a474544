"""One open WebSocket on a socket of the thread that uses it.

Large messages are written and read here, without copies; everything else of RFC 6455 (small messages, fragments, pings,
closing, refusing what breaks the rules) is done by the protocol object of `websockets`, which does no I/O. The socket
never blocks: a call waits in ``poll``, and between calls the keeper's thread reads.

Not in this room: opening the connection, and which one is used; see `openenv.policy.direct`.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosedError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State

from openenv.core.transport.aio import CLOSE_TIMEOUT_S, drop_of
from openenv.core.transport.base import TransportClosed
from openenv.core.wire.arrays import Buffer
from openenv.policy.framing import FrameMasker, FrameSplitter
from openenv.policy.keeper import Keeper

__all__ = ["SocketLink"]

POLLIN, POLLOUT = getattr(select, "POLLIN", 0), getattr(select, "POLLOUT", 0)
KEEPALIVE_FAILED = "keepalive ping timeout"  # in these words it is known to `drop_of`


class SocketLink:
    """An open connection. One thread at a time may send and receive; `close` and `abort` may be called from any.

    Args:
        sock: connected; this object closes it.
        protocol: after the handshake.
        rest: bytes that came after the handshake.
        largest: bytes of the largest message; None for no limit.
        ping_interval_s: seconds between keepalive pings; None for none.
        ping_timeout_s: seconds to wait for a pong before the connection counts as dead; None for ever.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: ClientProtocol,
        rest: bytes = b"",
        *,
        largest: int | None = None,
        ping_interval_s: float | None = None,
        ping_timeout_s: float | None = None,
    ) -> None:
        self._socket = sock
        self._protocol = protocol
        self._masker = FrameMasker()
        self._splitter = FrameSplitter(masked=False, largest=largest)
        self._messages: deque[bytes | bytearray | str] = deque()
        self._fragments: list[bytes] = []
        self._is_text = False
        self._outgoing = bytearray()  # control frames
        self._in_frame = False
        self._failure: OSError | None = None
        self._interval, self._patience = ping_interval_s, ping_timeout_s
        self._ping_at = None if ping_interval_s is None else time.monotonic() + ping_interval_s
        self._pong_until: float | None = None
        self._busy = threading.Lock()
        self._let_go = self._aborted = self._closed = False
        self._waking = threading.Lock()
        self._pid = os.getpid()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, POLLIN)
        self._polled = 0
        self._read(self._splitter.feed(rest))
        self._keeper = Keeper.shared()
        self._keeper.add(self)
        self._busy.acquire()
        self._release()

    def fileno(self) -> int:
        """The socket's."""
        return self._socket.fileno()

    # ------------------------------------------------------------ what a user does

    def send(self, parts: Sequence[Buffer], timeout_s: float | None) -> None:
        """Write one binary message. See `openenv.policy.transport.Transport`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._in_use():
            self._pump()  # a close that has come is better known now
            self._check()
            self._in_frame = True
            try:
                for piece in self._masker.frame(parts):
                    self._write(piece, until)
            except BaseException:  # raised on
                self.abort()  # what follows half a frame would be read as its rest
                raise
            self._in_frame = False
            self._flush()

    def receive(self, timeout_s: float | None) -> bytes | bytearray | str:
        """Wait for the next message. See `openenv.policy.transport.Transport`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._in_use(reading=True):
            while True:
                if self._messages:
                    return self._messages.popleft()
                self._pump()
                if not self._messages:
                    self._check()
                    self._keepalive()
                    self._check()
                    self._wait(POLLIN | POLLOUT if self._outgoing else POLLIN, until, self._next_keepalive())

    def close(self) -> None:
        """End the connection with a close frame (1000). A call of another thread ends with `TransportClosed`."""
        if self._pid == os.getpid() and not self._closed:
            self._let_go = True
            with self._waking:
                if not self._closed:
                    os.eventfd_write(self._wake, 1)
            if self._busy.acquire(timeout=2 * CLOSE_TIMEOUT_S):
                try:
                    self._say_goodbye()
                finally:
                    self._release()
        self.abort()

    def abort(self) -> None:
        """End the connection at once. A forked child only lets go of it, for its parent uses it."""
        self._aborted = True
        if self._closed:
            return
        if self._pid == os.getpid():
            try:
                self._socket.shutdown(socket.SHUT_RDWR)  # which wakes whoever waits for it
            except OSError:
                pass  # the peer was first
        if self._busy.acquire(blocking=False):
            self._release()

    # ------------------------------------------------------------ who uses it

    @contextmanager
    def _in_use(self, reading: bool = False) -> Iterator[None]:
        self._busy.acquire()
        try:
            if reading and not self._closed:
                self._keeper.ignore(self)
            yield
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            self._failure = self._failure or error
            raise self._ended() from error
        finally:
            self._release()

    def _release(self) -> None:
        if self._aborted or self._protocol.state is not State.OPEN:
            self._dispose()
        elif not self._messages:  # a message that nobody has asked for stays where it is, and what follows it too
            self._keeper.watch(self)
        self._busy.release()
        if self._aborted and not self._closed and self._busy.acquire(blocking=False):
            self._release()

    def _dispose(self) -> None:
        with self._waking:
            if self._closed:
                return
            self._closed = True
            self._keeper.forget(self)
            self._socket.close()
            os.close(self._wake)

    def idle_turn(self) -> None:
        """The keeper's turn: read what has come, without waiting."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            if not self._closed and not self._messages:
                self._pump()
                self._keepalive()
        except OSError as error:
            self._failure = error
            self._aborted = True
        finally:
            self._release()

    # ------------------------------------------------------------ ending

    def _is_over(self) -> bool:
        return self._protocol.state is State.CLOSED

    def _check(self) -> None:
        if self._let_go:
            raise TransportClosed(drop_of(ConnectionAbortedError("the connection was let go")))
        if self._closed or self._aborted or self._protocol.state is not State.OPEN:
            raise self._ended()

    def _ended(self) -> TransportClosed:
        """How the connection has ended."""
        protocol = self._protocol
        told = (protocol.close_rcvd, protocol.close_sent, protocol.close_rcvd_then_sent)
        error = ConnectionClosedError(*told)
        error.__cause__ = self._failure
        return TransportClosed(drop_of(error))

    def _say_goodbye(self) -> None:
        if self._closed or self._aborted or self._protocol.state is not State.OPEN:
            return
        until = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
            self._poll.unregister(self._wake)
            while True:
                self._messages.clear()
                self._pump()
                if self._protocol.close_rcvd is not None or self._is_over():
                    return
                self._wait(POLLIN, until, None)
        except (OSError, TransportClosed):  # a timeout too
            pass  # the peer is gone or does not answer: nothing is left to say

    # ------------------------------------------------------------ writing

    def _write(self, data: memoryview, until: float | None) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                # The peer may say at the same time why it takes no more.
                self._wait(POLLOUT if self._messages else POLLIN | POLLOUT, until, None)
                self._pump()
                self._check()
            except OSError as error:
                self._failure = error
                self._pump_quietly()
                raise

    def _flush(self) -> None:
        """Write what the protocol wants to say, as far as it goes without waiting; not within a frame of ours."""
        for data in self._protocol.data_to_send():
            self._outgoing += data
        if self._in_frame or not self._outgoing:
            return
        try:
            del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass  # the next turn tries again

    # ------------------------------------------------------------ reading

    def _pump(self) -> None:
        """Take what has come, up to the next message, and answer what has to be answered."""
        while not self._messages and not self._closed and not self._is_over():
            try:
                count = self._socket.recv_into(self._splitter.buffer())
            except BlockingIOError:
                break
            if count:
                self._read(self._splitter.received(count))
            else:
                self._protocol.receive_eof()
                self._events()
                break
        self._flush()

    def _pump_quietly(self) -> None:
        try:
            self._pump()
        except OSError:
            pass  # only the reason of the peer was looked for

    def _read(self, found: list[bytes | bytearray]) -> None:
        for item in found:
            if isinstance(item, bytes):
                self._protocol.receive_data(item)
                self._events()
            elif self._fragments:
                self._protocol.fail(CloseCode.PROTOCOL_ERROR, "expected a continuation frame")
            elif self._protocol.state is State.OPEN:
                self._messages.append(item)

    def _events(self) -> None:
        for frame in self._protocol.events_received():
            if not isinstance(frame, Frame):
                continue
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._fragment(frame)
            elif frame.opcode is Opcode.PONG:
                self._pong_until = None

    def _fragment(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            whole = self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments)
            self._fragments = []
            self._messages.append(whole.decode("utf-8", "replace") if self._is_text else whole)

    # ------------------------------------------------------------ waiting

    def _next_keepalive(self) -> float | None:
        return self._ping_at if self._pong_until is None else self._pong_until

    def _keepalive(self) -> None:
        """Send a ping if one is due, and give up on a peer that has not answered the last one."""
        now = time.monotonic()
        if self._protocol.state is not State.OPEN or self._ping_at is None or self._interval is None:
            return
        if self._pong_until is not None:
            if now >= self._pong_until:
                self._protocol.fail(CloseCode.INTERNAL_ERROR, KEEPALIVE_FAILED)
                self._flush()
        elif now >= self._ping_at:
            self._protocol.send_ping(struct.pack("!d", now))
            self._flush()
            self._ping_at = now + self._interval
            self._pong_until = None if self._patience is None else now + self._patience

    def _wait(self, what: int, *limits: float | None) -> None:
        """Wait until the socket is ready or the first of these times is there. Raises if the first is over."""
        now = time.monotonic()
        if limits[0] is not None and now >= limits[0]:
            raise TimeoutError
        known = [limit for limit in limits if limit is not None]
        if what != self._polled:
            self._poll.register(self._socket, what)
            self._polled = what
        self._poll.poll(max((min(known) - now) * 1000, 0) + 1 if known else None)
        if self._let_go and not self._protocol.close_sent:
            self._check()
