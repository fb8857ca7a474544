"""The HTTP routes on a real server."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from openenv.core.env_server import http, sessions
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import EnvironmentMetadata
from support.envs import CountAction, CountEnv, CountObservation, CountState
from support.live import LiveServer, serve

HEADER = "OpenEnv-Session"


@pytest.fixture
def live(env: type[CountEnv]) -> Iterator[LiveServer]:
    app = create_app(env, CountAction, CountObservation, max_concurrent_envs=2, state_cls=CountState)
    with serve(app) as url:
        yield url
        env.release.set()


@pytest.fixture
def web(live: LiveServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live, trust_env=False, timeout=30) as client:
        yield client


def act(op: str, arg: Any = None) -> dict[str, Any]:
    return {"action": {"op": op, "arg": arg}}


def reset(web: httpx.Client, **body: Any) -> dict[str, str]:
    answer = web.post("/reset", json=body)
    assert answer.status_code == 200, answer.text
    return {HEADER: answer.headers[HEADER]}


# ---------------------------------------------------------------- sessions


def test_reset_opens_a_session_and_the_header_leads_to_it(web: httpx.Client, env: type[CountEnv]) -> None:
    answer = web.post("/reset", json={"seed": 3, "episode_id": "e", "zz": 1})
    env_no = env.log.of("init")[0]["env_no"]
    assert answer.text == (
        f'{{"observation":{{"metadata":{{}},"env_no":{env_no},"count":0,"echo":{{"zz":1}}}},'
        '"reward":null,"done":false,"metadata":null}'
    )
    header = {HEADER: answer.headers[HEADER]}
    for count in (1, 2):
        stepped = web.post("/step", json=act("inc"), headers=header).json()
        assert stepped["observation"]["count"] == count
        assert stepped["reward"] == 0.5
    assert web.get("/state", headers=header).text == f'{{"episode_id":"e","step_count":2,"env_no":{env_no}}}'
    again = web.post("/reset", headers=header)
    assert (again.headers[HEADER], again.json()["observation"]["count"]) == (header[HEADER], 0)
    assert len(env.log.of("init")) == 1
    assert {event["thread"] for event in env.log.events} == {env.log.events[0]["thread"]}


def test_an_empty_body_resets(web: httpx.Client) -> None:
    assert web.post("/reset").status_code == 200


def test_an_unknown_session_is_a_404_with_a_hint(web: httpx.Client, env: type[CountEnv]) -> None:
    for answer in (
        web.post("/step", json=act("inc"), headers={HEADER: "nope"}),
        web.get("/state", headers={HEADER: "nope"}),
        web.post("/reset", headers={HEADER: "nope"}),
    ):
        assert answer.status_code == 404
        assert answer.json()["code"] == "SESSION_ERROR"
        assert "POST /reset" in answer.json()["detail"]
    assert env.log.events == []


def test_one_call_at_a_time(web: httpx.Client, env: type[CountEnv]) -> None:
    header = reset(web)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(web.post, "/step", json=act("sleep", 60), headers=header)
        env.log.wait_for("step")
        others = [pool.submit(web.post, "/step", json=act("inc"), headers=header) for _ in range(2)]
        assert web.get("/health").status_code == 200
        assert len(env.log.of("step")) == 1
        env.release.set()
        counts = [one.result().json()["observation"]["count"] for one in (first, *others)]
    assert counts[0] == 1
    assert sorted(counts) == [1, 2, 3]


def test_an_idle_session_ends(env: type[CountEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HTTP_IDLE_S", 0.2)
    app = create_app(env, CountAction, CountObservation)
    with serve(app) as url, httpx.Client(base_url=url, trust_env=False) as web:
        header = reset(web)
        env.log.wait_for("close")
        assert web.post("/step", json=act("inc"), headers=header).status_code == 404
    assert len(env.log.of("close")) == 1


def test_a_newcomer_evicts_the_session_that_was_idle_longest(
    web: httpx.Client, live: LiveServer, env: type[CountEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = reset(web), reset(web)
    for header in (second, first):
        web.post("/step", json=act("inc"), headers=header)
    full = web.post("/reset")
    assert (full.status_code, full.json()["code"]) == (503, "CAPACITY_REACHED")
    assert int(full.headers["Retry-After"]) > 0
    monkeypatch.setattr(sessions, "EVICT_AFTER_S", 0.0)
    with connect(live.ws) as ws:
        ws.send('{"type":"reset"}')
        assert json.loads(ws.recv(20))["type"] == "observation"
        assert web.get("/state", headers=second).status_code == 404
        assert web.get("/state", headers=first).status_code == 200
    oldest = env.log.of("init")[1]["env_no"]
    assert env.log.of("close")[0]["env_no"] == oldest


def test_a_busy_session_is_not_evicted(web: httpx.Client, env: type[CountEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "EVICT_AFTER_S", 0.0)
    with ThreadPoolExecutor(2) as pool:
        steps = [pool.submit(web.post, "/step", json=act("sleep", 60), headers=reset(web)) for _ in range(2)]
        env.log.wait_for("step", 2)
        assert web.post("/reset").status_code == 503
        env.release.set()
        assert [step.result().status_code for step in steps] == [200, 200]


def test_a_session_that_nobody_named_makes_room_at_once(
    web: httpx.Client, live: LiveServer, env: type[CountEnv]
) -> None:
    named = reset(web)
    web.post("/step", json=act("inc"), headers=named)
    for _ in range(3):
        assert web.post("/reset").status_code == 200
    assert web.post("/step", json=act("inc")).status_code == 200
    ours = reset(web)
    assert web.get("/state").status_code == 200  # has ended it
    assert web.get("/state", headers=ours).status_code == 404
    reset(web)
    with connect(live.ws) as ws:
        ws.send('{"type":"reset"}')
        assert json.loads(ws.recv(20))["type"] == "observation"
        assert web.get("/state", headers=named).json()["step_count"] == 1
        assert web.post("/reset").status_code == 503
    assert env.log.of("init")[0]["env_no"] not in [event["env_no"] for event in env.log.of("close")]


# ---------------------------------------------------------------- without a session


def test_without_a_header_each_request_has_an_env_of_its_own(
    web: httpx.Client, env: type[CountEnv], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        stepped = web.post("/step", json=act("inc"))
        assert stepped.json()["observation"]["count"] == 1
        assert stepped.headers["Warning"].startswith("299 ")
        assert HEADER not in stepped.headers
    assert web.get("/state").json()["step_count"] == 0
    assert len(env.log.of("init")) == len(env.log.of("close")) == 3
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1


def test_throw_away_environments_count(web: httpx.Client, live: LiveServer, env: type[CountEnv]) -> None:
    with connect(live.ws) as one, connect(live.ws) as two:
        for ws in (one, two):
            ws.send('{"type":"reset"}')
            ws.recv(20)
        for answer in (web.get("/state"), web.post("/step", json=act("inc"))):
            assert (answer.status_code, answer.json()["code"]) == (503, "CAPACITY_REACHED")
            assert "Retry-After" in answer.headers
    assert len(env.log.of("init")) == 2


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_strict_http_refuses_them(how: str, env: type[CountEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "variable":
        monkeypatch.setenv("OPENENV_STRICT_HTTP", "1")
    app = create_app(env, CountAction, CountObservation, strict_http=True if how == "argument" else None)
    with serve(app) as url, httpx.Client(base_url=url, trust_env=False) as web:
        for answer in (web.post("/step", json=act("inc")), web.get("/state")):
            assert answer.status_code == 409
            assert "POST /reset" in answer.json()["detail"]
        assert env.log.events == []
        header = reset(web)
        assert web.post("/reset").status_code == 503  # every client knows of the header: none is taken for lost
        assert web.post("/step", json=act("inc"), headers=header).status_code == 200


# ---------------------------------------------------------------- bodies and errors


def test_rewards_are_floats_over_http(web: httpx.Client) -> None:
    header = reset(web)
    for reward, text in ((True, "1.0"), (3, "3.0"), (0, "0.0"), (None, "null")):
        answer = web.post("/step", json=act("reward", reward), headers=header)
        assert f'"reward":{text},' in answer.text


def test_non_finite_numbers_stay(web: httpx.Client) -> None:
    assert '"echo":[NaN,NaN]},"reward":NaN,' in web.post("/step", json=act("nan"), headers=reset(web)).text


def test_env_errors_have_the_fields_of_the_error_frame(web: httpx.Client) -> None:
    header = reset(web)
    raised = web.post("/step", json=act("raise"), headers=header)
    assert raised.status_code == 500
    assert raised.json() == {
        "detail": "env boom",
        "message": "env boom",
        "code": "EXECUTION_ERROR",
        "error_type": "ValueError",
        "applied": None,
    }
    unencodable = web.post("/step", json=act("bytes"), headers=header)
    assert unencodable.status_code == 500
    assert unencodable.json()["applied"] is True
    refused = web.post("/step", json=act("invalid", "occupied"), headers=header)
    assert refused.status_code == 422
    assert refused.json()["message"] == "occupied"
    assert refused.json()["errors"][0]["type"] == "invalid_action"
    assert web.post("/step", json=act("inc"), headers=header).json()["observation"]["count"] == 2


@pytest.mark.parametrize(
    ("path", "body", "code", "loc"),
    [
        ("/step", b"{}", "VALIDATION_ERROR", ["body", "action"]),
        ("/step", b'{"action":{"op":5}}', "VALIDATION_ERROR", ["op"]),
        ("/step", b'{"action":{},"timeout_s":0}', "VALIDATION_ERROR", ["body", "timeout_s"]),
        ("/reset", b'{"seed":-1}', "VALIDATION_ERROR", ["body", "seed"]),
        ("/reset", b'{"episode_id":"' + b"x" * 256 + b'"}', "VALIDATION_ERROR", ["body", "episode_id"]),
        ("/reset", b"[1]", "VALIDATION_ERROR", ["body"]),
        ("/step", b"", "VALIDATION_ERROR", ["body"]),
        ("/step", b"{", "INVALID_JSON", ["body", 1]),
        ("/step", b"\xff", "INVALID_JSON", None),
        ("/step", b'{"action":' + b"[" * 100_000, "INVALID_JSON", None),
    ],
)
def test_bodies_that_do_not_fit(web: httpx.Client, path: str, body: bytes, code: str, loc: list[str] | None) -> None:
    answer = web.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    if loc is not None:
        assert answer.json()["detail"][0]["loc"] == loc


@pytest.mark.parametrize("body", [b"[1]", b"5", b"null", b'"s"'])
def test_a_body_must_be_an_object(web: httpx.Client, env: type[CountEnv], body: bytes) -> None:
    for path in ("/reset", "/step"):
        answer = web.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        assert answer.json()["code"] in ("INVALID_JSON", "VALIDATION_ERROR")
    assert env.log.events == []


def test_a_failed_first_reset_leaves_no_session(live: LiveServer, web: httpx.Client, env: type[CountEnv]) -> None:
    class Broken(env):  # type: ignore[valid-type, misc]
        def reset(self, **kwargs: Any) -> CountObservation:  # type: ignore[override]
            raise ValueError("no board")

    app = create_app(Broken, CountAction, CountObservation)
    with serve(app) as url:
        answer = httpx.post(f"{url}/reset", trust_env=False)
        assert (answer.status_code, answer.json()["message"]) == (500, "no board")
        env.log.wait_for("close")


def test_a_factory_that_raises_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> CountEnv:
        raise RuntimeError("private detail")

    with serve(create_app(make, CountAction, CountObservation)) as url:
        answer = httpx.post(f"{url}/reset", trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (500, "FACTORY_ERROR")
    assert "private detail" not in answer.text
    assert "private detail" in caplog.text


# ---------------------------------------------------------------- the server


def test_wrong_methods_are_405(web: httpx.Client) -> None:
    answer = web.get("/reset")
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})


def test_schema(web: httpx.Client) -> None:
    answer = web.get("/schema").json()
    assert set(answer) == {"action", "observation", "state", "reset_observation"}
    assert answer["action"] == CountAction.model_json_schema()
    assert answer["reset_observation"] == CountObservation.model_json_schema()


def test_models_without_a_schema_do_not_break_the_app(env: type[CountEnv]) -> None:
    class Thing:
        pass

    class ThingState(CountState):
        thing: Thing | None = None

    with serve(create_app(env, CountAction, CountObservation, state_cls=ThingState)) as url:
        assert httpx.get(f"{url}/schema", trust_env=False).json()["state"]["title"] == "ThingState"
        assert httpx.get(f"{url}/openapi.json", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/state", trust_env=False).json()["thing"] is None


def test_openapi(web: httpx.Client) -> None:
    document = web.get("/openapi.json").json()
    assert document["info"] == {"title": "OpenEnv Environment HTTP API", "version": "1.0.0"}
    assert {"/reset", "/step", "/state", "/health", "/schema", "/metadata"} <= set(document["paths"])
    assert web.get("/docs").status_code == 200


def test_metadata_of_an_env_that_says_nothing_builds_none(web: httpx.Client, env: type[CountEnv]) -> None:
    assert web.get("/metadata").text == (
        '{"name":"CountEnv","description":"CountEnv environment","readme_content":null,"version":"1.0.0",'
        '"author":null,"documentation_url":null}'
    )
    assert env.log.events == []


def test_metadata_of_a_class_that_a_function_hides_is_told_by_a_full_server(env: type[CountEnv]) -> None:
    def make():  # type: ignore[no-untyped-def]  # as env packages write it
        return env()

    with serve(create_app(make, CountAction, CountObservation)) as url, connect(url.ws) as ws:
        ws.send('{"type":"reset"}')
        ws.recv(20)
        assert httpx.get(f"{url}/metadata", trust_env=False).json()["name"] == "CountEnv"
    assert len(env.log.of("init")) == 1


def test_metadata_is_asked_once_off_the_loop(env: type[CountEnv]) -> None:
    asked, go = threading.Event(), threading.Event()

    class Told(env):  # type: ignore[valid-type, misc]
        def get_metadata(self) -> EnvironmentMetadata:
            self.log.add("metadata", self.env_no)
            asked.set()
            go.wait(20)
            return EnvironmentMetadata(name="Told", description="d", author="me")

    app = create_app(Told, CountAction, CountObservation)
    with serve(app) as url, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(httpx.get, f"{url}/metadata", trust_env=False, timeout=30) for _ in range(2)]
        assert asked.wait(20)
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        go.set()
        assert {answer.result().json()["author"] for answer in answers} == {"me"}
        assert httpx.get(f"{url}/metadata", trust_env=False).json()["name"] == "Told"
    assert len(env.log.of("metadata")) == 1
    assert len(env.log.of("close")) == 1


@pytest.mark.parametrize("where", ["init", "reset", "step", "state", "close"])
def test_health_answers_while_an_environment_blocks(env: type[CountEnv], where: str) -> None:
    entered, go = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        go.wait(20)

    class Blocking(env):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            if where == "init":
                block()
            super().__init__()

        def reset(self, **kwargs: Any) -> CountObservation:  # type: ignore[override]
            if where == "reset":
                block()
            return super().reset(**kwargs)

        def step(self, action: CountAction, **kwargs: Any) -> CountObservation:  # type: ignore[override]
            if where == "step":
                block()
            return super().step(action)

        @property
        def state(self) -> CountState:
            if where == "state":
                block()
            return super().state

        def close(self) -> None:
            if where == "close":
                block()
            super().close()

    app = create_app(Blocking, CountAction, CountObservation, state_cls=CountState)

    def play(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as web:
            if where in ("init", "reset"):
                web.post("/reset")
            elif where == "state":
                web.get("/state")
            else:
                web.post("/step", json=act("inc"))

    with serve(app) as url, ThreadPoolExecutor(1) as pool:
        playing = pool.submit(play, url)
        assert entered.wait(20)
        assert httpx.get(f"{url}/health", trust_env=False).json() == {"status": "healthy"}
        assert not playing.done(), "the environment still blocks"
        go.set()
        playing.result()
