"""From the address a user gives to the address that is dialled."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlencode, urlsplit, urlunsplit

__all__ = ["Address"]

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server's WebSocket route is.

    Attributes:
        url: the WebSocket URL to dial; may hold credentials or a query.
        shown: the same for logs and errors, without credentials and query.
        loopback: the host is this machine, so that no proxy must be asked.
    """

    url: str
    shown: str
    loopback: bool

    @classmethod
    def parse(cls, base_url: str, route: str = "/ws") -> Address:
        """Read a server address.

        ``http`` and ``https`` become ``ws`` and ``wss``, an address without a scheme is ``ws``, and the route is
        appended to the path unless it is there. A path prefix and a query are kept.

        Args:
            base_url: as ``http://localhost:8000``, ``https://org-name.hf.space/prefix/``, ``[::1]:8000``.
            route: the server's WebSocket route.

        Raises:
            TypeError: not a text.
            ValueError: not a usable address; says what is wrong with it.
        """
        if not isinstance(base_url, str):
            raise TypeError(
                f"The server address must be a text as 'http://host:port', not {type(base_url).__name__} {base_url!r}."
            )
        text = base_url.strip()
        if not text:
            raise ValueError("The server address is empty; give one as http://host:port.")
        parts = _split(text if "://" in text else f"ws://{text}", base_url)
        scheme = _SCHEMES.get(parts.scheme.lower())
        if scheme is None:
            raise ValueError(
                f"The server address {_masked(text)!r} has no scheme that works; use http, https, ws or wss."
            )
        if not parts.hostname:
            raise ValueError(f"The server address {_masked(text)!r} names no host; give one as http://host:port.")
        path = parts.path.rstrip("/")
        if not path.endswith(route):
            path += route
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = host if parts.port is None else f"{host}:{parts.port}"
        return cls(
            url=urlunsplit((scheme, parts.netloc, path, parts.query, "")),
            shown=urlunsplit((scheme, place, path, "", "")),
            loopback=_is_loopback(parts.hostname),
        )

    def http(self, route: str) -> str:
        """The URL of another route of the same server, as ``/mcp``; may hold credentials or a query."""
        parts = urlsplit(self.url)
        scheme = "https" if parts.scheme == "wss" else "http"
        return urlunsplit((scheme, parts.netloc, parts.path.removesuffix("/ws") + route, parts.query, ""))

    def with_query(self, name: str, value: str) -> Address:
        """The same with one more parameter in the query."""
        parts = urlsplit(self.url)
        query = "&".join(filter(None, (parts.query, urlencode({name: value}))))
        return replace(self, url=urlunsplit(parts._replace(query=query)))


def _split(text: str, given: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # a bad port shows itself when it is read
    except ValueError as error:
        raise ValueError(f"The server address {_masked(given)!r} is not a URL: {_masked(str(error))}.") from None
    return parts


def _masked(text: str) -> str:
    """A text without what may be credentials in it: all before an ``@``, and the query."""
    return re.sub(r"(?<=//).*@|[^\s/'\"]+@", "***@", text.partition("?")[0], flags=re.DOTALL)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
