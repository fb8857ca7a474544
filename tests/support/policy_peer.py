"""A policy server that does as a test says, one script a connection, and writes down all that comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from openenv.policy.messages import Action, Feedback, Infer, Metadata, encode_message, parse

Script = Callable[["Peer"], None]


def frame(message: Metadata | Infer | Action | Feedback) -> bytes:
    return b"".join(encode_message(message))


class Peer:
    """The server's end of one connection."""

    def __init__(self, number: int, socket: ServerConnection, log: list[tuple[int, str, Any]]) -> None:
        self.number = number
        self.socket = socket
        self._log = log

    def hello(self, **data: Any) -> None:
        self.socket.send(frame(Metadata(data)))

    def expect(self, kind: type) -> Any:
        """The next message, which has to be of this kind."""
        message = parse(self.socket.recv(timeout=20))
        self._log.append((self.number, type(message).__name__, message))
        assert type(message) is kind, f"{kind.__name__} is due, and {message} came"
        return message

    def act(self, infer: Infer | None = None, *, horizon: int = 4, reverse: bool = False) -> Infer:
        """Answer an infer: env j is told ``100 * step + j``."""
        infer = infer or self.expect(Infer)
        envs = infer.env_indices[::-1] if reverse else infer.env_indices
        steps = 100.0 * np.arange(horizon)[:, None, None] + envs[None, :, None]
        self.socket.send(frame(Action(np.repeat(steps, 2, axis=2).astype(np.float32), envs)))
        return infer

    def exchange(self) -> tuple[Infer, Feedback]:
        infer = self.act()
        return infer, self.expect(Feedback)

    def end(self, reason: str, code: int = 1001) -> None:
        self.socket.close(code, reason)
        self._log.append((self.number, "closed by the server", reason))

    def gone(self) -> tuple[int | None, str]:
        """Wait until the client has closed; a message would fail the test."""
        try:
            message = self.socket.recv(timeout=20)
        except ConnectionClosed as closed:
            ended = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (None, "")
            self._log.append((self.number, "closed by the client", ended))
            return ended
        raise AssertionError(f"a message came where none may: {message[:80]!r}")


class PolicyPeer:
    """The server. ``log`` has (connection, what, message) in the order of arrival, over all connections."""

    def __init__(self, *scripts: Script) -> None:
        self.log: list[tuple[int, str, Any]] = []
        self.requests: list[Any] = []
        self._scripts = list(scripts)
        self._errors: list[BaseException] = []
        self._ended = [threading.Event() for _ in scripts]
        self._guard = threading.Lock()
        self._server: Server | None = None

    def start(self, port: int = 0) -> None:
        self._server = serve(self._handle, "127.0.0.1", port, max_size=None)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"

    @property
    def connections(self) -> int:
        return len(self.requests)

    def ended(self, number: int) -> None:
        """Wait until the script of a connection is through."""
        assert self._ended[number - 1].wait(20), f"connection {number} was not served to its end"

    def told(self, what: str | None = None) -> list[tuple[int, str]]:
        return [(number, name) for number, name, _ in list(self.log) if what in (None, name)]

    def _handle(self, socket: ServerConnection) -> None:
        with self._guard:
            self.requests.append(socket.request)
            number = len(self.requests)
        if number > len(self._scripts):
            self._errors.append(AssertionError(f"connection {number} was not expected"))
            return
        try:
            self._scripts[number - 1](Peer(number, socket, self.log))
        except BaseException as error:  # it is raised in the test, by `stop`
            self._errors.append(error)
        finally:
            self._ended[number - 1].set()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
        for error in self._errors:
            raise error


@contextmanager
def serving(*scripts: Script) -> Iterator[PolicyPeer]:
    """A server with one script for each connection that is expected. Errors of the scripts are raised at the end."""
    peer = PolicyPeer(*scripts)
    peer.start()
    try:
        yield peer
    finally:
        peer.stop()
