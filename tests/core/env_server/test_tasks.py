"""The task routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openenv.core.env_server.http_server import create_app
from support.envs import CountAction, CountEnv, CountObservation, fresh_env
from support.live import serve

TASKS = [{"id": "a"}, {"id": "b"}, {"id": "c"}]


def task_env(base: type[CountEnv]) -> type[CountEnv]:
    class TaskEnv(base):  # type: ignore[valid-type, misc]
        def list_splits(self) -> list[Any]:
            return ["train", "foo", {"name": "z", "type": "test"}]

        async def list_tasks(self, split: str) -> list[Any]:
            if split != "train":
                raise ValueError(f"no split {split}")
            return TASKS

        def num_tasks(self, split: str) -> int:
            return len(TASKS)

        def get_task(self, split: str, index: int) -> Any:
            return TASKS[index]

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> Any:
            return TASKS[start:stop]

    return TaskEnv


@pytest.fixture
def env() -> type[CountEnv]:
    return fresh_env()


@pytest.fixture
def web(env: type[CountEnv]) -> Iterator[httpx.Client]:
    app = create_app(task_env(env), CountAction, CountObservation, env_name="Tenv")
    with serve(app) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def test_the_routes(web: httpx.Client, env: type[CountEnv]) -> None:
    assert web.get("/list_environments").json() == ["Tenv"]
    assert web.get("/tenv/splits").json() == [
        {"name": "train", "type": "train"},
        {"name": "foo", "type": "validation"},
        {"name": "z", "type": "test"},
    ]
    assert web.post("/tenv/tasks", json={"split": "train"}).json() == {"tasks": TASKS, "env_name": "Tenv"}
    assert web.post("/TENV/num_tasks", json={"split": "train"}).json() == {"num_tasks": 3}
    assert web.post("/tenv/task", json={"split": "train", "index": 1}).json() == {"task": {"id": "b"}}
    assert web.post("/tenv/task_range", json={"split": "train", "start": 1}).json() == {"tasks": TASKS[1:]}
    assert len(env.log.of("init")) == len(env.log.of("close")) == 5


def test_what_does_not_exist(web: httpx.Client, env: type[CountEnv]) -> None:
    other = web.get("/other/splits")
    assert (other.status_code, other.json()) == (404, {"detail": "unknown environment 'other'"})
    index = web.post("/tenv/task", json={"split": "train", "index": 9})
    assert (index.status_code, index.json()) == (400, {"detail": "Invalid task index"})
    extra = web.post("/tenv/tasks", json={"split": "train", "more": 1})
    assert (extra.status_code, extra.json()["detail"][0]["type"]) == (422, "extra_forbidden")
    split = web.post("/tenv/tasks", json={"split": "zz"})
    assert (split.status_code, split.json()["message"]) == (500, "no split zz")


@pytest.mark.parametrize("factory", ["class", "function"])
def test_an_env_without_tasks_says_501(env: type[CountEnv], factory: str) -> None:
    app = create_app(env if factory == "class" else lambda: env(), CountAction, CountObservation, env_name="tenv")
    with serve(app) as url:
        answer = httpx.get(f"{url}/tenv/splits", trust_env=False)
    assert answer.status_code == 501
    assert answer.json() == {"detail": "list_splits is not supported for this environment"}
