"""Frames of noise, 84 x 84 x 4 bytes, from an environment that has arrays to a trainer that wants arrays.

``uvicorn frame_app:app`` serves them and ``python frame_app.py URL`` asks for them, by either package, each as it can:
ours with array fields, upstream with a flat list of ints, which its users make and read with numpy. Each observation
tells the CPU time of the server so far.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Annotated, Any

import numpy as np

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server import Action, Environment, Observation, State
from openenv.core.env_server.http_server import create_app

SHAPE = (84, 84, 4)
FRAMES = np.random.default_rng(1).integers(0, 256, (8, *SHAPE), np.uint8)
SESSIONS = 8

try:
    from openenv.core.arrays import ArraySpec
except ImportError:
    Pixels: Any = list[int]
else:
    Pixels = Annotated[np.ndarray, ArraySpec("uint8", SHAPE)]


def sent(frame: np.ndarray) -> Any:
    """What the environment puts into its observation."""
    return frame.ravel().tolist() if Pixels == list[int] else frame


def received(pixels: Any) -> np.ndarray:
    """What the trainer makes of it."""
    return np.array(pixels, np.uint8).reshape(SHAPE) if Pixels == list[int] else pixels


class FrameAction(Action):
    """Look at a frame; -1 for none."""

    number: int = -1


class FrameObservation(Observation):
    """The frame, and the seconds of CPU time that its server has used."""

    pixels: Pixels | None = None
    cpu: float = 0.0


class FrameEnvironment(Environment):
    """Frames that lie ready."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> FrameObservation:
        return self.step(FrameAction())

    def step(self, action: FrameAction, timeout_s: float | None = None, **kwargs: Any) -> FrameObservation:
        pixels = None if action.number < 0 else sent(FRAMES[action.number % len(FRAMES)])
        return FrameObservation(pixels=pixels, cpu=time.process_time(), reward=1.0, done=False)

    @property
    def state(self) -> State:
        return State()


class FrameClient(EnvClient[FrameAction, FrameObservation, State]):
    """Typed, as both packages have it."""

    def _step_payload(self, action: FrameAction) -> dict[str, Any]:
        return {"number": action.number}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[FrameObservation]:
        seen = FrameObservation(**payload["observation"])
        return StepResult(observation=seen, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


app = create_app(FrameEnvironment, FrameAction, FrameObservation, env_name="frames", max_concurrent_envs=SESSIONS)


async def main(url: str) -> None:
    """For each line of JSON with the number of ``rounds``, and whether ``frames`` are wanted: what a step took.

    The answer has the CPU seconds of a step in this process and in the server, a mean over the sessions, which all step
    at the same time, and whether every frame was right in the end.
    """
    clients = [FrameClient(base_url=url) for _ in range(SESSIONS)]
    served = max(result.observation.cpu for result in await asyncio.gather(*(one.reset() for one in clients)))
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.process_time()
        frames: list[np.ndarray] = []
        for number in range(asked["rounds"]):
            action = FrameAction(number=number if asked["frames"] else -1)
            results = await asyncio.gather(*(one.step(action) for one in clients))
            if asked["frames"]:
                frames = [received(result.observation.pixels) for result in results]
        here = time.process_time() - began
        there, served = served, max(result.observation.cpu for result in results)
        wanted = FRAMES[number % len(FRAMES)]
        right = all(frame.dtype == np.uint8 and np.array_equal(frame, wanted) for frame in frames)
        steps = asked["rounds"] * SESSIONS
        print(json.dumps({"client": here / steps, "server": (served - there) / steps, "right": right}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
