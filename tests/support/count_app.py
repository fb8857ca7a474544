"""``uvicorn support.count_app:app``: a server of `CountEnv`, its capacity set by MAX_CONCURRENT_ENVS."""

import os

from openenv.core.env_server.http_server import create_app
from support.envs import CountAction, CountEnv, CountObservation, CountState

app = create_app(
    CountEnv,
    CountAction,
    CountObservation,
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "64")),
    state_cls=CountState,
)
