"""The loop between the envs and a policy server: who asks, who feeds back, and what a lost connection makes void."""

from __future__ import annotations

from typing import Any

import numpy as np

from openenv.policy import ConnectionReplaced, ServerStopped, WebSocketEnvClientAgent
from probe_env.vector import Array, ProbeVectorEnv

__all__ = ["Rollout"]


class Rollout:
    """Runs envs with the actions of a policy server.

    Args:
        agent: the connection to the server.
        env: the envs, just reset.
        replan_steps: steps of each chunk to execute before asking again; None for all.

    Attributes:
        episodes: how many have ended.
        replaced: how often a lost connection made all chunks void.
    """

    def __init__(self, agent: WebSocketEnvClientAgent, env: ProbeVectorEnv, replan_steps: int | None = None) -> None:
        self.episodes = 0
        self.replaced = 0
        self._agent = agent
        self._env = env
        self._replan_steps = replan_steps
        self._chunks: list[list[Array]] = [[] for _ in range(env.num_envs)]
        self._sums: Array = np.zeros(env.num_envs)
        self._step_ids: Array = np.zeros(env.num_envs, np.int64)
        self._steps: Array = np.zeros(env.num_envs, np.int64)

    def run(self) -> None:
        """Go on until the server stops the run."""
        while True:
            try:
                self._iterate()
            except ConnectionReplaced:
                self._drop()
            except ServerStopped:
                return

    def _iterate(self) -> None:
        """Ask for the envs without a chunk, step all of them, feed back the chunks that ended."""
        if asking := [env for env, chunk in enumerate(self._chunks) if not chunk]:
            self._ask(asking)
        step = self._env.step(np.stack([chunk.pop(0) for chunk in self._chunks]))
        self._sums += step.rewards
        self._steps += 1
        done = step.terminated | step.truncated
        ended = [env for env, chunk in enumerate(self._chunks) if done[env] or not chunk]
        try:
            if ended:
                self._feed_back(ended, step.terminated[ended], step.truncated[ended])
        finally:  # whatever became of the feedback, an env that has ended must begin anew
            self._end(ended, done)

    def _ask(self, envs: list[int]) -> None:
        answer = self._agent.infer(self._env.observe(envs), envs, self._step_ids[envs])
        steps = answer.action[: self._replan_steps]
        for row, env in enumerate(envs):
            self._chunks[env] = list(steps[:, row])

    def _feed_back(self, envs: list[int], terminated: Array, truncated: Array) -> None:
        done = terminated | truncated
        lengths = self._steps[envs]
        episode = {"r": lengths.astype(np.float32), "l": lengths, "s": done, "mask": done}
        info: dict[str, Any] = {"episode": episode} if done.any() else {}
        sums, step_ids = self._sums[envs], self._step_ids[envs]
        self._agent.feedback(self._env.observe(envs), envs, step_ids, sums, terminated, truncated, info)

    def _end(self, envs: list[int], done: Array) -> None:
        """Chunks have ended; envs whose episode has, too, are reset."""
        self._sums[envs] = 0.0
        self._step_ids[envs] += 1
        for env in envs:
            self._chunks[env] = []
        if over := np.flatnonzero(done).tolist():
            self.episodes += len(over)
            self._step_ids[over] = 0
            self._steps[over] = 0
            self._env.reset(over)

    def _drop(self) -> None:
        """The connection that brought the chunks is gone: all are void, and every env asks anew."""
        self.replaced += 1
        self._chunks = [[] for _ in self._chunks]
        self._sums[:] = 0.0
