"""Client of the letters environment: the three hooks, written out, and a constructor."""

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from .models import LettersAction, LettersObservation, LettersState


class LettersEnv(EnvClient[LettersAction, LettersObservation, LettersState]):
    def __init__(self, base_url: str, timeout_s: float = 30.0, provider: Any = None) -> None:
        super().__init__(base_url=base_url, connect_timeout_s=10.0, message_timeout_s=timeout_s, provider=provider)

    def _step_payload(self, action: LettersAction) -> dict[str, Any]:
        return {"letter": action.letter}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[LettersObservation]:
        seen = payload.get("observation", {})
        observation = LettersObservation(
            shown=seen.get("shown", ""),
            tries_left=seen.get("tries_left", 0),
            legal=seen.get("legal", []),
            done=payload.get("done", False),
            reward=payload.get("reward"),
            metadata=seen.get("metadata", {}),
        )
        return StepResult(observation=observation, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> LettersState:
        return LettersState(
            episode_id=payload.get("episode_id"),
            step_count=payload.get("step_count", 0),
            word_length=payload.get("word_length", 0),
            guessed=payload.get("guessed", []),
        )
