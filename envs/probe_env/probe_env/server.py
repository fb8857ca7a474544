"""``python -m probe_env.server``: a policy server that a checker can grade."""

from __future__ import annotations

import argparse
import sys

from openenv.policy import PolicyServer
from probe_env.policy import ProbePolicy

__all__ = ["main"]


def main() -> int:
    """Serve until the run is over, or a signal comes."""
    parser = argparse.ArgumentParser(prog="probe-env-server", description="Serve a policy whose numbers tell.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on")
    parser.add_argument("--horizon", type=int, default=4, help="steps of a chunk")
    parser.add_argument("--width", type=int, default=7, help="width of an action")
    parser.add_argument("--max-feedbacks", type=int, default=None, help="end the run after so many")
    parser.add_argument("--feedback-timeout", type=float, default=60.0, help="seconds from an action to its feedback")
    parser.add_argument("--no-reuse-feedback-obs", action="store_true", help="do not list the feature")
    told = parser.parse_args()
    server = PolicyServer(
        ProbePolicy(told.horizon, told.width, told.max_feedbacks),
        told.host,
        told.port,
        feedback_timeout_s=told.feedback_timeout,
        reuse_feedback_obs=not told.no_reuse_feedback_obs,
    )
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
