"""CartPole as an environment server: ``uvicorn cartpole_env:app``. Needs gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium

from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Push(Action):
    """Push the cart: 0 to the left, 1 to the right."""

    side: int


class Pole(Observation):
    """Position and speed of the cart, angle and speed of the pole."""

    state: list[float]
    truncated: bool = False


class CartPole(Environment[Push, Pole, State]):
    """One cart a session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._env: Any = gymnasium.make("CartPole-v1")
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Pole:
        """Begin an episode."""
        seen, _ = self._env.reset(seed=seed)
        self._steps = 0
        return Pole(state=seen.tolist())

    def step(self, action: Push, timeout_s: float | None = None, **kwargs: Any) -> Pole:
        """Push."""
        seen, reward, terminated, truncated, _ = self._env.step(action.side)
        self._steps += 1
        return Pole(
            state=seen.tolist(), reward=float(reward), done=bool(terminated or truncated), truncated=bool(truncated)
        )

    @property
    def state(self) -> State:
        """How far the episode is."""
        return State(step_count=self._steps)

    def close(self) -> None:
        """Let go of the simulator."""
        self._env.close()


app = create_app(CartPole, Push, Pole, env_name="cartpole", max_concurrent_envs=64)
