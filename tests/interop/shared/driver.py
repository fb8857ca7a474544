"""Runs clients of whichever openenv its interpreter has, told by JSON lines on stdin, answering on stdout.

``{"id": 1, "client": "a", "call": "step", "args": [...], "kwargs": {...}}`` starts a call; calls run side by side, and
``{"id": 1, "value": ...}`` or ``{"id": 1, "error": {...}}`` comes when one has ended. Any method of a client is a call,
and so are:

* ``new``: make a client from the ``kind`` given (``module:Class``)
* ``cancel``: cancel the call of another id
* ``noticed``: wait until the client's socket is known to be closed
* ``twice``: await one and the same step twice

With ``--sync`` clients are the blocking ones and calls run in threads; with ``--main`` they run one after another on
the main thread, where signals arrive.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import sys
import threading
import warnings
from typing import Any

warnings.simplefilter("ignore")
MODE = sys.argv[1].lstrip("-") if len(sys.argv) > 1 else "async"
clients: dict[str, Any] = {}
calls: dict[int, asyncio.Task[None]] = {}
known_resumes: dict[str, int] = {}
_writing = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with _writing:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if value is None or isinstance(value, dict | str | int | float):
        return value
    return type(value).__name__


def described(error: BaseException) -> dict[str, Any]:
    fields = {name: plain(field) for name, field in vars(error).items() if not name.startswith("_")}
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "message": str(error),
        "fields": {name: field for name, field in fields.items() if field is None or not isinstance(field, type)},
    }


def make(kind: str, kwargs: dict[str, Any]) -> Any:
    module, name = kind.split(":")
    client = getattr(importlib.import_module(module), name)(**kwargs)
    return client if MODE == "async" else client.sync()


def action_of(command: dict[str, Any]) -> list[Any]:
    """Arguments; an action of a typed client is made from its class."""
    args = command.get("args", [])
    if "action" in command:
        module, name = command["action"].split(":")
        args = [getattr(importlib.import_module(module), name)(**args[0])]
    return args


def begin(command: dict[str, Any]) -> Any:
    name, call = command["client"], command["call"]
    if call == "new":
        clients[name] = make(command["kind"], command.get("kwargs", {}))
        return None
    return getattr(clients[name], call)(*action_of(command), **command.get("kwargs", {}))


def keep(command: dict[str, Any], value: Any) -> Any:
    if command["call"] == "new_session":
        clients[command["as"]] = value
    return value


async def noticed(name: str) -> bool:
    """A client of ours may take its session up again between two looks at its socket: its count tells."""
    client = getattr(clients[name], "async_client", clients[name])
    for _ in range(4000):
        socket, count = client._ws, resumes(client)
        if socket is None or socket.state.name == "CLOSED" or count > known_resumes.get(name, 0):
            known_resumes[name] = count
            return True
        await asyncio.sleep(0.005)
    return False


def resumes(client: Any) -> int:
    return getattr(getattr(client, "session", None), "resumes", 0)


async def run(command: dict[str, Any]) -> None:
    try:
        if command["call"] == "noticed":
            say({"id": command["id"], "value": await noticed(command["client"])})
            return
        if command["call"] == "twice":
            handle = clients[command["client"]].step(*command["args"])
            say({"id": command["id"], "value": [plain(await handle), plain(await handle)]})
            return
        value = await asyncio.to_thread(begin, command) if MODE == "sync" else begin(command)
        if hasattr(value, "__await__"):
            value = await value
        say({"id": command["id"], "value": plain(keep(command, value))})
    except (Exception, asyncio.CancelledError) as error:
        say({"id": command["id"], "error": described(error)})


async def serve() -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        command = json.loads(line)
        if command["call"] == "cancel":
            say({"id": command["id"], "value": calls[command["args"][0]].cancel()})
        else:
            calls[command["id"]] = asyncio.create_task(run(command))


def serve_on_main() -> None:
    while line := sys.stdin.readline():
        command = json.loads(line)
        try:
            say({"id": command["id"], "value": plain(keep(command, begin(command)))})
        except (Exception, KeyboardInterrupt) as error:
            say({"id": command["id"], "error": described(error)})


if __name__ == "__main__":
    serve_on_main() if MODE == "main" else asyncio.run(serve())
