"""A server of the env link's plain dialect, written from docs/SPEC-env-link.md alone, on the `websockets` library.

It serves the probe environment of the conformance checkers: action ``{"op": str, "arg": any}``, observation
``{"env": int, "count": int, "echo": any}``. Clause numbers in the comments are those of the specification. With
``--bug NAME`` it breaks one of them; ``--list-bugs`` names all bugs and their clauses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import sys
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 200

BUGS = {
    "greets": "P1",
    "answers-out-of-order": "P2",
    "no-done": "P3",
    "state-takes-data": "P4",
    "one-env-for-all": "P5",
    "wants-reset-first": "P6",
    "open-envelopes": "P7",
    "step-without-data": "P8",
    "reset-takes-null": "P9",
    "bad-json-ends": "P10",
    "unknown-type-silent": "P11",
    "no-error-list": "P12",
    "exception-ends": "P13",
    "answers-close": "P15",
    "leaks-slots": "P16",
    "full-without-numbers": "P17",
    "any-session-id": "P18",
    "mcp-unknown-type": "P19",
    "oversized-closes-1000": "P20",
    "non-object-ends": "P21",
    "nan-to-null": "P22",
    "runs-waiting-frames": "P23",
}


class CallError(Exception):
    """A frame costs one error frame. ``applied`` says whether its call was: true, false, or None for unknown."""

    def __init__(self, code: str, message: str, applied: bool | None = False, **more: Any) -> None:
        super().__init__(message)
        self.code = code
        self.applied = applied
        self.data = {"message": message, "code": code, **more}


def invalid(kind: str, loc: list[str], message: str, value: Any = None) -> CallError:
    """P12: a request of the wrong shape."""
    return CallError(
        "VALIDATION_ERROR", "Invalid message", errors=[{"type": kind, "loc": loc, "msg": message, "input": value}]
    )


# ---------------------------------------------------------------- the environment


class ProbeEnv:
    """Does as it is told, and counts its steps."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(self.numbers)
        self.count = 0
        self.was_reset = False

    def seen(self, echo: Any = None, reward: float | None = None, done: bool = False) -> dict[str, Any]:
        return {
            "observation": {"env": self.number, "count": self.count, "echo": echo},
            "reward": reward,
            "done": done,
        }

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        self.count = 0
        self.was_reset = True
        return self.seen(dict(data) or None)

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        op, arg = self.check(action)
        if op == "sleep":
            await asyncio.sleep(float(arg))
        if op == "raise":
            raise RuntimeError(str(arg))
        self.count += 1
        if op == "nan":
            return self.seen([float("nan"), -float("nan")], float("nan"))
        echo = arg if op == "echo" else "x" * int(arg) if op == "big" else None
        return self.seen(echo, 1.0, op == "done")

    def state(self) -> dict[str, Any]:
        return {"episode_id": None, "step_count": self.count, "env": self.number}

    @staticmethod
    def check(action: Mapping[str, Any]) -> tuple[str, Any]:
        """P8: the action's own rules."""
        if "op" not in action:
            raise invalid("missing", ["op"], "Field required", dict(action))
        for name, value in action.items():
            if name not in ("op", "arg", "metadata"):
                raise invalid("extra_forbidden", [name], "Extra inputs are not permitted", value)
        op, arg = action["op"], action.get("arg")
        if not isinstance(op, str):
            raise invalid("string_type", ["op"], "Input should be a valid string", op)
        if op in ("sleep", "big") and (isinstance(arg, bool) or not isinstance(arg, int | float) or not arg >= 0):
            raise invalid("float_type", ["arg"], f"{op} takes a number", arg)
        return op, arg


# ---------------------------------------------------------------- frames


def encode(frame: Any) -> str:
    """Compact JSON. Python's json writes NaN and Infinity as bare tokens, which P22 asks for."""
    return json.dumps(frame, separators=(",", ":"), ensure_ascii=False)


def decode(frame: str | bytes) -> dict[str, Any]:
    """P10, P21: a frame is a JSON object in text."""
    if isinstance(frame, bytes):
        raise CallError("INVALID_JSON", "Invalid JSON: frames must be text, not binary")
    try:
        message = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise CallError("INVALID_JSON", f"Invalid JSON: {error}") from error
    if not isinstance(message, dict):
        raise CallError("INVALID_JSON", "Invalid JSON: a frame must be an object")
    if too_deep(message):
        raise CallError("INVALID_JSON", f"Invalid JSON: nested deeper than {MAX_DEPTH}")
    return message


def too_deep(message: Any) -> bool:
    level = [message]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, dict | list)
        ]
        if not level:
            return False
    return True


def nan_to_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: nan_to_null(one) for name, one in value.items()}
    if isinstance(value, list):
        return [nan_to_null(one) for one in value]
    return None if isinstance(value, float) and value - value != 0 else value


def check_envelope(message: Mapping[str, Any], bug: str) -> str:
    """P4, P7, P8, P9, P11, P15: the type of a request, if its members are right."""
    kind = message.get("type", "")
    if not isinstance(kind, str) or kind not in ("reset", "step", "state", "close", "mcp"):
        raise CallError("UNKNOWN_TYPE", f"Unknown message type: {kind}"[:200])
    takes_data = kind in ("reset", "step", "mcp") or (bug == "state-takes-data" and kind == "state")
    for name, value in message.items():
        if name != "type" and not (name == "data" and takes_data) and bug != "open-envelopes":
            raise invalid("extra_forbidden", [name], "Extra inputs are not permitted", value)
    if "data" not in message:
        if kind == "mcp" or (kind == "step" and bug != "step-without-data"):
            raise invalid("missing", ["data"], "Field required", dict(message))
        return kind
    taken = isinstance(message["data"], dict) or (bug == "reset-takes-null" and message["data"] is None)
    if takes_data and not taken:
        raise invalid("dict_type", ["data"], "Input should be a valid dictionary", message["data"])
    return kind


async def answer(env: ProbeEnv, message: Mapping[str, Any], bug: str = "") -> tuple[str, dict[str, Any]] | None:
    """Run a request. Returns type and data of its reply; None for close."""
    kind = check_envelope(message, bug)
    data = message.get("data") or {}
    match kind:
        case "close":
            return None
        case "mcp":
            return "mcp", mcp(data)
        case "state":
            return "state", env.state()
    if kind == "step" and not data and bug == "step-without-data":
        data = {"op": "inc"}
    try:
        return "observation", await (env.reset(data) if kind == "reset" else env.step(data))
    except RuntimeError as error:  # what the probe environment raises when it is told to
        raise CallError("EXECUTION_ERROR", str(error), None, error_type=type(error).__name__) from error


def mcp(data: Mapping[str, Any]) -> dict[str, Any]:
    """P19: JSON-RPC for an environment without tools."""
    fits = data.get("jsonrpc") == "2.0" and isinstance(data.get("method"), str)
    extra = set(data) - {"jsonrpc", "method", "id", "params"}
    if not fits or extra or not isinstance(data.get("params", {}), dict):
        return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Invalid request", "data": None}}
    if data["method"] in ("tools/list", "tools/call"):
        error = {"code": -32603, "message": "Environment does not support MCP", "data": None}
    else:
        error = {"code": -32601, "message": f"Method not found: {data['method']}", "data": None}
    return {"jsonrpc": "2.0", "id": data.get("id"), "error": error}


# ---------------------------------------------------------------- the server


class PlainServer:
    """Serves the plain dialect.

    Args:
        capacity: most sessions at once.
        bug: a clause to break; see `BUGS`.
    """

    def __init__(self, capacity: int, bug: str = "") -> None:
        self.capacity = capacity
        self.bug = bug
        self.active = 0
        self.shared = ProbeEnv() if bug == "one-env-for-all" else None

    async def handle(self, ws: ServerConnection) -> None:
        """P1: the upgrade was accepted, and nothing is said."""
        try:
            await self.plain(ws)
        except ConnectionClosed:
            pass

    def request(self, ws: ServerConnection, request: Request) -> Response | None:
        """Only /ws is a WebSocket; /health says that the server is up."""
        path = urlsplit(request.path).path
        if path == "/health":
            return ws.respond(HTTPStatus.OK, '{"status":"healthy"}')
        return None if path == "/ws" else ws.respond(HTTPStatus.FORBIDDEN, "")

    async def plain(self, ws: ServerConnection) -> None:
        """One socket, one session, one environment (P5)."""
        assert ws.request is not None
        wanted = parse_qs(urlsplit(ws.request.path).query).get("session_id", [""])[0]
        if wanted and self.bug != "any-session-id":  # P18: this server makes no sessions that could be attached to
            return await self.refuse(ws, CallError("SESSION_ERROR", f"Unknown session_id: {wanted[:200]}"))
        if not await self.take_slot():  # P17
            return await self.refuse(ws, self.full())
        try:
            if self.bug == "greets":
                await ws.send(encode({"type": "hello", "data": {}}))
            await self.session(ws, self.shared or ProbeEnv())
        finally:
            if self.bug != "leaks-slots":
                self.free_slot()  # P16

    async def take_slot(self) -> bool:
        if self.active >= self.capacity:
            return False
        self.active += 1
        return True

    def free_slot(self) -> None:
        self.active -= 1

    def full(self, **more: Any) -> CallError:
        text = f"Server at capacity: {self.active}/{self.capacity} sessions active. Cannot accept new connections."
        numbers: dict[str, Any] = {"active_sessions": self.active, "max_sessions": self.capacity}
        if self.bug == "full-without-numbers":
            numbers = {}
        return CallError("CAPACITY_REACHED", text, **numbers, **more)

    async def refuse(self, ws: ServerConnection, error: CallError) -> None:
        await ws.send(encode({"type": "error", "data": error.data}))
        await ws.close(1000)

    async def session(self, ws: ServerConnection, env: ProbeEnv) -> None:
        """Read all the time, so that a peer that is gone is noticed at once; answer one after another (P2, P23)."""
        frames: deque[str | bytes] = deque()
        news = asyncio.Event()
        gone = asyncio.Event()

        async def read() -> None:
            try:
                while True:
                    frames.append(await ws.recv())
                    news.set()
            except ConnectionClosed:
                gone.set()
                news.set()

        reader = asyncio.create_task(read())
        try:
            while True:
                if gone.is_set() and (not frames or self.bug != "runs-waiting-frames"):
                    return
                if not frames:
                    news.clear()
                    await news.wait()
                    continue
                if self.bug == "answers-out-of-order":
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.3):
                            while len(frames) < 2 and not gone.is_set():
                                news.clear()
                                await news.wait()
                    frames.reverse()
                if await self.one(ws, env, frames.popleft()):
                    return
        finally:
            reader.cancel()

    async def one(self, ws: ServerConnection, env: ProbeEnv, frame: str | bytes) -> bool:
        """Answer one frame. Returns whether the session is over."""
        if len(frame) > MAX_MESSAGE_BYTES:  # only with the bug: else `websockets` closes with 1009 (P20)
            await ws.close(1000)
            return True
        try:
            message = decode(frame)
            if self.bug == "mcp-unknown-type" and message.get("type") == "mcp":
                raise CallError("UNKNOWN_TYPE", "Unknown message type: mcp")
            if self.bug == "wants-reset-first" and message.get("type") in ("step", "state") and not env.was_reset:
                raise CallError("EXECUTION_ERROR", "reset first")
            reply = await answer(env, message, self.bug)
        except CallError as error:
            return await self.failed(ws, frame, error)
        if reply is None:
            if self.bug == "answers-close":
                await ws.send(encode({"type": "closed", "data": {}}))
            await ws.close(1000)  # P15
            return True
        kind, data = reply
        if self.bug == "no-done":
            data.pop("done", None)
        await self.send(ws, {"type": kind, "data": nan_to_null(data) if self.bug == "nan-to-null" else data})
        return False

    async def failed(self, ws: ServerConnection, frame: str | bytes, error: CallError) -> bool:
        """P10 to P13, P21: an error costs one error frame, and the session goes on."""
        if self.bug == "unknown-type-silent" and error.code == "UNKNOWN_TYPE":
            return False
        if self.bug == "no-error-list":
            error.data.pop("errors", None)
        await self.send(ws, {"type": "error", "data": error.data})
        is_object = error.code != "INVALID_JSON" or "must be" not in error.data["message"]
        ends = {
            "bad-json-ends": error.code == "INVALID_JSON" and is_object,
            "exception-ends": error.code == "EXECUTION_ERROR",
            "non-object-ends": not is_object,
        }
        if ends.get(self.bug):
            await ws.close(1000)
            return True
        return False

    async def send(self, ws: ServerConnection, frame: dict[str, Any]) -> None:
        try:
            await ws.send(encode(frame))
        except ConnectionClosed:
            pass  # the session sees the end of the socket itself

    async def stop(self, server: Any) -> None:
        """A server that stops closes its sockets with 1012."""
        server.close(code=1012, reason="")


# ---------------------------------------------------------------- the command


def arguments(text: str, bugs: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--bug", default="", choices=["", *bugs], metavar="NAME", help="break a clause on purpose")
    parser.add_argument("--list-bugs", action="store_true", help="print each bug and its clause")
    return parser


def list_bugs(bugs: Mapping[str, str]) -> None:
    sys.stdout.write("".join(f"{name} {clause}\n" for name, clause in bugs.items()))


def server_arguments(text: str, bugs: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = arguments(text, bugs)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--capacity", type=int, default=4, help="most sessions at once")
    return parser


async def run(server: PlainServer, host: str, port: int, **more: Any) -> None:
    """Serve until SIGTERM or Ctrl-C; the first line of output is the address."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    limit = None if server.bug == "oversized-closes-1000" else MAX_MESSAGE_BYTES
    async with serve(
        server.handle, host, port, process_request=server.request, max_size=limit, close_timeout=2, **more
    ) as listening:
        shown = listening.sockets[0].getsockname()
        sys.stdout.write(f"http://{shown[0]}:{shown[1]}\n")
        sys.stdout.flush()
        await stop.wait()
        await server.stop(listening)


def main() -> None:
    options = server_arguments("A server of the plain dialect.", BUGS).parse_args()
    if options.list_bugs:
        return list_bugs(BUGS)
    return asyncio.run(run(PlainServer(options.capacity, options.bug), options.host, options.port))


if __name__ == "__main__":
    main()
