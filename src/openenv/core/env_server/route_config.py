"""One GET route as data: for apps that add small routes of their own beside an environment's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI

__all__ = ["GetEndpointConfig", "register_get_endpoints"]


@dataclass
class GetEndpointConfig:
    """A GET route.

    Attributes:
        path: its path, as ``/about``.
        handler: makes the answer; called on the event loop, so it must not block.
        response_model: type of the answer.
        tag: heading in the API documentation.
        summary: one line for the API documentation.
        description: the rest of it.
    """

    path: str
    handler: Callable[[], BaseModel | dict[str, Any]]
    response_model: type[BaseModel] | type[dict[str, Any]]
    tag: str
    summary: str
    description: str


def register_get_endpoints(app: FastAPI, configs: Sequence[GetEndpointConfig]) -> None:
    """Add the routes to an app."""
    for config in configs:
        app.add_api_route(
            config.path,
            _endpoint(config.handler),
            methods=["GET"],
            response_model=config.response_model,
            tags=[config.tag],
            summary=config.summary,
            description=config.description,
        )


def _endpoint(handler: Callable[[], BaseModel | dict[str, Any]]) -> Callable[[], Any]:
    async def endpoint() -> Any:
        return handler()

    return endpoint
