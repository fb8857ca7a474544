"""Who may open a connection to a policy server, and the one HTTP route beside it. Decides before the handshake."""

from __future__ import annotations

import hmac
import http
from collections.abc import Collection

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from openenv.policy.metrics import ServerMetrics

__all__ = ["HEALTH_PATH", "Edge"]

HEALTH_PATH = "/healthz"


class Edge:
    """Answers a request over HTTP, or lets the handshake go on.

    Args:
        api_key: what clients must send as ``Authorization: Api-Key <key>``; None for no key.
        allowed_origins: origins of web pages that may connect. Programs send no origin.
        metrics: where refusals are counted.

    Raises:
        ValueError: a key that no header can carry.
    """

    def __init__(self, api_key: str | None, allowed_origins: Collection[str], metrics: ServerMetrics) -> None:
        if api_key is not None and not (
            api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""
        ):
            raise ValueError("api_key must be printable ASCII without spaces around it, or None for no key")
        self._api_key = api_key
        self._origins = frozenset(allowed_origins)
        self._metrics = metrics

    @property
    def wants_key(self) -> bool:
        """Whether a key is needed."""
        return self._api_key is not None

    def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to a request; None to let the handshake go on."""
        if request.path.partition("?")[0] == HEALTH_PATH:
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if not self._may_connect(request):
            return self._refuse(
                connection, http.HTTPStatus.FORBIDDEN, "Web pages may not use this server; see allowed_origins=."
            )
        if not self._has_key(request):
            response = self._refuse(
                connection, http.HTTPStatus.UNAUTHORIZED, "This server wants its key: 'Authorization: Api-Key ...'."
            )
            response.headers["WWW-Authenticate"] = "Api-Key"
            return response
        return None

    def _refuse(self, connection: ServerConnection, status: http.HTTPStatus, why: str) -> Response:
        self._metrics.refused += 1
        return connection.respond(status, why + "\n")

    def _may_connect(self, request: Request) -> bool:
        return "*" in self._origins or all(origin in self._origins for origin in request.headers.get_all("Origin"))

    def _has_key(self, request: Request) -> bool:
        if self._api_key is None:
            return True
        scheme, _, given = (request.headers.get_all("Authorization") or [""])[0].partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._api_key.encode())
        return same and scheme.lower() == "api-key"
