"""One environment for both sides: it imports from where upstream has its names, and nothing else of ours.

Everything that happens to it is appended to the file of MIRROR_LOG, so that a test can say on which environment a
marked action ran, and how often.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from typing import Any

from pydantic import field_validator

from openenv.core.env_server import Action, Environment, Observation, State

_numbers = itertools.count(1)
_writing = threading.Lock()


def log(event: str, env_no: int, **more: Any) -> None:
    path = os.environ.get("MIRROR_LOG")
    if path:
        with _writing, open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "env_no": env_no, **more}) + "\n")


class MirrorAction(Action):
    """An action: ``op`` says what to do with ``arg``."""

    op: str
    arg: Any = None
    even: int = 0

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


class MirrorObservation(Observation):
    """What the environment saw."""

    env_no: int
    count: int
    echo: Any = None


class MirrorState(State):
    """A state with one more field."""

    env_no: int = 0


class MirrorEnv(Environment[MirrorAction, MirrorObservation, MirrorState]):
    """Does what an action says. Does not call ``super().__init__()``, as half of all environments."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        if os.environ.get("MIRROR_BROKEN"):
            raise RuntimeError("secret cause")
        # Tests that compare bytes between two servers want no numbers that depend on their past.
        self.env_no = 0 if os.environ.get("MIRROR_ANONYMOUS") else next(_numbers)
        self.count = 0
        self.episode_id: str | None = None
        log("init", self.env_no)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MirrorObservation:
        log("reset", self.env_no, seed=seed, episode_id=episode_id, kwargs=kwargs)
        self.count = 0
        self.episode_id = episode_id
        return MirrorObservation(env_no=self.env_no, count=0, echo={"seed": seed, **kwargs})

    def step(self, action: MirrorAction, timeout_s: float | None = None, **kwargs: Any) -> MirrorObservation:
        log("step", self.env_no, op=action.op, mark=action.metadata.get("mark"))
        if action.op == "raise":
            raise ValueError(action.arg or "env boom")
        if action.op == "wait":  # until the file is there
            while not os.path.exists(action.arg):
                time.sleep(0.005)
        self.count += 1
        log("done", self.env_no, mark=action.metadata.get("mark"))
        seen = MirrorObservation(env_no=self.env_no, count=self.count, echo=action.metadata.get("mark"), reward=0.5)
        if action.op == "echo":
            seen.echo = action.arg
        elif action.op == "reward":
            seen.reward = action.arg
        elif action.op == "metadata":
            seen.metadata = action.arg
        elif action.op == "done":
            seen.done = True
        elif action.op == "big":
            seen.echo = "x" * action.arg
        elif action.op == "nan":
            seen.reward = float("nan")
            seen.echo = [float("inf")]
        elif action.op == "object":
            seen.echo = {"deep": object()}
        return seen

    @property
    def state(self) -> MirrorState:
        log("state", self.env_no)
        return MirrorState(episode_id=self.episode_id, step_count=self.count, env_no=self.env_no, more={"a": [1]})

    def close(self) -> None:
        log("close", self.env_no)

    # The task API: an environment has it if it has these methods.

    def list_splits(self) -> list[str]:
        return ["train", "test", "holdout"]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return [{"id": f"{split}-{number}"} for number in range(3)]

    def num_tasks(self, split: str) -> int:
        return len(self.list_tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return self.list_tasks(split)[index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return self.list_tasks(split)[start:stop]


class TasklessEnv(Environment[MirrorAction, MirrorObservation, State]):
    """An environment with no task API, whose reset takes no further arguments."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> MirrorObservation:
        return MirrorObservation(env_no=0, count=0, echo=seed)

    def step(self, action: MirrorAction) -> MirrorObservation:
        return MirrorObservation(env_no=0, count=1)

    @property
    def state(self) -> State:
        return State()
