"""probe-v1: environments that count their steps, as a source of a rollout, and a policy whose numbers tell."""

from probe_env.policy import ProbePolicy
from probe_env.rollout import ProbeSource
from probe_env.vector import ENV_ID, ProbeVectorEnv

__all__ = ["ENV_ID", "ProbePolicy", "ProbeSource", "ProbeVectorEnv"]
