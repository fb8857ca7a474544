"""A client of the policy link in one file, written from docs/SPEC-policy-link.md alone.

It drives the probe environment, on `websockets`, `msgpack` and `numpy`. Clauses in the comments are those of the
specification. With ``--bug NAME`` it breaks one of them; ``--list-bugs`` names all bugs and their clauses.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, NoReturn

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

STOP = "plugrl-server-stop"
REUSE = "reuse-feedback-obs"
DIAL_S = 10.0
REPLY_S = 60.0

BUGS = {
    "text-frames": "1a",
    "compress": "1.1a",
    "frame-cap": "1.1b",
    "bytes-type": "2a",
    "str-keys": "3.1a",
    "little-endian": "3.1b",
    "bytes-text": "3.4a",
    "infers-twice": "4a",
    "ignore-env-ids": "4.3a",
    "same-sets": "4.3b",
    "feeds-back-unasked": "4.3c",
    "infers-all": "4.3d",
    "duplicate-index": "4.4a",
    "early-infer": "5.1a",
    "needs-horizon": "5.1b",
    "strict-metadata": "5.1c",
    "no-step-ids": "5.2a",
    "stale-obs": "5.2b",
    "env-major": "5.3a",
    "float32": "5.3b",
    "too-many-steps": "5.3c",
    "needs-env-ids": "5.3d",
    "last-step-reward": "5.4a",
    "reset-in-step": "5.4b",
    "int-flags": "5.4c",
    "no-terminated": "5.4d",
    "runs-past-end": "5.4e",
    "stop-is-failure": "7.1a",
    "hangs-on-stop": "7.1a",
    "ignore-stop": "7.1b",
    "dies-of-stop-in-dial": "7.1c",
    "timeout-is-stop": "7.3a",
    "ignore-text": "7.4a",
    "resend-feedback": "7.6a",
    "stale-chunk": "7.6b",
    "replans-some": "7.6c",
    "reset-on-reconnect": "7.6d",
    "forgets-reset": "7.6e",
    "gives-up": "7.6f",
    "reuse-unoffered": "10.1a",
    "remembers-features": "10.1a",
    "substring-features": "10.1a",
    "reuse-after-reset": "10.1b",
    "reuse-after-reconnect": "10.1c",
    "reuse-full-data": "10.1d",
}


class Lost(Exception):
    """The connection has ended, and the run has not: everything that came over it is void (7.6)."""


class Stopped(Exception):
    """The server has ended the run (7.1)."""


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
    """Maps of the four keys as arrays; whatever their order, and that of the bytes."""
    if isinstance(value, list):
        return [grown(inner, bug) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get(b"__npgeneric__"):
        return value[b"data"]
    if not value.get(b"__ndarray__"):
        return {name: grown(inner, bug) for name, inner in value.items()}
    text = value[b"dtype"]
    dtype = np.dtype(text.decode() if isinstance(text, bytes) else text)
    if bug == "little-endian":
        dtype = dtype.newbyteorder("<")
    if bug == "float32" and len(value[b"shape"]) > 1:
        dtype = np.dtype("<f4")
    count = int(np.prod(value[b"shape"], dtype=np.int64))
    return np.frombuffer(value[b"data"], dtype, count).reshape(value[b"shape"])


# ---------------------------------------------------------------- the environment (8.1)


class ProbeEnvs:
    """Envs that count their steps. Each has an episode of its own length, and a reward of 1 a step."""

    def __init__(self, count: int) -> None:
        self.t = np.zeros(count, int)
        self.length = np.array([3 + 2 * (index % 3) for index in range(count)])
        self.action = np.zeros((count, 1))

    def observe(self, rows: list[int]) -> dict[str, Any]:
        """A batch of observations, in buffers of its own."""
        states = {"t": self.t[rows, None].astype("<f8"), "a": self.action[rows].astype("<f8")}
        return {"images": {}, "states": states, "text": np.array([f"env {row}" for row in rows], dtype="U")}

    def step(self, env: int, action: np.ndarray) -> bool:
        """One step; returns whether it ended the episode."""
        if self.action.shape[1] != action.size:
            self.action = np.zeros((len(self.t), action.size))
        self.action[env] = action.ravel()
        self.t[env] += 1
        return bool(self.t[env] >= self.length[env])

    def reset(self, env: int) -> None:
        self.t[env] = 0
        self.action[env] = 0


# ---------------------------------------------------------------- the client


class Client:
    """One connection at a time, and the chunks that came over it.

    Args:
        url: where the server listens.
        count: number of envs.
        bug: the clause to break, by the name of the bug.
        reuse: use the feature, where it is listed.
    """

    def __init__(self, url: str, count: int, bug: str = "", reuse: bool = True) -> None:
        self.url = url
        self.bug = bug
        self.may_reuse = reuse
        self.envs = ProbeEnvs(count)
        self.ws: ClientConnection | None = None
        self.features: set[str] = set()
        self.chunks: dict[int, list[np.ndarray]] = {}  # the steps that are left, by env
        self.sums = np.zeros(count)
        self.step_ids = np.zeros(count, int)
        self.fed_back: dict[int, bytes] = {}  # 10.1: what may be reused, by env, as bytes of our own
        self.resend: dict[str, Any] | None = None
        self.asked: dict[int, tuple[int, np.ndarray]] = {}
        self.connections = 0
        self.left_out: set[int] = set()
        self.held: tuple[list[int], list[int]] = ([], [])  # envs that wait for the others, and those that have ended

    def run(self) -> None:
        """Roll out until the server stops."""
        try:
            while True:
                try:
                    if self.ws is None:
                        self.dial()
                    self.iterate()
                except Lost:
                    self.drop()
        finally:
            if self.ws is not None:
                self.ws.close()  # 7.5: 1000

    # ------------------------------------------------------------ one env step

    def iterate(self) -> None:
        """Infer for the envs without a chunk, execute one step of each chunk, feed back the chunks that ended."""
        count = len(self.envs.t)
        asking = [env for env in range(count) if not self.chunks.get(env) and env not in self.held[0]]
        if self.bug == "infers-all" and asking:
            asking = list(range(count))
        if self.bug == "replans-some" and self.connections > 1 and len(asking) == count and not self.left_out:
            self.left_out, asking = set(asking[1:]), asking[:1]
        if asking:
            self.infer(asking)
        ended, terminal = [], []
        for env, chunk in self.chunks.items():
            if not chunk:
                continue
            over = self.envs.step(env, chunk.pop(0))
            self.sums[env] = 1.0 if self.bug == "last-step-reward" else self.sums[env] + 1.0
            if over and self.bug == "runs-past-end" and chunk:
                over = False
            if over or not chunk:
                ended.append(env)
            if over:
                terminal.append(env)
                if self.bug == "reset-in-step":
                    self.envs.reset(env)
        if self.bug == "same-sets":
            self.held[0].extend(ended)
            self.held[1].extend(terminal)
            if len(self.held[0]) < count:
                for env in ended:
                    self.chunks[env] = []
                return
            ended, terminal = sorted(self.held[0]), sorted(self.held[1])
            self.held = ([], [])
        try:
            if ended:
                self.feed_back(ended, terminal)
        except Lost:
            if self.bug == "forgets-reset":
                terminal = []
            raise
        finally:  # 7.6: an env that ended is reset, whatever became of its feedback
            for env in ended:
                self.chunks[env] = []
                self.sums[env] = 0.0
                self.step_ids[env] = 0 if env in terminal else self.step_ids[env] + 1
            for env in terminal:
                self.envs.reset(env)

    def infer(self, envs: list[int]) -> None:
        """Ask for chunks (5.2, 5.3)."""
        if self.bug == "duplicate-index":
            envs = [*envs, envs[0]]
        rows = envs
        message: dict[str, Any] = {"message_type": "infer"}
        flags = [self.reusable(env) for env in envs]
        if any(flags):
            message["reuse"] = np.array(flags)
            rows = (
                envs if self.bug == "reuse-full-data" else [e for e, flag in zip(envs, flags, strict=True) if not flag]
            )
        message["data"] = self.envs.observe(rows)
        if self.bug == "stale-obs" and rows:
            message["data"]["states"]["t"][0] += 1
        if self.bug == "bytes-text" and rows:
            message["data"]["text"] = [b"text"] * len(rows)
        message["env_indices"] = np.array(envs, "<i8")
        if self.bug != "no-step-ids":
            message["step_ids"] = self.step_ids[envs].astype("<i8")
        self.send(message)
        if self.bug == "infers-twice":
            self.send(message)
        data = self.recv("action")["data"]
        self.take(envs, data["action"], data["env_ids"] if self.bug == "needs-env-ids" else data.get("env_ids"))

    def take(self, envs: list[int], action: np.ndarray, env_ids: np.ndarray | None) -> None:
        """4.3, 5.3: rows belong to env_ids; without them to the envs that were asked for, in order."""
        owners = envs if env_ids is None or self.bug == "ignore-env-ids" else [int(one) for one in env_ids]
        horizon = len(action)
        for row, env in enumerate(owners):
            if self.bug == "env-major":
                steps = [action[row % horizon, step % len(owners)] for step in range(horizon)]
            else:
                steps = [action[step, row] for step in range(horizon)]
            if self.bug == "too-many-steps":
                steps.append(steps[-1])
            self.chunks[env] = [np.array(step, dtype=np.float64) for step in steps]
            self.sums[env] = 0.0

    def feed_back(self, ended: list[int], terminal: list[int]) -> None:
        """Say what became of the chunks that ended on this step (5.4)."""
        if self.bug == "feeds-back-unasked":
            ended = [*ended, len(self.envs.t)]
            rows = [*ended[:-1], 0]
        else:
            rows = ended
        flags = np.array([env in terminal and self.bug != "no-terminated" for env in ended])
        obs = self.envs.observe(rows)
        message = {
            "message_type": "feedback",
            "data": {
                "obs": obs,
                "rewards": self.sums[rows].astype("<f4"),
                "terminated": flags.astype("u1") if self.bug == "int-flags" else flags,
                "truncated": np.zeros(len(ended), bool),
                "info": {},
            },
            "env_indices": np.array(ended, "<i8"),
            "step_ids": self.step_ids[rows].astype("<i8"),
        }
        for row, env in enumerate(rows):  # 10.1: a terminal observation is not reused
            self.fed_back.pop(env, None)
            if env not in terminal or self.bug == "reuse-after-reset":
                self.fed_back[env] = self.row(obs, row)
        try:
            self.send(message)
        except Lost:
            self.resend = message if self.bug == "resend-feedback" else None
            raise

    # ------------------------------------------------------------ reuse (10.1)

    def reusable(self, env: int) -> bool:
        """Whether the server holds this env's row: fed back here, no end of an episode, the same bytes."""
        if env not in self.fed_back or not self.may_reuse:
            return False
        if REUSE not in self.features and self.bug != "reuse-unoffered":
            return False
        blind = self.bug in ("reuse-after-reset", "reuse-after-reconnect")
        return blind or self.fed_back[env] == self.row(self.envs.observe([env]), 0)

    @staticmethod
    def row(obs: dict[str, Any], row: int) -> bytes:
        states = obs["states"]
        return b"".join(states[name][row].tobytes() for name in sorted(states)) + str(obs["text"][row]).encode()

    # ------------------------------------------------------------ the connection

    def dial(self) -> None:
        """Open a connection and read its metadata (5.1)."""
        until = time.monotonic() + DIAL_S
        while True:
            try:
                self.ws = connect(
                    self.url,
                    compression="deflate" if self.bug == "compress" else None,
                    max_size=2**20 if self.bug == "frame-cap" else None,
                    proxy=None,
                )
                break
            except (OSError, InvalidHandshake):
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        self.connections += 1
        if self.bug == "early-infer":
            self.send({"message_type": "infer"})
        try:
            data = self.recv("metadata").get("data") or {}
        except Stopped:
            if self.bug == "dies-of-stop-in-dial":
                raise RuntimeError("no metadata came") from None
            raise
        self.read_metadata(data)
        if self.resend is not None:
            message, self.resend = self.resend, None
            self.send(message)

    def read_metadata(self, data: dict[str, Any]) -> None:
        """No key is required, and one of a wrong type is as good as absent."""
        if self.bug == "needs-horizon":
            self.horizon = data["action_horizon"]
        if self.bug == "strict-metadata" and not isinstance(data.get("action_horizon", 1), int):
            raise ValueError("action_horizon is no integer")
        listed = data.get("features")
        if self.bug != "remembers-features":
            self.features = set()
        if isinstance(listed, list):
            self.features |= {name for name in listed if isinstance(name, str)}
        if self.bug == "substring-features" and listed and REUSE in str(listed):
            self.features.add(REUSE)

    def drop(self) -> None:
        """7.6: whatever the reason, all chunks and sums are void, and nothing may be reused."""
        self.ws = None
        self.left_out = set()
        self.held = ([], [])
        if self.bug != "stale-chunk":
            self.chunks = {}
            self.sums[:] = 0.0
        if self.bug != "reuse-after-reconnect":
            self.fed_back = {}
        if self.bug == "reset-on-reconnect":
            for env in range(len(self.envs.t)):
                self.envs.reset(env)

    def send(self, message: dict[str, Any]) -> None:
        """One message, one binary frame."""
        assert self.ws is not None
        if self.bug == "bytes-type":
            message = {**message, "message_type": message["message_type"].encode()}
        frame = msgpack.packb(plain(message, str if self.bug == "str-keys" else bytes))
        try:
            self.ws.send("an infer" if self.bug == "text-frames" else frame)
        except ConnectionClosed as closed:
            self.ended(closed)

    def recv(self, due: str) -> dict[str, Any]:
        """The next message, which must be of the type that is due."""
        assert self.ws is not None
        try:
            frame = self.ws.recv(REPLY_S)
        except ConnectionClosed as closed:
            self.ended(closed)
        if isinstance(frame, str):
            if self.bug == "ignore-text":
                raise Lost
            raise SystemExit(f"the server failed: {frame}")  # 7.4: close, say nothing more, stop
        message = grown(msgpack.unpackb(frame, raw=False, strict_map_key=False), self.bug)
        if message.get("message_type") != due:
            raise SystemExit(f"{message.get('message_type')} came, where {due} was due")
        return dict(message)

    def ended(self, closed: ConnectionClosed) -> NoReturn:
        """7: the reason decides; a stop is one wherever it comes."""
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
        stop = reason == STOP or (self.bug == "timeout-is-stop" and code == 1001)
        if stop and self.bug != "ignore-stop":
            if self.bug == "hangs-on-stop":
                time.sleep(REPLY_S)
            raise Stopped from None
        if self.bug == "gives-up":
            raise SystemExit(f"the connection was closed: {code} {reason}")
        raise Lost from None


def main() -> int:
    parser = argparse.ArgumentParser(description="A client of the policy link with the probe environment.")
    parser.add_argument("url", nargs="?", default=os.environ.get("OPENENV_URL", "ws://127.0.0.1:8000"))
    parser.add_argument("--num-envs", type=int, default=3)
    parser.add_argument("--no-reuse", action="store_true", help="send every observation twice, whatever is listed")
    parser.add_argument("--bug", choices=BUGS, default="", metavar="NAME", help="break a clause")
    parser.add_argument("--list-bugs", action="store_true", help="name all bugs and their clauses")
    options = parser.parse_args()
    if options.list_bugs:
        sys.stdout.writelines(f"{name} {clause}\n" for name, clause in BUGS.items())
        return 0
    try:
        Client(options.url, options.num_envs, options.bug, not options.no_reuse).run()
    except Stopped:
        return int(options.bug == "stop-is-failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
