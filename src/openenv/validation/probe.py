"""A server of the application that is validated, in a process of its own, which notes what happens to each of its
environments: ``python -m openenv.validation.probe MODULE:APP FOLDER LOG PIPE``. It ends with whoever holds the other
end of the pipe, however that ends.

The notes are lines of JSON in a file. What is made of them is in `openenv.validation.running`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from openenv._package import AppSource, load_app
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.runner import EnvThread

__all__ = ["main"]

_BLOCKED = "blocked the event loop"


class Notes:
    """The notes: appended to a file, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, event: str, **said: Any) -> None:
        """Note something."""
        os.write(self._file, json.dumps({"event": event, **said}).encode() + b"\n")


class _Recording:
    """Makes environments as the factory does, and notes their making and their ``close()``."""

    def __init__(self, factory: Callable[[], Any], notes: Notes) -> None:
        self._factory = factory
        self._notes = notes
        self._numbers = itertools.count(1)

    def __call__(self) -> Any:
        number = next(self._numbers)
        env = self._factory()
        close = getattr(env, "close", None)
        if callable(close):
            try:
                env.close = self._noted(close, number)
            except AttributeError:  # the class has slots: its close cannot be seen
                return env
            self._notes.add("made", env=number, takes_seed=_takes(env, "seed"))
        return env

    def _noted(self, close: Callable[[], Any], number: int) -> Callable[[], Any]:
        def noted() -> Any:
            self._notes.add("close", env=number)
            try:
                result = close()
            except BaseException as error:  # noted, and raised on
                self._notes.add("closed", env=number, error=f"{type(error).__name__}: {error}")
                raise
            self._notes.add("closed", env=number, error="")
            return result

        return noted


def _takes(env: Any, name: str) -> bool:
    """Whether its reset takes an argument; the server drops what it does not."""
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return True  # it cannot be told
    return any(one.name == name or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


class _Blocked(logging.Handler):
    """Notes what the server says of environments that hold up its event loop."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if _BLOCKED in record.getMessage():
            self._notes.add("blocked", text=record.getMessage())


def main(arguments: list[str]) -> int:
    """Serve until killed.

    Args:
        arguments: the application, the folder it is in, the file of notes, the number of the pipe; then perhaps
            ``single``, for one thread for all environments, or ``construct``, to make one on the main thread as well.

    Returns:
        Exit code.
    """
    reference, folder, log, pipe = arguments[:4]
    threading.Thread(target=_end_with, args=(int(pipe),), daemon=True).start()
    notes = Notes(Path(log))
    logging.getLogger("openenv.server").addHandler(_Blocked(notes))
    try:
        app = load_app(AppSource(reference, Path(folder), {}))
    except BaseException as error:  # of the user's module: told to whoever validates it
        notes.add("failed", text=f"{type(error).__name__}: {error}")
        raise
    server = getattr(getattr(app, "state", None), "openenv_server", None)
    if isinstance(server, HTTPEnvServer):
        if "construct" in arguments[4:]:
            _construct(server.sessions.setup.factory, notes)
        _watch(server, notes, single="single" in arguments[4:])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="warning", lifespan="on")
        notes.add("listens", port=listener.getsockname()[1])
        uvicorn.Server(config).run(sockets=[listener])
    return 0


def _end_with(pipe: int) -> None:
    """Kill this process and what the application has started, when the other end of a pipe is closed."""
    os.read(pipe, 1)
    os.killpg(os.getpid(), signal.SIGKILL)


def _watch(server: HTTPEnvServer, notes: Notes, *, single: bool) -> None:
    setup = server.sessions.setup
    server.sessions.setup = dataclasses.replace(
        setup,
        factory=_Recording(setup.factory, notes),
        thread=setup.thread or (EnvThread("shared") if single else None),
    )
    concurrent, capacity = server.is_concurrency_safe, server.max_concurrent_envs
    notes.add("serves", concurrent=concurrent, capacity=capacity, known=server.env_class is not None)


def _construct(factory: Callable[[], Any], notes: Notes) -> None:
    """Make and close an environment here, on the main thread."""
    try:
        env = factory()
        getattr(env, "close", lambda: None)()
    except BaseException as error:  # it may raise anything, here as elsewhere
        notes.add("constructed", error=f"{type(error).__name__}: {error}")
    else:
        notes.add("constructed", error="")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
