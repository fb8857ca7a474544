"""Who may connect to a policy server, and what a stranger at the door can do."""

from __future__ import annotations

import asyncio
import logging

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from openenv.policy.server import PolicyServer
from support.policy_link import (
    SOON,
    EchoPolicy,
    RawClient,
    expected,
    health,
    infer,
    server,
)


async def test_no_compression_and_no_limit_of_frames() -> None:
    async with server(EchoPolicy()) as served:
        async with RawClient(served.url, compression="deflate") as client:
            response = client.socket.response
            assert response is not None
            assert "Sec-WebSocket-Extensions" not in response.headers
        async with RawClient(served.url) as client:
            await client.send(infer([0], 1, padding=bytes(3 * 2**20)))
            assert await client.actions([0]) == expected(1)


async def test_a_limit_of_frames() -> None:
    async with server(EchoPolicy(), max_message_bytes=1000) as served:
        async with RawClient(served.url) as client:
            await client.send(infer([0], 1, padding=bytes(1000)))
            assert (await client.closed())[0] == 1009
        async with RawClient(served.url) as client:
            await client.round(0, 1)


@pytest.mark.parametrize("sent", [None, "Api-Key wrong", "Api-Key", "Bearer s3cret", "s3cret", "Api-Key s3cret x", "é"])
async def test_a_client_without_the_key(sent: str | None, caplog: pytest.LogCaptureFixture) -> None:
    async with server(EchoPolicy(), api_key="s3cret") as served:
        headers = {} if sent is None else {"Authorization": sent}
        with pytest.raises(InvalidStatus) as refused:
            async with connect(served.url, additional_headers=headers):
                pass
        assert refused.value.response.status_code == 401
        assert served.metrics.refused == 1
        assert served.metrics.connections == 0
        assert await asyncio.to_thread(health, served) == (200, b"OK\n")
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("sent", ["Api-Key s3cret", "api-key  s3cret"])
async def test_a_client_with_the_key(sent: str) -> None:
    async with (
        server(EchoPolicy(), api_key="s3cret") as served,
        RawClient(served.url, additional_headers={"Authorization": sent}) as client,
    ):
        await client.round(0, 1)


@pytest.mark.parametrize("key", ["", " s", "s\n", "é"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ValueError, match="api_key"):
        server(EchoPolicy(), api_key=key)


async def test_web_pages() -> None:
    async with server(EchoPolicy(), allowed_origins=["https://ui.example"]) as served:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(served.url, origin="https://evil.example"):
                pass
        assert refused.value.response.status_code == 403
        async with RawClient(served.url, origin="https://ui.example") as client:
            await client.round(0, 1)


async def test_noise_at_the_door() -> None:
    async with server(EchoPolicy()) as served, RawClient(served.url) as client:
        for noise in (b"", b"\x00\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(noise)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), SOON)
            writer.close()
        await client.round(0, 1)
        assert served.metrics.connections == 1


async def test_payloads_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "openenv.policy")
    caplog.set_level(logging.INFO, "openenv.policy.sockets")
    async with server(EchoPolicy(), api_key="s3cret") as served:
        headers = {"Authorization": "Api-Key s3cret"}
        async with RawClient(served.url, additional_headers=headers) as client:
            await client.round(0, 1)
            await client.send("a text of mine")
            await client.closed()
    assert "text frame" in caplog.text
    assert "of mine" not in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_server_that_everyone_may_use_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with PolicyServer(EchoPolicy(), port=0, api_key="k"), server(EchoPolicy()):
        assert "everyone" not in caplog.text
    async with PolicyServer(EchoPolicy(), port=0) as served, RawClient(served.url) as client:
        assert "everyone" in caplog.text
        await client.round(0, 1)
