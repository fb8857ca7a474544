"""Environment and app in one module."""

from openenv_core.env_server.http_server import create_app
from openenv_core.env_server.interfaces import Environment
from openenv_core.env_server.types import State

from ..models import Note, OldAction, OldObservation


class OldEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self._state = State(episode_id="old", step_count=0)

    def reset(self):
        self._state = State(episode_id="old", step_count=0)
        return OldObservation(said="ready", done=False, reward=0.0)

    def step(self, action: OldAction):
        self._state.step_count += 1
        return OldObservation(
            said=action.letter.upper(), note=Note("é"), done=action.letter == "z", reward=1, metadata={"n": 1}
        )

    @property
    def state(self):
        return self._state


app = create_app(OldEnvironment, OldAction, OldObservation, max_concurrent_envs=4)
