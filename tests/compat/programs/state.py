from openenv.core.env_server.types import State
from pydantic import ValidationError

state = State(episode_id="a", step_count=2, board="x")
print(state.model_dump(), state.board, State().model_dump())
try:
    State(step_count=-1)
except ValidationError as error:
    print(error.errors()[0]["type"])
