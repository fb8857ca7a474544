"""`EnvClient` and servers that are full, refuse, misbehave, or are started by a provider."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import Any

import pytest

from openenv.core.env_client import EnvClient
from openenv.core.exceptions import (
    CapacityError,
    ConnectError,
    Outcome,
    ProviderError,
    SessionLostError,
)
from openenv.testing import FaultProxy
from openenv.testing.processes import free_port
from support.clients import CountClient, CountServer, ScriptedServer, act, count_server

# ------------------------------------------------------------------ capacity


async def test_a_full_server_is_told(server: CountServer) -> None:
    with count_server(slots=1) as small:
        async with small.client() as first, small.client() as second:
            await first.reset()
            with pytest.raises(CapacityError) as caught:
                await second.reset()
            assert (caught.value.active, caught.value.max) == (1, 1)
            await first.close()
            await asyncio.to_thread(small.env.log.wait_for, "close")
            await second.reset(timeout_s=20)


async def test_a_reset_after_a_loss_waits_for_its_own_old_slot() -> None:
    with count_server(slots=1) as small, FaultProxy("127.0.0.1", small.url.port) as proxy:
        async with CountClient(base_url=proxy.url) as client:
            await client.reset()
            step = asyncio.ensure_future(client.step(act("sleep", mark="slow")))
            await asyncio.to_thread(small.env.log.wait_for, "step")
            proxy.cut("rst")
            with pytest.raises(SessionLostError) as caught:
                await step
            assert caught.value.outcome is Outcome.UNKNOWN
            reset = asyncio.ensure_future(client.reset())
            done, _ = await asyncio.wait([reset], timeout=0.5)
            assert not done  # the old session's step still runs, and holds the one slot
            small.env.release.set()
            assert (await reset).observation.count == 0
        assert (small.marks(), small.strays()) == (["slow"], [])


# ------------------------------------------------------------------ refusals


async def never(connection: Any) -> None:
    raise AssertionError("no handshake was to succeed")


@pytest.mark.parametrize(
    ("status", "part"),
    [
        (HTTPStatus.UNAUTHORIZED, "private Space"),
        (HTTPStatus.FORBIDDEN, "private Space"),
        (HTTPStatus.NOT_FOUND, "no environment server at this path"),
        (HTTPStatus.SERVICE_UNAVAILABLE, "sleeping Space"),
        (HTTPStatus.INTERNAL_SERVER_ERROR, "failed while"),
        (HTTPStatus.BAD_REQUEST, "handshake was refused"),
    ],
)
async def test_a_refused_handshake_says_what_it_may_mean(status: HTTPStatus, part: str) -> None:
    with ScriptedServer(never, status) as refusing:
        for call in (EnvClient.connect, EnvClient.reset, EnvClient.state):
            client = CountClient(base_url=refusing.url, connect_timeout_s=0.3)
            with pytest.raises(ConnectError, match=part) as caught:
                await call(client)
            assert caught.value.status == status
            assert caught.value.url == f"ws://127.0.0.1:{refusing.port}/ws"
            if status < 500:
                assert caught.value.attempts == 1
            await client.close()


async def test_a_redirect_that_leads_nowhere_is_told() -> None:
    with ScriptedServer(never, HTTPStatus.FOUND, {"Location": "/elsewhere"}) as refusing:
        client = CountClient(base_url=refusing.url, connect_timeout_s=2)
        with pytest.raises(ConnectError) as caught:
            await client.connect()
        assert str(caught.value).startswith("Failed to connect to ws://127.0.0.1")


async def test_a_dead_port_is_told_after_some_tries() -> None:
    client = CountClient(base_url=f"http://127.0.0.1:{free_port()}", connect_timeout_s=0.5)
    with pytest.raises(ConnectError, match="connection refused") as caught:
        await client.reset()
    assert caught.value.attempts > 1
    assert isinstance(caught.value, ConnectionError)
    assert not isinstance(caught.value, SessionLostError)


async def test_a_peer_that_does_not_speak_websocket_is_told() -> None:
    async def hang_up(reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="does not speak WebSocket"):
            await CountClient(base_url=f"127.0.0.1:{port}", connect_timeout_s=0.3).connect()


async def test_a_peer_that_accepts_and_says_nothing_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = CountClient(base_url=f"127.0.0.1:{silent.getsockname()[1]}", connect_timeout_s=0.3)
        with pytest.raises(ConnectError, match="no answer within 0"):
            await client.connect()


async def test_a_server_that_comes_up_late_is_waited_for() -> None:
    port = free_port()
    client = CountClient(base_url=f"http://127.0.0.1:{port}", connect_timeout_s=30)
    reset = asyncio.ensure_future(client.reset())
    done, _ = await asyncio.wait([reset], timeout=0.3)
    assert not done
    with count_server(port=port):
        assert (await reset).observation.count == 0
        await client.close()


async def test_headers_and_the_address_reach_the_server() -> None:
    async def serve(connection: Any) -> None:
        await peer.answer(connection, env_no=1, count=0)
        await connection.wait_closed()

    with ScriptedServer(serve) as peer:
        client = CountClient(base_url=f"{peer.url}/prefix/?q=1", headers={"Authorization": "Bearer x"})
        await client.reset()
        await client.close()
        (handshake,) = peer.handshakes
        assert handshake.path == "/prefix/ws?q=1"
        assert handshake.headers["Authorization"] == "Bearer x"
        assert handshake.headers["User-Agent"].startswith("openenv/")
        assert "permessage-deflate" not in handshake.headers.get("Sec-WebSocket-Extensions", "")


# ------------------------------------------------------------------ hostile peers


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"state","data":{}}',
        "[]",
        "nonsense",
        "",
        b"\x00\xff",
        "[" * 100_000,
        '{"type":"observation","data":{"n":' + "9" * 5000 + "}}",
    ],
)
async def test_a_bad_frame_loses_the_session_loudly(frame: str | bytes) -> None:
    async def serve(connection: Any) -> None:
        await peer.answer(connection, env_no=1, count=0)
        await peer.take(connection)
        await connection.send(frame)
        await connection.wait_closed()

    with ScriptedServer(serve) as peer:
        client = CountClient(base_url=peer.url)
        await client.reset()
        with pytest.raises(SessionLostError) as caught:
            await client.step(act())
        assert (caught.value.reason, caught.value.outcome) == ("protocol", Outcome.UNKNOWN)
        with pytest.raises(SessionLostError):
            await client.step(act())
        await client.close()
        assert [one["type"] for one in peer.requests] == ["reset", "step"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1000, "connection"), (1012, "server_restart"), (4001, "idle"), (4002, "draining"), (4000, "replaced")],
)
async def test_a_close_code_is_told(code: int, reason: str) -> None:
    async def serve(connection: Any) -> None:
        await peer.answer(connection, env_no=1, count=0)
        await peer.take(connection)
        await connection.close(code, "because")

    with ScriptedServer(serve) as peer:
        client = CountClient(base_url=peer.url)
        await client.reset(episode_id="ep")
        for _ in range(2):
            with pytest.raises(SessionLostError) as caught:
                await client.step(act())
            error = caught.value
            assert (error.reason, error.close_code, error.close_reason, error.episode_id) == (
                reason,
                code,
                "because",
                "ep",
            )
        await client.close()


async def test_a_fragmented_reply_is_one_reply() -> None:
    async def serve(connection: Any) -> None:
        await peer.take(connection)
        await connection.send(['{"type":"observation","da', 'ta":{"observation":{"env_no":1,"count":0}}}'])
        await connection.wait_closed()

    with ScriptedServer(serve) as peer:
        client = CountClient(base_url=peer.url)
        assert (await client.reset()).observation.env_no == 1
        await client.close()


async def test_a_dead_peer_is_noticed_by_pings() -> None:

    async def serve(connection: Any) -> None:
        await peer.answer(connection, env_no=1, count=0)
        connection.transport.pause_reading()  # the host hangs: no pong, no close
        await asyncio.wait_for(stop.wait(), 30)

    stop = asyncio.Event()
    with ScriptedServer(serve) as peer:
        client = CountClient(base_url=peer.url, websocket_ping_interval_s=0.5, websocket_ping_timeout_s=2.5)
        await client.reset()
        with pytest.raises(SessionLostError, match="stopped answering pings") as caught:
            await client.step(act())
        assert caught.value.outcome is Outcome.UNKNOWN
        await client.close()
        peer._loop.call_soon_threadsafe(stop.set)


# ------------------------------------------------------------------ providers


class Provider:
    """Starts nothing, and writes down what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []

    def start_container(self) -> str:
        self.asked.append("start")
        return self.url

    def wait_for_ready(self, url: str) -> None:
        assert url == self.url
        self.asked.append("ready")

    def stop_container(self) -> None:
        self.asked.append("stop")


class RuntimeProvider(Provider):
    """The other family of names."""

    start_container = stop_container = property()  # type: ignore[assignment]

    def start(self) -> str:
        return Provider.start_container(self)

    def wait_for_ready(self) -> None:  # type: ignore[override]
        self.asked.append("ready")

    def stop(self) -> None:
        Provider.stop_container(self)


@pytest.mark.parametrize("kind", [Provider, RuntimeProvider])
async def test_a_provider_is_started_once_and_stopped_by_close_only(server: CountServer, kind: type[Provider]) -> None:
    with FaultProxy("127.0.0.1", server.url.port) as proxy:
        provider = kind(proxy.url)
        client = CountClient(provider=provider)
        assert client.base_url is None
        assert provider.asked == []
        await client.reset()
        proxy.cut("rst")
        with pytest.raises(SessionLostError):
            await client.step(act())
        await client.reset()
        await client.disconnect()
        await client.reset()
        assert provider.asked == ["start", "ready"]
        await client.close()
        await client.close()
        assert provider.asked == ["start", "ready", "stop"]


async def test_a_failing_connection_does_not_stop_the_provider() -> None:
    provider = Provider(f"http://127.0.0.1:{free_port()}")
    client = CountClient(provider=provider, connect_timeout_s=0.3)
    for _ in range(2):
        with pytest.raises(ConnectError):
            await client.reset()
    assert provider.asked == ["start", "ready"]
    await client.close()
    assert provider.asked == ["start", "ready", "stop"]


async def test_a_provider_that_fails_to_start_is_told() -> None:
    class Broken(Provider):
        def start_container(self) -> str:
            raise RuntimeError("no docker here")

    client = CountClient(provider=Broken("x"))
    with pytest.raises(ProviderError, match="no docker here"):
        await client.reset()
    await client.close()


def test_subclasses_may_call_the_raw_way_down(server: CountServer) -> None:
    class Upstream(EnvClient[Any, Any, Any]):
        async def ask(self) -> Any:
            return await self._send_and_receive({"type": "state"})

    with Upstream(base_url=server.url).sync() as client:
        client.reset()
        assert client.ask()["type"] == "state"
