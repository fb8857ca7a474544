"""``python -m probe_env.client``: roll out until the server stops the run, which is exit code 0."""

from __future__ import annotations

import argparse
import os
import sys

from openenv.core.exceptions import ConnectError
from openenv.policy import PolicyLinkError, ServerStopped, WebSocketEnvClientAgent
from openenv.policy.rollout import Rollout
from probe_env.rollout import ProbeSource
from probe_env.vector import ProbeVectorEnv

__all__ = ["main"]


def main() -> int:
    """Run the envs of the command line.

    Returns:
        0 after a stop, 1 if the server cannot be reached or breaks the protocol.
    """
    parser = argparse.ArgumentParser(prog="probe-env-client", description="Roll out probe-v1 until the run is over.")
    parser.add_argument("--url", default=os.environ.get("OPENENV_URL", "ws://127.0.0.1:8000"), help="policy server")
    parser.add_argument("--num-envs", type=int, default=3, help="envs on this connection")
    parser.add_argument("--replan-steps", type=int, default=None, help="steps of a chunk to execute; all by default")
    parser.add_argument("--no-reuse-feedback-obs", action="store_true", help="send every observation twice")
    parser.add_argument("--reconnect-on-server-stop", action="store_true", help="wait for the next run")
    told = parser.parse_args()
    agent = WebSocketEnvClientAgent(
        told.url,
        replan_steps=told.replan_steps,
        reuse_feedback_obs=not told.no_reuse_feedback_obs,
        reconnect_on_server_stop=told.reconnect_on_server_stop,
        connect_timeout_s=60.0,
    )
    with agent:
        try:
            metadata = agent.connect()
        except ServerStopped:
            return 0
        except (ConnectError, PolicyLinkError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
        source = ProbeSource(ProbeVectorEnv(told.num_envs, metadata.action_dim or 1))
        rollout = Rollout(agent, source, replan_steps=told.replan_steps)
        try:
            rollout.run()
        except (ConnectError, PolicyLinkError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
        stats = rollout.stats
        counts = f"{stats.episodes} episodes, {agent.reused_observations} reused rows, {stats.replaced} reconnects"
        sys.stdout.write(f"{counts}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
