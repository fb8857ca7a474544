"""The environment: two tools, and a count of their calls."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP

from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.exceptions import InvalidActionError

__all__ = ["EchoEnvironment"]


class EchoEnvironment(MCPEnvironment):
    """Gives back what its tools are told."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self._state = State()
        tools: FastMCP[Any] = FastMCP("echo_env")

        @tools.tool
        def echo_message(message: str) -> str:
            """Give a message back.

            Args:
                message: what to give back.
            """
            self._state.step_count += 1
            return message

        @tools.tool
        def echo_with_length(message: str) -> dict[str, Any]:
            """Give a message back, with the number of its characters.

            Args:
                message: what to give back.
            """
            self._state.step_count += 1
            return {"message": message, "length": len(message)}

        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        """Begin to count anew.

        Args:
            seed: not used; an echo has no luck.
            episode_id: name for the episode.
            kwargs: not used.
        """
        self._state = State(episode_id=episode_id)
        return Observation(reward=0.0, metadata={"status": "ready", "message": "The echo is ready."})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise InvalidActionError(
            f"{type(action).__name__} is not for this environment: call a tool with CallToolAction, or list the tools "
            "with ListToolsAction"
        )

    @property
    def state(self) -> State:
        """The episode, and how many tools were called in it."""
        return self._state
