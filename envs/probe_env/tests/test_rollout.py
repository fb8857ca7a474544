"""The rollout, with an agent that answers from a script: what is asked, fed back, and dropped with a connection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openenv.policy import Action, ConnectionReplaced, ServerStopped
from probe_env import ProbeVectorEnv, Rollout


class Scripted:
    """Notes its calls; raises what is planned for the number of a call."""

    def __init__(self, horizon: int, raising: dict[int, Exception]) -> None:
        self.horizon = horizon
        self.raising = raising
        self.calls: list[tuple[str, list[int], list[float], list[float]]] = []

    def infer(self, obs: Any, envs: list[int], step_ids: Any) -> Action:
        self._note("infer", envs, obs["states"]["t"][:, 0].tolist(), step_ids.tolist())
        return Action(np.zeros((self.horizon, len(envs), 1)))

    def feedback(self, obs: Any, envs: list[int], step_ids: Any, sums: Any, over: Any, cut: Any, info: Any) -> None:
        assert over.tolist() == (obs["states"]["t"][:, 0] == 3 + 2 * (np.array(envs) % 3)).tolist()
        assert not cut.any()
        assert bool(info) == bool(over.any())
        self._note("feedback", envs, obs["states"]["t"][:, 0].tolist(), sums.tolist())

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if error := self.raising.get(len(self.calls)):
            raise error


def replaced() -> ConnectionReplaced:
    made: ConnectionReplaced = ConnectionReplaced.__new__(ConnectionReplaced)
    return made


def stopped() -> ServerStopped:
    made: ServerStopped = ServerStopped.__new__(ServerStopped)
    return made


def run(raising: dict[int, Exception], **more: Any) -> tuple[Any, Rollout]:
    agent: Any = Scripted(4, raising)
    rollout = Rollout(agent, ProbeVectorEnv(2), **more)
    rollout.run()
    return agent.calls, rollout


def test_chunks_end_apart_and_rewards_are_sums() -> None:
    calls, rollout = run({8: stopped()})
    assert calls[:7] == [
        ("infer", [0, 1], [0, 0], [0, 0]),
        ("feedback", [0], [3], [3]),
        ("infer", [0], [0], [0]),
        ("feedback", [1], [4], [4]),
        ("infer", [1], [4], [1]),
        ("feedback", [1], [5], [1]),
        ("infer", [1], [0], [0]),
    ]
    assert rollout.episodes == 2 + (calls[7][0] == "feedback")


def test_a_dropped_feedback_still_resets_the_env_and_every_env_asks_anew() -> None:
    calls, rollout = run({2: replaced(), 4: stopped()})
    assert calls[1] == ("feedback", [0], [3], [3])
    assert calls[2] == ("infer", [0, 1], [0, 3], [0, 0])
    assert rollout.replaced == 1


def test_an_infer_that_finds_another_connection_drops_all_chunks_and_their_sums() -> None:
    calls, _ = run({3: replaced(), 6: stopped()})
    assert calls[2] == ("infer", [0], [0], [0])
    assert calls[3] == ("infer", [0, 1], [0, 3], [0, 0])
    assert calls[4] == ("feedback", [1], [5], [2])


def test_replanning_executes_a_prefix() -> None:
    calls, _ = run({4: stopped()}, replan_steps=2)
    assert calls[:3] == [
        ("infer", [0, 1], [0, 0], [0, 0]),
        ("feedback", [0, 1], [2, 2], [2, 2]),
        ("infer", [0, 1], [2, 2], [1, 1]),
    ]


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="mine"):
        run({1: RuntimeError("mine")})
