"""What a grading server knows of the client's envs, and the rules that every message must keep. No input or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openenv.conformance.policy.clauses import REUSE
from openenv.conformance.policy.judge import Judge
from openenv.conformance.policy.messages import Array, Feedback, Infer, Observation
from openenv.conformance.policy.probe import DTYPES, MAX_ENVS, Origin, episode_length, origin, values
from openenv.conformance.report import NotGraded

__all__ = ["Env", "Ledger"]


@dataclass(slots=True)
class _Chunk:
    """An action that an env holds."""

    request: int
    began: int
    dtype: str


@dataclass(slots=True)
class Env:
    """One env of the client.

    Attributes:
        t: steps of its episode, as last seen.
        length: steps of a whole episode.
        asked: its infer was read and not answered.
        chunk: the action that it holds on this connection.
        old: it holds one of an earlier connection.
        fed: it fed back on this connection.
        ended: its last feedback on this connection ended the episode.
        may: what t its next infer may carry; None for whatever it likes.
    """

    length: int
    t: int = 0
    asked: bool = False
    chunk: _Chunk | None = None
    old: bool = False
    fed: bool = False
    ended: bool = False
    may: set[int] | None = field(default_factory=lambda: {0})


class Ledger:
    """All envs of one client, over all of its connections.

    Args:
        judge: is told what is wrong.
        horizon: steps of an action.
        width: width of an action.
        dtype: of actions, unless told otherwise.
        probe: the client runs the probe environment, so that its numbers can be checked.

    Attributes:
        envs: by index.
        connections: how many there were.
        features: listed on the present one.
        reused: rows that were reused.
        reusable: rows that could have been.
        differed: a feedback named other envs than the infer before it.
        values: the clause of a value that was read wrong.
    """

    def __init__(self, judge: Judge, horizon: int, width: int, dtype: str, probe: bool) -> None:
        self.judge = judge
        self.horizon = horizon
        self.width = width
        self.dtype = dtype
        self.probe = probe
        self.envs: dict[int, Env] = {}
        self.connections = 0
        self.features: tuple[str, ...] = ()
        self.values = "5.3b"
        self.reused = 0
        self.reusable = 0
        self.differed = False
        self._request = 0
        self._first_of: list[int] = []
        self._fresh = True
        self._asked: list[int] = []
        self._reversed = False

    # ------------------------------------------------------------ connections

    def connected(self, features: Sequence[str]) -> None:
        """A connection begins; what the envs held belongs to an earlier one."""
        self.features = tuple(features)
        self.connections += 1
        self._first_of.append(self._request)
        self._fresh = True
        for env in self.envs.values():
            env.may = self._after_loss(env)
            env.old = env.old or env.chunk is not None
            env.chunk = None
            env.asked = env.fed = env.ended = False

    def _after_loss(self, env: Env) -> set[int] | None:
        if not self.probe:
            return None
        if env.chunk is None:
            return {env.t} if env.asked else env.may
        reached = {env.chunk.began + steps for steps in range(self.horizon + 1)}
        return {t for t in reached if t < env.length} | ({0} if env.length in reached else set())

    def ends_soon(self, infer: Infer) -> bool:
        """Whether an env that asks will end its episode within the action that it asks for."""
        left = [self.envs[one].length - self.envs[one].t for one in infer.envs]
        return not self.probe or min(left) <= self.horizon

    def ends_first(self, infer: Infer) -> bool:
        """Whether the next feedback will tell of the end of an episode: all envs begin a chunk, and one ends in it."""
        return len(infer.envs) == len(self.envs) and self.ends_soon(infer)

    # ------------------------------------------------------------ infer

    def infer(self, infer: Infer) -> None:
        """Grade an infer, and take it in."""
        judge = self.judge
        self._check_reuse(infer)
        if self._fresh and self.connections > 1:
            missing = sorted(set(self.envs) - set(infer.envs))
            text = f"the first infer names {infer.envs}; {missing} go on with actions of an earlier connection"
            judge.expect(not missing, "7.6c", "env-missing", text)
        self._fresh = False
        seen = self._steps(infer.obs, infer.sent)
        for env in infer.envs:
            known = self.envs.setdefault(env, self._new(env))
            self.reusable += known.fed and not known.ended
            again = known.chunk is not None
            judge.expect(not again, "4.3d", "infers-again", f"env {env} infers before it fed back")
            if env in seen:
                self._check_now(env, known, seen[env])
                known.t = seen[env]
            known.asked, known.may, known.chunk, known.old = True, None, None, False
        for env, step in zip(infer.envs, infer.step_ids, strict=True):
            if seen.get(env) == 0 and step != 0:
                judge.note("5.2a", "step-ids", f"env {env} begins an episode with step_id {step}, not 0")
        judge.passed("5.2a")
        judge.passed("4.4a")
        self._asked = infer.envs

    def _new(self, env: int) -> Env:
        if self.probe and env >= MAX_ENVS:
            raise NotGraded(f"env index {env}: the probe environment has at most {MAX_ENVS} envs")
        return Env(episode_length(env))

    def _check_now(self, env: int, known: Env, t: int) -> None:
        """The t of an infer: what was fed back last, or what a loss allows."""
        if known.may is None:
            return
        stuck = self.connections > 1 and not known.fed and t >= known.length
        text = f"env {env} infers at t = {t}, the end of its episode: it was not reset when its feedback was dropped"
        self.judge.expect(not stuck, "7.6e", "not-reset", text)
        clause = "5.2b" if known.fed or self.connections == 1 else "7.6d"
        text = f"env {env} infers at t = {t}; it was at {' or '.join(map(str, sorted(known.may)))}"
        self.judge.expect(stuck or t in known.may, clause, "other-step", text)

    def _check_reuse(self, infer: Infer) -> None:
        if infer.reuse is None:
            return
        judge = self.judge
        judge.need(REUSE in self.features, "10.1a", "not-listed", "reuse is sent, and not listed on this connection")
        judge.passed("10.1d")
        for env, reused in zip(infer.envs, infer.reuse, strict=True):
            if reused:
                known = self.envs.get(env)
                fed = known is not None and known.fed
                judge.need(
                    fed, "10.1c", "nothing-fed-back", f"env {env} reuses, and fed nothing back on this connection"
                )
                ended = known is not None and known.ended
                judge.need(not ended, "10.1b", "terminal", f"env {env} reuses the observation that ended its episode")
                self.reused += 1

    def _steps(self, obs: Observation, envs: Sequence[int]) -> dict[int, int]:
        """The t of each row."""
        if not self.probe:
            return {}
        column = obs.states.get("t")
        if column is None or column.shape[1:] != (1,) or obs.states.get("a") is None:
            raise NotGraded("the client does not run the probe environment (states t [n, 1] and a [n, width])")
        return {env: int(t) for env, t in zip(envs, column[:, 0], strict=True)}

    # ------------------------------------------------------------ action

    def act(self, infer: Infer, dtype: str = "", reverse: bool = False) -> tuple[list[int], Array]:
        """The answer to an infer: env_ids, and an action ``[H, n, width]``."""
        dtype = dtype or self.dtype
        ids = infer.envs[::-1] if reverse else infer.envs
        for env in ids:
            known = self.envs[env]
            known.asked = False
            known.chunk = _Chunk(self._request, known.t, dtype)
        self._reversed = reverse and len(ids) > 1
        self._request += 1
        return ids, values(ids, self.horizon, self.width, dtype, self._request - 1)

    # ------------------------------------------------------------ feedback

    def feedback(self, fed: Feedback) -> None:
        """Grade a feedback, and take it in."""
        self.differed = self.differed or fed.envs != self._asked
        seen = self._steps(fed.obs, fed.envs)
        for row, env in enumerate(fed.envs):
            known = self.envs.get(env)
            old = known is not None and known.chunk is None and known.old
            text = f"env {env} feeds back an action of an earlier connection"
            self.judge.expect(not old, "7.6b", "old-action", text)
            holds = old or (known is not None and known.chunk is not None)
            self.judge.expect(holds, "4.3c", "no-action", f"env {env} feeds back, and holds no action")
            if known is None:
                continue
            if self.probe and known.chunk is not None:
                self._check_chunk(env, known, known.chunk, fed, row, seen[env])
            known.t = seen.get(env, 0)
            known.chunk, known.fed, known.old = None, True, False
            known.ended = fed.terminated[row] or fed.truncated[row]
            known.may = ({0} if known.ended else {known.t}) if self.probe else None
        self.judge.passed("5.4c")

    def _check_chunk(self, env: int, known: Env, chunk: _Chunk, fed: Feedback, row: int, t: int) -> None:
        """The maths of the probe environment over one chunk."""
        judge, steps, end = self.judge, t - chunk.began, known.length
        text = f"env {env} fed back t = {t} for an action that began at t = {chunk.began}"
        judge.expect(steps >= 1, "5.4b", "not-terminal", f"{text}: not what its last step left")
        judge.expect(t <= end, "5.4e", "past-the-end", f"{text}, in an episode of {end} steps")
        judge.expect(steps <= self.horizon, "5.3c", "too-many-steps", f"{text} and has {self.horizon} steps")
        if 1 <= steps <= self.horizon and t <= end:
            reward = fed.rewards[row]
            judge.expect(reward == steps, "5.4a", "wrong-sum", f"env {env}: {steps} steps, rewards sum to {reward:g}")
            self._check_value(env, chunk, steps - 1, fed.obs.states["a"][row])
        ended = fed.terminated[row]
        text = f"env {env} fed back t = {t} of {end} with terminated {ended}, truncated {fed.truncated[row]}"
        judge.expect(ended == (t >= end) and not fed.truncated[row], "5.4d", "wrong-flags", text)

    def _check_value(self, env: int, chunk: _Chunk, step: int, row: Array) -> None:
        """Whether the last executed action is this env's, of this chunk, of this step."""
        judge = self.judge
        found, due = origin(row), Origin(chunk.request % DTYPES[chunk.dtype], step, env)
        kept = ["5.3a", self.values, *(["4.3a"] if self._reversed else ())]
        if found == due:
            for clause in kept:
                judge.passed(clause)
            return
        text = f"env {env} executed {row.tolist()}, where step {step} of its chunk is due"
        if found is None or self.width != row.size:
            judge.expect(
                False, self.values, "no-such-action", f"{text}: no value of any answer (sent as {chunk.dtype})"
            )
        elif found.request != due.request:
            earlier = self._first_of[-1] and found.request < self._first_of[-1] % DTYPES[chunk.dtype]
            judge.expect(False, "7.6b" if earlier else "5.3a", "old-chunk", f"{text}: of answer {found.request}")
        elif self._reversed and found.env != env and found.step == step:
            judge.expect(False, "4.3a", "by-position", f"{text}: it is env {found.env}'s; env_ids was not read")
        else:
            judge.expect(False, "5.3a", "wrong-axes", f"{text}: it is step {found.step} of env {found.env}")
