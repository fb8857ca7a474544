"""A policy server as a whole: how it starts and ends, who may connect, and what a policy that fails costs whom."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as sync_connect

from openenv.core.exceptions import PolicyActionError
from openenv.core.wire.arrays import decode, encode
from openenv.policy.policy import Observations, Transitions
from openenv.policy.server import PolicyServer
from support.policy_link import (
    HORIZON,
    INTERNAL,
    SOON,
    STOP,
    WIDTH,
    EchoPolicy,
    GatedPolicy,
    RawClient,
    event,
    expected,
    feedback,
    infer,
    observation,
    until,
)


def server(policy: Any, **more: Any) -> PolicyServer:
    return PolicyServer(policy, "127.0.0.1", 0, **more)


def health(served: PolicyServer) -> tuple[int, bytes]:
    http_connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SOON)
    http_connection.request("GET", "/healthz")
    response = http_connection.getresponse()
    body = response.read()
    http_connection.close()
    return response.status, body


# ---------------------------------------------------------------- who may connect


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


# ---------------------------------------------------------------- a policy that fails


class Failing(EchoPolicy):
    """Fails when it sees the value 13."""

    def act(self, observations: Observations) -> Any:
        if 13 in observations.states["t"]:
            raise KeyError("thirteen")
        return super().act(observations)

    def feedback(self, transitions: Transitions) -> None:
        if 13 in transitions.rewards:
            raise KeyError("thirteen")
        super().feedback(transitions)


@pytest.mark.parametrize("where", ["act()", "feedback()"])
async def test_a_failure_costs_those_who_asked(where: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = Failing()
    async with server(policy, mini_infer_batch_size=1) as served:
        async with RawClient(served.url) as other, RawClient(served.url) as client:
            await other.act([0], 1)
            if where == "act()":
                await client.send(infer([0], 13))
            else:
                await client.act([0], 1)
                await client.send(feedback([0], 13))
            assert await client.closed() == INTERNAL
            await other.send(feedback([0], 2))
            await other.round(0, 3)
        assert served.metrics.internal_errors == 1
        [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert record.name == "openenv.policy"
        assert where in record.getMessage()
        assert "thirteen" in record.getMessage()
        assert record.exc_info


@pytest.mark.parametrize(
    "error",
    [
        StopIteration(),
        concurrent.futures.CancelledError(),
        asyncio.CancelledError(),
        RecursionError(),
        ExceptionGroup("", [KeyError()]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("coroutine", [False, True])
async def test_errors_that_asyncio_takes_for_its_own(error: BaseException, coroutine: bool) -> None:
    class Raises(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            if 13 not in observations.states["t"]:
                return super().act(observations)
            if not coroutine:
                raise error

            async def later() -> Any:
                raise error

            return later()

    async with server(Raises()) as served:
        async with RawClient(served.url) as client:
            await client.send(infer([0], 13))
            assert await client.closed() == INTERNAL
        async with RawClient(served.url) as client:
            await client.round(0, 1)


async def test_all_of_a_batch_that_failed_are_told() -> None:
    async with server(Failing()) as served:
        async with RawClient(served.url) as one, RawClient(served.url) as two:
            await one.send(infer([0], 1))
            await two.send(infer([0], 13))
            assert await one.closed() == INTERNAL
            assert await two.closed() == INTERNAL
        async with RawClient(served.url) as one:
            await one.round(0, 1)


@pytest.mark.parametrize("where", ["act", "feedback"])
async def test_a_fatal_failure_is_raised_and_is_no_stop(where: str) -> None:
    served = server(Failing(), fatal_policy_errors=True)
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client:
        if where == "act":
            await client.send(infer([0], 13))
        else:
            await client.act([0], 1)
            await client.send(feedback([0], 13))
        assert await client.closed() in (INTERNAL, (1001, ""))
    with pytest.raises(KeyError, match="thirteen"):
        await task


def test_a_fatal_failure_is_raised_from_the_thread() -> None:
    served = server(Failing(), fatal_policy_errors=True)
    served.__enter__()
    with sync_connect(served.url, compression=None) as client:
        client.recv(SOON)
        client.send(encode(infer([0], 13)))
        with pytest.raises(ConnectionClosed):
            client.recv(SOON)
    with pytest.raises(KeyError, match="thirteen"):
        served.__exit__(None, None, None)


class Returns:
    """Returns what it was told to."""

    def __init__(self, actions: Any) -> None:
        self.actions = actions
        self.metadata = {"action_horizon": HORIZON, "action_dim": WIDTH}

    def act(self, observations: Observations) -> Any:
        return self.actions


WRONG: dict[str, Any] = {
    "another horizon": np.zeros((2, HORIZON + 1, WIDTH)),
    "another width": np.zeros((2, HORIZON, WIDTH + 1)),
    "width in two parts that do not fit": np.zeros((2, HORIZON, WIDTH, 2)),
    "time-major": np.zeros((HORIZON, 2, WIDTH)),
    "too many envs": np.zeros((3, HORIZON, WIDTH)),
    "no horizon": np.zeros(2),
    "empty": np.zeros((2, 0, WIDTH)),
    "none": None,
    "text": np.full((2, HORIZON, WIDTH), "x"),
    "complex": np.zeros((2, HORIZON, WIDTH), complex),
    "objects": np.full((2, HORIZON, WIDTH), None),
    "ragged": [[1], [1, 2]],
}


@pytest.mark.parametrize("actions", WRONG.values(), ids=WRONG)
async def test_actions_that_do_not_fit_are_not_sent(actions: Any, caplog: pytest.LogCaptureFixture) -> None:
    policy = Returns(actions)
    async with server(policy) as served:
        async with RawClient(served.url) as client:
            await client.send(infer([0, 1], 1, 2))
            assert await client.closed() == INTERNAL
        assert "act() of the policy failed" in caplog.text
        policy.actions = np.ones((1, HORIZON, WIDTH), np.int16)
        async with RawClient(served.url) as client:
            assert await client.act([0], 1) == np.ones((HORIZON, 1, WIDTH)).tolist()


async def test_what_is_wrong_with_the_actions_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with server(Returns(np.zeros((1, 9, WIDTH)))) as served, RawClient(served.url) as client:
        await client.send(infer([0], 1))
        await client.closed()
    assert "chunks of 9 actions" in caplog.text
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info
    assert record.exc_info[0] is PolicyActionError


async def test_a_policy_may_use_its_buffers_again() -> None:
    buffer = np.zeros((1, HORIZON, WIDTH))

    class Reuses(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            buffer[:] = super().act(observations)
            return buffer

    policy = Reuses()
    async with (
        server(policy, mini_infer_batch_size=1) as served,
        RawClient(served.url) as one,
        RawClient(served.url) as two,
    ):
        await one.act([0], 1)
        await two.act([0], 2)
        await one.send(feedback([0], 3))
        await one.act([0], 4)
    assert policy.learned[0].actions[0, 0, 0] == 10


# ---------------------------------------------------------------- the policy's forms


async def test_a_policy_of_coroutines() -> None:
    class Async:
        def __init__(self) -> None:
            self.learned: list[Transitions] = []
            self.running = 0

        async def act(self, observations: Observations) -> Any:
            assert self.running == 0
            self.running += 1
            await asyncio.sleep(0.001)
            self.running -= 1
            return EchoPolicy.act(EchoPolicy(), observations)

        async def feedback(self, transitions: Transitions) -> None:
            assert self.running == 0
            self.learned.append(transitions)

    policy = Async()
    async with server(policy, mini_infer_batch_size=1) as served:
        async with RawClient(served.url) as one, RawClient(served.url) as two:

            async def play(client: RawClient) -> None:
                for value in range(5):
                    await client.round(0, value)

            await asyncio.gather(play(one), play(two))
            await until(lambda: len(policy.learned) == 10)
        assert "action_horizon" not in one.metadata


async def test_a_plain_function_that_returns_an_awaitable() -> None:
    class Wrapped(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            async def later() -> Any:
                return EchoPolicy.act(self, observations)

            return later()

    async with server(Wrapped()) as served, RawClient(served.url) as client:
        await client.round(0, 1)


async def test_a_policy_that_can_only_act() -> None:
    async with (
        server(Returns(np.zeros((1, HORIZON, WIDTH)))) as served,
        RawClient(served.url) as client,
    ):
        for _ in range(2):
            await client.act([0], 1)
            await client.send(feedback([0], 1))
        await client.act([0], 1)
        assert served.metrics.transitions == 2
        assert served.metrics.discarded_feedback == 0


async def test_observations_are_read_only() -> None:
    seen: list[bool] = []

    class Writes(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            seen.extend(array.flags.writeable for array in (observations.states["t"], observations.text))
            return super().act(observations)

        def feedback(self, transitions: Transitions) -> None:
            seen.append(transitions.next_observations.states["t"].flags.writeable)

    async with server(Writes()) as served, RawClient(served.url) as client:
        await client.round(0, 1)
        await client.act([0, 1], 2, reuse=np.array([True, False]), data=observation(2))
    assert seen == [False] * 5


# ---------------------------------------------------------------- metrics


async def test_metrics() -> None:
    async with server(EchoPolicy()) as served:
        async with RawClient(served.url) as client:
            for value in range(3):
                await client.act([0, 1], value, value)
                await client.send(feedback([0, 1], value, value))
            await client.act([0, 1], 1, reuse=np.array([True, False]))
            metrics = served.metrics
            assert metrics.open_connections == 1
            assert (metrics.infers, metrics.batches, metrics.rows, metrics.largest_batch) == (4, 4, 8, 2)
            assert (metrics.feedbacks, metrics.transitions, metrics.reused_observations) == (3, 6, 1)
            assert 0 < metrics.act_s < SOON
            assert 0 < metrics.feedback_s < SOON
            assert metrics.longest_infer_wait_s <= metrics.infer_wait_s
        await until(lambda: served.metrics.open_connections == 0)
        assert served.metrics.as_dict()["connections"] == 1


def test_sockets_are_given_back() -> None:
    with server(EchoPolicy()) as served:
        port = served.port
    with socket.create_server(("127.0.0.1", port)):
        pass
