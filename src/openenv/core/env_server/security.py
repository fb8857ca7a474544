"""Who may talk to a server: pages of other origins may not, and with a token nobody may who lacks it.

A server on a developer's machine can be reached by every web page that its user visits: a page may open WebSockets to
any address (RFC 6455 section 10.2) and send simple POSTs (the Fetch standard's CORS protocol) without asking. Browsers
say which page it is, in ``Origin`` and ``Sec-Fetch-Site``; programs say nothing there and are let in. A page can also
make a name of its own point to 127.0.0.1 (DNS rebinding), and is then of the same origin; what gives it away is the
name in ``Host``.

`EdgePolicy` holds the rules and touches no socket; `Edge` is the ASGI middleware that applies them, to the whole app
and before any route. What a body must be is checked where bodies are read, in `openenv.core.env_server.bodies`.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Any, Self
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from openenv.core.env_server.calls import clip

__all__ = ["Edge", "EdgePolicy", "Refusal"]

logger = logging.getLogger("openenv.server")

HUB = "https://huggingface.co"
SPACES = "https://*.hf.space"
"""Pages of Spaces. Anybody may make one, so they are let in only by a server that is a Space itself."""

_SAFE = ("GET", "HEAD", "OPTIONS")
_BUILDS_ENV = re.compile(r"/(?:(?:web/)?(?:state|metadata)|web/page|mcp|[^/]+/splits)/?")
"""Paths whose GET may build an environment, or reads what a session is told."""
_PRIVATE_SUFFIXES = (".localhost", ".internal", ".svc", ".cluster.local")
"""Names under these are given by machines, containers and clusters; nobody can register them."""
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request goes no further.

    Attributes:
        status: of the HTTP answer.
        text: what to tell, and how to be let in.
    """

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class EdgePolicy:
    """Who is let in.

    Attributes:
        origins: origins of pages, in lower case: ``https://ui.example``, ``https://*.ui.example``, ``*`` for all.
        hosts: names for ``Host`` beside the local ones, without port; ``*.example.org``, ``*`` for all.
        check_every_host: check ``Host`` also where a request did not come over the loopback interface.
        token: what ``Authorization: Bearer`` must carry; None for nothing.
    """

    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    check_every_host: bool = False
    token: str | None = field(default=None, repr=False)

    @classmethod
    def make(
        cls,
        allowed_origins: Iterable[str] | str | None = None,
        allowed_hosts: Iterable[str] | str | None = None,
        token: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """The rules of a server: its arguments, and the environment variables.

        Args:
            allowed_origins: beside those of ``OPENENV_ALLOWED_ORIGINS``; text is split at commas.
            allowed_hosts: beside those of ``OPENENV_ALLOWED_HOSTS``; text is split at commas.
            token: instead of that of ``OPENENV_SERVER_TOKEN``.
            environ: the variables; ``SPACE_HOST`` says that this is a Space.

        Raises:
            ValueError: an origin is not one, or the token cannot be sent in a header.
        """
        space = environ.get("SPACE_HOST", "").strip().lower()
        origins = {HUB, *_listed(allowed_origins), *_listed(environ.get("OPENENV_ALLOWED_ORIGINS"))}
        hosts = {*_listed(allowed_hosts), *_listed(environ.get("OPENENV_ALLOWED_HOSTS"))}
        check_every_host = bool(hosts)
        if space:
            origins |= {f"https://{space}", SPACES}
            hosts.add(space)
        token = environ.get("OPENENV_SERVER_TOKEN") or None if token is None else token
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ValueError("the token must be ASCII without spaces, and not empty")
        return cls(frozenset(map(_origin, origins)), frozenset(hosts), check_every_host, token)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why a request or handshake is refused; None if it is let in."""
        headers = _Headers(scope)
        path, method = _path(scope), scope.get("method", "")
        if path == "/health" and method in _SAFE:
            return None
        acts = scope["type"] == "websocket" or method not in _SAFE
        builds = method == "GET" and _BUILDS_ENV.fullmatch(path) is not None and not _clicked(headers)
        foreign = self._origin(headers) if acts or builds else None
        return self._host(scope, headers) or foreign or self._token(headers)

    def _host(self, scope: Scope, headers: _Headers) -> Refusal | None:
        if not self.check_every_host and not _over_loopback(scope):
            return None
        for host in headers.all("host"):
            name = _hostname(host)
            if not _is_local(name) and not _allows(self.hosts, name):
                return Refusal(
                    403,
                    f"Host '{clip(name, _SHOWN)}' is not a name of this server. If it is, add it with allowed_hosts= "
                    "or OPENENV_ALLOWED_HOSTS.",
                )
        return None

    def _origin(self, headers: _Headers) -> Refusal | None:
        origins = headers.all("origin")
        own = [headers.one("host"), headers.one("x-forwarded-host").partition(",")[0].strip()]
        for origin in origins:
            if not _allows(self.origins, origin) and not any(_same_host(origin, host) for host in own):
                return Refusal(
                    403,
                    f"Pages of origin '{clip(origin, _SHOWN)}' may not use this server. To let them, add the "
                    "origin with allowed_origins= or OPENENV_ALLOWED_ORIGINS.",
                )
        if not origins and headers.one("sec-fetch-site") in ("cross-site", "same-site") and "*" not in self.origins:
            return Refusal(403, "Pages of other origins may not use this server.")
        return None

    def _token(self, headers: _Headers) -> Refusal | None:
        if self.token is None:
            return None
        scheme, _, given = headers.raw("authorization").partition(b" ")
        same = hmac.compare_digest(given.strip(), self.token.encode("ascii"))
        if scheme.lower() == b"bearer" and same:
            return None
        return Refusal(401, "This server wants its token: send the header 'Authorization: Bearer ...'.")


class Edge:
    """ASGI middleware that lets through what a policy lets in.

    Args:
        app: what is guarded.
        policy: the rules.
    """

    def __init__(self, app: ASGIApp, policy: EdgePolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, handshake or lifespan."""
        refused = self._policy.refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            return await self._app(scope, receive, send)
        kind = scope.get("method", "WebSocket")
        logger.warning("refused %s %s: %s", kind, clip(scope["path"], _SHOWN), refused.text)
        return await _answer(scope, refused, send)


async def _answer(scope: Scope, refused: Refusal, send: Send) -> None:
    prefix = "http.response"
    if scope["type"] == "websocket":
        prefix = "websocket.http.response"
        if prefix not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": ""})  # a server makes that a 403
            return
    body = json.dumps({"detail": refused.text, "message": refused.text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": f"{prefix}.start", "status": refused.status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})


# ---------------------------------------------------------------- reading headers and names


class _Headers:
    """The headers of a request."""

    def __init__(self, scope: Scope) -> None:
        self._pairs: list[tuple[bytes, bytes]] = list(scope.get("headers", ()))

    def raw(self, name: str) -> bytes:
        wanted = name.encode()
        return next((value for key, value in self._pairs if key.lower() == wanted), b"")

    def all(self, name: str) -> list[str]:
        wanted = name.encode()
        return [value.decode("latin-1").strip().lower() for key, value in self._pairs if key.lower() == wanted]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")


def _clicked(headers: _Headers) -> bool:
    """Whether the user followed a link; a page cannot do that for them."""
    return (headers.one("sec-fetch-mode"), headers.one("sec-fetch-user")) == ("navigate", "?1")


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _over_loopback(scope: Scope) -> bool:
    server: Any = scope.get("server")
    if not server or server[1] is None:
        return False  # a Unix socket: no page gets there
    name = str(server[0]).lower()
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _hostname(host: str) -> str:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host
    return name.removesuffix(".")


def _is_local(name: str) -> bool:
    """Whether no page can have this name as its own: no registered domain has it."""
    if "." not in name and ":" not in name:
        return True  # localhost, or the name of a container or service
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return name.endswith(_PRIVATE_SUFFIXES)
    return True  # a name can be pointed elsewhere, an address cannot


def _same_host(origin: str, host: str) -> bool:
    scheme, _, place = origin.partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme, ":")
    return bool(host) and place in (host, host.removesuffix(default))


def _allows(allowed: frozenset[str], one: str) -> bool:
    return "*" in allowed or one in allowed or any(_fits(pattern, one) for pattern in allowed if "*." in pattern)


def _fits(pattern: str, one: str) -> bool:
    before, _, after = pattern.partition("*.")
    return one.startswith(before) and one.endswith(f".{after}") and len(one) > len(pattern) - 1


def _listed(given: Iterable[str] | str | None) -> set[str]:
    parts = given.split(",") if isinstance(given, str) else given or ()
    return {part.strip().lower() for part in parts if part.strip()}


def _origin(text: str) -> str:
    if text in ("*", "null"):
        return text
    origin = text.rstrip("/")
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin):
        raise ValueError(f"an origin is a scheme and a host, as https://ui.example, not {text!r}")
    return origin
