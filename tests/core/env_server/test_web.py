"""The routes of the web page without a browser: files, what it is told, the ``/web`` routes of programs, and places."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from typing import Any, Literal

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from openenv.core.env_server import create_app
from openenv.core.env_server.sessions import EndReason, Session
from openenv.core.env_server.types import EnvironmentMetadata
from openenv.core.env_server.v1_options import V1Options
from openenv.core.env_server.visitors import WebOptions, visitor_link
from openenv.core.env_server.web_page import display_description, display_title, reset_schema, split_front_matter
from openenv.core.session.features import Feature
from support.envs import CountAction, CountEnv, CountObservation, CountState
from support.live import LiveServer, serve


@contextmanager
def visited(env: Any, **more: Any) -> Iterator[tuple[LiveServer, httpx.Client]]:
    """Serve an environment with its page; yields the address and a visitor with a cookie jar."""
    given = {"state_cls": CountState, "web": WebOptions(), **more}
    with (
        serve(create_app(env, CountAction, CountObservation, **given)) as live,
        httpx.Client(base_url=live, trust_env=False, timeout=60) as web,
    ):
        yield live, web


# ---------------------------------------------------------------- the page


@pytest.mark.parametrize(("value", "on"), [("true", True), ("1", True), ("Yes", True), ("0", False), (None, False)])
def test_the_variable_decides(
    env: type[CountEnv], monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool
) -> None:
    monkeypatch.delenv("ENABLE_WEB_INTERFACE", raising=False)
    if value is not None:
        monkeypatch.setenv("ENABLE_WEB_INTERFACE", value)
    with visited(env, web=None) as (_, web):
        assert web.get("/web/").status_code == (200 if on else 404)
        assert web.get("/web/page").status_code == (200 if on else 404)


@pytest.mark.parametrize("path", ["/", "/web", "/web?a=b%20c"])
def test_the_way_to_the_page_is_relative(env: type[CountEnv], path: str) -> None:
    with visited(env) as (_, web):
        answer = web.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (307, "web/" + path[4:])
        assert web.get(path, follow_redirects=True).url.path == "/web/"


def test_every_file_is_served_with_strict_rules(env: type[CountEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    names = [one.name for one in resources.files("openenv.core.env_server").joinpath("web_static").iterdir()]
    assert {"index.html", "app.js", "app.css"} <= set(names)
    with visited(env) as (_, web):
        for name in ("", *names):
            answer = web.get(f"/web/{name}")
            assert answer.status_code == 200
            rules = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in rules
            assert "frame-ancestors 'self'" in rules
            assert "unsafe" not in rules
            assert "http" not in rules
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            again = web.get(f"/web/{name}", headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status_code, again.content) == (304, b"")
        for name in ("nothing.js", "../http.py", "..%2fhttp.py", "%2e%2e/http.py"):
            assert web.get(f"/web/{name}").status_code == 404
    assert env.log.events == []  # looking at the page makes no environment
    monkeypatch.setenv("SPACE_ID", "someone/count")
    with visited(env) as (_, web):
        assert "https://huggingface.co" in web.get("/web/").headers["Content-Security-Policy"]


def test_no_file_loads_anything_from_elsewhere() -> None:
    for file in resources.files("openenv.core.env_server").joinpath("web_static").iterdir():
        text = file.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "outerHTML" not in text
        urls = [part for part in text.split('"') if part.startswith("http")]
        assert set(urls) <= {"http://www.w3.org/2000/svg"}, file.name


class Talkative(CountEnv):
    def reset(  # type: ignore[override]
        self, seed: int | None = None, *, level: Literal["easy", "hard"] = "easy", size: int
    ) -> CountObservation:
        """Begin.

        Args:
            seed: makes it
                repeatable.
            level: how hard: easy or hard.
            size (int): how large.

        Returns:
            what: is seen.
        """
        return super().reset(seed)

    def get_metadata(self) -> EnvironmentMetadata:
        readme = "---\ntitle: 'Count Things'\nemoji: 🧮\nsdk: docker\n---\n# Count\n"
        return EnvironmentMetadata(name="count_things", description="counts", readme_content=readme)


def test_what_the_page_is_told(env: type[CountEnv]) -> None:
    made = type("Talkative", (Talkative,), {"log": env.log})
    with visited(made) as (_, web):
        told = web.get("/web/page").json()
        assert (told["title"], told["emoji"], told["description"]) == ("Count Things", "🧮", "counts")
        assert told["readme"] == "# Count\n"
        assert told["tools"] is False
        assert told["custom"] is None
        assert set(told["action"]["properties"]) == {"metadata", "op", "arg"}
        assert told["reset"]["required"] == ["size"]
        assert told["reset"]["additionalProperties"] is False
        assert {name: field["description"] for name, field in told["reset"]["properties"].items()} == {
            "seed": "makes it repeatable.",
            "level": "how hard: easy or hard.",
            "size": "how large.",
        }
        assert told["reset"]["properties"]["level"]["enum"] == ["easy", "hard"]
        assert web.get("/web/page").json() == told
        own = web.get("/web/metadata").json()
        assert own["name"] == "count_things"
        assert own["readme_content"].startswith("---")
    assert [one["event"] for one in env.log.events] == ["init", "close"]  # asked once


def test_metadata_that_cannot_be_had_is_not_the_end(env: type[CountEnv], caplog: pytest.LogCaptureFixture) -> None:
    class Shy(env):  # type: ignore[valid-type, misc]
        def get_metadata(self) -> EnvironmentMetadata:
            raise RuntimeError("not yet")

    with visited(Shy, env_name="shy") as (_, web):
        assert web.get("/web/page").json()["title"] == "Shy"
    assert "does without the environment's own metadata" in caplog.text


def test_descriptions() -> None:
    text = "# Count\n\n```\ncode.\n```\n\nCounts what\nis done. And more.\n"
    assert display_description("counts things", {}, text) == "counts things"
    assert display_description("CountEnv environment", {}, text) == "Counts what is done."
    assert display_description("CountEnv environment", {"short_description": "Short"}, text) == "Short"
    assert display_description("CountEnv environment", {}, "# Count\n\n- a list") == "CountEnv environment"


def test_titles_and_front_matter() -> None:
    assert display_title("sudoku_env", None, {}) == "Sudoku Env"
    assert display_title("MazeEnvironment", None, {}) == "Maze Environment"
    assert display_title("x", "Given", {"title": "Hub"}) == "Given"
    assert split_front_matter("---\ntitle: A\n---") == ({"title": "A"}, "")
    assert split_front_matter("# A\n---\n") == ({}, "# A\n---\n")


NOT_JSON: Any = object()


def test_a_reset_that_no_form_fits_is_asked_for_as_json() -> None:
    class Odd(CountEnv):
        def reset(self, seed: Any = None, *, thing: Any = NOT_JSON, kind: type[int] = int, **kwargs: Any) -> Any: ...  # type: ignore[override]

    schema = reset_schema(Odd)
    assert schema["additionalProperties"] is True
    assert schema["properties"] == {
        "seed": {"title": "Seed", "default": None},
        "thing": {"title": "Thing"},
        "kind": {"title": "Kind"},
    }
    assert reset_schema(None)["additionalProperties"] is True
    assert set(reset_schema(None)["properties"]) == {"seed", "episode_id"}


# ---------------------------------------------------------------- programs


def test_a_program_with_a_cookie_jar_plays(env: type[CountEnv]) -> None:
    with visited(env) as (_, web):
        begun = web.post("/web/reset", json={"seed": 4, "extra": 1})
        assert begun.json() == {
            "observation": {
                "metadata": {},
                "env_no": begun.json()["observation"]["env_no"],
                "count": 0,
                "echo": {"extra": 1},
            },
            "reward": None,
            "done": False,
        }
        assert "HttpOnly" in begun.headers["Set-Cookie"]
        assert web.post("/web/step", json={"action": {"op": "inc"}}).json()["observation"]["count"] == 1
        assert web.post("/web/step", json={"action": {"op": "inc"}}).json()["reward"] == 0.5
        assert web.get("/web/state").json()["step_count"] == 2
        assert web.post("/web/reset").json()["observation"]["count"] == 0  # the same session
        assert web.post("/web/step", json={"action": {"op": 1}}).status_code == 422
    assert len(env.log.of("init")) == 1


def test_a_program_that_names_its_session_plays(env: type[CountEnv]) -> None:
    with visited(env) as (live, _):
        header = {"OpenEnv-Session": httpx.post(f"{live}/web/reset", trust_env=False).headers["OpenEnv-Session"]}
        answer = httpx.post(f"{live}/web/step", json={"action": {}}, headers=header, trust_env=False)
        assert answer.json()["observation"]["count"] == 1


def test_without_a_session_there_is_no_step(env: type[CountEnv]) -> None:
    with visited(env) as (live, web):
        web.post("/web/reset")
        for session in (None, "nonsense"):
            header = {"OpenEnv-Session": session} if session else {}
            for method, path in (("POST", "/web/step"), ("GET", "/web/state")):
                body = {"action": {}} if method == "POST" else None
                answer = httpx.request(method, live + path, json=body, headers=header, trust_env=False)
                assert answer.status_code == 409
                assert "POST /web/reset opens one" in answer.json()["detail"]
    assert env.log.of("step") == []


def test_two_programs_do_not_share(env: type[CountEnv]) -> None:
    with visited(env) as (live, one), httpx.Client(base_url=live, trust_env=False) as other:
        one.post("/web/reset")
        other.post("/web/reset")
        one.post("/web/step", json={"action": {}})
        assert other.get("/web/state").json()["step_count"] == 0


class Chat(CountEnv):
    def message_to_action(self, message: Mapping[str, Any]) -> CountAction:
        if message["role"] == "nobody":
            raise KeyError("role")
        return CountAction(op="echo", arg=message["content"])


def test_a_message_becomes_an_action(env: type[CountEnv]) -> None:
    with visited(type("Chat", (Chat,), {"log": env.log})) as (_, web):
        web.post("/web/reset")
        said = web.post("/web/step", json={"message": {"role": "user", "content": "hi"}})
        assert said.json()["observation"]["echo"] == "hi"
        refused = web.post("/web/step", json={"message": {"role": "nobody"}})
        assert (refused.status_code, refused.json()["message"]) == (422, "message_to_action raised KeyError")
    with visited(env) as (_, web):
        web.post("/web/reset")
        assert web.post("/web/step", json={"message": "hi"}).status_code == 422


def test_an_episode_that_does_not_begin_keeps_no_place(env: type[CountEnv]) -> None:
    class Broken(env):  # type: ignore[valid-type, misc]
        def reset(self, **kwargs: Any) -> CountObservation:
            raise ValueError("no")

    with visited(Broken, web=WebOptions(sessions=1)) as (live, web):
        for _ in range(3):
            assert web.post("/web/reset").status_code == 500
            live.wait_for_sessions(0)


def test_a_page_of_another_origin_does_nothing(env: type[CountEnv]) -> None:
    foreign = {"Origin": "https://evil.example"}
    with visited(env) as (live, web):
        assert web.post("/web/reset", headers=foreign).status_code == 403
        for path in ("/web/state", "/web/metadata", "/web/page"):
            assert web.get(path, headers=foreign).status_code == 403
        assert web.get("/web/", headers=foreign).status_code == 200
        address, evil = live.ws.replace("/ws", "/web/ws"), Origin("https://evil.example")
        with pytest.raises(InvalidStatus, match="403"), connect(address, origin=evil):
            pass
    assert env.log.events == []


# ---------------------------------------------------------------- places


def test_a_visitor_takes_no_place_of_a_trainer(env: type[CountEnv]) -> None:
    with visited(env, max_concurrent_envs=1, web=WebOptions(sessions=1)) as (live, web):
        web.post("/web/reset")
        with connect(live.ws) as trainer:
            trainer.send('{"type":"reset"}')
            assert json.loads(trainer.recv())["type"] == "observation"
            assert web.post("/web/step", json={"action": {}}).status_code == 200
            with httpx.Client(base_url=live, trust_env=False) as other:
                assert other.post("/web/reset").status_code == 503
            trainer.send('{"type":"step","data":{}}')
            assert json.loads(trainer.recv())["data"]["observation"]["count"] == 1


def test_where_one_may_live_the_visitor_gives_way_and_comes_after(env: type[CountEnv]) -> None:
    env.SUPPORTS_CONCURRENT_SESSIONS = False
    with visited(env) as (live, web):
        assert web.post("/web/reset").status_code == 200
        with connect(live.ws) as trainer:
            trainer.send('{"type":"reset"}')
            assert json.loads(trainer.recv())["type"] == "observation"
            assert web.post("/web/step", json={"action": {}}).status_code == 409
            assert web.post("/web/reset").status_code == 503
        live.wait_for_sessions(0)
        assert web.post("/web/reset").status_code == 200
    alive = 0
    for event in env.log.events:
        alive += {"init": 1, "close": -1}.get(event["event"], 0)
        assert alive <= 1


@contextmanager
def listening(words: str) -> Iterator[threading.Event]:
    """An event that is set when the server's log has said so."""
    heard = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                heard.set()

    listener, logger = Listener(), logging.getLogger("openenv.server")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)


def test_a_visitor_whose_environment_is_being_made_gives_way(
    env: type[CountEnv], caplog: pytest.LogCaptureFixture
) -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(env):  # type: ignore[valid-type, misc]
        SUPPORTS_CONCURRENT_SESSIONS = False

        def __init__(self) -> None:
            super().__init__()
            begun.set()
            go.wait(60)

    with (
        caplog.at_level(logging.INFO, "openenv.server"),
        listening("gives way") as heard,
        visited(Slow) as (live, web),
        ThreadPoolExecutor(1) as pool,
    ):
        visit = pool.submit(web.post, "/web/reset")
        assert begun.wait(60)
        with connect(live.ws) as trainer:
            trainer.send('{"type":"reset"}')
            assert heard.wait(60)
            go.set()
            assert json.loads(trainer.recv())["type"] == "observation"
            assert visit.result(60).status_code != 200
            assert len(env.log.of("reset")) == 1


def test_a_session_that_made_way_before_its_first_call_is_not_called_unknown(
    env: type[CountEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Session.ready

    async def made_and_over(session: Session) -> None:
        await ready(session)
        session.end(EndReason.GAVE_WAY)

    monkeypatch.setattr(Session, "ready", made_and_over)
    with visited(env) as (_, web):
        answer = web.post("/web/reset")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert "Unknown session_id" not in answer.text
        env.log.wait_for("close")
    assert [one["event"] for one in env.log.events] == ["init", "close"]


def test_all_visitors_leave_with_the_server(env: type[CountEnv]) -> None:
    with visited(env) as (_, web):
        web.post("/web/reset")
    assert len(env.log.of("close")) == 1


def test_the_socket_of_the_page_speaks_one_language(env: type[CountEnv]) -> None:
    with visited(env) as (live, _):
        with pytest.raises(InvalidStatus, match="403"), connect(live.ws.replace("/ws", "/web/ws")):
            pass
        with connect(live.ws.replace("/ws", "/web/ws"), subprotocols=[Subprotocol("openenv.v1")]) as socket:
            welcome = json.loads(socket.recv())["data"]
    assert set(welcome["features"]) == {"seq", "cancel", "resume"}
    assert welcome["grace_s"] == 300.0


def test_what_the_operator_switched_off_stays_off() -> None:
    link = visitor_link(V1Options(features=frozenset(), grace_s=5.0), WebOptions())
    assert (link.features, link.grace_s) == ({Feature.SEQ}, 5.0)


@pytest.mark.parametrize("wrong", [{"sessions": 0}, {"sessions": -1}, {"idle_s": 0.0}, {"idle_s": float("nan")}])
def test_a_page_that_nobody_could_play_on_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WebOptions(**wrong)


def test_options_of_the_environment() -> None:
    assert WebOptions.from_environ({}) == WebOptions()
    told = {"OPENENV_WEB_SESSIONS": "2", "OPENENV_WEB_IDLE_S": "1.5"}
    assert WebOptions.from_environ(told) == WebOptions(sessions=2, idle_s=1.5)
    for wrong in ("0", "-1", "many", "inf"):
        with pytest.raises(ValueError, match="OPENENV_WEB_SESSIONS must be a number above 0"):
            WebOptions.from_environ({"OPENENV_WEB_SESSIONS": wrong})


def test_a_builder_without_gradio_costs_one_warning(env: type[CountEnv], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "openenv.server"), visited(env, gradio_builder=lambda *a: None) as (_, web):
        assert web.get("/web/page").json()["custom"] is None
    assert "pip install gradio" in caplog.text
