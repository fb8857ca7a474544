"""The rollout of the agent's page, run as a reader would run it, against a server that resyncs and then stops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from openenv.policy.messages import SERVER_RESYNC, SERVER_STOP, Action, Feedback, Infer
from support.policy_peer import Peer, frame, serving

PAGE = Path(__file__).parents[2] / "docs" / "policy-agent.md"
PROGRAM = re.search(r"<!-- file: walk_rollout.py -->\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def rounds(peer: Peer, count: int) -> None:
    for _ in range(count):
        infer = peer.expect(Infer)
        envs = infer.env_indices
        peer.socket.send(frame(Action(np.ones((4, len(envs), 1)), envs)))
        peer.expect(Feedback)


def resync(peer: Peer) -> None:
    peer.hello()
    rounds(peer, 3)
    peer.act()
    peer.end(SERVER_RESYNC)  # under the chunks that have just been sent


def stop(peer: Peer) -> None:
    peer.hello(action_horizon=4)
    rounds(peer, 20)
    peer.expect(Infer)
    peer.end(SERVER_STOP)


def test_the_rollout_of_the_page_survives_a_resync_and_ends_with_the_run(tmp_path: Path) -> None:
    assert PROGRAM is not None
    program = tmp_path / "walk_rollout.py"
    with serving(resync, stop) as peer:
        program.write_text(PROGRAM.group(1).replace("ws://localhost:8000", peer.url))
        done = subprocess.run(
            [sys.executable, program],
            env={**os.environ, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "2 connection(s)\n", "")
        peer.ended(2)
    for number in (1, 2):
        messages = [message for connection, name, message in peer.log if connection == number and name == "Infer"]
        assert messages[0].env_indices.tolist() == [0, 1, 2], "the first infer on a connection names every environment"
    fed = [message for _, name, message in peer.log if name == "Feedback"]
    assert len(fed) == 23, "none was sent again"
    for message in fed:
        assert (message.rewards <= 4).all(), "a chunk has four steps, and its rewards start at 0"
        at = message.observation.states["position"][:, 0]
        assert np.array_equal(at == 7, message.terminated), "an episode has seven steps, ended or not"
        assert (at <= 7).all(), "an episode that has ended was not reset"
    ended = sum(int(message.terminated.sum()) for message in fed)
    assert ended >= 15, "episodes end and are begun anew"
