"""A policy whose actions tell what they were chosen for, and a client made of frames alone."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from openenv.core.wire.arrays import decode, encode
from openenv.policy.policy import Observations, Transitions
from openenv.policy.server import PolicyServer

HORIZON, WIDTH = 3, 2
SOON = 10.0
"""Seconds after which a test that waits for an event has failed."""


def observation(*values: float, image: int = 0) -> dict[str, Any]:
    """An observation with a row for each value."""
    count = len(values)
    images = {"cam": np.full((count, image, image, 3), 7, np.uint8)} if image else {}
    states = {"t": np.array(values, np.float64).reshape(count, 1)}
    return {"images": images, "states": states, "text": np.array([f"row {value:g}" for value in values], "<U16")}


def infer(envs: Sequence[int], *values: float, **more: Any) -> dict[str, Any]:
    """An infer message, one value for each row that is sent."""
    indices = np.array(envs, np.int64)
    steps = np.zeros(len(envs), np.int64)
    message = {"message_type": "infer", "data": observation(*values), "env_indices": indices, "step_ids": steps}
    return {**message, **more}


def feedback(envs: Sequence[int], *values: float, done: bool = False, **data: Any) -> dict[str, Any]:
    """A feedback message; ``data`` replaces parts of its data."""
    count = len(envs)
    return {
        "message_type": "feedback",
        "env_indices": np.array(envs, np.int64),
        "step_ids": np.zeros(count, np.int64),
        "data": {
            "obs": observation(*values),
            "rewards": np.array(values, np.float32),
            "terminated": np.full(count, done),
            "truncated": np.zeros(count, bool),
            "info": {},
            **data,
        },
    }


def expected(*values: float) -> list[Any]:
    """The actions for rows of these values, ``[H, n, WIDTH]``."""
    return [[[value * 10 + step] * WIDTH for value in values] for step in range(HORIZON)]


class EchoPolicy:
    """Its actions are ten times the row's value, plus the step. It records what it was given."""

    action_horizon = HORIZON
    action_dim = WIDTH

    def __init__(self) -> None:
        self.batches: list[Observations] = []
        self.learned: list[Transitions] = []
        self.closed: list[int] = []
        self.threads: set[str] = set()

    def act(self, observations: Observations) -> Any:
        self.threads.add(threading.current_thread().name)
        self.batches.append(observations)
        steps = np.arange(HORIZON).reshape(1, HORIZON, 1)
        return observations.states["t"].reshape(-1, 1, 1) * 10 + steps + np.zeros((1, 1, WIDTH))

    def feedback(self, transitions: Transitions) -> None:
        self.threads.add(threading.current_thread().name)
        self.learned.append(transitions)

    def connection_closed(self, connection: int) -> None:
        self.closed.append(connection)


class GatedPolicy(EchoPolicy):
    """Holds its calls until it is told to go on."""

    def __init__(self, *, act: bool = False, feedback: bool = False) -> None:
        super().__init__()
        self.began = threading.Event()
        self.go_on = threading.Event()
        self._gates = {"act": act, "feedback": feedback}

    def act(self, observations: Observations) -> Any:
        self._gate("act")
        return super().act(observations)

    def feedback(self, transitions: Transitions) -> None:
        self._gate("feedback")
        super().feedback(transitions)

    def _gate(self, what: str) -> None:
        if self._gates[what]:
            self.began.set()
            assert self.go_on.wait(SOON)


def server(policy: Any, **more: Any) -> PolicyServer:
    """A server at any port."""
    return PolicyServer(policy, "127.0.0.1", 0, **more)


def health(served: PolicyServer) -> tuple[int, bytes]:
    """What ``/healthz`` answers: status and body."""
    http_connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SOON)
    http_connection.request("GET", "/healthz")
    response = http_connection.getresponse()
    body = response.read()
    http_connection.close()
    return response.status, body


class RawClient:
    """Sends and reads messages, and knows no rule.

    Args:
        url: the server's.
        more: for ``websockets``.
    """

    metadata: dict[str, Any]
    socket: ClientConnection

    def __init__(self, url: str, **more: Any) -> None:
        self._connect = connect(url, **{"compression": None, "max_size": None, **more})

    async def __aenter__(self) -> Self:
        self.socket = await self._connect.__aenter__()
        message = await self.read()
        assert message["message_type"] == "metadata"
        self.metadata = message["data"]
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._connect.__aexit__(*exc)

    async def send(self, message: Any) -> None:
        await self.socket.send(message if isinstance(message, str | bytes) else encode(message))

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(SOON):
            frame = await self.socket.recv()
        assert isinstance(frame, bytes)
        message = decode(frame)
        assert isinstance(message, dict)
        return message

    async def act(self, envs: Sequence[int], *values: float, **more: Any) -> list[Any]:
        """Ask for actions. Returns them, after a look at their frame."""
        await self.send(infer(envs, *values, **more))
        return await self.actions(envs)

    async def actions(self, envs: Sequence[int]) -> list[Any]:
        message = await self.read()
        assert message["message_type"] == "action"
        assert message["data"].keys() == {"env_ids", "action"}
        assert message["data"]["env_ids"].tolist() == list(envs)
        assert message["data"]["env_ids"].dtype == np.int64
        actions = message["data"]["action"]
        assert actions.shape == (HORIZON, len(envs), WIDTH)
        found: list[Any] = actions.tolist()
        return found

    async def round(self, env: int, value: float) -> None:
        """One exchange of one env; the server is all right."""
        assert await self.act([env], value) == expected(value)
        await self.send(feedback([env], value))

    async def closed(self) -> tuple[int | None, str | None]:
        """Wait for the end, which must be next. Returns its code and reason."""
        async with asyncio.timeout(SOON):
            try:
                frame = await self.socket.recv()
            except ConnectionClosed:
                return self.socket.close_code, self.socket.close_reason
        raise AssertionError(f"a frame of {len(frame)} bytes, and not the end")


RESYNC = (1001, "plugrl-server-resync")
STOP = (1001, "plugrl-server-stop")
INTERNAL = (1011, "Internal server error.")


async def event(gate: threading.Event) -> None:
    """Wait for a thread, without holding the loop."""
    assert await asyncio.to_thread(gate.wait, SOON)


async def until(condition: Any) -> None:
    """Wait until a condition holds, for what nobody announces."""
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.005)
