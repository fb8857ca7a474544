"""The four messages of the policy link: typed values, made from what a user gives or what a frame holds.

``parse`` checks everything that a single message can show, and names the path of what does not fit; whether a message
fits the ones before it is for `openenv.policy.protocol`. Numbers in brackets are sections of the protocol's text.

Not in this room: sockets, the order of messages, what a server keeps of an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from openenv.core.exceptions import PolicyProtocolError, PolicyUsageError, ReuseError
from openenv.core.wire.arrays import Buffer, MalformedValue, decode, encode_parts
from openenv.core.wire.json_codec import UnencodableValue
from openenv.policy import checks
from openenv.policy.checks import Array, refuse
from openenv.policy.info import count_rows
from openenv.policy.observation import Observation

__all__ = [
    "FEEDBACK_TIMEOUT",
    "INTERNAL_ERROR",
    "PROTOCOL_VERSION",
    "REUSE_FEEDBACK_OBS",
    "SERVER_RESYNC",
    "SERVER_STOP",
    "Action",
    "Feedback",
    "Infer",
    "Message",
    "MessageType",
    "Metadata",
    "Observation",
    "as_indices",
    "encode_message",
    "parse",
    "parse_map",
    "read_map",
]

PROTOCOL_VERSION = 1
REUSE_FEEDBACK_OBS = "reuse-feedback-obs"
"""Feature: an observation that was fed back is not sent again with the next infer [10.1]."""

SERVER_STOP = "plugrl-server-stop"
"""Close reason (1001): the server's run is finished [7.1]."""
SERVER_RESYNC = "plugrl-server-resync"
"""Close reason (1001): the server saw a protocol error [7.2]."""
FEEDBACK_TIMEOUT = "Feedback timeout"
"""Close reason (1001): no feedback came in time [7.3]."""
INTERNAL_ERROR = "Internal server error."
"""Close reason (1011): a bug in the server."""


class MessageType(StrEnum):
    """Values of ``message_type``."""

    METADATA = "metadata"
    INFER = "infer"
    ACTION = "action"
    FEEDBACK = "feedback"


# ------------------------------------------------------------------ metadata


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a server says of itself, first and once on each connection [5.1]. Any key may be missing.

    Attributes:
        data: the map as it was sent; unknown keys are kept.
    """

    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def protocol_version(self) -> int | None:
        """Version of the protocol; None if it is not told."""
        return self._positive("protocol_version")

    @property
    def action_horizon(self) -> int | None:
        """Steps in an action chunk; None if it is not told."""
        return self._positive("action_horizon")

    @property
    def action_dim(self) -> int | None:
        """Width of one action; None if it is not told."""
        return self._positive("action_dim")

    @property
    def features(self) -> frozenset[str]:
        """Features that may be used on this connection [10]."""
        listed = self.data.get("features")
        if not isinstance(listed, list | tuple):
            return frozenset()
        return frozenset(name for name in listed if isinstance(name, str))

    def _positive(self, key: str) -> int | None:
        value = self.data.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Metadata:
        """Read it from a decoded message. Raises `PolicyProtocolError`."""
        return cls(checks.mapping(message.get("data", {}), "data"))

    def to_map(self) -> dict[str, Any]:
        """The message as a map."""
        return {"message_type": MessageType.METADATA.value, "data": dict(self.data)}


# ------------------------------------------------------------------ infer and action


@dataclass(frozen=True, slots=True, eq=False)
class Infer:
    """A request for action chunks [5.2].

    Attributes:
        observation: of the environments whose ``reuse`` is false, in the order of ``env_indices``.
        env_indices: ``[n]`` int64, environments that need a chunk.
        step_ids: ``[n]`` integer, chunks that each has completed in its episode.
        reuse: ``[n]`` bool, or None for all false: the server takes the observation of the last feedback [10.1].
    """

    observation: Observation
    env_indices: Array
    step_ids: Array
    reuse: Array | None = None

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Infer:
        """Read it from a decoded message.

        Raises:
            PolicyProtocolError: it does not fit the schema; names the path.
            ReuseError: ``reuse`` itself does not fit, or the observation is not batched to its false rows.
        """
        env_indices = checks.indices(checks.member(message, "env_indices"), "env_indices")
        count = len(env_indices)
        step_ids = checks.vector(checks.member(message, "step_ids"), "step_ids", "iu", count)
        data = checks.member(message, "data")
        reuse = message.get("reuse")
        if reuse is None:
            return cls(Observation.parse(data, count, "data"), env_indices, step_ids)
        if not isinstance(reuse, np.ndarray) or reuse.dtype.kind != "b" or reuse.shape != (count,):
            raise ReuseError(f"a bool array of shape [{count}] is expected", field="reuse")
        try:
            observation = Observation.parse(data, count - int(reuse.sum()), "data")
        except PolicyProtocolError as error:
            raise ReuseError(error.detail, field=error.field) from None
        return cls(observation, env_indices, step_ids, reuse)

    def to_map(self) -> dict[str, Any]:
        """The message as a map."""
        message: dict[str, Any] = {
            "message_type": MessageType.INFER.value,
            "data": self.observation.to_map(),
            "env_indices": self.env_indices,
            "step_ids": self.step_ids,
        }
        if self.reuse is not None:
            message["reuse"] = self.reuse
        return message


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """Action chunks, time-major [5.3].

    Attributes:
        action: ``[H, n, *da]`` float or integer. From a frame: a read-only view of it, in the server's dtype.
        env_ids: ``[n]`` int64, the environments of axis 1; None if the server did not say, which means the order of the
            request.
    """

    action: Array
    env_ids: Array | None = None

    @property
    def horizon(self) -> int:
        """Steps in each chunk."""
        return int(self.action.shape[0])

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Action:
        """Read it from a decoded message. Raises `PolicyProtocolError`."""
        data = checks.mapping(checks.member(message, "data"), "data")
        action = checks.array(checks.member(data, "action", "data"), "data.action")
        if action.ndim < 2 or action.dtype.kind not in "fiu" or not action.shape[0]:
            raise refuse("data.action", f"numbers [H, n, ...] are expected, and {checks.described(action)} is there")
        given = data.get("env_ids")
        if given is None:
            return cls(action)
        env_ids = checks.indices(given, "data.env_ids")
        if len(env_ids) != action.shape[1]:
            raise refuse("data.action", f"{action.shape[1]} chunks are there for {len(env_ids)} environments")
        return cls(action, env_ids)

    def for_envs(self, env_indices: Array) -> Action:
        """The same chunks in the order of a request.

        Raises:
            PolicyProtocolError: they are not for exactly these environments.
        """
        if self.env_ids is None:
            if self.action.shape[1] != len(env_indices):
                raise refuse(
                    "data.action", f"{self.action.shape[1]} chunks are there for {len(env_indices)} environments"
                )
            return Action(self.action, env_indices)
        if np.array_equal(self.env_ids, env_indices):
            return self
        if set(self.env_ids.tolist()) != set(env_indices.tolist()):
            raise refuse(
                "data.env_ids", f"chunks for {self.env_ids.tolist()} answer a request for {env_indices.tolist()}"
            )
        place = {env: row for row, env in enumerate(self.env_ids.tolist())}
        return Action(self.action[:, [place[env] for env in env_indices.tolist()]], env_indices)

    def to_map(self) -> dict[str, Any]:
        """The message as a map."""
        data = {"action": self.action} if self.env_ids is None else {"env_ids": self.env_ids, "action": self.action}
        return {"message_type": MessageType.ACTION.value, "data": data}


# ------------------------------------------------------------------ feedback


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """What came of the chunks that have ended [5.4].

    Attributes:
        observation: after the last executed step; of an episode that ended, its terminal observation.
        env_indices: ``[m]`` int64, environments whose chunk has ended.
        step_ids: ``[m]`` integer.
        rewards: ``[m]`` float, each the sum over the executed steps of its chunk.
        terminated: ``[m]`` bool, of the last step.
        truncated: ``[m]`` bool, of the last step.
        info: map; see `openenv.policy.info`.
    """

    observation: Observation
    env_indices: Array
    step_ids: Array
    rewards: Array
    terminated: Array
    truncated: Array
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Feedback:
        """Read it from a decoded message. Raises `PolicyProtocolError`."""
        env_indices = checks.indices(checks.member(message, "env_indices"), "env_indices")
        count = len(env_indices)
        step_ids = checks.vector(checks.member(message, "step_ids"), "step_ids", "iu", count)
        data = checks.mapping(checks.member(message, "data"), "data")
        info = checks.mapping(checks.member(data, "info", "data"), "data.info")
        count_rows(info, count, "data.info")
        return cls(
            observation=Observation.parse(checks.member(data, "obs", "data"), count, "data.obs"),
            env_indices=env_indices,
            step_ids=step_ids,
            rewards=checks.vector(checks.member(data, "rewards", "data"), "data.rewards", "f", count),
            terminated=checks.vector(checks.member(data, "terminated", "data"), "data.terminated", "b", count),
            truncated=checks.vector(checks.member(data, "truncated", "data"), "data.truncated", "b", count),
            info=info,
        )

    def to_map(self) -> dict[str, Any]:
        """The message as a map."""
        return {
            "message_type": MessageType.FEEDBACK.value,
            "env_indices": self.env_indices,
            "step_ids": self.step_ids,
            "data": {
                "obs": self.observation.to_map(),
                "rewards": self.rewards,
                "terminated": self.terminated,
                "truncated": self.truncated,
                "info": dict(self.info),
            },
        }


# ------------------------------------------------------------------ frames

Message = Metadata | Infer | Action | Feedback

_PARSERS: Mapping[MessageType, Callable[[Mapping[str, Any]], Message]] = {
    MessageType.METADATA: Metadata.parse,
    MessageType.INFER: Infer.parse,
    MessageType.ACTION: Action.parse,
    MessageType.FEEDBACK: Feedback.parse,
}


def encode_message(message: Message) -> list[Buffer]:
    """Encode a message as the parts of one binary frame.

    Returns:
        Buffers whose concatenation is the frame. They refer to the message's arrays.

    Raises:
        PolicyUsageError: a value has no form on the wire; names its path.
    """
    try:
        return encode_parts(message.to_map())
    except UnencodableValue as error:
        raise PolicyUsageError(error.why or str(error), field=error.path) from None


def read_map(frame: bytes | bytearray | memoryview | str) -> tuple[MessageType, Mapping[str, Any]]:
    """Decode a frame as far as its ``message_type``.

    Raises:
        PolicyProtocolError: a text frame, not msgpack, or not a message of this protocol.
    """
    if isinstance(frame, str):
        raise PolicyProtocolError(f"a text frame came, where messages are binary: {frame[:500]!r}")
    try:
        message = checks.mapping(decode(frame), "")
    except MalformedValue as error:
        raise PolicyProtocolError(error.why, field=error.path) from None
    name = checks.member(message, "message_type")
    if not isinstance(name, str) or name not in set(MessageType):
        raise refuse("message_type", f"{str(name)[:80]!r} is no message of this protocol")
    return MessageType(name), message


def parse_map(kind: MessageType, message: Mapping[str, Any]) -> Message:
    """Read a decoded message. Raises `PolicyProtocolError`."""
    return _PARSERS[kind](message)


def parse(frame: bytes | bytearray | memoryview | str) -> Message:
    """Read one frame.

    Args:
        frame: binary frame. Arrays of the message are read-only views of it.

    Raises:
        PolicyProtocolError: it is no message of this protocol; names the path of what does not fit.
        ReuseError: an infer whose ``reuse`` does not fit.
    """
    return parse_map(*read_map(frame))


def as_indices(value: Sequence[int] | Array, name: str = "env_indices") -> Array:
    """Environment indices as a user gives them, as int64 ``[n]``. Raises `PolicyUsageError`."""
    try:
        return checks.indices(np.asarray(value), name)
    except PolicyProtocolError as error:
        raise PolicyUsageError(error.detail, field=error.field) from None
