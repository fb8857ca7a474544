"""A raw client of ``openenv.v1`` for tests of servers: it writes frames and reads frames, and has no rules."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

ALL = ["seq", "cancel", "resume"]
Frame = dict[str, Any]


class Raw:
    """One socket. Waits are bounded by 20 s."""

    def __init__(self, url: str) -> None:
        self.ws: ClientConnection = connect(url, subprotocols=[Subprotocol("openenv.v1")], max_size=None).__enter__()
        assert self.ws.subprotocol == "openenv.v1"
        self.welcome = self.recv()
        assert self.welcome["type"] == "welcome"
        self.session = self.token = ""
        self.epoch = str(self.welcome["data"]["epoch"])
        self.seq = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def send(self, frame: Frame | str | bytes) -> None:
        """Write one frame."""
        self.ws.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    def recv(self) -> Frame:
        """Read one frame."""
        frame: Frame = json.loads(self.ws.recv(20))
        return frame

    def closed(self) -> tuple[int, str]:
        """Wait for the end of the socket; skips frames. Returns code and reason, or (1006, '')."""
        try:
            while True:
                self.ws.recv(20)
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")

    def cut(self) -> None:
        """Reset the connection: no close frame, what is unread is gone."""
        try:
            self.ws.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.ws.socket.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # it is gone already
        self.ws.socket.close()

    def open(self, *uses: str, **data: Any) -> Self:
        """Open a session."""
        self.send({"type": "open", "data": {"uses": list(uses or ALL), **data}})
        opened = self.recv()
        assert opened["type"] == "opened", opened
        self.session, self.token = opened["data"]["session"], opened["data"]["token"]
        return self

    def ask(self, kind: str, seq: int | None = None, **data: Any) -> None:
        """Send a request, by default with the next number."""
        self.seq = self.seq + 1 if seq is None else seq
        body = {} if kind == "state" else {"data": data}
        self.send({"type": kind, "seq": self.seq, **body})

    def call(self, kind: str, seq: int | None = None, **data: Any) -> Frame:
        """Send a request and read the next frame."""
        self.ask(kind, seq, **data)
        return self.recv()

    def step(self, op: str = "inc", **data: Any) -> Frame:
        """Take a step and read the next frame."""
        return self.call("step", op=op, **data)

    def resume_frame(self, last_reply: int | None = None, attempt: int = 1, **data: Any) -> Frame:
        """The frame that resumes this socket's session."""
        known = {"session": self.session, "token": self.token, "epoch": self.epoch}
        last = self.seq if last_reply is None else last_reply
        return {"type": "resume", "data": {**known, "last_reply": last, "attempt": attempt, **data}}

    def resumed(self, url: str, last_reply: int | None = None, attempt: int = 1, **data: Any) -> tuple[Raw, Frame]:
        """Come back on another socket. Returns it, and the first frame on it."""
        other = Raw(url)
        other.send(self.resume_frame(last_reply, attempt, **data))
        answer = other.recv()
        other.session, other.token, other.seq = self.session, self.token, self.seq
        if answer["type"] == "resumed":
            other.token = answer["data"]["token"]
        return other, answer
