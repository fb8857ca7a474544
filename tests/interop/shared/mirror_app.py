"""``uvicorn mirror_app:app``, by either package: capacity from MAX_CONCURRENT_ENVS, class from MIRROR_ENV."""

import os

import mirror_env

from openenv.core.env_server import ConcurrencyConfig
from openenv.core.env_server.http_server import create_app

app = create_app(
    getattr(mirror_env, os.environ.get("MIRROR_ENV", "MirrorEnv")),
    mirror_env.MirrorAction,
    mirror_env.MirrorObservation,
    env_name="mirror",
    concurrency_config=ConcurrencyConfig(
        max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "64")),
        session_timeout=float(os.environ["MIRROR_SESSION_TIMEOUT"]) if "MIRROR_SESSION_TIMEOUT" in os.environ else None,
    ),
    state_cls=mirror_env.MirrorState,
)
