"""Small GET routes as data."""

from __future__ import annotations

from fastapi import FastAPI

from openenv.core.env_server.route_config import GetEndpointConfig, register_get_endpoints
from support.asgi import TestClient


def test_the_routes_answer_and_are_documented() -> None:
    app = FastAPI()
    register_get_endpoints(
        app,
        [GetEndpointConfig("/about", lambda: {"a": 1}, dict, "About", "What it is", "All about it")],
    )
    with TestClient(app) as web:
        assert web.get("/about").json() == {"a": 1}
        told = web.get("/openapi.json").json()["paths"]["/about"]["get"]
    assert (told["tags"], told["summary"], told["description"]) == (["About"], "What it is", "All about it")
