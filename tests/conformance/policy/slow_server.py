"""Our server with the probe policy, which thinks for a while whenever a single env asks; says its address first."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from openenv.policy import Observations, PolicyServer
from probe_env import ProbePolicy


class SlowPolicy(ProbePolicy):
    """The probe policy, which takes its time for single envs while ``slow`` lasts."""

    slow = 6

    def act(self, observations: Observations) -> Any:
        if len(observations) == 1 and self.slow:
            self.slow -= 1
            time.sleep(0.3)
        return super().act(observations)


parser = argparse.ArgumentParser()
parser.add_argument("--feedback-timeout", type=float)
parser.add_argument("--max-feedbacks", type=int)
parser.add_argument("--no-reuse", action="store_true")
told = parser.parse_args()
with PolicyServer(
    SlowPolicy(max_feedbacks=told.max_feedbacks),
    "127.0.0.1",
    0,
    feedback_timeout_s=told.feedback_timeout,
    reuse_feedback_obs=not told.no_reuse,
) as server:
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    sys.stdin.read()
