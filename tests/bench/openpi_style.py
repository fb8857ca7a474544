"""The usual way to move observations, to compare with: ``msgpack.packb`` with a hook for arrays, and `websockets`.

The messages are those of the policy link. The client blocks on ``websockets.sync``; the server is `asyncio`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bench.payloads import HORIZON, WIDTH


def pack_array(value: Any) -> Any:
    """The form of an array on the wire."""
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    return value


def unpack_array(value: dict[Any, Any]) -> Any:
    """The reverse."""
    if b"__ndarray__" in value:
        return np.ndarray(buffer=value[b"data"], dtype=np.dtype(value[b"dtype"]), shape=value[b"shape"])
    return value


def pack(message: Any) -> bytes:
    """One frame."""
    packed: bytes = msgpack.packb(message, default=pack_array)
    return packed


def unpack(frame: Any) -> Any:
    """What a frame holds."""
    return msgpack.unpackb(frame, object_hook=unpack_array, strict_map_key=False)


class Client:
    """Exchanges infer, action and feedback with a server."""

    def __init__(self, url: str) -> None:
        self._connected = connect(url, compression=None, max_size=None)
        self._socket = self._connected.__enter__()
        unpack(self._socket.recv())

    def exchange(self, observation: Mapping[str, Any], envs: np.ndarray[Any, Any]) -> Any:
        count = len(envs)
        zeros = np.zeros(count, np.int64)
        self._socket.send(
            pack({"message_type": "infer", "data": observation, "env_indices": envs, "step_ids": zeros}), text=False
        )
        answer = unpack(self._socket.recv())
        never = np.zeros(count, bool)
        data = {
            "obs": observation,
            "rewards": np.ones(count, np.float32),
            "terminated": never,
            "truncated": never,
            "info": {},
        }
        self._socket.send(
            pack({"message_type": "feedback", "env_indices": envs, "step_ids": zeros, "data": data}), text=False
        )
        return answer["data"]["action"]

    def close(self) -> None:
        self._connected.__exit__(None, None, None)


async def serving(told: Any) -> None:
    """Serve for ever; the port is told."""

    async def handle(socket: ServerConnection) -> None:
        await socket.send(pack({"message_type": "metadata", "data": {}}))
        try:
            async for frame in socket:
                message = unpack(frame)
                if message["message_type"] != "infer":
                    continue
                envs = message["env_indices"]
                action = np.zeros((HORIZON, len(envs), WIDTH), np.float32)
                await socket.send(pack({"message_type": "action", "data": {"env_ids": envs, "action": action}}))
        except ConnectionClosed:
            pass

    async with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        told(next(iter(server.sockets)).getsockname()[1])
        await asyncio.Event().wait()
