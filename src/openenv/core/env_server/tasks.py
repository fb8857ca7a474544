"""The task routes: what an environment over a data set has to offer, without resetting it.

Each request is answered by a throw-away environment, which counts towards capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from openenv.core.env_server.bodies import answered, json_response, parse
from openenv.core.env_server.calls import CallError, clip, env_raised
from openenv.core.env_server.runner import Crash, EnvRunner
from openenv.core.env_server.types import GetTaskRangeRequest, GetTaskRequest, ListTasksRequest, NumTasksRequest
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import WSErrorCode

if TYPE_CHECKING:
    from openenv.core.env_server.http import HTTPRoutes
    from openenv.core.env_server.http_server import HTTPEnvServer

__all__ = ["TaskRoutes"]

_SPLIT_TYPES = ("train", "validation", "test")


class TaskRefused(CallError):
    """A task request with an HTTP status of its own."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(WSErrorCode.EXECUTION_ERROR, message)


class TaskRoutes:
    """The task routes of one server."""

    def __init__(self, server: HTTPEnvServer, routes: HTTPRoutes) -> None:
        self._server = server
        self._routes = routes

    def register(self, app: FastAPI) -> None:
        """Add the routes."""
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("GET", "/list_environments", self.list_environments),
            ("GET", "/{env_name}/splits", self.splits),
            ("POST", "/{env_name}/tasks", self.tasks),
            ("POST", "/{env_name}/num_tasks", self.num_tasks),
            ("POST", "/{env_name}/task", self.task),
            ("POST", "/{env_name}/task_range", self.task_range),
        ]
        for method, path, handler in routes:
            app.add_api_route(path, handler, methods=[method], tags=["Task API"])

    async def list_environments(self) -> list[str]:
        """Names of the environments served here."""
        return [self._server.env_name]

    async def splits(self, env_name: str) -> Response:
        """Splits of the data set."""
        return await self._ask(env_name, "list_splits", (), lambda splits: [_split(one) for one in splits])

    async def tasks(self, env_name: str, request: Request) -> Response:
        """All tasks of a split."""
        return await self._ask(
            env_name,
            "list_tasks",
            (request, ListTasksRequest),
            lambda tasks: {"tasks": list(tasks), "env_name": self._server.env_name},
        )

    async def num_tasks(self, env_name: str, request: Request) -> Response:
        """Number of tasks in a split."""
        return await self._ask(env_name, "num_tasks", (request, NumTasksRequest), lambda n: {"num_tasks": n})

    async def task(self, env_name: str, request: Request) -> Response:
        """One task."""
        return await self._ask(env_name, "get_task", (request, GetTaskRequest), lambda task: {"task": task})

    async def task_range(self, env_name: str, request: Request) -> Response:
        """Some tasks of a split."""
        return await self._ask(
            env_name, "get_task_range", (request, GetTaskRangeRequest), lambda tasks: {"tasks": list(tasks)}
        )

    async def _ask(
        self,
        env_name: str,
        method: str,
        body: tuple[()] | tuple[Request, type[BaseModel]],
        shape: Callable[[Any], Any],
    ) -> Response:
        if env_name.lower() != self._server.env_name.lower():
            return _detail(404, f"unknown environment '{clip(env_name, 100)}'")
        env_class = self._server.env_class
        if env_class is not None and not hasattr(env_class, method):
            return _detail(501, _not_supported(method))

        async def answer() -> Response:
            arguments = tuple((await parse(*body)).__dict__.values()) if body else ()

            async def work(runner: EnvRunner) -> bytes:
                if not await runner.on_thread(lambda env: callable(getattr(env, method, None))):
                    raise TaskRefused(501, _not_supported(method))
                try:
                    return await runner.call(method, lambda: (arguments, {}), lambda value: encode(shape(value)))
                except Crash as crash:
                    if isinstance(crash.cause, IndexError):
                        raise TaskRefused(400, "Invalid task index") from crash.cause
                    raise env_raised(crash.cause, f"{runner.name}.{method}") from crash.cause

            try:
                return json_response(await self._routes.throw_away(work))
            except TaskRefused as refused:
                return _detail(refused.status, refused.message)

        return await answered(answer())


def _split(split: Any) -> Any:
    if isinstance(split, BaseModel | dict):
        return split
    name = str(split)
    return {"name": name, "type": name if name in _SPLIT_TYPES else "validation"}


def _detail(status: int, text: str) -> Response:
    return Response(encode({"detail": text}), status_code=status, media_type="application/json")


def _not_supported(method: str) -> str:
    return f"{method} is not supported for this environment"
