"""Serving one application with uvicorn as ``openenv serve`` does: on a socket that is bound before, with a display of
its sessions, and a time within which a connection must say what it wants.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import uvicorn
from rich.console import Console
from rich.live import Live
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from openenv._package import AppSource, NoApp, load_app
from openenv.cli._board import Board
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.exceptions import ConcurrencyConfigurationError

__all__ = ["CannotLoad", "Serving", "address_of", "prompt_protocol"]

FIRST_REQUEST_S = 10.0
"""How long a connection may take to send its first request, or its WebSocket handshake."""
STOP_S = 5.0
"""How much longer than the drain a connection may take to close."""


class CannotLoad(Exception):
    """The application's module raised when it was imported.

    Attributes:
        cause: what it raised.
    """

    def __init__(self, reference: str, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(reference)


@dataclass(frozen=True)
class Serving:
    """One application and how it is served. Pickles, so that a reloader can run it in another process.

    Attributes:
        source: the application.
        capacity: most sessions at once; None for what the application says.
        log_level: of the log on stderr.
        shown: whether the sessions are displayed.
    """

    source: AppSource
    capacity: int | None
    log_level: str
    shown: bool = True

    def __call__(self, sockets: list[socket.socket] | None) -> None:
        """Serve until a signal comes. The base URL goes to stdout as soon as it answers.

        Raises:
            CannotLoad: the application's module raised.
            NoApp: it has no application of this name.
            ConcurrencyConfigurationError: the environment's class does not allow that many sessions.
        """
        assert sockets, "it listens before it serves"
        try:
            app = load_app(self.source)
        except (NoApp, ConcurrencyConfigurationError):
            raise
        except Exception as error:  # a module of the user may raise anything
            raise CannotLoad(self.source.reference, error) from error
        server = getattr(getattr(app, "state", None), "openenv_server", None)
        if isinstance(server, HTTPEnvServer) and self.capacity is not None:
            server.limit_sessions(self.capacity)
        url = address_of(sockets[0])
        with ExitStack() as stack:
            if isinstance(server, HTTPEnvServer) and self.shown:
                self._display(server, url, stack)
            self._log()
            signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it once more when all is done
            config = uvicorn.Config(app, log_config=None, access_log=False, **_settings(server))
            try:
                _Announced(config, lambda: _announce(url)).run(sockets=sockets)
            except KeyboardInterrupt:
                pass  # the drain is done

    def _display(self, server: HTTPEnvServer, url: str, stack: ExitStack) -> None:
        console = Console(stderr=True, highlight=False, markup=False)
        heading = f"{self.source.name} at {url}"
        if not console.is_terminal:
            board = Board(say=lambda line: console.print(line, soft_wrap=True))
        else:
            board = Board()
            stack.enter_context(
                Live(
                    get_renderable=lambda: board.table(console, heading, server.max_concurrent_envs),
                    console=console,
                    refresh_per_second=4,
                    redirect_stdout=False,
                )
            )
        stack.callback(server.observe(board))

    def _log(self) -> None:
        """To stderr as it is now: a display has put itself before it."""
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
        for name in ("openenv", "uvicorn"):
            logging.getLogger(name).setLevel(self.log_level.upper())


def _settings(server: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "http": prompt_protocol(FIRST_REQUEST_S),
        "ws_per_message_deflate": False,
        "timeout_graceful_shutdown": STOP_S,
    }
    if isinstance(server, HTTPEnvServer):
        settings["lifespan"] = "on"  # its drain must not be given up in silence
        settings["ws_max_size"] = server.v1.options.max_message_bytes
        settings["timeout_graceful_shutdown"] = int(server.sessions.drain_grace_s + STOP_S)
    return settings


class _Announced(uvicorn.Server):
    """A server that says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def prompt_protocol(first_request_s: float) -> type[asyncio.Protocol]:
    """The HTTP protocol of uvicorn, of whose connections each must send a whole request soon.

    Args:
        first_request_s: seconds; a connection that takes longer for its first request is closed.
    """

    class Prompt(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # uvicorn chooses which
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._too_late = self.loop.call_later(first_request_s, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._too_late.cancel()
            super().connection_lost(exc)

        def _give_up(self) -> None:
            if self.cycle is None and self.transport.get_protocol() is self:
                self.transport.close()

    return Prompt


def address_of(listener: socket.socket) -> str:
    """The base URL of a listening socket, as one reaches it from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(url: str) -> None:
    if threading.current_thread() is threading.main_thread():
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
