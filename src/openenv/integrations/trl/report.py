"""`check()`: what a server will do for a training, found out before the model loads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openenv.integrations.trl.built import BuiltEnv
from openenv.integrations.trl.guard import Client

if TYPE_CHECKING:
    from openenv.integrations.trl.factory import EnvFactory

__all__ = ["Report", "inspect_server"]


@dataclass(frozen=True)
class Report:
    """What `EnvFactory.check` found.

    Attributes:
        environment: its name.
        sessions: how many were open at once.
        dialect: ``openenv.v1``, ``mcp`` or ``plain``.
        resumes: whether a dropped connection costs nothing; without it the episode is lost.
        on_session_lost: what becomes of it then.
        tools: what the model may call.
        reset_s: seconds for a reset, the median.
        step_s: seconds for the call that was measured, the median: the tool that was named, else ``state()``.
        measured: that call.
        round_s: seconds of a generation round that go to the environment: resets and tools run one after another.
        turns: tool calls of a game that ``round_s`` counts.
    """

    environment: str
    sessions: int
    dialect: str
    resumes: bool
    on_session_lost: str
    tools: tuple[str, ...]
    reset_s: float
    step_s: float
    measured: str
    round_s: float
    turns: int

    def __str__(self) -> str:
        loss = "the session is resumed" if self.resumes else f"the episode is lost ({self.on_session_lost})"
        rows = (
            ("sessions", f"{self.sessions} at once: granted"),
            ("dialect", self.dialect),
            ("a dropped connection", loss),
            ("tools", ", ".join(self.tools) or "none"),
            ("reset", f"{self.reset_s * 1000:.1f} ms"),
            (self.measured, f"{self.step_s * 1000:.1f} ms"),
            (f"a round of {self.turns} turns", f"{self.round_s:.1f} s in the environment"),
        )
        width = max(len(name) for name, _ in rows)
        return "\n".join([self.environment, *(f"  {name:<{width}}  {text}" for name, text in rows)])


def inspect_server(
    factory: EnvFactory,
    sessions: int,
    *,
    row: Mapping[str, Any] | None = None,
    tool: tuple[str, Mapping[str, Any]] | None = None,
    turns: int = 8,
    timeout_s: float = 30.0,
) -> Report:
    """Open as many sessions at once as a training will, reset each, and measure.

    Args:
        factory: makes the environments; those of the check are closed again.
        sessions: how many.
        row: a row of the dataset, for the resets.
        tool: a tool and its arguments, to measure a real move; ``state()`` is measured otherwise.
        turns: tool calls of one game, for the estimate.
        timeout_s: seconds for all resets.

    Raises:
        ConnectError: the server cannot be reached.
        CapacityError: it has fewer slots.
        ValueError: no session, or no such tool.
    """
    if sessions < 1:
        raise ValueError(f"sessions must be at least 1, not {sessions}.")
    probe = factory.for_check(timeout_s)
    envs: list[BuiltEnv] = []
    try:
        for _ in range(sessions):
            envs.append(probe())
        if tool is not None and tool[0] not in probe.tools:
            raise ValueError(f"There is no tool {tool[0]!r}; there are {', '.join(sorted(probe.tools)) or 'none'}.")
        with ThreadPoolExecutor(min(sessions, 64), thread_name_prefix="openenv-check") as pool:
            resets = list(pool.map(lambda env: _timed(lambda: env.reset(**(row or {}))), envs))
        clients = [client for env in envs for client in env._guard.clients]
        dialect, resumes = _dialect(clients)
        steps = [_timed(lambda env=env: _move(env, tool)) for env in envs[:16]]  # type: ignore[misc]
    finally:
        for client in [client for env in envs for client in env._guard.clients]:
            client.sync().close()
    step_s, reset_s = statistics.median(steps), statistics.median(resets)
    return Report(
        environment=factory.__name__,
        sessions=sessions,
        dialect=dialect,
        resumes=resumes,
        on_session_lost=factory.on_session_lost,
        tools=tuple(sorted(probe.tools)),
        reset_s=reset_s,
        step_s=step_s,
        measured=f"{tool[0]}()" if tool else "state()",
        round_s=sessions * (reset_s + turns * step_s),
        turns=turns,
    )


def _dialect(clients: Sequence[Client]) -> tuple[str, bool]:
    """What is spoken, and whether a session outlives its socket."""
    if not clients:
        return "none", False
    if callable(getattr(clients[0], "list_tools", None)):
        return "mcp", True  # its session is held over HTTP
    features = clients[0].features
    return "openenv.v1" if features else "plain", "resume" in features


def _move(env: BuiltEnv, tool: tuple[str, Mapping[str, Any]] | None) -> object:
    if tool is not None:
        return getattr(env, tool[0])(**tool[1])
    return [client.sync().state() for client in env._guard.clients]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
