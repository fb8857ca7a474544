"""A connection to the server under test, as a rollout client has it, and what was learned of that server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.sync.client import ClientConnection, connect

from openenv.conformance.policy.clauses import REUSE
from openenv.conformance.policy.codec import Form, pack
from openenv.conformance.policy.judge import Fault, Judge
from openenv.conformance.policy.messages import Array, read_message
from openenv.conformance.report import NotGraded

__all__ = ["Peer", "Target", "ended"]

RESYNC = (1001, "plugrl-server-resync")
_CRASH = 1011
_TOO_BIG = 1009


@dataclass
class Target:
    """The server under test, and how it is spoken to.

    Attributes:
        url: its address, ``ws://host:port``.
        wait_s: bound of every single wait, in seconds.
        timeout_s: bound of the whole run, in seconds; `until_stop` comes on top.
        exchanges: plain exchanges at the end of the first phase.
        state_key: name of the state that is sent.
        state_dim: its width.
        image_key: name of an image that is sent; empty for none.
        image_size: its height and width.
        api_key: sent in the header ``Authorization: Api-Key``.
        until_stop: go on until the server stops.
        max_exchanges: give up waiting for the stop after so many.
        feedback_timeout_s: after what time the server is set to end a connection without feedback; None: unchecked.
        listed: features that its metadata lists.
        deadline: when the run is over, on the monotonic clock.
    """

    url: str
    wait_s: float = 10.0
    timeout_s: float = 60.0
    exchanges: int = 5
    state_key: str = "obs"
    state_dim: int = 3
    image_key: str = ""
    image_size: int = 224
    api_key: str = ""
    until_stop: bool = False
    max_exchanges: int = 2000
    feedback_timeout_s: float | None = None
    listed: tuple[str, ...] = ()
    deadline: float = float("inf")

    @property
    def reuses(self) -> bool:
        """Whether the server lists the feature."""
        return REUSE in self.listed

    def left(self) -> float:
        """Seconds that the next wait may take."""
        return max(0.1, min(self.wait_s, self.deadline - time.monotonic()))

    def observation(self, rows: int, text: Any = None, image: str = "", size: int = 0) -> dict[str, Any]:
        """A batch of observations of ``rows`` envs."""
        images: dict[str, Array] = {}
        for name, edge in ((self.image_key, self.image_size), (image, size)):
            if name:
                images[name] = np.zeros((rows, edge, edge, 3), "u1")
        states = {self.state_key: np.zeros((rows, self.state_dim), "<f4")}
        return {"images": images, "states": states, "text": np.array(["probe"] * rows) if text is None else text}


def ended(closed: ConnectionClosed) -> tuple[int, str]:
    """Code and reason of the end of a connection; 1006 for none."""
    return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")


class Peer:
    """One connection. A context manager that ends it.

    Args:
        target: the server.
        judge: is told what is wrong.
        greet: read the metadata.
        deflate: offer compression.

    Raises:
        Fault: it cannot be opened, or no metadata comes.
        NotGraded: the address is none.
    """

    def __init__(self, target: Target, judge: Judge, *, greet: bool = True, deflate: bool = False) -> None:
        self.target = target
        self.judge = judge
        self.metadata: Mapping[str, Any] = {}
        headers = {"Authorization": f"Api-Key {target.api_key}"} if target.api_key else None
        try:
            connection = connect(
                target.url,
                additional_headers=headers,
                compression="deflate" if deflate else None,
                max_size=None,
                open_timeout=target.left(),
                close_timeout=1.0,
                ping_interval=None,
                proxy=None,
            )
            self.ws: ClientConnection = connection.__enter__()  # newer versions connect here
        except InvalidURI as error:
            raise NotGraded(f"{target.url!r} is no address of a server: {error}") from None
        except (OSError, EOFError, TimeoutError, InvalidHandshake) as error:
            text = f"cannot connect to {target.url}: {error or type(error).__name__}"
            raise Fault(judge.main, "no-connection", text) from None
        if greet:
            self.greet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ws.close()

    def greet(self) -> None:
        """Read metadata, which must come first (5.1)."""
        message = self.message("metadata", "5.1a")
        data = message.get("data")
        self.judge.need(isinstance(data, dict), "5.1d", "bad-metadata", f"the data of metadata is {data!r:.80}, no map")
        self.metadata = data or {}
        self.judge.passed("5.1a")

    # ------------------------------------------------------------ frames

    def send(self, message: Mapping[str, Any] | str | bytes, form: Form | None = None) -> None:
        """Write a message, or a raw frame."""
        try:
            self.ws.send(message if isinstance(message, str | bytes) else pack(dict(message), form))
        except ConnectionClosed as closed:
            self._gone(closed, "it was to be written to")

    def _gone(self, closed: ConnectionClosed, when: str) -> NoReturn:
        code, reason = ended(closed)
        text = f"the connection was closed ({code} {reason!r}), where {when}"
        self.judge.need(code != _TOO_BIG, "1.1b", "frame-cap", text)
        raise Fault(self.judge.main, "crashed" if code == _CRASH else "closed", text) from None

    def message(self, due: str, clause: str = "") -> dict[str, Any]:
        """Read a message of the type that is due."""
        limit = self.target.left()
        try:
            frame = self.ws.recv(limit)
        except TimeoutError:
            text = f"{due} did not come within {limit:.3g} s"
            raise Fault(clause or self.judge.main, "no-answer", text) from None
        except ConnectionClosed as closed:
            self._gone(closed, f"{due} was due")
        message = read_message(frame)
        for kept in ("1a", "2a", "3.1a"):
            self.judge.passed(kept)
        kind = message["message_type"]
        first = "5.1a" if "metadata" in (kind, due) else "4a"
        self.judge.need(kind == due, first, "out-of-turn", f"{kind} came, where {due} was due")
        return message

    def refused(self, what: str, clause: str) -> None:
        """See that the connection is closed by a resync.

        Raises:
            Fault: it is not.
        """
        limit = self.target.left()
        try:
            message = read_message(self.ws.recv(limit))
        except TimeoutError:
            raise Fault(clause, "no-resync", f"{what}: nothing came within {limit:.3g} s") from None
        except ConnectionClosed as closed:
            code, reason = ended(closed)
            text = f"{what}: closed with {code} {reason!r}, not with 1001 'plugrl-server-resync'"
            self.judge.need((code, reason) == RESYNC, clause, "crashed" if code == _CRASH else "wrong-close", text)
            self.judge.passed(clause)
            return
        raise Fault(clause, "accepted", f"{what}: answered by {message['message_type']}")

    # ------------------------------------------------------------ the exchange

    def ask(
        self, envs: Sequence[int], obs: Any = None, *, form: Form | None = None, dtype: str = "<i8", **more: Any
    ) -> None:
        """Send an infer; ``more`` are further keys, None leaves a key out."""
        message: dict[str, Any] = {
            "message_type": "infer",
            "data": self.target.observation(len(envs)) if obs is None else obs,
            "env_indices": np.array(envs, dtype),
            "step_ids": np.zeros(len(envs), dtype),
            **more,
        }
        self.send({name: value for name, value in message.items() if value is not None}, form)

    def action(self, envs: Sequence[int]) -> Array:
        """Read an action for these envs; ``[H, n, ...]``."""
        data = self.message("action").get("data")
        self.judge.need(isinstance(data, dict), "5.3a", "bad-action", "the data of an action is no map")
        assert isinstance(data, dict)
        ids, action = data.get("env_ids"), data.get("action")
        fits = isinstance(ids, np.ndarray) and ids.dtype.kind == "i" and ids.tolist() == list(envs)
        seen = ids.tolist() if isinstance(ids, np.ndarray) else ids
        self.judge.expect(fits, "4.3a", "wrong-env-ids", f"env_ids is {seen}; {list(envs)} asked")
        numbers = isinstance(action, np.ndarray) and action.dtype.kind in "fiu"
        seen = action.dtype.str if isinstance(action, np.ndarray) else type(action).__name__
        self.judge.need(numbers, "5.3b", "no-numbers", f"the action is {seen}")
        assert isinstance(action, np.ndarray)
        self._check_shape(action, len(envs))
        return action

    def _check_shape(self, action: Array, count: int) -> None:
        horizon, width = self.metadata.get("action_horizon"), self.metadata.get("action_dim")
        fits = action.ndim >= 2 and action.shape[1] == count
        swapped = fits and type(horizon) is int and len(action) != horizon and action.shape[:2] == (count, horizon)
        text = f"the action is {list(action.shape)} for {count} envs, not [horizon, envs, ...]"
        self.judge.need(fits and not swapped, "5.3a", "wrong-axes", text)
        wide = int(np.prod(action.shape[2:], dtype=np.int64))
        text = f"actions are {len(action)} steps of width {wide}; metadata says {horizon} and {width}"
        true = (type(horizon) is not int or horizon == len(action)) and (type(width) is not int or width == wide)
        self.judge.expect(true, "5.1e", "not-as-declared", text)

    def tell(self, envs: Sequence[int], done: Sequence[int] = (), **more: Any) -> None:
        """Send a feedback; ``more`` replaces members of its data."""
        rows = len(envs)
        data = {
            "obs": self.target.observation(rows),
            "rewards": np.ones(rows, "<f4"),
            "terminated": np.array([env in done for env in envs], bool),
            "truncated": np.zeros(rows, bool),
            "info": {},
            **more,
        }
        message = {"message_type": "feedback", "data": data}
        self.send({**message, "env_indices": np.array(envs, "<i8"), "step_ids": np.zeros(rows, "<i8")})

    def exchange(self, envs: Sequence[int], told: Sequence[int] | None = None, done: Sequence[int] = ()) -> None:
        """An infer, its action, and a feedback of the same or other envs."""
        self.ask(envs)
        self.action(envs)
        self.tell(envs if told is None else told, done)
