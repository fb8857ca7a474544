"""Rollouts over the policy link: batches of simulators, or of sessions of environment servers, and a training server.

```python
env = gymnasium.make_vec("CartPole-v1", num_envs=16)
with WebSocketEnvClientAgent("ws://127.0.0.1:8000") as agent:
    Rollout(agent, GymnasiumVector(env), seed=0).run(episodes=1000)
```
"""

from __future__ import annotations

from openenv.policy.rollout.loop import Rollout
from openenv.policy.rollout.recorder import JsonlRecorder
from openenv.policy.rollout.sources import Clients, GymnasiumVector, Source, Stepped
from openenv.policy.rollout.spaces import ActionMap, ObservationMap
from openenv.policy.rollout.stats import Episode, RolloutStats
from openenv.policy.rollout.workers import WorkerError, run_workers

__all__ = [
    "ActionMap",
    "Clients",
    "Episode",
    "GymnasiumVector",
    "JsonlRecorder",
    "ObservationMap",
    "Rollout",
    "RolloutStats",
    "Source",
    "Stepped",
    "WorkerError",
    "run_workers",
]
