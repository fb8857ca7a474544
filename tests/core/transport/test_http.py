"""Posting, against a server that is scripted byte by byte: what came of it, and whether the server may have got it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from openenv.core.exceptions import ConnectError, MessageTooLargeError, Outcome
from openenv.core.session.events import Oversized, PostFailure
from openenv.core.transport.address import Address
from openenv.core.transport.base import PostError
from openenv.core.transport.http import HttpPoster

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(status: str, body: bytes = b"{}", headers: str = "") -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    return handle


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


@asynccontextmanager
async def posting_to(handler: Handler, limit: int | None = None, query: str = "") -> AsyncIterator[HttpPoster]:
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = Address.parse(f"http://127.0.0.1:{port}/prefix{query}")
        poster = HttpPoster(address, "/mcp", {"Authorization": "Bearer hush"}, 5.0, limit)
        try:
            yield poster
        finally:
            await poster.close()


async def failure_of(handler: Handler) -> PostFailure:
    async with posting_to(handler) as poster:
        with pytest.raises(PostError) as caught:
            await poster.post(b"{}", {})
    return caught.value.failure


async def test_an_answer_and_its_headers() -> None:
    async with posting_to(answer("200 OK", b'{"a": 1}', "OpenEnv-Session-Token: secret\r\n")) as poster:
        got = await poster.post(b"{}", {})
    assert (got.body, got.headers.get("openenv-session-token")) == (b'{"a": 1}', "secret")


async def test_what_is_posted_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = answer("200 OK", b"{}", "OpenEnv-Session-Token: secret\r\n")
    async with posting_to(told, query="?key=hush") as poster:
        await poster.post(b"{}", {"OpenEnv-Session-Token": "secret"})
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text


async def test_an_answer_over_the_limit_is_thrown_away() -> None:
    async with posting_to(answer("200 OK", b"x" * 100), limit=99) as poster:
        assert (await poster.post(b"{}", {})).body == Oversized(100, 99)


@pytest.mark.parametrize(
    ("status", "doubtful", "retryable", "hint"),
    [
        ("401 Unauthorized", False, False, "token"),
        ("404 Not Found", False, False, "no environment server"),
        ("429 Too Many Requests", False, True, "limiting"),
        ("502 Bad Gateway", True, True, "cannot reach"),
    ],
)
async def test_another_status(status: str, doubtful: bool, retryable: bool, hint: str) -> None:
    failure = await failure_of(answer(status))
    assert (failure.doubtful, failure.retryable) == (doubtful, retryable)
    assert isinstance(failure.error, ConnectError)
    assert failure.error.status == int(status[:3])
    assert failure.error.outcome is (Outcome.UNKNOWN if doubtful else Outcome.NOT_APPLIED)
    assert hint in str(failure.error)
    assert "/prefix/mcp" in str(failure.error)


async def test_a_request_that_is_too_large() -> None:
    failure = await failure_of(answer("413 Content Too Large"))
    assert isinstance(failure.error, MessageTooLargeError)
    assert (failure.error.size, failure.error.direction, failure.error.outcome) == (2, "sent", Outcome.NOT_APPLIED)
    assert not failure.retryable


async def test_a_cut_before_the_answer_is_in_doubt() -> None:
    failure = await failure_of(hang_up)
    assert (failure.doubtful, failure.retryable, failure.error.outcome) == (True, True, Outcome.UNKNOWN)


async def test_a_port_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    poster = HttpPoster(Address.parse(f"http://127.0.0.1:{port}"), "/mcp")
    with pytest.raises(PostError) as caught:
        await poster.post(b"{}", {})
    await poster.close()
    failure = caught.value.failure
    assert (failure.doubtful, failure.retryable) == (False, True)
    assert "refused" in str(failure.error)
