"""Clients of `CountEnv`, servers for them, and a hostile server that is scripted frame by frame."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_ws
from websockets.exceptions import ConnectionClosed

from openenv.core.env_client import EnvClient
from openenv.core.env_server.http_server import create_app
from support.envs import CountAction, CountEnv, CountObservation, CountState, fresh_env
from support.live import LiveServer, serve


class CountClient(EnvClient[CountAction, CountObservation, CountState]):
    """The typed client of `CountEnv`: nothing but its type parameters."""


@dataclass
class CountServer:
    """A running server, and the log of its environments."""

    url: LiveServer
    env: type[CountEnv]

    def client(self, **options: Any) -> CountClient:
        return CountClient(base_url=self.url, **options)

    def marks(self) -> list[Any]:
        """The marks of the steps that ran, in order."""
        return [one["mark"] for one in self.env.log.of("step")]

    def strays(self) -> list[dict[str, Any]]:
        """Steps that ran on an environment which had not been reset before."""
        was_reset: set[int] = set()
        found = []
        for one in self.env.log.events:
            if one["event"] == "reset":
                was_reset.add(one["env_no"])
            elif one["event"] == "step" and one["env_no"] not in was_reset:
                found.append(one)
        return found


@contextmanager
def count_server(slots: int = 8, **settings: Any) -> Iterator[CountServer]:
    """Serve a fresh `CountEnv`; its sleeping steps are let go at the end."""
    env = fresh_env()
    app = create_app(env, CountAction, CountObservation, max_concurrent_envs=slots, state_cls=CountState)
    with serve(app, **settings) as url:
        try:
            yield CountServer(url, env)
        finally:
            env.release.set()


def act(op: str = "inc", arg: Any = None, mark: Any = None) -> CountAction:
    """An action with a mark that the server's log will show."""
    return CountAction(op=op, arg=arg, metadata={} if mark is None else {"mark": mark})


Handler = Callable[[ServerConnection], Awaitable[None]]


class ScriptedServer:
    """A real WebSocket server whose every connection is handled by ``handler``; it runs in a thread."""

    def __init__(
        self, handler: Handler, status: HTTPStatus | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.handler = handler
        self.status = status
        self.headers = headers or {}
        self.requests: list[dict[str, Any]] = []
        self.handshakes: list[Any] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def take(self, connection: ServerConnection) -> dict[str, Any]:
        """The next request of a connection; written down."""
        request = json.loads(await connection.recv())
        self.requests.append(request)
        return request

    async def answer(self, connection: ServerConnection, **observation: Any) -> dict[str, Any]:
        """Take one request and answer it with an observation."""
        request = await self.take(connection)
        data = {"observation": observation, "reward": None, "done": False}
        await connection.send(json.dumps({"type": "observation", "data": data}))
        return request

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._loop.close()

    async def _run(self) -> None:
        async def handle(connection: ServerConnection) -> None:
            try:
                await self.handler(connection)
            except ConnectionClosed:
                pass  # the client has left

        async def greet(connection: ServerConnection, request: Any) -> Any:
            self.handshakes.append(request)
            if self.status is None:
                return None
            response = connection.respond(self.status, "refused by the test\n")
            response.headers.update(self.headers)
            return response

        async with serve_ws(handle, "127.0.0.1", 0, process_request=greet, close_timeout=0.2) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await self._stop.wait()
