"""Arguments of `create_app` and its kin, and what an app exposes."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from websockets.sync.client import connect

from openenv.core.env_client import EnvClient
from openenv.core.env_server.http_server import HTTPEnvServer, create_app, create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, ServerMode
from openenv.core.exceptions import ConcurrencyConfigurationError
from support.asgi import TestClient
from support.envs import CountAction, CountEnv, CountObservation, CountState, fresh_env
from support.live import serve


class Single(CountEnv):
    SUPPORTS_CONCURRENT_SESSIONS = False


def never_called() -> Any:
    raise AssertionError("the factory was called")


def test_the_positional_arguments_have_upstreams_order() -> None:
    assert list(inspect.signature(create_app).parameters)[:14] == [
        "env",
        "action_cls",
        "observation_cls",
        "env_name",
        "max_concurrent_envs",
        "concurrency_config",
        "gradio_builder",
        "custom_tab_name",
        "custom_tab_primary",
        "show_default_tab",
        "title_override",
        "state_cls",
        "mode",
        "reset_observation_cls",
    ]
    order = ["env", "action_cls", "observation_cls", "max_concurrent_envs", "concurrency_config", "env_name"]
    for function in (create_fastapi_app, HTTPEnvServer):
        assert list(inspect.signature(function).parameters)[:7] == [*order, "state_cls"]


def test_an_instance_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"must be a callable.*pass the class \(CountEnv\) or a factory"):
        create_app(CountEnv(), CountAction, CountObservation)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a callable .*, not str"):
        create_app("CountEnv", CountAction, CountObservation)  # type: ignore[arg-type]


def test_a_class_that_can_never_serve_is_refused_as_the_app_is_built() -> None:
    class Client(EnvClient[CountAction, CountObservation, CountState]):
        pass

    class Unfinished(Environment[CountAction, CountObservation, CountState]):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> CountObservation:
            raise NotImplementedError

    with pytest.raises(TypeError, match="Client, which is a client"):
        create_app(Client, CountAction, CountObservation)
    with pytest.raises(TypeError, match="Unfinished cannot be built: it does not define state, step"):
        create_app(Unfinished, CountAction, CountObservation)
    with pytest.raises(TypeError, match="the model CountAction as environment"):
        create_app(CountAction, CountObservation, CountEnv)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "observation", "told"),
    [
        (CountObservation, CountAction, "swapped"),
        (CountAction, CountAction, "an observation an Observation"),
        (dict, CountObservation, "needs the action class, a subclass of Action, not dict"),
        ("CountAction", CountObservation, "not 'CountAction'"),
        (CountAction, CountEnv, "needs the observation class, a subclass of Observation, not CountEnv"),
    ],
)
def test_models_that_can_never_serve_are_refused_as_the_app_is_built(action: Any, observation: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        create_app(CountEnv, action, observation)


def test_any_pydantic_model_may_be_an_action() -> None:
    class Free(BaseModel):
        amount: int

    create_app(CountEnv, Free, CountObservation)  # type: ignore[arg-type]
    create_app(CountEnv, Action, Observation)


def test_one_capacity_argument_only() -> None:
    with pytest.raises(ValueError, match="not both"):
        create_app(
            CountEnv, CountAction, CountObservation, max_concurrent_envs=2, concurrency_config=ConcurrencyConfig()
        )


def test_capacity() -> None:
    def server(**arguments: Any) -> HTTPEnvServer:
        made: HTTPEnvServer = create_app(CountEnv, CountAction, CountObservation, **arguments).state.openenv_server
        return made

    assert server().max_concurrent_envs == 1
    assert server(max_concurrent_envs=5).max_concurrent_envs == 5
    config = ConcurrencyConfig(max_concurrent_envs=3, session_timeout=9)
    assert server(concurrency_config=config).concurrency_config == config
    assert server().is_concurrency_safe
    status = server(max_concurrent_envs=5).get_capacity_status()
    assert (status.active_sessions, status.max_sessions) == (0, 5)


@pytest.mark.parametrize("factory", [Single, functools.partial(Single), functools.partial(functools.partial(Single))])
def test_an_unsafe_class_over_one_is_refused_when_the_app_is_built(factory: Any) -> None:
    create_app(factory, CountAction, CountObservation)
    with pytest.raises(ConcurrencyConfigurationError, match="'Single' does not allow 2 sessions"):
        create_app(factory, CountAction, CountObservation, max_concurrent_envs=2)


def test_a_factory_with_a_return_type_is_read_and_not_called() -> None:
    def make() -> Single:
        raise AssertionError("the factory was called")

    with pytest.raises(ConcurrencyConfigurationError):
        create_app(make, CountAction, CountObservation, max_concurrent_envs=2)
    create_app(never_called, CountAction, CountObservation, max_concurrent_envs=2)


def test_an_unsafe_class_behind_a_plain_factory_is_refused_at_the_first_session() -> None:
    log = fresh_env().log

    def make() -> Any:
        return type("Hidden", (Single,), {"log": log})()

    app = create_app(make, CountAction, CountObservation, max_concurrent_envs=2)
    with serve(app) as url, connect(url.ws) as ws:
        data = json.loads(ws.recv(20))["data"]
        assert data["code"] == "FACTORY_ERROR"
        assert "'Hidden' does not allow 2 sessions at once" in data["message"]
        log.wait_for("close")
    assert len(log.of("close")) == len(log.of("init")) == 1


# ---------------------------------------------------------------- modes


def paths(app: FastAPI) -> set[str]:
    with TestClient(app) as web:
        return set(web.get("/openapi.json").json()["paths"])


def test_production_has_no_reset_step_and_state(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = {"/reset", "/step", "/state"}
    assert simulated <= paths(create_app(CountEnv, CountAction, CountObservation))
    for mode in ("production", "PRODUCTION", ServerMode.PRODUCTION):
        app = create_app(CountEnv, CountAction, CountObservation, mode=mode)
        assert simulated & paths(app) == set()
        assert "/health" in paths(app)
    monkeypatch.setenv("OPENENV_MODE", "Production")
    app = create_app(CountEnv, CountAction, CountObservation)
    with TestClient(app) as web:
        answer = web.post("/reset")
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
        with web.websocket_connect("/ws") as ws:
            ws.send_text('{"type":"reset"}')
            assert ws.receive_json()["type"] == "observation"
    assert simulated <= paths(create_app(CountEnv, CountAction, CountObservation, mode="simulation"))
    direct = FastAPI()
    HTTPEnvServer(CountEnv, CountAction, CountObservation).register_routes(direct)
    assert simulated <= paths(direct)


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"Invalid mode: 'zz'\. Must be one of: \['simulation', 'production'\]"):
        create_app(CountEnv, CountAction, CountObservation, mode="zz")


# ---------------------------------------------------------------- apps


def test_web_arguments_mean_nothing_without_the_page(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ENABLE_WEB_INTERFACE", raising=False)
    app = create_app(CountEnv, CountAction, CountObservation, gradio_builder=lambda *a: None, custom_tab_name="T")
    assert caplog.records == []
    assert app.state.openenv_server.web is None


def test_session_info() -> None:
    env = fresh_env()
    app = create_app(env, CountAction, CountObservation, max_concurrent_envs=2)
    server: HTTPEnvServer = app.state.openenv_server
    with serve(app) as url, httpx.Client(base_url=url, trust_env=False) as web:
        session_id = web.post("/reset").headers["OpenEnv-Session"]
        web.post("/step", json={"action": {}}, headers={"OpenEnv-Session": session_id})
        info = server.get_session_info(session_id)
        assert info is not None
        assert (info.session_id, info.step_count, info.environment_type) == (session_id, 1, "CountEnv")
        assert info.last_activity_at >= info.created_at
        assert server.active_sessions == 1
        assert server.get_session_info("nope") is None
    assert server.active_sessions == 0


def test_routes_on_an_app_of_ones_own_keep_its_lifespan_and_drain() -> None:
    from contextlib import asynccontextmanager

    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        seen.append("start")
        yield {"mine": 1}
        seen.append("stop")

    env = fresh_env()
    app = FastAPI(lifespan=lifespan)
    HTTPEnvServer(env, CountAction, CountObservation).register_routes(app)
    with TestClient(app) as web:
        assert web.post("/reset").status_code == 200
    assert seen == ["start", "stop"]
    assert len(env.log.of("close")) == 1


def test_an_app_serves_again_after_a_shutdown() -> None:
    env = fresh_env()
    app = create_app(env, CountAction, CountObservation)
    for _ in range(2):
        with serve(app) as url:
            assert httpx.post(f"{url}/reset", trust_env=False).status_code == 200
    assert len(env.log.of("close")) == 2


def test_a_test_client_without_lifespan_leaks_no_slot() -> None:
    env = fresh_env()
    app = create_app(env, CountAction, CountObservation, state_cls=CountState)
    web = TestClient(app)
    for _ in range(3):
        assert web.post("/reset").status_code == 200
        assert web.get("/state").status_code == 200
    env.log.wait_for("close", 6)
    assert app.state.openenv_server.active_sessions == 0
