"""Asks a server's plain HTTP routes, and waits until one that sleeps has woken up.

Nothing of sessions is here. Redirects are followed on the same host only: the headers hold a secret.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from openenv.core.exceptions import ConnectError
from openenv.core.session.backoff import Backoff
from openenv.core.transport.address import Address
from openenv.core.transport.aio import RETRYABLE_STATUS, may_pass, reason_of
from openenv.core.transport.http import first_cause, quiet, settings_of
from openenv.core.wire.json_codec import MalformedFrame, parse_json

if TYPE_CHECKING:
    import httpx

__all__ = ["NotReady", "get_json", "read_body", "wait_until_ready"]

logger = logging.getLogger("openenv.client")

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 3
MAX_ANSWER_BYTES = 2**24
"""Largest answer that is read, after it has been unpacked."""
_REQUEST_S = 10.0  # a host that holds a request back while it starts a server is asked again
_SAY_AGAIN_S = 10.0
_BACKOFF = Backoff(first_s=0.5, longest_s=4.0)


class NotReady(Exception):
    """A route has no usable answer.

    Attributes:
        error: why, for the caller.
        retryable: whether the same question may be answered later.
        late: there was no answer in time.
    """

    def __init__(self, error: ConnectError, *, retryable: bool, late: bool = False) -> None:
        self.error = error
        self.retryable = retryable
        self.late = late
        super().__init__(str(error))


async def get_json(address: Address, route: str, headers: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """Ask for one route that answers a JSON object, as ``/health``.

    Args:
        address: the server.
        route: the route.
        headers: headers of the request.
        timeout_s: seconds for it.

    Raises:
        NotReady: there is no answer, or another one.
    """
    import httpx

    with quiet():
        async with httpx.AsyncClient(**settings_of(address, headers), timeout=timeout_s) as client:
            try:
                async with asyncio.timeout(timeout_s):
                    return _read(*await _get(client, address, route), address, route)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError) as error:
                raise _unanswered(error, address, route) from error


async def read_body(response: httpx.Response) -> bytes:
    """Read an answer, of a server that need not be a good one.

    Raises:
        MalformedFrame: it does not end where answers of environments have ended.
    """
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise MalformedFrame(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


async def wait_until_ready(
    address: Address, headers: Mapping[str, str], timeout_s: float | None, backoff: Backoff = _BACKOFF
) -> None:
    """Ask for ``/health`` until the server says that it is well, with a log line when the waiting begins and changes.

    A sleeping Space (503), a port that nobody listens on yet, and a server that has only half started are waited for.

    Args:
        address: the server.
        headers: headers of the requests.
        timeout_s: seconds to wait; None for ever.
        backoff: how long between two questions.

    Raises:
        ConnectError: it was not ready in time, or it has refused in a way that waiting does not mend.
    """
    began = time.monotonic()
    attempt, said, told = 0, "", began
    answered: ConnectError | None = None
    while True:
        left = None if timeout_s is None else timeout_s - (time.monotonic() - began)
        try:
            await _ask_health(address, headers, _REQUEST_S if left is None else max(0.01, min(left, _REQUEST_S)))
            break
        except NotReady as found:
            if not found.retryable:
                raise found.error from found.error.__cause__
            if answered is None or not found.late:  # the last question is asked in whatever time is left
                answered = found.error
            attempt += 1
            pause = backoff.delay(attempt)
            left = None if timeout_s is None else timeout_s - (time.monotonic() - began)
            if left is not None and left <= 0:
                raise _too_late(address, timeout_s, answered) from answered.__cause__
            why, now = found.error.args[0], time.monotonic()
            if why != said or now - told >= _SAY_AGAIN_S:
                limit = "" if timeout_s is None else f" of at most {timeout_s:g}"
                level = logging.INFO if said else logging.WARNING
                logger.log(level, "%s Waiting for it since %.0f s%s.", why, now - began, limit)
                said, told = why, now
            await asyncio.sleep(pause if left is None else min(pause, left))
    if said:
        logger.info("%s is ready after %.1f s", _place(address), time.monotonic() - began)


async def _ask_health(address: Address, headers: Mapping[str, str], timeout_s: float) -> None:
    health = await get_json(address, "/health", headers, timeout_s)
    status = str(health.get("status", "")).lower()
    if status == "unhealthy":
        raise NotReady(_error(address, "/health", "the server says that it is unhealthy", None), retryable=True)


async def _get(client: httpx.AsyncClient, address: Address, route: str) -> tuple[int, bytes]:
    """The status, and the body of an answer with status 200."""
    url = address.http(route)
    home = _host(url)
    for _ in range(_MOST_REDIRECTS + 1):
        async with client.stream("GET", url) as response:
            status, target = response.status_code, response.headers.get("location", "")
            if status not in _REDIRECTS or not target:
                try:
                    return status, await read_body(response) if status == 200 else b""
                except MalformedFrame as error:
                    raise NotReady(_error(address, route, str(error), status), retryable=False) from error
        try:
            url = urljoin(url, target)
            away = _host(url)
        except ValueError as error:
            reason = f"HTTP {status}, it sends to what is no address, and is not followed"
            raise NotReady(_error(address, route, reason, status), retryable=False) from error
        if away != home:
            reason = (
                f"HTTP {status}, it sends to another host, {away[1]}, which is not followed: a private Space does this "
                "to who has no token, and a Space that has moved"
            )
            raise NotReady(_error(address, route, reason, status), retryable=False)
    raise NotReady(_error(address, route, "too many redirects", status), retryable=False)


def _host(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _read(status: int, body: bytes, address: Address, route: str) -> dict[str, Any]:
    if status != 200:
        refused = _error(address, route, reason_of(Exception(), status), status)
        raise NotReady(refused, retryable=status in RETRYABLE_STATUS)
    try:
        answer = parse_json(body)
    except MalformedFrame:
        answer = None
    if not isinstance(answer, dict):
        reason = "the answer is no JSON object: it may be the page that a host shows while a server starts"
        raise NotReady(_error(address, route, reason, status), retryable=True)
    return answer


def _unanswered(error: Exception, address: Address, route: str) -> NotReady:
    import httpx

    cause = first_cause(error)
    late = isinstance(error, TimeoutError | httpx.TimeoutException)
    wrong = isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL)
    retryable = not wrong and (late or not isinstance(cause, OSError) or may_pass(cause))
    if isinstance(cause, ssl.SSLCertVerificationError):
        retryable = False
    reason = "no answer in time" if late else reason_of(cause, None)
    failure = _error(address, route, reason, None)
    failure.__cause__ = error
    return NotReady(failure, retryable=retryable, late=late)


def _place(address: Address) -> str:
    return address.shown.replace("ws", "http", 1).removesuffix("/ws")


def _error(address: Address, route: str, reason: str, status: int | None) -> ConnectError:
    text = f"{_place(address)}{route} does not answer as it should: {reason}{'' if reason.endswith('?') else '.'}"
    return ConnectError(text, url=_place(address), status=status)


def _too_late(address: Address, timeout_s: float | None, last: ConnectError) -> ConnectError:
    text = f"{_place(address)} was not ready within {timeout_s:g} s. The last answer: {last.args[0]}"
    return ConnectError(text, url=_place(address), status=last.status)
