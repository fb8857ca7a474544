"""Ports that are free, and servers that answer."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

import httpx

from openenv.core.exceptions import ProviderTimeoutError

__all__ = ["free_port", "wait_until_healthy"]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
_REQUEST_S = 2.0


def free_port() -> int:
    """A port that the system has just had free, for IPv4 and IPv6 alike: ``localhost`` means either."""
    while True:
        with contextlib.ExitStack() as sockets:
            first = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1]
            if not socket.has_ipv6:
                return port
            second = sockets.enter_context(socket.socket(socket.AF_INET6))
            try:
                second.bind(("::1", port))
            except OSError as error:
                if _is_taken(error):
                    continue
            return port  # free on both, or there is no IPv6 here


def wait_until_healthy(
    health_url: str, timeout_s: float, check: Callable[[], object] | None = None, *, what: str = "Server"
) -> None:
    """Ask for a URL until it answers 200.

    Args:
        health_url: the URL.
        timeout_s: seconds to go on.
        check: called between two attempts; ends the wait by raising.
        what: what is waited for, for the error text.

    Raises:
        ProviderTimeoutError: it did not, in time.
    """
    end = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    with httpx.Client(trust_env=False, verify=health_url.startswith("https")) as client:
        while True:
            left = end - time.monotonic()
            try:
                if client.get(health_url, timeout=max(0.01, min(left, _REQUEST_S))).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # not listening yet
            if check is not None:
                check()
            left = end - time.monotonic()
            if left <= 0:
                raise ProviderTimeoutError(f"{what} did not become ready within {timeout_s:g} s ({health_url})")
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)


def _is_taken(error: OSError) -> bool:
    import errno

    return error.errno == errno.EADDRINUSE
