"""A stack of four grey frames on its way to a trainer: an array in a binary frame, and upstream's list of ints.

Both packages step eight sessions at the same time, in turns within one run, with servers and clients in processes of
their own. What is compared is the CPU time of a step in client and server together.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interop.sides import OURS, UPSTREAM, Side, need_peer
from openenv.testing import ServerProcess

pytestmark = pytest.mark.alone

HERE = Path(__file__).parent
TURNS = 6
ROUNDS = {"ours": 100, "upstream": 6}
"""Steps of each session in a turn: about as long for both."""
Seconds = dict[tuple[str, bool], float]
"""CPU time of a step, by package and by whether there was a frame in its observation."""


@contextmanager
def stepping(side: Side, numpy: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with the clients of a side, and its server."""
    path = [str(HERE), *(filter(None, sys.path) if side.is_ours else [str(numpy)])]
    environ = {"PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "ignore"}
    with ServerProcess("frame_app:app", python=side.python, environ=environ) as server:
        client = subprocess.Popen(
            [side.python, str(HERE / "frame_app.py"), server.url],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield client
        finally:
            client.kill()
            client.communicate()


def turn(client: subprocess.Popen[str], rounds: int, frames: bool) -> dict[str, Any]:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(json.dumps({"rounds": rounds, "frames": frames}) + "\n")
    client.stdin.flush()
    told: dict[str, Any] = json.loads(client.stdout.readline())
    assert told["right"], "an array came out changed"
    return told


@pytest.fixture(scope="module")
def seconds(tmp_path_factory: pytest.TempPathFactory) -> Seconds:
    need_peer()
    numpy = tmp_path_factory.mktemp("numpy")  # upstream's users have it as well; its environment here has not
    installed = Path(np.__file__).parent
    for folder in (installed, installed.with_name("numpy.libs")):
        numpy.joinpath(folder.name).symlink_to(folder)
    found: dict[tuple[str, bool], list[float]] = {}
    with ExitStack() as stack:
        clients = {side.name: stack.enter_context(stepping(side, numpy)) for side in (OURS, UPSTREAM)}
        for number in range(TURNS + 1):
            for name, client in clients.items():
                for frames in (True, False):
                    told = turn(client, ROUNDS[name], frames)
                    if number:  # the first is to get warm
                        found.setdefault((name, frames), []).append(told["client"] + told["server"])
    return {key: statistics.median(times) for key, times in found.items()}


def shown(seconds: Seconds) -> str:
    return ", ".join(
        f"{name} {'with' if frames else 'without'}: {1e6 * s:.0f} us" for (name, frames), s in seconds.items()
    )


def test_a_frame_costs_a_twentieth_of_a_list_of_ints(seconds: Seconds) -> None:
    """What the frame adds to a step, from the environment's array to the trainer's."""
    ours, upstream = (seconds[name, True] - seconds[name, False] for name in ("ours", "upstream"))
    print(f"\n{shown(seconds)}; the frame alone: {upstream / ours:.0f} times")
    assert upstream >= 20 * ours, shown(seconds)


def test_a_whole_step_with_a_frame_costs_a_tenth(seconds: Seconds) -> None:
    """Sockets, threads and session rules included, which cost the same whatever is in the frame."""
    print(f"\na whole step: {seconds['upstream', True] / seconds['ours', True]:.1f} times")
    assert seconds["upstream", True] >= 10 * seconds["ours", True], shown(seconds)
