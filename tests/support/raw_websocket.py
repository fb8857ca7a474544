"""The server's end of a WebSocket as bytes: what is sent is chosen to the byte, what comes is read by `websockets`."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from websockets.frames import Close, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol


class RawServer:
    """Listens, and accepts one connection at a time."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        self.url = f"ws://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.close()

    def accept(self, first: bytes = b"") -> RawSocket:
        """Shake hands. ``first`` is sent together with the response."""
        sock, _ = self.listener.accept()
        sock.settimeout(20)
        protocol = ServerProtocol(max_size=None)
        while protocol.state is State.CONNECTING:
            protocol.receive_data(sock.recv(65536))
            for request in protocol.events_received():
                protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
        sock.sendall(b"".join(protocol.data_to_send()) + first)
        return RawSocket(sock, protocol)


class RawSocket:
    """An open connection."""

    def __init__(self, sock: socket.socket, protocol: ServerProtocol) -> None:
        self.sock = sock
        self._protocol = protocol
        self._found: list[Frame] = []

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def frame(self, opcode: Opcode, data: bytes = b"", **bits: bool) -> None:
        self.send(Frame(opcode, data, **bits).serialize(mask=False))

    def read(self) -> Frame | None:
        """The next frame; None at the end of the stream."""
        while not self._found:
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._protocol.receive_data(data)
            assert self._protocol.parser_exc is None or self._protocol.close_rcvd, self._protocol.parser_exc
            self._found += [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        return self._found.pop(0)

    def closed_with(self) -> tuple[int, str] | None:
        """Code and reason of the close frame, which must be next; None if the stream ends without one."""
        frame = self.read()
        if frame is None:
            return None
        assert frame.opcode is Opcode.CLOSE, frame
        close = Close.parse(frame.data)
        return close.code, close.reason

    def close(self) -> None:
        self.sock.close()
