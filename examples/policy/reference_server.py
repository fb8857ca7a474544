"""A server of the policy link in one file, written from docs/SPEC-policy-link.md alone.

Its policy answers with numbers that tell step, env and column; it learns nothing. It stands on `websockets`,
`msgpack` and `numpy`. Clauses in the comments are those of the specification. With ``--bug NAME`` it breaks one of
them; ``--list-bugs`` names all bugs and their clauses.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

logger = logging.getLogger("reference_server")
STOP = (1001, "plugrl-server-stop")
RESYNC = (1001, "plugrl-server-resync")
FEEDBACK_TIMEOUT = (1001, "Feedback timeout")
REUSE = "reuse-feedback-obs"
PARTS = ("images", "states", "text")

BUGS = {
    "text-frames": "1a",
    "blocks-loop": "1b",
    "compresses": "1.1a",
    "frame-cap": "1.1b",
    "bytes-type": "2a",
    "str-keys": "3.1a",
    "little-endian": "3.1b",
    "array-text-only": "3.4a",
    "answers-feedback": "4a",
    "no-env-ids": "4.3a",
    "sorted-env-ids": "4.3a",
    "same-sets": "4.3b",
    "global-envs": "4.4a",
    "no-metadata": "5.1a",
    "metadata-twice": "5.1a",
    "bad-metadata": "5.1d",
    "wrong-horizon": "5.1e",
    "fixed-batch": "5.2c",
    "env-major": "5.3a",
    "bool-actions": "5.3b",
    "plain-stop": "7.1a",
    "stop-forgets-others": "7.1b",
    "lenient": "7.2a",
    "takes-second-infer": "7.2b",
    "crash-on-info": "7.2c",
    "crash-on-text": "7.2d",
    "trusts-lengths": "7.2d",
    "error-ends-all": "7.2e",
    "crash-on-duplicates": "7.2f",
    "no-feedback-timeout": "7.3a",
    "takes-feedback-first": "7.6a",
    "crash-on-unasked": "7.6g",
    "refuses-reuse": "10.1a",
    "lenient-reuse": "10.1b",
    "reuse-from-nowhere": "10.1c",
    "any-reuse-shape": "10.1d",
    "requires-reuse": "10.1e",
}


class BadMessage(Exception):
    """A protocol error: it costs its sender the connection (7.2)."""


# ---------------------------------------------------------------- values (3.1)


def plain(value: Any, key: Any = bytes) -> Any:
    """Arrays as maps of four keys, in C order."""
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).reshape(value.shape)
        form = {b"__ndarray__": True, b"data": data.tobytes(), b"dtype": data.dtype.str, b"shape": list(data.shape)}
        return form if key is bytes else {name.decode(): inner for name, inner in form.items()}
    if isinstance(value, dict):
        return {name: plain(inner, key) for name, inner in value.items()}
    return value


def grown(value: Any, bug: str) -> Any:
    """Maps of the four keys as arrays; what does not fit is refused before anything is allocated."""
    if isinstance(value, list):
        return [grown(inner, bug) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get(b"__npgeneric__"):
        return value[b"data"]
    if not value.get(b"__ndarray__"):
        return {name: grown(inner, bug) for name, inner in value.items()}
    text, shape, data = value[b"dtype"], value[b"shape"], value[b"data"]
    dtype = np.dtype(text.decode() if isinstance(text, bytes) else text)
    if dtype.kind not in "buifU":
        raise BadMessage(f"an array of {dtype}")
    if bug == "little-endian":
        dtype = dtype.newbyteorder("<")
    count = 1
    for size in shape:
        if not isinstance(size, int) or size < 0:
            raise BadMessage(f"a shape of {shape}")
        count *= size
    if count * dtype.itemsize != len(data):
        if bug == "trusts-lengths":
            raise MemoryError(f"{count} items of {dtype.str}")
        raise BadMessage(f"{len(data)} bytes for {dtype.str} {shape}")
    return np.frombuffer(data, dtype).reshape(shape) if count else np.zeros(shape, dtype)


# ---------------------------------------------------------------- reuse (10.1)


def rows_of(obs: Any, count: int) -> list[dict[str, Any]]:
    """A batch cut into rows, which own their memory."""
    if not isinstance(obs, dict) or set(obs) != {*PARTS}:
        raise BadMessage("an observation has images, states and text")
    rows: list[dict[str, Any]] = [{"images": {}, "states": {}} for _ in range(count)]
    for part in ("images", "states"):
        for name, array in obs[part].items():
            if not isinstance(array, np.ndarray) or array.ndim < 2 or len(array) != count:
                raise BadMessage(f"{part}.{name} does not have {count} rows")
            for at, row in enumerate(rows):
                row[part][name] = array[at].copy()
    if len(obs["text"]) != count:
        raise BadMessage(f"text does not have {count} entries")
    for at, row in enumerate(rows):
        row["text"] = str(obs["text"][at])
    return rows


@dataclass
class Connection:
    """What is known of one connection, and of no other (4.4, 7.6)."""

    ws: ServerConnection
    holds: set[int] = field(default_factory=set)
    last: dict[int, dict[str, Any] | None] = field(default_factory=dict)  # None: its episode ended
    asked: list[int] = field(default_factory=list)
    size: int = 0


# ---------------------------------------------------------------- the server


class Server:
    """Answers every connection by itself.

    Args:
        options: those of the command line.
    """

    shared: dict[int, Any]

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.bug: str = options.bug
        self.connections: list[Connection] = []
        self.exchanges = 0
        self.over = asyncio.Event()
        self.shared = {}

    async def run(self) -> None:
        """Serve until the run is over, or a signal comes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.over.set)
        compression = "deflate" if self.bug == "compresses" else None
        max_size = 2**20 if self.bug == "frame-cap" else None
        async with serve(
            self.connected, self.options.host, self.options.port, compression=compression, max_size=max_size
        ) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            sys.stdout.write(f"ws://{self.options.host}:{port}\n")
            sys.stdout.flush()
            await self.over.wait()
            code, reason = (1001, "") if self.bug == "plain-stop" else STOP
            told = self.connections[:1] if self.bug == "stop-forgets-others" else list(self.connections)
            await asyncio.gather(*(one.ws.close(code, reason) for one in told))
            if self.bug == "stop-forgets-others":
                await asyncio.sleep(60)

    async def connected(self, ws: ServerConnection) -> None:
        """One connection: metadata, then infer, action, feedback for as long as it lives."""
        one = Connection(ws)
        if self.bug == "global-envs":
            one.last = self.shared
        self.connections.append(one)
        try:
            await self.greet(one)
            while True:
                await self.answer(one)
                await self.learn(one)
        except BadMessage as error:
            logger.warning("resync: %s", error)
            if self.bug == "error-ends-all":
                await asyncio.gather(*(other.ws.close(*RESYNC) for other in self.connections))
            await ws.close(*RESYNC)
        except ConnectionClosed:
            pass
        finally:
            self.connections.remove(one)

    async def greet(self, one: Connection) -> None:
        """5.1"""
        data: dict[str, Any] = {
            "protocol_version": 1,
            "server": "reference-server",
            "server_version": "1",
            "algorithm": "Nothing",
            "policy": "Numbers",
            "action_horizon": self.options.horizon + (self.bug == "wrong-horizon"),
            "action_dim": self.options.width,
        }
        if not self.options.no_reuse:
            data["features"] = [REUSE]
        if self.bug == "bad-metadata":
            data["action_dim"] = str(self.options.width)
        for _ in range({"no-metadata": 0, "metadata-twice": 2}.get(self.bug, 1)):
            await self.send(one, {"message_type": "metadata", "data": data})

    # ------------------------------------------------------------ infer

    async def answer(self, one: Connection) -> None:
        """5.2, 5.3: an infer and its action."""
        message = await self.receive(one, "infer")
        if self.bug == "lenient" and "env_indices" not in message:
            message = {**message, "env_indices": np.arange(1), "step_ids": np.arange(1)}
        envs = self.indices(message)
        if self.bug == "crash-on-duplicates" and len(set(envs)) != len(envs):
            raise RuntimeError("an env is named twice")
        if self.bug == "fixed-batch" and one.size not in (0, len(envs)):
            raise BadMessage(f"{len(envs)} envs, not {one.size}")
        one.size = len(envs)
        self.check_text(message["data"])
        self.complete(one, envs, message["data"], message.get("reuse"))
        if self.bug == "blocks-loop":
            time.sleep(self.options.infer_seconds)
        else:
            await asyncio.sleep(self.options.infer_seconds)
        ids = sorted(envs) if self.bug == "sorted-env-ids" else envs
        data = {"env_ids": np.array(ids, "<i8"), "action": self.act(ids)}
        if self.bug == "no-env-ids":
            del data["env_ids"]
        await self.send(one, {"message_type": "action", "data": data})
        one.holds.update(envs)
        one.asked = envs

    def act(self, envs: Sequence[int]) -> np.ndarray:
        """The policy: 10000 * step + 10 * env + column, time-major."""
        step = np.arange(self.options.horizon)[:, None, None] * 10_000
        env = np.asarray(envs, int)[None, :, None] * 10
        action = (step + env + np.arange(self.options.width)).astype(self.options.dtype)
        if self.bug == "bool-actions":
            return action > 0
        return action.transpose(1, 0, 2) if self.bug == "env-major" else action

    def complete(self, one: Connection, envs: list[int], obs: Any, reuse: Any) -> list[dict[str, Any]]:
        """10.1: the rows that were sent, and for the others those that were fed back last."""
        if reuse is None:
            if self.bug == "requires-reuse":
                raise BadMessage("no reuse")
            return rows_of(obs, len(envs))
        if self.bug == "refuses-reuse":
            raise BadMessage("reuse is not understood")
        fits = isinstance(reuse, np.ndarray) and reuse.dtype.kind == "b" and reuse.shape == (len(envs),)
        if not fits and self.bug == "any-reuse-shape":
            return []
        if not fits:
            raise BadMessage("reuse must be a bool array with an entry for each env")
        sent = iter(rows_of(obs, int((~reuse).sum())))
        rows = []
        for env, held in zip(envs, reuse, strict=True):
            if held and env not in one.last and self.bug != "reuse-from-nowhere":
                raise BadMessage(f"env {env} has fed back no observation here")
            row = one.last.get(env) if held else next(sent)
            if row is None and self.bug not in ("lenient-reuse", "reuse-from-nowhere"):
                raise BadMessage(f"the last observation of env {env} ended its episode")
            rows.append(row or {})
        return rows

    # ------------------------------------------------------------ feedback

    async def learn(self, one: Connection) -> None:
        """5.4: a feedback; its counts are checked before anything is taken from it."""
        try:
            async with asyncio.timeout(None if self.bug == "no-feedback-timeout" else self.options.feedback_timeout):
                message = await self.receive(one, "feedback")
        except TimeoutError:
            await one.ws.close(*FEEDBACK_TIMEOUT)
            return
        if self.bug == "takes-second-infer" and message["message_type"] == "infer":
            return
        envs, data = self.indices(message), message["data"]
        if self.bug == "same-sets" and envs != one.asked:
            raise BadMessage(f"feedback of {envs}, and {one.asked} was asked for")
        self.check_info(data["info"], len(envs))
        for name in ("rewards", "terminated", "truncated"):
            if len(data[name]) != len(envs):
                raise BadMessage(f"{len(data[name])} {name} for {len(envs)} envs")
        rows = rows_of(data["obs"], len(envs))
        for at, env in enumerate(envs):
            ended = bool(data["terminated"][at] or data["truncated"][at])
            if env not in one.holds:
                if self.bug == "crash-on-unasked":
                    raise RuntimeError(f"env {env} holds no action")
                logger.warning("env %d holds no action here: its feedback is dropped (a reconnect?)", env)
            one.holds.discard(env)
            one.last[env] = None if ended else rows[at]
        self.exchanges += 1
        if self.bug == "answers-feedback":
            await self.send(one, {"message_type": "feedback", "data": {}})
        if 0 < self.options.exchanges <= self.exchanges:
            self.over.set()

    def check_info(self, info: Any, count: int) -> None:
        """5.4: the first array tells into how many parts info is cut; without one, it is one."""
        if not isinstance(info, dict):
            raise BadMessage("info is no map")
        if not info:
            return
        inner = [value for outer in info.values() if isinstance(outer, dict) for value in outer.values()]
        sizes = [len(value) for value in [*info.values(), *inner] if isinstance(value, np.ndarray) and value.ndim]
        if (sizes[0] if sizes else 1) != count:
            if self.bug == "crash-on-info":
                raise RuntimeError("info cannot be split")
            raise BadMessage(f"info is of {sizes[0] if sizes else 1} envs, not of {count}")

    # ------------------------------------------------------------ messages

    def check_text(self, obs: Any) -> None:
        if self.bug == "array-text-only" and not isinstance(obs["text"], np.ndarray):
            raise BadMessage("text is no array")

    @staticmethod
    def indices(message: dict[str, Any]) -> list[int]:
        """4.4: integers, and step_ids to go with them."""
        envs, steps = message["env_indices"], message["step_ids"]
        fits = all(isinstance(one, np.ndarray) and one.ndim == 1 and one.dtype.kind == "i" for one in (envs, steps))
        if not fits or len(envs) != len(steps):
            raise BadMessage("env_indices and step_ids must be integers [n]")
        return [int(one) for one in envs]

    async def receive(self, one: Connection, due: str) -> dict[str, Any]:
        """The next message, which must be of the type that is due (4)."""
        frame = await one.ws.recv()
        if isinstance(frame, str):
            if self.bug == "crash-on-text":
                raise RuntimeError("a text frame")
            raise BadMessage("a text frame")
        try:
            message = grown(msgpack.unpackb(frame, raw=False, strict_map_key=False), self.bug)
            kind = message["message_type"]
            lenient = due == "feedback" and kind == "infer" and self.bug == "takes-second-infer"
            if due == "infer" and kind == "feedback" and self.bug == "takes-feedback-first":
                return await self.receive(one, due)
            if kind != due and not lenient:
                raise BadMessage(f"{kind} came, where {due} was due")
            keys = ("data", "env_indices", "step_ids")
            if due == "infer" and self.bug == "lenient":
                keys = ("data",)
            if missing := [key for key in keys if key not in message]:
                raise BadMessage(f"{due} without {', '.join(missing)}")
            if due == "feedback" and not lenient:
                for key in ("obs", "rewards", "terminated", "truncated", "info"):
                    message["data"][key]
        except (BadMessage, MemoryError):
            raise
        except Exception as error:  # whatever a hostile frame provokes: it costs its sender the connection
            raise BadMessage(f"{type(error).__name__}: {error}") from None
        return dict(message)

    async def send(self, one: Connection, message: dict[str, Any]) -> None:
        """One message, one binary frame."""
        if self.bug == "bytes-type":
            message = {**message, "message_type": message["message_type"].encode()}
        frame = msgpack.packb(plain(message, str if self.bug == "str-keys" else bytes))
        await one.ws.send("an action" if self.bug == "text-frames" and message["message_type"] == "action" else frame)


def main() -> int:
    parser = argparse.ArgumentParser(description="A server of the policy link whose policy counts.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--horizon", type=int, default=4, help="steps of an action")
    parser.add_argument("--width", type=int, default=7, help="width of an action")
    parser.add_argument("--dtype", default="float32", help="of actions")
    parser.add_argument("--exchanges", type=int, default=0, help="stop after so many; 0 for never")
    parser.add_argument("--feedback-timeout", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--infer-seconds", type=float, default=0.0, help="how long the policy pretends to think")
    parser.add_argument("--no-reuse", action="store_true", help=f"do not list {REUSE}")
    parser.add_argument("--bug", choices=BUGS, default="", metavar="NAME", help="break a clause")
    parser.add_argument("--list-bugs", action="store_true", help="name all bugs and their clauses")
    options = parser.parse_args()
    if options.list_bugs:
        sys.stdout.writelines(f"{name} {clause}\n" for name, clause in BUGS.items())
        return 0
    logging.basicConfig(format="%(levelname)s %(message)s")
    asyncio.run(Server(options).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
