"""Programs that speak plain HTTP and know of no session header, at a server of the default size: one slot."""

from __future__ import annotations

import httpx
import pytest
from starlette.testclient import TestClient

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Action, Environment, Observation, State
from support.live import serve


class Guess(Action):
    number: int


class Answer(Observation):
    higher: bool = False


class GuessEnvironment(Environment[Guess, Answer, State]):
    """As many packages write it: no parameters, no ``close``, no call of the base class's constructor."""

    def __init__(self) -> None:
        self._state = State(episode_id="first", step_count=0)

    def reset(self) -> Answer:
        self._state = State(episode_id="next", step_count=0)
        return Answer(reward=0.0)

    def step(self, action: Guess) -> Answer:
        self._state.step_count += 1
        return Answer(higher=action.number < 7, reward=1.0 if action.number == 7 else -0.5, done=action.number == 7)

    @property
    def state(self) -> State:
        return self._state


def play(http: httpx.Client) -> None:
    for _ in range(2):
        assert http.post("/reset", json={"seed": 3, "episode_id": "E1"}).json()["done"] is False
    assert http.post("/step", json={"action": {"number": 4}}).json()["observation"]["higher"] is True
    assert http.post("/step", json={"action": {"number": 7}, "timeout_s": 5}).json()["reward"] == 1.0
    assert http.get("/state").json() == {"episode_id": "first", "step_count": 0}
    assert http.post("/step", json={"action": {"numbers": 7}}).status_code == 422
    assert http.post("/reset", json={}).status_code == 200


def test_a_live_server() -> None:
    with serve(create_app(GuessEnvironment, Guess, Answer)) as url, httpx.Client(base_url=url, trust_env=False) as http:
        play(http)


@pytest.mark.parametrize("lifespan", [True, False])
def test_a_test_client(lifespan: bool) -> None:
    client = TestClient(create_app(GuessEnvironment, Guess, Answer, env_name="guess_env"))
    if lifespan:
        with client:
            play(client)
    else:
        play(client)


def test_then_a_socket() -> None:
    client = TestClient(create_app(GuessEnvironment, Guess, Answer))
    with client:
        assert client.post("/reset").status_code == 200
        with client.websocket_connect("/ws") as socket:
            socket.send_json({"type": "reset", "data": {}})
            assert socket.receive_json()["type"] == "observation"
            socket.send_json({"type": "step", "data": {"number": 7}})
            assert socket.receive_json()["data"]["done"] is True
            socket.send_json({"type": "close"})
