"""Client."""

from openenv_core.client_types import StepResult
from openenv_core.env_client import EnvClient
from openenv_core.env_server.types import State

from .models import OldAction, OldObservation


class OldLettersEnv(EnvClient[OldAction, OldObservation, State]):
    def _step_payload(self, action: OldAction) -> dict:
        return action.model_dump()

    def _parse_result(self, payload: dict) -> StepResult[OldObservation]:
        return StepResult(
            observation=OldObservation(**payload["observation"]),
            reward=payload.get("reward"),
            done=bool(payload.get("done", False)),
        )

    def _parse_state(self, payload: dict) -> State:
        return State(**payload)
