"""The scripted server and the driver that it grades: one of each for a scenario."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from openenv.conformance.client.link import Link
from openenv.conformance.client.sessions import Fault, Session, read_object
from openenv.conformance.program import Program

__all__ = ["EPOCH", "Stage"]

T = TypeVar("T")
Frame = dict[str, Any]
SUBPROTOCOL = Subprotocol("openenv.v1")
EPOCH = "epoch-of-the-conformance-server"
_QUIET_S = 0.15


class Stage:
    """A server for one scenario, and the program that plays against it. An async context manager.

    Args:
        command: the driver; ``{url}`` in it is replaced.
        clause: number of the clause that the scenario is mainly about.
        plain: speak the plain dialect only.
        features: what is listed in welcome.
        timeout_s: bound of every wait, in seconds.
    """

    def __init__(
        self, command: Sequence[str], clause: str, *, plain: bool, features: Sequence[str], timeout_s: float
    ) -> None:
        self.timeout_s = timeout_s
        self.plain = plain
        self.features = tuple(features)
        self.limits: Frame = {"max_message_bytes": 16 * 1024 * 1024, "max_depth": 200}
        self.epoch = EPOCH
        self.told: dict[str, str] = {}
        self.offered = False
        self.had_session = False
        self.secrets: set[str] = set()
        self.dials = 0
        self.kept: set[str] = set()
        self._command = command
        self._clause = clause
        self._links: list[Link] = []
        self._waiting: asyncio.Queue[Link] = asyncio.Queue()
        self._over = asyncio.Event()
        self._server: Server | None = None
        self._program: Program | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._dialled,
            "127.0.0.1",
            0,
            select_subprotocol=_never if self.plain else _choose,
            compression=None,
            max_size=None,
            ping_interval=None,
            close_timeout=1.0,
        )
        port = next(iter(self._server.sockets)).getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        command = [word.replace("{url}", url) for word in self._command]
        try:
            self._program = await Program.start(command, {"OPENENV_URL": url})
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
            link.drop()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _dialled(self, ws: ServerConnection) -> None:
        link = Link(self, ws)
        self.dials += 1
        self.offered = self.offered or SUBPROTOCOL in link.offers
        self._links.append(link)
        self._waiting.put_nowait(link)
        await self._over.wait()

    # ------------------------------------------------------------ waiting

    def fault(self, name: str, text: str) -> Fault:
        """A fault under the scenario's own clause."""
        return Fault(self._clause, name, text)

    async def bounded(self, work: Awaitable[T], missing: str) -> T:
        """Wait, but not for ever, and not for a driver that has ended.

        Raises:
            Fault: it took too long, or the driver ended.
        """
        assert self._program is not None, "the driver was started"
        ended = self._program.ended
        waiting = asyncio.ensure_future(work)
        await asyncio.wait({waiting, ended}, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and ended.done():
            await asyncio.wait({waiting}, timeout=_QUIET_S)  # what it said last may be on its way
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        if ended.done():
            raise self.fault("driver-ended", f"{missing}: the driver ended{self._program.last_words()}")
        raise self.fault("silent-client", f"{missing} within {self.timeout_s:g} s")

    # ------------------------------------------------------------ dials

    async def dial(self, what: str = "a connection") -> Link:
        """Wait for the client's next connection."""
        link = await self.bounded(self._waiting.get(), f"{what} did not come")
        texts = [link.path, *(f"{name}: {value}" for name, value in link.headers.items())]
        if any(secret in text for secret in self.secrets for text in texts):
            raise Fault("E5", "token-in-url", "a token is in the URL or a header of a handshake")
        if "/ws" not in link.path:
            raise self.fault("wrong-path", f"the client dialled {link.path}, not /ws")
        return link

    async def second(self, seconds: float) -> Link:
        """Wait a while for another connection.

        Raises:
            TimeoutError: none came.
        """
        async with asyncio.timeout(seconds):
            return await self._waiting.get()

    async def welcomed(self, what: str = "a connection") -> Link:
        """Wait for the next connection, and welcome it."""
        link = await self.dial(what)
        if link.subprotocol != SUBPROTOCOL:
            raise Fault("E1", "not-offered", "the client does not offer openenv.v1 on this connection")
        await link.quiet(_QUIET_S, "E2", "early-frame", "before the server's welcome")
        data = {
            "protocol": 1,
            "server": "openenv-conformance",
            "features": [*self.features, "teleport"],
            "limits": self.limits,
            "epoch": self.epoch,
            "grace_s": 600.0,
            "novelty": {"a": [1]},
        }
        await link.send({"type": "welcome", "data": data})
        return link

    async def first(self, link: Link) -> tuple[str, Frame]:
        """Read the first frames of a connection: any ``release``, then one ``open`` or ``resume``."""
        while True:
            raw, frame = await link.frame("open or resume")
            kind, data = frame["type"], frame.get("data")
            if kind not in ("release", "open", "resume") or not isinstance(data, dict):
                raise Fault("E3", "wrong-first-frame", f"release, open or resume was due, and {raw[:200]} came")
            if kind != "release":
                return kind, data
            link.releases.append((str(data.get("session")), str(data.get("token"))))

    async def session(self, what: str = "a connection") -> Link:
        """Wait for a connection that begins a new session, and open it."""
        if self.plain:
            link = await self.dial(what)
            self._began(link, Session(plain=True))
            return link
        link = await self.welcomed(what)
        kind, data = await self.first(link)
        if kind != "open":
            raise self.fault("resumed-again", "the client resumes, where a new session was due")
        await self.grant(link, data)
        return link

    async def grant(self, link: Link, asked: Mapping[str, Any]) -> None:
        """Answer an open by opened."""
        uses = asked.get("uses")
        if not isinstance(uses, list):
            raise Fault("E3", "bad-open", f"'uses' must be a list in the data of open: {str(asked)[:200]}")
        if unlisted := sorted(set(map(str, uses)) - set(self.features)):
            raise Fault("E4", "unlisted-feature", f"the client uses {', '.join(unlisted)}, which is not listed")
        session = Session(plain=False, uses=frozenset(map(str, uses)))
        self._began(link, session)
        opened = {"session": session.id, "token": session.token, "novelty": 1}
        await link.send({"type": "opened", "data": opened})

    def _began(self, link: Link, session: Session) -> None:
        session.fresh = self.had_session
        self.had_session = True
        self.secrets.add(session.token)
        link.session = session

    # ------------------------------------------------------------ coming back

    async def asks_to_resume(self, session: Session, last_reply: int | None = None) -> Link:
        """Wait for a connection that asks to resume a session, and see that it asks rightly."""
        link = await self.welcomed("a connection to resume on")
        kind, data = await self.first(link)
        if kind != "resume":
            raise Fault("E23", "not-resumed", "the client opens a new session, where a resume was due")
        last = session.last_reply if last_reply is None else last_reply
        known = {"session": session.id, "token": session.token, "epoch": EPOCH, "last_reply": last}
        for name, value in known.items():
            if data.get(name) != value:
                shown = "another" if name == "token" else repr(data.get(name))
                due = "the one told last" if name == "token" else repr(value)
                raise Fault("E20", f"wrong-{name.replace('_', '-')}", f"resume has {name} {shown}, where {due} was due")
        session.attempt += 1
        if data.get("attempt") != session.attempt:
            text = f"resume has attempt {data.get('attempt')}, where {session.attempt} was due"
            raise Fault("E20", "wrong-attempt", text)
        link.session = session
        return link

    async def resume(self, link: Link, last_seq: int, *, running: bool = False) -> None:
        """Answer a resume by resumed."""
        session = link.session
        self.secrets.add(session.rotate())
        data = {"token": session.token, "last_seq": last_seq, "running": running, "novelty": 1}
        await link.send({"type": "resumed", "data": data})

    # ------------------------------------------------------------ the end

    async def finish(self, link: Link) -> None:
        """Wait for the client's close, let it go, and see the driver end."""
        raw, frame = await self._goodbye(link)
        clause = "P15" if self.plain else "E18"
        if raw is None:
            raise Fault(clause, "no-close-frame", "the client ended its socket without a close message")
        if frame.get("type") != "close":
            raise self.fault("unexpected-frame", f"{raw[:200]} came where close was due")
        if set(frame) != {"type"}:
            raise Fault("P7", "more-members", f"close has more than its type: {raw[:200]}")
        await link.close(1000, "" if self.plain else "closed")
        await self.exited()

    async def _goodbye(self, link: Link) -> tuple[str | None, Frame]:
        raw = await self.bounded(link.next(), "close did not come")
        return (None, {}) if raw is None else (str(raw), read_object(raw))

    async def exited(self) -> None:
        """See that the driver ends with code 0."""
        assert self._program is not None, "the driver was started"
        await asyncio.wait({self._program.ended}, timeout=self.timeout_s)
        if not self._program.ended.done():
            raise self.fault("driver-runs-on", f"the driver did not end within {self.timeout_s:g} s of its close")
        if self._program.exit_code != 0:
            raise self.fault("driver-failed", f"the driver ended{self._program.last_words()}")


def _never(ws: ServerConnection, offers: Sequence[Subprotocol]) -> Subprotocol | None:
    return None


def _choose(ws: ServerConnection, offers: Sequence[Subprotocol]) -> Subprotocol | None:
    return SUBPROTOCOL if SUBPROTOCOL in offers else None
