"""Looks at a server from outside, layer by layer: name, connection, TLS, HTTP, WebSocket, dialect, a session.

Nothing is printed here. A training run beside it is disturbed as little as can be: no environment is reset or stepped,
and the one session that is opened, to see whether a slot is free, is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import ssl
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from openenv.core.exceptions import ConnectError
from openenv.core.session.features import agreed, enabled_features
from openenv.core.transport.address import Address
from openenv.core.transport.aio import WebSocketConnector, WebSocketTransport, reason_of
from openenv.core.transport.base import DialError, TransportClosed
from openenv.core.transport.credentials import Credentials
from openenv.core.transport.http import first_cause, quiet, settings_of
from openenv.core.transport.probe import NotReady, get_json, read_body
from openenv.core.wire.frames import decode, encode
from openenv.core.wire.json_codec import MalformedFrame, parse_json
from openenv.core.wire.v1 import SUBPROTOCOL, Open, Welcome

__all__ = ["Checkup", "Finding", "Verdict"]

_PINGS = 20
_LONGEST_TEXT = 1000
_CLOSE = b'{"type":"close"}'


class Verdict(StrEnum):
    """What a finding means for a client that would use the server now."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: its name, as ``tls``.
        verdict: what it means.
        text: what was found.
        move: what to do about it; empty if there is nothing.
        data: the same for programs. Times in milliseconds.
    """

    check: str
    verdict: Verdict
    text: str
    move: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        found = {"check": self.check, "verdict": self.verdict.value, "text": self.text, "next": self.move}
        return {**found, "data": self.data}


class _Stop(Exception):
    """Nothing that would follow can be looked at."""


class Checkup:
    """Looks at one server.

    Args:
        address: the server.
        credentials: who gets which token.
        timeout_s: seconds for each question.
        session: whether a session may be opened.
        told: called with each finding as it comes.
    """

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        timeout_s: float,
        *,
        session: bool = True,
        told: Callable[[Finding], None] = lambda finding: None,
    ) -> None:
        self.address = address
        self.findings: list[Finding] = []
        self._headers = credentials.headers(address, {})
        self._timeout_s = timeout_s
        self._session = session
        self._told = told

    @property
    def is_usable(self) -> bool:
        """Whether nothing was found that would stop a client."""
        return all(finding.verdict is not Verdict.PROBLEM for finding in self.findings)

    async def run(self) -> None:
        """Look at everything, as far as it goes."""
        try:
            await self._reach()
            await self._health()
            await self._routes()
        except _Stop:
            return
        await self._websocket()

    def _say(self, check: str, verdict: Verdict, text: str, move: str = "", **data: Any) -> None:
        finding = Finding(check, verdict, _clipped(text), move, {key: _told(value) for key, value in data.items()})
        self.findings.append(finding)
        self._told(finding)

    def _ok(self, check: str, text: str, **data: Any) -> None:
        self._say(check, Verdict.OK, text, **data)

    # ---------------------------------------------------------------- the way there

    async def _reach(self) -> None:
        parts = urlsplit(self.address.url)
        host, secure = parts.hostname or "", parts.scheme == "wss"
        port = parts.port or (443 if secure else 80)
        proxy = getproxies().get("https" if secure else "http")
        if proxy and not self.address.loopback and not proxy_bypass(host):
            shown = urlsplit(proxy).hostname or "a proxy"
            self._say("proxy", Verdict.NOTE, f"requests go through {shown}, so the way itself is not looked at")
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                began = time.monotonic()
                found = sorted({str(entry[4][0]) for entry in await loop.getaddrinfo(host, port)})
            if found != [host]:
                self._ok("dns", f"{host} is {', '.join(found[:3])}", ms=_ms(began), addresses=found)
        except (OSError, TimeoutError, UnicodeError) as error:
            self._say("dns", Verdict.PROBLEM, self._words(error), "see whether the host's name is written right")
            raise _Stop from error
        await self._dial("tcp", host, port, None)
        if secure:
            await self._dial("tls", host, port, ssl.create_default_context())

    async def _dial(self, check: str, host: str, port: int, context: ssl.SSLContext | None) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                began = time.monotonic()
                _, writer = await asyncio.open_connection(
                    host, port, ssl=context, server_hostname=host if context else None
                )
                spent = _ms(began)
        except (OSError, TimeoutError) as error:
            move = "see whether the server runs, its port, and a firewall between"
            if check == "tls":
                move = "see the certificate and its names; a server without TLS is reached with http://"
            self._say(check, Verdict.PROBLEM, self._words(error), move)
            raise _Stop from error
        version = writer.get_extra_info("ssl_object").version() if context else ""
        writer.transport.abort()
        text = f"{version}, the certificate is trusted" if context else f"port {port} answers"
        self._ok(check, f"{text} ({spent:.0f} ms)", ms=spent)

    def _words(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout_s:g} s"
        return reason_of(error if isinstance(error, Exception) else Exception(str(error)), None)

    # ---------------------------------------------------------------- HTTP

    async def _ask(self, route: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        return await get_json(self.address, route, self._headers if headers is None else headers, self._timeout_s)

    async def _health(self) -> None:
        began = time.monotonic()
        try:
            health = await self._ask("/health")
        except NotReady as found:
            self._unwell(found.error, found.retryable)
            if found.error.status in (None, 401, 403, 404):
                raise _Stop from found
            return
        status = str(health.get("status", "says nothing"))
        spent = _ms(began)
        if status.lower() == "unhealthy":
            self._say("http", Verdict.PROBLEM, "the server says that it is unhealthy", "read its log", ms=spent)
        else:
            self._ok("http", f"/health: {status} ({spent:.0f} ms)", ms=spent, status=status)
        if "Authorization" in self._headers:
            await self._without_token()

    def _unwell(self, error: ConnectError, retryable: bool) -> None:
        sent = "Authorization" in self._headers
        moves = {
            401: "give the token with --token, HF_TOKEN or `hf auth login`",
            403: "see what the token may do, and whether the server allows this host and origin",
            404: "see the address" + ("" if sent else "; a private Space needs --token, HF_TOKEN or `hf auth login`"),
        }
        move = moves.get(error.status or 0, "see the server's log")
        if retryable and error.status is not None:
            move = "wait: it may be starting; client.wait_ready() waits for as long as that takes"
        check = "auth" if error.status in (401, 403) else "http"
        text = f"{error}{'' if sent else ' No token was sent.'}"
        self._say(check, Verdict.PROBLEM, text, move, status=error.status, token_sent=sent)

    async def _without_token(self) -> None:
        """Whether the token, which was sent and is good, is needed at all."""
        try:
            await self._ask("/health", {})
        except NotReady as found:
            text = f"the token is good; without it the server answers HTTP {found.error.status}"
            self._ok("auth", text, token_sent=True, needed=True)
        else:
            self._ok("auth", "a token was sent, and is not needed to be heard", token_sent=True, needed=False)

    async def _routes(self) -> None:
        try:
            fields = sorted(_fields_named(await self._ask("/schema")))
            self._ok("schema", f"actions have {', '.join(fields) or 'no fields'}", action_fields=fields)
        except NotReady as found:
            if found.error.status in (401, 403):  # only /health is open to everybody
                self._unwell(found.error, found.retryable)
                raise _Stop from found
            move = "`openenv play` and AutoEnv need it; clients with models of their own do not"
            self._say("schema", Verdict.NOTE, str(found.error), move)
        try:
            paths = (await self._ask("/openapi.json")).get("paths")
        except NotReady:
            paths = None
        if not isinstance(paths, dict):
            self._say("mode", Verdict.NOTE, "the server lists no routes, so its mode is not known")
        else:
            plays = "/reset" in paths
            text = "simulation: it has /reset, /step and /state" if plays else "production: it has no /reset over HTTP"
            self._ok("mode", text, mode="simulation" if plays else "production")
        await self._mcp()

    async def _mcp(self) -> None:
        """A request that no server knows is answered by JSON-RPC's own error where there is JSON-RPC."""
        import httpx

        body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/doctor", "params": {}}
        try:
            with quiet():
                async with (
                    asyncio.timeout(self._timeout_s),
                    httpx.AsyncClient(**settings_of(self.address, self._headers), timeout=self._timeout_s) as client,
                    client.stream("POST", self.address.http("/mcp"), json=body) as response,
                ):
                    answer = parse_json(await read_body(response))
        except (httpx.HTTPError, OSError, ValueError) as error:
            self._say("mcp", Verdict.NOTE, f"/mcp does not answer: {type(first_cause(error)).__name__}")
            return
        if isinstance(answer, dict) and "jsonrpc" in answer:
            self._ok("mcp", "/mcp answers", there=True)
        else:
            self._ok("mcp", "there is no /mcp: no tools over HTTP", there=False)

    # ---------------------------------------------------------------- the WebSocket

    async def _websocket(self) -> None:
        connector = WebSocketConnector(self.address, self._headers, None, None, 1_000_000, (SUBPROTOCOL,))
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                transport = await connector()
        except (DialError, TimeoutError) as error:
            text = str(error.failure.error) if isinstance(error, DialError) else self._words(error)
            works = any(finding.check == "http" and finding.verdict is Verdict.OK for finding in self.findings)
            move = "see that /ws is at this path"
            if works:
                move += (
                    "; a proxy between must pass WebSockets on (nginx: the Upgrade and Connection headers, HTTP/1.1)"
                )
            self._say("websocket", Verdict.PROBLEM, text, move)
            return
        spent = _ms(began)
        self._ok("websocket", f"a WebSocket gets through ({spent:.0f} ms)", ms=spent)
        try:
            async with asyncio.timeout(4 * self._timeout_s):
                await self._talk(transport)
        except TransportClosed as closed:
            text = f"the connection was closed: {closed.drop.detail}"
            self._say("dialect", Verdict.PROBLEM, text, "read the server's log; see what a proxy between allows")
        except TimeoutError:
            self._say("dialect", Verdict.PROBLEM, "the server did not answer on it", "read the server's log")
        except MalformedFrame as error:
            self._say("dialect", Verdict.PROBLEM, f"it does not speak OpenEnv's frames: {error}", "see the address")
        finally:
            await transport.close(_CLOSE)  # which gives back whatever was taken

    async def _talk(self, transport: WebSocketTransport) -> None:
        if transport.subprotocol == SUBPROTOCOL:
            self._welcome(Welcome.read((await _frame(transport))["data"]))
            await self._latency(transport)
            if self._session:
                await self._slot(transport, Open().frame())
            return
        self._say(
            "dialect",
            Verdict.NOTE,
            "plain: a connection that drops is a lost session, which clients of this package tell",
            "with openenv.v1 sessions outlive their connection; `openenv fork --safe` makes such a copy of a Space",
            dialect="plain",
        )
        # Here the connection itself is the session, and a look at its state tells whether it was let in.
        if await self._slot(transport, {"type": "state"}):
            await self._latency(transport)

    def _welcome(self, welcome: Welcome) -> None:
        features = sorted(welcome.features)
        mine = agreed(enabled_features(os.environ), welcome.features)
        text = (
            f"openenv.v1, spoken by {welcome.server or 'an unnamed server'}; features: {', '.join(features) or 'none'}"
        )
        if "resume" in mine:
            text += f"; a session is kept {welcome.grace_s:g} s without its connection"
        self._ok(
            "dialect", text, dialect="openenv.v1", features=features, server=welcome.server, grace_s=welcome.grace_s
        )
        if unused := set(features) - {str(feature) for feature in mine}:
            text = f"this client would not use {', '.join(sorted(unused))}"
            move = "OPENENV_FEATURES switches features off; msgpack needs its package"
            self._say("features", Verdict.NOTE, text, move, unused=sorted(unused))

    async def _latency(self, transport: WebSocketTransport) -> None:
        times = []
        for _ in range(_PINGS):
            times.append(await transport.ping() * 1000)
        median, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        text = f"a round trip takes {median:.1f} ms, 95 of 100 at most {p95:.1f} ms ({_PINGS} pings)"
        self._ok("latency", text, median_ms=round(median, 3), p95_ms=round(p95, 3), pings=_PINGS)

    async def _slot(self, transport: WebSocketTransport, ask: dict[str, Any]) -> bool:
        """Whether a session was to be had; it ends with the connection."""
        began = time.monotonic()
        with contextlib.suppress(TransportClosed):  # why it was closed may be there to read
            await transport.send(encode(ask, binary=False))
        answer = await _frame(transport)
        data = answer["data"]
        code = data.get("code") if answer["type"] == "error" else None
        if code == "CAPACITY_REACHED":
            active, most = (_count(data.get(name)) for name in ("active_sessions", "max_sessions"))
            text = "the server is full" + (f": {active} of {most} sessions are open" if most is not None else "")
            move = "`openenv wait` stands in line; max_concurrent_envs (MAX_CONCURRENT_ENVS) allows more"
            self._say("slot", Verdict.PROBLEM, text, move, took_slot=False, active=active, max=most)
        elif code is not None and ask["type"] == "open":
            text = f"no session was opened: {code}: {data.get('message', '')}"
            self._say("slot", Verdict.PROBLEM, text, "the environment's constructor may fail: read the server's log")
        else:
            self._ok("slot", "one was free; it was taken, and is given back now", took_slot=True, ms=_ms(began))
            return True
        return False


async def _frame(transport: WebSocketTransport) -> dict[str, Any]:
    frame = await transport.receive()
    if not isinstance(frame, str | bytes):
        raise MalformedFrame("the first frame is too large")
    found = decode(frame, binary=False)
    if "type" not in found:
        raise MalformedFrame("a frame without a type came")
    return {**found, "data": data if isinstance(data := found.get("data"), dict) else {}}


def _fields_named(schema: Mapping[str, Any]) -> list[str]:
    """The names of an action's fields; none where a schema is none."""
    action = schema.get("action")
    found = action.get("properties") if isinstance(action, dict) else None
    return list(found) if isinstance(found, dict) else []


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."


def _told(value: Any) -> Any:
    """A value for programs: a server's own words clipped, its numbers as JSON has them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _clipped(value) if isinstance(value, str) else value


def _count(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _ms(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)
