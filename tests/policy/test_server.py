"""A policy server as a whole: how it starts and ends, while its policy works, and when we have a bug."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as sync_connect

from openenv.core.wire.arrays import decode, encode
from openenv.policy.env_states import EnvStates
from openenv.policy.messages import Infer
from openenv.policy.policy import Observations
from openenv.policy.scheduler import InferQueue
from openenv.policy.server import PolicyServer, _SocketLog
from support.policy_link import (
    INTERNAL,
    SOON,
    STOP,
    EchoPolicy,
    GatedPolicy,
    RawClient,
    event,
    expected,
    feedback,
    health,
    infer,
    server,
    until,
)

# ---------------------------------------------------------------- a slow policy


async def test_pings_and_health_are_answered_while_the_policy_works() -> None:
    policy = GatedPolicy(act=True, feedback=True)
    async with server(policy, ping_interval_s=0.05) as served, RawClient(served.url) as client:
        for step in (infer([0], 1), feedback([0], 2)):
            policy.go_on.clear()
            policy.began.clear()
            await client.send(step)
            await event(policy.began)
            for _ in range(5):
                async with asyncio.timeout(SOON):
                    await (await client.socket.ping())
            assert await asyncio.to_thread(health, served) == (200, b"OK\n")
            async with asyncio.timeout(SOON):
                async with RawClient(served.url) as newcomer:
                    assert newcomer.metadata["protocol_version"] == 1
            policy.go_on.set()
            if step["message_type"] == "infer":
                assert await client.actions([0]) == expected(1)
        assert await client.act([0], 3) == expected(3)
    assert {name.rpartition("_")[0] for name in policy.threads} == {"openenv-policy"}
    assert len(policy.threads) == 1


async def test_act_waits_for_a_learner_of_the_users_own() -> None:
    policy = EchoPolicy()
    async with server(policy) as served, RawClient(served.url) as client:
        with served.learning():
            await client.send(infer([0], 1))
            await until(lambda: served._service._pending)
            await (await client.socket.ping())
            assert not policy.batches
        assert await client.actions([0]) == expected(1)


async def test_a_client_that_answers_no_ping_is_not_waited_for() -> None:
    async with (
        server(EchoPolicy(), ping_interval_s=0.5, close_timeout_s=0.1) as served,
        RawClient(served.url) as client,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: served.metrics.open_connections == 2)
        assert await client.act([0], 1) == expected(1)
        assert served.metrics.open_connections == 1
        assert served.metrics.longest_infer_wait_s > 0.1
        writer.close()


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("when", ["in an infer", "in a batch", "in mid-chunk", "in a learn step", "after metadata"])
async def test_stop_reaches_everyone(when: str) -> None:
    policy = GatedPolicy(act=when == "in a batch", feedback=when == "in a learn step")
    served = server(policy)
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client:
        other = RawClient(served.url) if when == "in an infer" else None
        if other:
            await other.__aenter__()
        if when != "after metadata":
            await client.send(infer([0], 1))
        if when == "in an infer":
            await (await client.socket.ping())
        elif when == "in a batch":
            await event(policy.began)
        elif when != "after metadata":
            await client.actions([0])
            if when == "in a learn step":
                await client.send(feedback([0], 1))
                await event(policy.began)
        served.stop()
        async with asyncio.timeout(SOON):
            assert await client.closed() == STOP
            if other:
                assert await other.closed() == STOP
                await other.__aexit__(None, None, None)
            await task  # it does not wait for the policy
        policy.go_on.set()
    with pytest.raises(ConnectionRefusedError):
        await connect(served.url)
    assert served.metrics.open_connections == 0
    assert served.metrics.internal_errors == 0


async def test_shutdown_lets_clients_come_back() -> None:
    served = server(EchoPolicy())
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client:
        await client.round(0, 1)
        served.shutdown()
        assert await client.closed() == (1001, "")
    await task


async def test_the_policy_finishes_the_run() -> None:
    class Short(EchoPolicy):
        @property
        def finished(self) -> bool:
            return len(self.learned) >= 2

    served = server(Short(), mini_infer_batch_size=1)
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client, RawClient(served.url) as other:
        await client.round(0, 1)
        await other.act([0], 2)
        await client.round(0, 3)
        assert await client.closed() == STOP
        assert await other.closed() == STOP
    async with asyncio.timeout(SOON):
        await task


async def test_the_policy_stops_the_server_from_its_own_thread() -> None:
    class Stops(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            served.stop()
            return super().act(observations)

    served = server(Stops())
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client:
        await client.send(infer([0], 1))
        try:
            await client.actions([0])
        except ConnectionClosed:
            pass
        else:
            assert await client.closed() == STOP
        assert (client.socket.close_code, client.socket.close_reason) == STOP
    await task


async def test_a_server_runs_once() -> None:
    async with server(EchoPolicy()) as served:
        with pytest.raises(RuntimeError, match="runs once"):
            await served.start()


async def test_a_port_that_is_taken() -> None:
    async with server(EchoPolicy()) as served:
        with pytest.raises(OSError, match="in use"):
            await PolicyServer(EchoPolicy(), "127.0.0.1", served.port).serve()
        with pytest.raises(OSError, match="in use"), PolicyServer(EchoPolicy(), "127.0.0.1", served.port):
            pass


def test_in_a_thread() -> None:
    policy = EchoPolicy()
    with server(policy) as served, sync_connect(served.url, compression=None) as client:
        assert decode(client.recv(SOON))["message_type"] == "metadata"  # type: ignore[arg-type]
        client.send(encode(infer([0], 1)))
        assert decode(client.recv(SOON))["data"]["action"].tolist() == expected(1)  # type: ignore[arg-type]
        assert health(served) == (200, b"OK\n")
        served.stop()
        with pytest.raises(ConnectionClosed):
            client.recv(SOON)
        assert (client.close_code, client.close_reason) == STOP
    assert not any(thread.name == "openenv-policy-server" for thread in threading.enumerate())


def test_an_exception_in_the_body_is_no_stop() -> None:
    served = server(EchoPolicy())
    served.__enter__()
    with sync_connect(served.url, compression=None) as client:
        client.recv(SOON)
        served.__exit__(KeyError, KeyError(), None)
        with pytest.raises(ConnectionClosed):
            client.recv(SOON)
    assert (client.close_code, client.close_reason) == (1001, "")


PROGRAM = """
import numpy as np
from openenv.policy.server import PolicyServer

class Zeros:
    def act(self, observations):
        return np.zeros((len(observations), 2, 1))

server = PolicyServer(Zeros(), "127.0.0.1", 0)
import logging
logging.basicConfig(level="INFO")
server.run()
print("ended well")
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_clients_come_back(program: subprocess.Popen[str], number: int) -> None:
    assert program.stderr is not None
    line = next(line for line in program.stderr if "listens at 127.0.0.1" in line)
    with sync_connect(f"ws://127.0.0.1:{line.rpartition(':')[2].strip()}", compression=None) as client:
        client.recv(SOON)
        client.send(encode(infer([0], 1)))
        client.recv(SOON)
        program.send_signal(number)
        with pytest.raises(ConnectionClosed):
            client.recv(SOON)
        assert (client.close_code, client.close_reason) == (1001, "")
    output, errors = program.communicate(timeout=SOON)
    assert program.returncode == 0
    assert output == "ended well\n"
    assert "Traceback" not in errors


# ---------------------------------------------------------------- what must not happen, and does


async def test_a_bug_of_ours_costs_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered = EnvStates.answered

    def bug(self: EnvStates, message: Infer, obs: Any, actions: Any) -> None:
        if 13 in message.env_indices:
            raise AttributeError("a bug")
        answered(self, message, obs, actions)

    monkeypatch.setattr(EnvStates, "answered", bug)
    async with server(EchoPolicy(), mini_infer_batch_size=1) as served:
        async with RawClient(served.url) as client, RawClient(served.url) as other:
            await other.act([0], 1)
            await client.send(infer([13], 1))
            assert await client.closed() == INTERNAL
            await other.send(feedback([0], 2))
            await other.round(0, 3)
        assert served.metrics.internal_errors == 1
    assert "a bug" in caplog.text


async def test_a_scheduler_that_fails_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InferQueue, "take", lambda self: 1 / 0)
    served = server(EchoPolicy())
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client:
        await client.send(infer([0], 1))
        assert await client.closed() == (1001, "")
    with pytest.raises(ZeroDivisionError):
        await task


async def test_a_policy_that_fails_to_forget(caplog: pytest.LogCaptureFixture) -> None:
    class Remembers(EchoPolicy):
        def connection_closed(self, connection: int) -> None:
            super().connection_closed(connection)
            raise KeyError("unforgettable")

    policy = Remembers()
    async with server(policy) as served:
        for value in range(2):
            async with RawClient(served.url) as client:
                await client.round(0, value)
        await until(lambda: policy.closed == [1, 2])
        await until(lambda: caplog.text.count("unforgettable") >= 2)
        assert served.metrics.internal_errors == 0


async def test_a_client_that_comes_when_the_server_goes() -> None:
    async with server(EchoPolicy()) as served:
        served._reason = STOP[1]  # the end was asked for, and has not begun
        async with connect(served.url) as client:
            with pytest.raises(ConnectionClosed):
                await client.recv()
        assert (client.close_code, client.close_reason) == STOP
        served._ending.set()


async def test_stop_before_the_start_and_after_the_end() -> None:
    served = server(EchoPolicy())
    served.stop()
    async with asyncio.timeout(SOON):
        await served.serve()
    served.stop()
    with server(EchoPolicy()) as other:
        pass
    other.shutdown()


async def test_an_exception_in_the_async_body_is_no_stop() -> None:
    served = server(EchoPolicy())
    await served.__aenter__()
    async with RawClient(served.url) as client:
        await served.__aexit__(KeyError, KeyError(), None)
        assert await client.closed() == (1001, "")


async def test_a_server_that_is_cancelled_lets_clients_come_back() -> None:
    served = server(EchoPolicy())
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client:
        task.cancel()
        assert await client.closed() == (1001, "")
    with pytest.raises(asyncio.CancelledError):
        await task


def test_handshakes_that_fail_are_no_errors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = _SocketLog(logging.getLogger("openenv.policy.sockets"))
    try:
        raise EOFError
    except EOFError:
        log.error("opening handshake failed", exc_info=True)
        log.error("process_request failed", exc_info=True)
    assert [(record.levelno, bool(record.exc_info)) for record in caplog.records] == [
        (logging.INFO, False),
        (logging.ERROR, True),
    ]
