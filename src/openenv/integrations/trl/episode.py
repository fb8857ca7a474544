"""What an environment of a trainer is told, and what becomes of its games. No client, no thread, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

from openenv.core.exceptions import CallTimeoutError, ConnectError, OpenEnvError, OutcomeUnknownError, SessionLostError

__all__ = [
    "LOST_CALL",
    "NEUTRAL",
    "OVER",
    "Episode",
    "LossOptions",
    "LossPolicy",
    "Options",
    "differing",
]

LossPolicy = Literal["mask", "replay", "abort"]
"""What to do with an episode whose session is lost for good; see `Options`."""

NEUTRAL = "The environment does not answer any more in this episode. Do not call any more tools."
"""All that the model is told of a lost session. The sample gets no reward, so it learns nothing from it."""

OVER = "The episode is over."

LOST_CALL = (SessionLostError, CallTimeoutError, OutcomeUnknownError, ConnectError)
"""How a step or tool call ends without its result."""

_VOLATILE = ("id", "uuid", "time", "timestamp")


@dataclass(frozen=True)
class Options:
    """How environments deal with a network that fails.

    Attributes:
        on_session_lost: ``mask``: its rewards are None, so the trainer gives it advantage 0 and leaves it out of the
            baseline of its group. ``replay``: play its moves again in a new session and go on if every observation is
            the same, else mask. ``abort``: the reward raises the error, which ends the training.
        reset_deadline_s: seconds for which a reset tries again while the server cannot be reached. As long as a
            server's lease at least, or a session that it keeps for this client may fill the slot that is wanted.
        late_budget_s: seconds, beyond a call's own time, to wait inside a tool call for a late result.
        replay_attempts: how often one episode is replayed.
        volatile: names of observation fields that may differ in a replay, besides those that are named or end in
            ``id``, ``uuid``, ``time`` or ``timestamp``, and ``metadata``.
        seed: give a reset that names no seed one that follows from its row. Always done for ``replay``.
        patient: whether a reset is tried again at all.
    """

    on_session_lost: LossPolicy = "mask"
    reset_deadline_s: float = 660.0
    late_budget_s: float = 60.0
    replay_attempts: int = 3
    volatile: Collection[str] = ()
    seed: bool = False
    patient: bool = True

    def __post_init__(self) -> None:
        if self.on_session_lost not in get_args(LossPolicy):
            known = ", ".join(get_args(LossPolicy))
            raise ValueError(f"on_session_lost must be one of {known}, not {self.on_session_lost!r}.")
        if not self.reset_deadline_s > 0 or not self.late_budget_s >= 0:
            raise ValueError("reset_deadline_s must be more than 0 seconds, late_budget_s 0 or more.")


class LossOptions(TypedDict, total=False):
    """The arguments of `protect` and `tool_env` that say what to do when the network fails; see `Options`."""

    on_session_lost: LossPolicy
    reset_deadline_s: float
    late_budget_s: float
    replay_attempts: int
    volatile: Collection[str]
    seed: bool


@dataclass
class Episode:
    """One game of one environment of the pool.

    Attributes:
        number: games of this environment, counted from 1; 0 before the first reset.
        seed: what a reset gets that names no seed; None leaves it to the server.
        moves: steps and tool calls that were answered.
        rewards: rewards that the server sent with steps, in order.
        done: whether the environment said that it is over.
        lost: why it cannot be counted: the error of the call that ended without its result.
        resumes: how often its session was resumed.
        replays: how often it was played again in a new session.
        env_s: seconds that its reset and its tools took.
        final: what the last tool call returned.
    """

    number: int = 0
    seed: int | None = None
    moves: int = 0
    rewards: list[float] = field(default_factory=list)
    done: bool = False
    lost: OpenEnvError | None = None
    resumes: int = 0
    replays: int = 0
    env_s: float = 0.0
    final: Any = None
    refused_over: bool = False

    def note_reply(self, data: Mapping[str, Any]) -> None:
        """Take reward and end of the data of an observation frame."""
        reward = data.get("reward")
        if isinstance(reward, int | float):
            self.rewards.append(float(reward))
        self.done = data.get("done") is True

    def as_told(self) -> SessionLostError:
        """The error of every further tool call: the model sees its text, people its cause."""
        lost = self.lost
        told = SessionLostError(NEUTRAL, reason=getattr(lost, "reason", "unreachable"), steps=self.moves)
        if lost is not None:
            told.outcome = lost.outcome
            told.detail = str(lost)
        told.__cause__ = lost
        return told


def differing(one: Mapping[str, Any], other: Mapping[str, Any], volatile: Collection[str] = ()) -> list[str]:
    """Names of the values in which two observation frames differ, but for those that name an instance or a time."""
    found: list[str] = []
    _compare("", _visible(one), _visible(other), frozenset(volatile), found)
    return found


def _visible(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data.get(name) for name in ("observation", "reward", "done")}


def _compare(path: str, one: Any, other: Any, volatile: frozenset[str], found: list[str]) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted({*one, *other}):
            if not _may_differ(name, volatile):
                _compare(f"{path}.{name}" if path else name, one.get(name), other.get(name), volatile, found)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            _compare(f"{path}[{index}]", left, right, volatile, found)
    elif _differ(one, other):
        found.append(path)


def _differ(one: Any, other: Any) -> bool:
    if hasattr(one, "tobytes") and hasattr(other, "tobytes"):  # arrays
        facts = ("shape", "dtype")
        same = all(getattr(one, name, None) == getattr(other, name, None) for name in facts)
        return not same or one.tobytes() != other.tobytes()
    if hasattr(one, "tobytes") or hasattr(other, "tobytes"):
        return True
    return bool(one != other) and not (one != one and other != other)  # NaN is the same as itself


def _may_differ(name: str, volatile: frozenset[str]) -> bool:
    return name == "metadata" or name in volatile or name.lower().rpartition("_")[2] in _VOLATILE
