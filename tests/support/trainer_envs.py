"""Environments as trainers get them, over the counting server. In a module of their own, so that they pickle."""

from __future__ import annotations

from typing import Any

from openenv import GenericEnvClient
from openenv.trl import ToolEnv


class Counter(ToolEnv):
    """Counts."""

    def _opening(self, result: Any) -> str:
        return f"count {result.observation['count']}"

    def count(self, mark: str) -> str:
        """Count one.

        Args:
            mark: name of this call.
        """
        return f"count {self._step({'mark': mark}).observation['count']}"

    def act(self, op: str, arg: int | float | str | None = None, mark: str = "") -> str:
        """Do something else.

        Args:
            op: what.
            arg: how.
            mark: name of this call.
        """
        return str(self._step({"op": op, "arg": arg, "mark": mark}).observation["count"])


class GuideCounter:
    """In the style of TRL's guide, with a bare client and everything in one class."""

    def __init__(self, url: str, **options: Any) -> None:
        self.client = GenericEnvClient(base_url=url, **options)
        self.reward = 0.0

    def reset(self, **kwargs: Any) -> str:
        """Start."""
        self.reward = 0.0
        self.client.reset(mark=kwargs.get("mark", ""))
        return "counting"

    def count(self, mark: str) -> str:
        """Count one.

        Args:
            mark: name of this call.
        """
        result = self.client.step({"mark": mark})
        self.reward += result.reward
        return f"count {result.observation['count']}"

    def careful(self, mark: str) -> str:
        """Count one, and turn every error into words.

        Args:
            mark: name of this call.
        """
        try:
            return self.count(mark)
        except Exception as error:
            return f"sorry: {error}"

    async def later(self, mark: str) -> str:
        """Count one, asynchronously.

        Args:
            mark: name of this call.
        """
        return f"count {(await self.client.step({'mark': mark})).observation['count']}"


def guide_reward(environments: list[Any], **columns: Any) -> list[float]:
    """As in the guide."""
    return [env.reward for env in environments]
