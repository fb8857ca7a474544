"""Clients of a private Space that sleeps, and where its token goes: to that Space, and nowhere else."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from openenv import ConnectError, GenericEnvClient, MCPToolClient
from openenv.core.transport.address import Address
from openenv.core.transport.credentials import Credentials
from openenv.core.transport.probe import MAX_ANSWER_BYTES, NotReady, get_json
from openenv.testing import SpaceStub
from openenv.trl import tool_env
from support.clients import CountClient, CountServer, ScriptedServer, act, count_server
from support.tool_envs import tool_server

TOKEN = "hf_SECRETsecretSECRETsecret"
SCRIPTED = "websockets.server "  # servers of these tests, which are sent the token
SPACE_LOGGERS = ("", "openenv", "websockets", "websockets.client", "httpx", "httpcore", "httpcore.http11", "asyncio")


class _Everything(logging.Handler):
    def __init__(self) -> None:
        super().__init__(0)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        trace = "" if record.exc_info is None else "".join(traceback.format_exception(*record.exc_info))
        self.texts.append(f"{record.name} {record.getMessage()} {record.args!r} {trace}")


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All that any library logs at any level; the token is in none of it."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    handler = _Everything()
    levels = {name: logging.getLogger(name).level for name in SPACE_LOGGERS}
    for name in SPACE_LOGGERS:
        logging.getLogger(name).setLevel(1)
    logging.getLogger().addHandler(handler)
    try:
        yield handler.texts
    finally:
        logging.getLogger().removeHandler(handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    assert handler.texts, "nothing was logged, so nothing was looked at"
    assert not [text for text in handler.texts if TOKEN in text and not text.startswith(SCRIPTED)]


@pytest.fixture
def behind() -> Iterator[CountServer]:
    with count_server(plain=False) as server:
        yield server


@pytest.fixture
def space(behind: CountServer, space_stub: Callable[..., SpaceStub]) -> Iterator[SpaceStub]:
    """A Space that sleeps for a moment. No URL had the token in it."""
    stub = space_stub(behind.url, TOKEN, sleep_s=0.3)
    yield stub
    assert not [one for one in stub.requests if TOKEN in one.target]


def all_authorized(space: SpaceStub) -> bool:
    return bool(space.requests) and all(one.authorized for one in space.requests)


class _Elsewhere:
    """Another host: it writes down the headers of what comes to it, and answers as a healthy server."""

    def __init__(self) -> None:
        seen: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append({name.lower(): value for name, value in self.headers.items()})
                body = b'{"status": "healthy"}'
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        self.seen = seen
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> _Elsewhere:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


# ------------------------------------------------------------------- every client


async def test_a_typed_client_waits_for_it_and_plays(space: SpaceStub, behind: CountServer) -> None:
    async with await CountClient(space.url, token=TOKEN).wait_ready(timeout=30) as client:
        await client.reset()
        assert (await client.step(act(mark="one"))).observation.count == 1
        space.cut()
        assert (await client.step(act(mark="two"))).observation.count == 2  # resumed, with the token
        assert (await client.state()).step_count == 2
        assert TOKEN not in repr(client) + repr(vars(client)) + repr(client._dialer)
    assert behind.marks() == ["one", "two"]
    assert behind.strays() == []
    assert all_authorized(space)
    assert len([one for one in space.requests if one.websocket]) == 2
    assert space.requests[0].answer == 503


def test_a_blocking_generic_client(space: SpaceStub, behind: CountServer) -> None:
    with GenericEnvClient(space.url, token=TOKEN).sync().wait_ready(timeout=30) as client:
        client.reset()
        assert client.step({"op": "inc", "metadata": {"mark": "one"}}).observation["count"] == 1
        child = client.new_session()
        child.reset()
        assert TOKEN not in repr(client) + repr(child)
    assert behind.marks() == ["one"]
    assert all_authorized(space)


def test_a_client_of_tools(space_stub: Callable[..., SpaceStub]) -> None:
    with tool_server() as server:
        space = space_stub(server.url, TOKEN, sleep_s=0.2)
        with MCPToolClient(space.url, token=TOKEN).sync().wait_ready(timeout=30) as client:
            client.reset()
            assert {"inc", "boom"} <= {tool.name for tool in client.list_tools()}
            assert client.call_tool("inc", by=2)["count"] == 2
            assert TOKEN not in repr(client)
        assert [one["count"] for one in server.events("tool")] == [2]
        assert {one.method for one in space.requests} == {"GET", "POST"}
        assert all_authorized(space)


def test_a_factory_of_a_trainer(space_stub: Callable[..., SpaceStub]) -> None:
    with tool_server() as server:
        space = space_stub(server.url, TOKEN, sleep_s=0.0)
        factory = tool_env(url=space.url, tools="mcp", client_options={"token": TOKEN})
        env: Any = factory()
        env.reset(seed=1)
        assert env.inc(by=3)["count"] == 3
        assert TOKEN not in repr(factory) + repr(env)
        assert [one["count"] for one in server.events("tool")] == [3]
        assert all_authorized(space)


def test_a_factory_of_a_trainer_from_the_schema(space: SpaceStub, behind: CountServer) -> None:
    space.wake()
    factory = tool_env(url=space.url, tools="schema", client_options={"token": TOKEN})
    env: Any = factory()
    env.reset()
    env.act(op="inc")
    assert len(behind.env.log.of("step")) == 1
    assert [one.target for one in space.requests if "schema" in one.target] == ["/spaces/org/name/schema"]
    assert all_authorized(space)


def test_sockets_that_are_cut_on_a_schedule(behind: CountServer, space_stub: Callable[..., SpaceStub]) -> None:
    space = space_stub(behind.url, TOKEN, sleep_s=0.0, cut_after_s=[0.15, 0.15, 0.15])
    with CountClient(space.url, token=TOKEN).sync() as client:
        client.reset()
        steps = 0
        while len([one for one in space.requests if one.websocket]) < 4:
            steps += 1
            assert client.step(act(mark=steps)).observation.count == steps
            assert steps < 100_000
    assert behind.marks() == list(range(1, steps + 1))
    assert all_authorized(space)


# ------------------------------------------------------------------- redirects


@pytest.mark.parametrize("kind", [GenericEnvClient, MCPToolClient])
def test_a_redirect_to_another_host_takes_no_token_along(kind: Any, space: SpaceStub) -> None:
    space.wake()
    with _Elsewhere() as other:
        space.redirect(other.url)
        client = kind(space.url, token=TOKEN, headers={"X-Mine": TOKEN}, connect_timeout_s=1.0).sync()
        with pytest.raises(ConnectError) as failed:
            client.reset()
        assert TOKEN not in shown(failed.value)
        with pytest.raises(ConnectError, match=r"another host, 127\.0\.0\.1|sends to another host") as refused:
            client.wait_ready(timeout=5)
        assert refused.value.status == 307
        for headers in other.seen:
            assert "authorization" not in headers
            assert TOKEN not in str(headers)
        if kind is GenericEnvClient:
            assert other.seen, "the handshake was not redirected, so nothing was shown"


def test_a_redirected_handshake_works_without_the_token(space: SpaceStub) -> None:
    async def welcome(connection: Any) -> None:
        await connection.wait_closed()

    space.wake()
    with ScriptedServer(welcome) as other:
        space.redirect(other.url)
        client = GenericEnvClient(space.url, token=TOKEN, resume=False).sync()
        client.connect()
        client.close()
        (handshake,) = other.handshakes
        assert "Authorization" not in handshake.headers
        assert TOKEN not in str(handshake.headers)


# ------------------------------------------------------------------- refusals


def shown(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


@pytest.mark.parametrize("token", [False, "hf_another"])
def test_without_the_right_token_the_error_says_what_a_404_usually_means(space: SpaceStub, token: Any) -> None:
    client = GenericEnvClient(space.url, token=token).sync()
    with pytest.raises(ConnectError, match=r"404.*private Space") as failed:
        client.wait_ready(timeout=30)
    assert failed.value.status == 404
    assert "hf_another" not in shown(failed.value)
    assert [one.authorized for one in space.requests] == [False]  # not asked again
    with pytest.raises(ConnectError, match=r"404.*private Space"):
        client.connect()


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
def test_refusals_end_the_wait_at_once(status: HTTPStatus) -> None:
    async def never(connection: Any) -> None: ...

    with ScriptedServer(never, status) as server:
        with pytest.raises(ConnectError, match=f"{status.value}.*private Space"):
            GenericEnvClient(server.url, token=TOKEN).sync().wait_ready(timeout=30)
        assert len(server.handshakes) == 1


async def test_the_time_of_a_wait_is_kept_and_the_error_tells_the_last_answer(
    behind: CountServer, space_stub: Callable[..., SpaceStub], caplog: pytest.LogCaptureFixture
) -> None:
    space = space_stub(behind.url, TOKEN, sleep_s=600)
    client = GenericEnvClient(space.url, token=TOKEN)
    with pytest.raises(ConnectError, match=r"not ready within 4 s.*503.*sleeping Space") as late:
        await client.wait_ready(timeout=4)
    assert late.value.status == 503
    told = [one for one in caplog.records if one.name == "openenv.client" and one.levelno == logging.WARNING]
    assert len(told) == 1
    assert "503" in told[0].getMessage()


async def test_a_port_that_nobody_listens_on_yet_is_waited_for(behind: CountServer) -> None:
    from openenv.testing.processes import free_port

    client = GenericEnvClient(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectError, match="refused"):
        await client.wait_ready(timeout=0.3)


async def test_a_page_in_place_of_the_server_is_waited_for() -> None:
    from support.live import serve

    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        asked += 1
        body = b"<html>Building</html>" if asked == 1 else b'{"status": "healthy"}'
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    with serve(app) as url:
        client = GenericEnvClient(url)
        assert await client.wait_ready(timeout=30) is client
    assert asked == 2


@pytest.mark.parametrize(
    ("headers", "body", "why"),
    [
        ({}, b'{"status": ' + b"9" * 6000 + b"}", "no JSON object"),
        ({}, b'{"status": ' + b"[" * 100_000, "no JSON object"),
        ({"content-encoding": "gzip"}, gzip.compress(b" " * (MAX_ANSWER_BYTES + 1)), r"more than \d+ bytes"),
        ({"content-encoding": "gzip"}, b"no gzip", "does not answer as it should"),
        ({"location": "http://[half"}, b"", "not followed"),
        ({"location": "http://127.0.0.1:99999/health"}, b"", "not followed"),
        ({"location": "//127.0.0.1:1/health"}, b"", "not followed"),
        ({"location": "/health"}, b"", "too many redirects"),
    ],
    ids=["number", "deep", "packed", "garbled", "no-address", "no-port", "other-port", "round"],
)
async def test_whatever_a_host_answers_is_a_typed_error(headers: dict[str, str], body: bytes, why: str) -> None:
    from support.live import serve

    told = [(name.encode(), text.encode()) for name, text in headers.items()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        status = 307 if "location" in headers else 200
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": body})

    with serve(app) as url, pytest.raises(NotReady) as found:
        await get_json(Address.parse(url), "/health", {}, 30)
    assert re.search(why, str(found.value.error))


def test_a_found_token_stays_at_home(space: SpaceStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ConnectError, match="404"):  # 127.0.0.1 is no host of the Hub
        asyncio.run(GenericEnvClient(space.url).wait_ready(timeout=5))
    assert not any(one.authorized for one in space.requests)
    assert repr(Credentials(TOKEN)) == "<Credentials>"
