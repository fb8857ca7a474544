"""probe-v1: environments that count their steps, a rollout over the policy link, and a policy whose numbers tell."""

from probe_env.policy import ProbePolicy
from probe_env.rollout import Rollout
from probe_env.vector import ENV_ID, ProbeVectorEnv

__all__ = ["ENV_ID", "ProbePolicy", "ProbeVectorEnv", "Rollout"]
