"""Large messages at the policy server: past the WebSocket library, and yet under its rules."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import numpy as np
import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from openenv.core.wire.arrays import decode, encode
from openenv.policy import large_frames
from openenv.policy.server import PolicyServer
from support.policy_link import (
    RESYNC,
    SOON,
    EchoPolicy,
    RawClient,
    expected,
    feedback,
    infer,
    observation,
    server,
    until,
)

SIDE = 160  # an image of 75 KiB


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the messages that came past the library."""
    sizes: list[int] = []
    received = large_frames.PolicySocket.large_received

    def noted(self: Any, message: bytearray) -> None:
        sizes.append(len(message))
        received(self, message)

    monkeypatch.setattr(large_frames.PolicySocket, "large_received", noted)
    return sizes


def large_infer(envs: list[int], *values: float) -> dict[str, Any]:
    return infer(envs, data=observation(*values, image=SIDE))


async def test_large_and_small_messages_in_turns_keep_their_order(taken: list[int]) -> None:
    policy = EchoPolicy()
    async with server(policy) as served, RawClient(served.url) as client:
        for step in range(3):
            await client.send(large_infer([0, 1], step, 5.0))
            assert await client.actions([0, 1]) == expected(step, 5.0)
            await client.send(feedback([0, 1], step, 5.0, obs=observation(step, 5.0, image=SIDE)))
            await client.send(infer([0, 1], step, 6.0, data=observation(step, 6.0, image=4)))  # both are on their way
            assert await client.actions([0, 1]) == expected(step, 6.0)
            await client.send(feedback([0, 1], step, 6.0, obs=observation(step, 6.0, image=SIDE)))
    assert len(taken) == 9
    assert policy.batches[0].images["cam"].shape == (2, SIDE, SIDE, 3)
    assert all((batch.images["cam"] == 7).all() for batch in policy.batches)


async def test_fragments_and_pings_around_large_messages(taken: list[int]) -> None:
    async with server(EchoPolicy()) as served, RawClient(served.url) as client:
        frame = encode(large_infer([0], 2.0))
        await client.socket.send([frame[:70_000], b"", frame[70_000:]])
        assert await client.actions([0]) == expected(2.0)
        await (await client.socket.ping())
        await client.send(feedback([0], 2.0, obs=observation(2.0, image=SIDE)))
        await (await client.socket.ping())
        assert await client.act([0], 3.0) == expected(3.0)
    assert len(taken) == 1


@pytest.mark.parametrize("broken", ["a large text", "no message"])
async def test_a_large_message_that_does_not_fit_is_a_resync(broken: str) -> None:
    async with server(EchoPolicy()) as served, RawClient(served.url) as client:
        await client.send("x" * 100_000 if broken == "a large text" else b"\xc1" * 100_000)
        assert await client.closed() == RESYNC


async def test_a_message_over_the_limit_costs_its_connection(taken: list[int]) -> None:
    async with server(EchoPolicy(), max_message_bytes=90_000) as served, RawClient(served.url) as client:
        await client.send(large_infer([0], 1.0))
        assert await client.actions([0]) == expected(1.0)
        await client.send(feedback([0], 1.0))
        await client.send(b"x" * 90_001)
        code, _ = await client.closed()
        assert code == 1009
    assert len(taken) == 1


async def test_a_large_message_within_another_is_refused() -> None:
    async with server(EchoPolicy()) as served, RawClient(served.url) as client:
        transport = client.socket.transport
        transport.write(Frame(Opcode.BINARY, b"begun", fin=False).serialize(mask=True))
        transport.write(Frame(Opcode.BINARY, os.urandom(100_000)).serialize(mask=True))
        code, _ = await client.closed()
        assert code == 1002


async def test_a_client_that_is_cut_in_a_large_message_is_gone() -> None:
    policy = EchoPolicy()
    async with server(policy) as served, RawClient(served.url) as client:
        client.socket.transport.write(Frame(Opcode.BINARY, bytes(1_000_000)).serialize(mask=True)[:500_000])
        client.socket.transport.abort()
        await until(lambda: policy.closed == [1])
        assert served.metrics.internal_errors == 0


async def test_a_client_that_speaks_first_is_served_all_the_same(taken: list[int]) -> None:
    """Its first message comes with the request, so the stream cannot be taken over where a frame begins."""

    def talk(served: PolicyServer) -> Any:
        protocol = ClientProtocol(parse_uri(served.url), max_size=None)
        protocol.send_request(protocol.connect())
        message = Frame(Opcode.BINARY, encode(large_infer([0], 4.0))).serialize(mask=True)
        with socket.create_connection(("127.0.0.1", served.port), timeout=SOON) as sock:
            sock.sendall(b"".join(protocol.data_to_send()) + message)
            found: list[Frame] = []
            while len(found) < 2:
                protocol.receive_data(sock.recv(65536))
                found += [event for event in protocol.events_received() if isinstance(event, Frame)]
        assert protocol.state is State.OPEN
        return [decode(frame.data) for frame in found]

    async with server(EchoPolicy()) as served:
        metadata, action = await asyncio.to_thread(talk, served)
    assert metadata["message_type"] == "metadata"
    assert np.array_equal(action["data"]["action"], np.array(expected(4.0)))
    assert taken == []
