"""The server of one scenario, the client program that it grades, and the connections between them.

Every wait is bounded, and ends with the program, so no client can leave a run hanging.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from openenv.conformance.policy.codec import Form, pack
from openenv.conformance.policy.judge import Judge
from openenv.conformance.policy.ledger import Ledger
from openenv.conformance.policy.messages import Infer, read_feedback, read_infer, read_message
from openenv.conformance.program import Program

__all__ = ["RESYNC", "STOP", "Answer", "End", "Link", "Settings", "Stage"]

T = TypeVar("T")
End = tuple[int, str] | None
"""Code and reason of a close frame; None for a cut."""
STOP: End = (1001, "plugrl-server-stop")
RESYNC: End = (1001, "plugrl-server-resync")
_TOO_BIG = 1009
_QUIET_S = 0.15
_EARLY_S = 0.05
_USUAL = Form()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run offers and how long it waits.

    Attributes:
        horizon: steps of an action.
        width: width of an action.
        dtype: of actions.
        steps: exchanges of the scenario ``basic``.
        resyncs: how often the scenario ``resync`` ends a connection.
        features: listed in metadata.
        probe: the client runs the probe environment.
        wait_s: bound of every single wait, in seconds.
        timeout_s: bound of the whole run, in seconds.
    """

    horizon: int = 4
    width: int = 7
    dtype: str = "float64"
    steps: int = 20
    resyncs: int = 3
    features: tuple[str, ...] = ()
    probe: bool = True
    wait_s: float = 10.0
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How an action is written.

    Attributes:
        dtype: of the action; empty for that of the run.
        form: byte order and order of keys.
        reverse: rows and env_ids stand in the reverse order of the request.
        env_ids: there are env_ids.
    """

    dtype: str = ""
    form: Form = _USUAL
    reverse: bool = False
    env_ids: bool = True


class Stage:
    """A server for one scenario, and the program that plays against it. An async context manager.

    Args:
        command: the client; ``{url}``, ``{host}`` and ``{port}`` in it are replaced.
        judge: is told what is wrong.
        settings: of the run.
    """

    def __init__(self, command: Sequence[str], judge: Judge, settings: Settings) -> None:
        self.judge = judge
        self.settings = settings
        self.ledger = Ledger(judge, settings.horizon, settings.width, settings.dtype, settings.probe)
        self._command = command
        self._waiting: asyncio.Queue[Link] = asyncio.Queue()
        self._over = asyncio.Event()
        self._links: list[Link] = []
        self._server: Server | None = None
        self._program: Program | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._dialled, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None, close_timeout=1.0
        )
        port = next(iter(self._server.sockets)).getsockname()[1]
        words = {"{url}": f"ws://127.0.0.1:{port}", "{host}": "127.0.0.1", "{port}": str(port)}
        try:
            command = [_filled(word, words) for word in self._command]
            self._program = await Program.start(command, {"OPENENV_URL": words["{url}"]})
        except BaseException:  # raised on; nothing is left open
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self._over.set()
        if self._program is not None:
            await self._program.stop()
        for link in self._links:
            link.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _dialled(self, ws: ServerConnection) -> None:
        link = Link(self, ws)
        self._links.append(link)
        self._waiting.put_nowait(link)
        await self._over.wait()

    # ------------------------------------------------------------ waiting

    async def bounded(self, work: Awaitable[T], missing: str) -> T:
        """Wait, but not for ever, and not for a program that has ended.

        Raises:
            Fault: it took too long, or the program ended.
        """
        assert self._program is not None, "the program was started"
        waiting, ended = asyncio.ensure_future(work), self._program.ended
        await asyncio.wait({waiting, ended}, timeout=self.settings.wait_s, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and ended.done():
            await asyncio.wait({waiting}, timeout=_QUIET_S)  # what it said last may be on its way
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        if ended.done():
            raise self.judge.fault(
                "client-ended", f"{missing} did not come: the client ended{self._program.last_words()}"
            )
        raise self.judge.fault("silent-client", f"{missing} did not come within {self.settings.wait_s:g} s")

    async def leaves(self) -> str:
        """Wait for what the client does after its last connection: ``exit``, ``dial``, or ``""`` for nothing."""
        assert self._program is not None, "the program was started"
        dialled = asyncio.ensure_future(self._waiting.get())
        done, _ = await asyncio.wait(
            {dialled, self._program.ended}, timeout=self.settings.wait_s, return_when=asyncio.FIRST_COMPLETED
        )
        dialled.cancel()
        return "dial" if dialled in done else "exit" if done else ""

    # ------------------------------------------------------------ connections

    async def dial(self, what: str = "a connection") -> Link:
        """Wait for the client's next connection."""
        link = await self.bounded(self._waiting.get(), what)
        extensions = link.header("Sec-WebSocket-Extensions")
        offered = "permessage-deflate" in extensions
        self.judge.expect(not offered, "1.1a", "offers-deflate", f"the client offers {extensions!r}")
        return link

    async def connect(
        self,
        what: str = "a connection",
        *,
        data: Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        early_s: float = _EARLY_S,
    ) -> Link:
        """Wait for the next connection, and send metadata.

        Args:
            what: what is waited for.
            data: the metadata; None for what servers usually tell.
            features: what is listed; None for those of the run.
            early_s: how long to listen before metadata is sent.
        """
        link = await self.dial(what)
        await link.silent(early_s)
        listed = self.settings.features if features is None else tuple(features)
        await link.send({"message_type": "metadata", "data": self.metadata(listed) if data is None else data})
        self.ledger.connected(listed)
        self.judge.passed("5.1a")
        return link

    def metadata(self, features: Sequence[str]) -> dict[str, Any]:
        """What a server usually tells."""
        return {
            "protocol_version": 1,
            "server": "openenv-conformance",
            "server_version": "1",
            "algorithm": "Probe",
            "policy": "ProbePolicy",
            "action_horizon": self.settings.horizon,
            "action_dim": self.settings.width,
            **({"features": list(features)} if features else {}),
        }

    async def stop(self, link: Link, clause: str = "7.1a") -> None:
        """End the run, and see the client exit with code 0."""
        await link.end(STOP)
        await self.stopped(clause)

    async def stopped(self, clause: str = "7.1a") -> None:
        """See the client exit with code 0 after a stop."""
        assert self._program is not None, "the program was started"
        left = await self.leaves()
        self.judge.need(left != "dial", "7.1b", "dials-again", "the client dials again after a stop")
        wait_s = self.settings.wait_s
        self.judge.need(left == "exit", clause, "runs-on", f"the client runs on for {wait_s:g} s after a stop")
        ended = f"after a stop the client ended{self._program.last_words()}"
        self.judge.expect(self._program.exit_code == 0, clause, "failed", ended)


def _filled(word: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(name, value)
    return word


class Link:
    """One connection of the client.

    Args:
        stage: what it belongs to.
        ws: the socket.
    """

    def __init__(self, stage: Stage, ws: ServerConnection) -> None:
        self._stage = stage
        self._ws = ws
        self._judge = stage.judge
        self._spoke = False

    def header(self, name: str) -> str:
        """A header of the client's handshake."""
        assert self._ws.request is not None
        return self._ws.request.headers.get(name, "")

    async def silent(self, seconds: float) -> None:
        """Listen before metadata: a client says nothing yet."""
        try:
            async with asyncio.timeout(seconds):
                frame = await self._ws.recv()
        except TimeoutError:
            return
        except ConnectionClosed:
            raise self._judge.fault("client-closed", "the client closed its connection before metadata came") from None
        text = f"the client sent {len(frame)} bytes before it was sent metadata"
        self._judge.need(False, "5.1a", "early-frame", text)

    async def send(self, message: Mapping[str, Any], form: Form | None = None) -> None:
        """Write one message."""
        try:
            await self._ws.send(pack(dict(message), form))
        except ConnectionClosed as closed:
            self._gone(closed, "it was to be written to")

    def _gone(self, closed: ConnectionClosed, when: str) -> NoReturn:
        """The client has closed the connection."""
        too_big = closed.rcvd is not None and closed.rcvd.code == _TOO_BIG
        self._judge.need(not too_big, "1.1b", "frame-cap", f"the client refuses a frame for its size: {closed}")
        raise self._judge.fault("client-closed", f"the client closed its connection ({closed}), where {when}")

    async def frame(self, what: str) -> str | bytes:
        """Read one frame."""
        try:
            return await self._stage.bounded(self._ws.recv(), what)
        except ConnectionClosed as closed:
            self._gone(closed, f"{what} was due")

    async def message(self, due: str) -> dict[str, Any]:
        """Read the next message, which must be of the type that is due."""
        raw = await self.frame(f"{due} message")
        message = read_message(raw)
        self._judge.passed("1a")
        self._judge.passed("2a")
        self._judge.passed("3.1a")
        kind = message["message_type"]
        if kind != due and kind == "feedback" and not self._spoke:
            self._judge.need(False, "7.6a", "feedback-first", "the first message of a connection is feedback")
        self._judge.need(kind == due, "4a", "out-of-turn", f"{kind} came, where {due} was due")
        self._judge.passed("7.6a" if not self._spoke else "4a")
        self._spoke = True
        return message

    # ------------------------------------------------------------ the exchange

    async def infer(self) -> Infer:
        """Read an infer."""
        infer = read_infer(await self.message("infer"), self._judge)
        self._stage.ledger.infer(infer)
        return infer

    async def act(self, infer: Infer, answer: Answer | None = None) -> None:
        """Send an action."""
        answer = answer or Answer()
        ids, action = self._stage.ledger.act(infer, answer.dtype, answer.reverse)
        data = {"env_ids": np.asarray(ids, "<i8")} if answer.env_ids else {}
        await self.send({"message_type": "action", "data": {**data, "action": action}}, answer.form)

    async def feedback(self) -> None:
        """Read a feedback."""
        self._stage.ledger.feedback(read_feedback(await self.message("feedback"), self._judge))

    async def exchange(self, count: int = 1, answer: Answer | None = None) -> None:
        """So many times infer, action, feedback."""
        for _ in range(count):
            await self.act(await self.infer(), answer)
            await self.feedback()

    # ------------------------------------------------------------ ends

    async def text(self, text: str) -> None:
        """Write a text frame."""
        await self._ws.send(text)

    async def silence(self, wait_s: float) -> str | bytes | None:
        """Wait for the client's close; a frame that comes instead is returned."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._ws.recv()
        except ConnectionClosed:
            return None

    async def end(self, how: End) -> None:
        """End the connection with a close frame, or without one."""
        if how is None:
            self.cut()
        else:
            await self._ws.close(*how)

    async def act_and_end(self, infer: Infer, how: End) -> None:
        """Send an action and end the connection, in one segment: what the client sends next can only fail."""
        self._cork(True)
        await self.act(infer)
        if how is None:
            self._cork(False)
            return self.cut()
        closing = asyncio.create_task(self._ws.close(*how))
        while self._ws.state is State.OPEN and not closing.done():
            await asyncio.sleep(0)
        self._cork(False)
        return await closing

    def _cork(self, closed: bool) -> None:
        """Hold back what is written, where the system can; elsewhere the client may be quicker than the close."""
        sock = self._ws.transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_CORK"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, int(closed))

    def cut(self) -> None:
        """Reset the connection, without a close frame."""
        self._ws.transport.abort()
