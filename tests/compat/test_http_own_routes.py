"""Applications that add routes to those of the server, or put their own in their place."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from openenv.core.env_server import create_app
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Turn(Action):
    degrees: int


class Compass(Observation):
    heading: int = 0


class CompassEnv(Environment[Turn, Compass, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.heading = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Compass:
        self.heading = 0
        return Compass()

    def step(self, action: Turn, timeout_s: float | None = None, **kwargs: Any) -> Compass:
        self.heading = (self.heading + action.degrees) % 360
        return Compass(heading=self.heading)

    @property
    def state(self) -> State:
        return State(step_count=self.heading)


def test_a_server_class_of_ones_own_adds_routes_to_those_of_the_server() -> None:
    class Server(HTTPEnvServer):
        def register_routes(self, app: FastAPI, *args: Any, **kwargs: Any) -> None:
            super().register_routes(app, *args, **kwargs)

            @app.get("/classes")
            def classes() -> list[str]:
                return [self.action_cls.__name__, self.observation_cls.__name__]

    app = FastAPI()
    Server(env=CompassEnv, action_cls=Turn, observation_cls=Compass, max_concurrent_envs=4).register_routes(app)
    with TestClient(app) as http:
        assert http.get("/classes").json() == ["Turn", "Compass"]
        assert http.post("/reset", json={}).json()["observation"]["heading"] == 0
        assert http.post("/step", json={"action": {"degrees": 90}}).json()["observation"]["heading"] == 90


def test_a_route_of_the_server_can_be_taken_out_and_replaced() -> None:
    app = create_app(CompassEnv, Turn, Compass, env_name="compass")
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", "") != "/health"]

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "mine"}

    with TestClient(app) as http:
        assert http.get("/health").json() == {"status": "mine"}
        assert http.post("/reset", json={}).status_code == 200
