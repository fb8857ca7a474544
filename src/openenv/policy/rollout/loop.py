"""The rollout: envs on one side, a policy server on the other, and nothing stale in between.

What is to be done is in `openenv.policy.rollout.plan`, the envs are in `openenv.policy.rollout.sources`; here is the
loop between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from openenv.core.exceptions import ConnectionReplaced, ServerStopped
from openenv.policy.agent import WebSocketEnvClientAgent
from openenv.policy.rollout.plan import Plan
from openenv.policy.rollout.sources import Source, Stepped
from openenv.policy.rollout.stats import Episode, RolloutStats, Timing

__all__ = ["Rollout"]

logger = logging.getLogger("openenv.policy")

Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """What came of some chunks, ready to be sent."""

    envs: list[int]
    observation: Mapping[str, Any]
    step_ids: Array
    rewards: Array
    terminated: Array
    truncated: Array
    episode: Mapping[str, Array]


class Rollout:
    """Runs envs with the action chunks of a policy server.

    A lost connection voids every chunk and nothing else: episodes go on where they are, those that have ended are reset
    and counted, and every env asks anew. An env whose session is lost is fed back as truncated, with its last good
    observation, if a step of its chunk had run; then it is reset. If none had, nothing can be told of its chunk, and
    the connection is replaced. The other envs go on.

    Args:
        agent: the connection to the server; stays yours to close.
        source: the envs; stays yours to close.
        replan_steps: steps of each chunk to run before asking again; None for all.
        seed: for the first reset of the envs.
        on_episode: called with each episode that has ended.
        on_progress: called after each step of the envs.

    Attributes:
        stats: what has happened so far.
    """

    def __init__(
        self,
        agent: WebSocketEnvClientAgent,
        source: Source,
        *,
        replan_steps: int | None = None,
        seed: int | None = None,
        on_episode: Callable[[Episode], object] | None = None,
        on_progress: Callable[[RolloutStats], object] | None = None,
    ) -> None:
        self.stats = RolloutStats()
        self._agent = agent
        self._source = source
        self._plan = Plan(source.num_envs, replan_steps)
        self._seed = seed
        self._on_episode = on_episode
        self._on_progress = on_progress
        self._held: list[_Ended] = []
        self._begun = False
        self._reused_before = agent.reused_observations

    def run(self, *, episodes: int | None = None, steps: int | None = None) -> RolloutStats:
        """Go on until the server stops the run, or as long as is asked for.

        Args:
            episodes: episodes to see the end of, of all envs together, from now on; None for no limit.
            steps: steps of the vector of envs, from now on; None for no limit.

        Returns:
            What has happened; ``stopped`` tells whether the server ended the run.

        Raises:
            PolicyLinkError: the server broke the protocol, or the envs' observations do not fit it.
            ConnectError: the server cannot be reached any more.
            Exception: what an env raised.
        """
        last_episode = None if episodes is None else self.stats.episodes + episodes
        last_step = None if steps is None else self.stats.vector_steps + steps
        try:
            if not self._begun:
                with self._timed("env"):
                    self._source.reset(self._seed)
                self._begun = True
            while not (
                (last_episode is not None and self.stats.episodes >= last_episode)
                or (last_step is not None and self.stats.vector_steps >= last_step)
            ):
                self._iterate()
        except ServerStopped:
            self.stats.stopped = True
        return self.stats

    # ------------------------------------------------------------ one step of the envs

    def _iterate(self) -> None:
        try:
            self._talk()
        except ConnectionReplaced as replaced:
            return self._drop(replaced)
        with self._timed("env"):
            step = self._source.step(self._plan.actions())
        self.stats.vector_steps += 1
        self.stats.env_steps += self._source.num_envs - sum(not env.ready for env in self._plan.envs)
        self._settle(step)
        self.stats.reused = self._agent.reused_observations - self._reused_before
        if self._on_progress is not None:
            self._on_progress(self.stats)
        return None

    def _settle(self, step: Stepped) -> None:
        """Feed back the chunks that ended by a step, and begin new episodes where one is over."""
        renewed = [index for index, env in enumerate(self._plan.envs) if not env.ready]
        done = (step.terminated | step.truncated) & ~step.lost
        ended = self._plan.stepped(step.rewards, done, step.lost)
        void = self._plan.unfinished(step.lost)
        over = [env for env in np.flatnonzero(done | step.lost).tolist() if env not in renewed]
        report = self._report(ended, step) if ended else None
        self._count(over, step)
        for env in renewed:
            self._plan.envs[env].ready = True
        try:
            if report is not None:
                self._held.append(report)
                if self._plan.feedback_due:
                    self._feed_back()
            if void:
                self._agent.replace(f"env {void[0]} lost its session before a step of its chunk was run")
                self._void()  # the next infer() tells it, too
        except ConnectionReplaced as replaced:
            self._drop(replaced)
        finally:  # whatever became of the feedback, an episode that is over must begin anew
            self._renew(over)

    def _renew(self, envs: Sequence[int]) -> None:
        if envs:
            with self._timed("env"):
                ready = self._source.renew(envs)
            self._plan.begin(envs, ready=ready)

    def _report(self, envs: list[int], step: Stepped) -> _Ended:
        """What came of these envs' chunks, with the observations of this moment."""
        lost = step.lost[envs]
        terminated = step.terminated[envs] & ~lost
        truncated = step.truncated[envs] | lost
        plans = [self._plan.envs[env] for env in envs]
        episode: dict[str, Array] = {
            "r": np.array([plan.total for plan in plans], np.float32),
            "l": np.array([plan.steps for plan in plans], np.int64),
            "s": step.success[envs] & ~lost,
            "mask": (terminated | truncated) & ~lost,  # an episode that was lost is no result
        }
        step_ids, rewards = self._plan.finish(envs)
        return _Ended(envs, self._source.observe(envs), step_ids, rewards, terminated, truncated, episode)

    def _count(self, over: Sequence[int], step: Stepped) -> None:
        for env in over:
            plan = self._plan.envs[env]
            if step.lost[env]:
                self.stats.lost += 1
                logger.warning("env %d lost its session in step %d of its episode; it begins anew", env, plan.steps)
                continue
            episode = Episode(
                number=self.stats.episodes,
                env=env,
                reward=plan.total,
                steps=plan.steps,
                success=bool(step.success[env]),
                terminated=bool(step.terminated[env]),
                truncated=bool(step.truncated[env]),
            )
            self.stats.add(episode)
            if self._on_episode is not None:
                self._on_episode(episode)

    # ------------------------------------------------------------ the conversation

    def _talk(self) -> None:
        """Exchange messages until every env that steps has a chunk."""
        while True:
            asking = self._plan.asking()
            if not self._plan.feedback_due:
                if not asking:
                    return
                self._ask(asking)
            elif self._held:
                self._feed_back()
            elif asking:  # envs that have reset themselves ask while a feedback is due, and nothing has ended
                self._held.append(self._cut())
            else:
                return

    def _ask(self, envs: list[int]) -> None:
        ids = [self._plan.envs[env].step_id for env in envs]
        observation = self._source.observe(envs)
        self._agent.retire(index for index, env in enumerate(self._plan.envs) if not env.ready)  # until they ask
        with self._timed("infer"):
            action = self._agent.infer(observation, envs, ids)
        self.stats.inferred += len(envs)
        self._plan.take(envs, action.action)

    def _cut(self) -> _Ended:
        envs = self._plan.cut()
        assert envs, "an env that holds a chunk has made a step since the last feedback"
        none = np.zeros(self._source.num_envs, bool)
        return self._report(envs, Stepped(none, none, none, none, none))

    def _feed_back(self) -> None:
        told, self._held = _joined(self._held), []
        info = {"episode": dict(told.episode)} if told.episode["mask"].any() else {}
        with self._timed("feedback"):
            self._agent.feedback(
                told.observation, told.envs, told.step_ids, told.rewards, told.terminated, told.truncated, info
            )
        self._plan.fed_back(told.envs)

    def _drop(self, replaced: ConnectionReplaced) -> None:
        logger.info("all chunks are void: %s", replaced)
        self.stats.replaced += 1
        self._void()

    def _void(self) -> None:
        self._held.clear()
        self._plan.drop()

    @contextmanager
    def _timed(self, what: Timing) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.stats.seconds[what] += time.perf_counter() - began


def _joined(parts: list[_Ended]) -> _Ended:
    if len(parts) == 1:
        return parts[0]

    def column(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    first = parts[0].observation
    observation: dict[str, Any] = {
        group: {
            name: np.concatenate([np.asarray(part.observation[group][name]) for part in parts])
            for name in first.get(group, {})
        }
        for group in ("images", "states")
    }
    texts = [part.observation.get("text", "") for part in parts]
    rows = [
        [text] * len(part.envs) if isinstance(text, str) else list(text)
        for text, part in zip(texts, parts, strict=True)
    ]
    observation["text"] = np.array([text for one in rows for text in one])
    episode = {name: np.concatenate([part.episode[name] for part in parts]) for name in parts[0].episode}
    return _Ended(
        [env for part in parts for env in part.envs],
        observation,
        column("step_ids"),
        column("rewards"),
        column("terminated"),
        column("truncated"),
        episode,
    )


def _texts(part: _Ended) -> list[str]:
    text = part.observation.get("text", "")
    return [text] * len(part.envs) if isinstance(text, str) else list(text)
