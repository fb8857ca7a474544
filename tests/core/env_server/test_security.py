"""G11 on a real server: whom it lets in, what bodies it reads, and what its errors tell."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from openenv import GenericEnvClient
from openenv.core.env_server import create_app
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.security import EdgePolicy
from openenv.core.env_server.v1_options import V1Options
from openenv.core.exceptions import ActionValidationError, ConnectError, EnvExecutionError, InvalidActionError
from support.asgi import TestClient
from support.envs import CountEnv, CountObservation, CountState
from support.frames import PickyAction, ask, call
from support.live import LiveServer, serve

EVIL = "https://evil.example"
TOKEN = "s3cret-Token.of_the-server"
JSON = {"Content-Type": "application/json"}
Serve = Callable[..., LiveServer]


@pytest.fixture
def serving(env: type[CountEnv]) -> Iterator[Serve]:
    """Serve an app with these arguments."""
    with ExitStack() as servers:

        def start(**arguments: Any) -> LiveServer:
            app = create_app(
                env, PickyAction, CountObservation, state_cls=CountState, max_concurrent_envs=4, **arguments
            )
            return servers.enter_context(serve(app))

        yield start


def ask_http(live: LiveServer, method: str, path: str, **arguments: Any) -> httpx.Response:
    return httpx.request(method, f"{live}{path}", trust_env=False, timeout=30, **arguments)


def handshake(live: LiveServer, *protocols: str, **headers: str) -> int:
    """Status of a handshake; 101 if it was accepted."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    host = named.pop("Host", None)
    address = live.ws if host is None else live.ws.replace(f"127.0.0.1:{live.port}", host)
    protocol = [Subprotocol(one) for one in protocols] or None
    sock = socket.create_connection(("127.0.0.1", live.port))
    try:
        with connect(address, sock=sock, additional_headers=named, subprotocols=protocol):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


# ---------------------------------------------------------------- Origin


@pytest.mark.parametrize("protocols", [(), ("openenv.v1",)], ids=["plain", "v1"])
@pytest.mark.parametrize("origin", [EVIL, "null", "http://localhost:1", "https://some-space.hf.space"])
def test_a_page_of_another_origin_opens_no_socket(
    serving: Serve, env: type[CountEnv], origin: str, protocols: tuple[str, ...]
) -> None:
    live = serving()
    assert handshake(live, *protocols, Origin=origin) == 403
    assert env.log.events == []


@pytest.mark.parametrize("protocols", [(), ("openenv.v1",)], ids=["plain", "v1"])
def test_programs_and_the_servers_own_pages_open_sockets(serving: Serve, protocols: tuple[str, ...]) -> None:
    live = serving()
    assert handshake(live, *protocols) == 101
    assert handshake(live, *protocols, Origin=str(live)) == 101
    assert handshake(live, *protocols, Origin="https://huggingface.co") == 101


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/reset", {}),
        ("POST", "/step", {"action": {"op": "inc"}}),
        ("POST", "/CountEnv/tasks", {"split": "train"}),
        ("DELETE", "/anything", None),
    ],
)
def test_a_page_of_another_origin_changes_nothing(
    serving: Serve, env: type[CountEnv], method: str, path: str, body: Any
) -> None:
    live = serving()
    for headers in ({"Origin": EVIL}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = ask_http(live, method, path, json=body, headers=headers)
        assert answer.status_code == 403, answer.text
    assert "OPENENV_ALLOWED_ORIGINS" in ask_http(live, method, path, headers={"Origin": EVIL}).json()["detail"]
    assert env.log.events == []


def test_a_page_of_another_origin_builds_no_environment_by_a_get(serving: Serve, env: type[CountEnv]) -> None:
    live = serving()
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    frame = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    for path in ("/state", "/metadata", "/CountEnv/splits"):
        for headers in (image, frame, {"Origin": EVIL}):
            assert ask_http(live, "GET", path, headers=headers).status_code == 403
    assert env.log.events == []
    assert ask_http(live, "GET", "/health", headers=image).status_code == 200
    assert ask_http(live, "GET", "/schema", headers=image).status_code == 200
    clicked = {**frame, "Sec-Fetch-User": "?1", "Sec-Fetch-Dest": "document"}
    assert ask_http(live, "GET", "/state", headers=clicked).status_code == 200


def test_allowed_origins_come_from_the_argument_and_the_variable(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENENV_ALLOWED_ORIGINS", "https://One.example, https://*.two.example:8443/")
    live = serving(allowed_origins=["http://three.example:3000"])
    for origin in ("https://one.example", "https://a.b.two.example:8443", "http://three.example:3000"):
        assert handshake(live, Origin=origin) == 101
        assert ask_http(live, "POST", "/reset", headers={"Origin": origin}).status_code in (200, 503)
    for origin in ("http://one.example", "https://two.example:8443", "https://xtwo.example:8443", "null", EVIL):
        assert handshake(live, Origin=origin) == 403
    open_to_all = serving(allowed_origins=["*"])
    assert handshake(open_to_all, Origin=EVIL) == 101


def test_an_origin_that_is_none_is_refused_at_once(env: type[CountEnv]) -> None:
    for wrong in ("ui.example", "https://", "https://ui.example/path"):
        with pytest.raises(ValueError, match="an origin is"):
            create_app(env, PickyAction, CountObservation, allowed_origins=[wrong])


# ---------------------------------------------------------------- Host


def test_a_name_that_was_pointed_at_loopback_is_refused(serving: Serve, env: type[CountEnv]) -> None:
    live = serving()
    evil = {"Host": f"evil.example:{live.port}", "Origin": f"http://evil.example:{live.port}"}
    for method, path in (("GET", "/state"), ("GET", "/schema"), ("POST", "/reset")):
        answer = ask_http(live, method, path, headers=evil)
        assert answer.status_code == 403
        assert "OPENENV_ALLOWED_HOSTS" in answer.json()["detail"]
    assert handshake(live, Host=f"evil.example:{live.port}") == 403
    assert env.log.events == []


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.9.9.9:80", "[::1]", "env-7", "env.internal", "env.ns.svc.cluster.local"]
)
def test_local_container_and_cluster_names_stay_usable(serving: Serve, host: str) -> None:
    live = serving()
    assert ask_http(live, "GET", "/schema", headers={"Host": host}).status_code == 200
    assert handshake(live, Host=host) == 101


def test_allowed_hosts_and_health(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_ALLOWED_HOSTS", "one.example")
    live = serving(allowed_hosts=["*.two.example"])
    for host, status in (("one.example:99", 200), ("a.two.example", 200), ("two.example", 403), ("x.example", 403)):
        assert ask_http(live, "GET", "/schema", headers={"Host": host}).status_code == status
        assert ask_http(live, "GET", "/health", headers={"Host": host}).status_code == 200


# ---------------------------------------------------------------- the rules alone


def scope(
    kind: str = "websocket", server: Any = ("127.0.0.1", 8000), path: str = "/ws", **headers: str
) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": kind, "method": "POST", "path": path, "server": server, "headers": pairs}


@pytest.mark.parametrize(
    ("server", "host", "status"),
    [
        (("127.0.0.1", 8000), "evil.example", 403),
        (("::1", 8000, 0, 0), "evil.example", 403),
        (("::ffff:127.0.0.1", 8000), "evil.example.", 403),
        (("localhost", 80), "evil.example", 403),
        (("127.0.0.1", 8000), "0x7f.1", 403),
        (("127.0.0.1", 8000), "[bad", None),
        (("127.0.0.1", 8000), "LOCALHOST.:8000", None),
        (("127.0.0.1", 8000), "a.localhost", None),
        (("10.0.0.7", 8000), "env.example.org", None),
        (("0.0.0.0", 8000), "env.example.org", None),
        (("testserver", 80), "testserver", None),
        (("test", 80), "test", None),
        (("/run/env.sock", None), "env.example.org", None),
        (None, "env.example.org", None),
    ],
)
def test_host_is_checked_on_loopback_only(server: Any, host: str, status: int | None) -> None:
    refused = EdgePolicy.make(environ={}).refusal(scope(server=server, host=host))
    assert (refused and refused.status) == status


def test_allowed_hosts_are_checked_everywhere() -> None:
    policy = EdgePolicy.make(allowed_hosts="env.example.org", environ={})
    assert policy.refusal(scope(server=("10.0.0.7", 80), host="env.example.org")) is None
    assert policy.refusal(scope(server=("10.0.0.7", 80), host="10.0.0.7")) is None
    refused = policy.refusal(scope(server=("10.0.0.7", 80), host="evil.example"))
    assert refused is not None
    assert refused.status == 403


@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ({"host": "env.example", "origin": "https://env.example"}, True),
        ({"host": "env.example:443", "origin": "https://env.example"}, True),
        ({"host": "env.example:80", "origin": "http://env.example"}, True),
        ({"host": "env.example:80", "origin": "https://env.example"}, False),
        ({"host": "env.example:8000", "origin": "http://env.example"}, False),
        ({"host": "inner:8000", "x_forwarded_host": "env.example, b", "origin": "https://env.example"}, True),
        ({"host": "inner:8000", "x_forwarded_host": "env.example", "origin": EVIL}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"host": "env.example", "origin": "https://env.example.evil.example"}, False),
    ],
)
def test_the_servers_own_origin(headers: dict[str, str], let_in: bool) -> None:
    refused = EdgePolicy.make(environ={}).refusal(scope(server=("10.0.0.7", 8000), **headers))
    assert (refused is None) is let_in


def test_in_a_space_the_hub_and_other_spaces_are_let_in() -> None:
    space = EdgePolicy.make(environ={"SPACE_HOST": "Me-Sudoku.hf.space"})
    outside = EdgePolicy.make(environ={})
    for origin in ("https://me-sudoku.hf.space", "https://you-ui.hf.space", "https://you-ui.static.hf.space"):
        assert space.refusal(scope(host="inner:7860", origin=origin)) is None
        assert outside.refusal(scope(host="inner:7860", origin=origin)) is not None
    assert space.refusal(scope(host="inner:7860", origin=EVIL)) is not None
    assert space.refusal(scope(host="me-sudoku.hf.space")) is None
    assert outside.refusal(scope(host="me-sudoku.hf.space")) is not None


def test_every_origin_and_host_of_a_request_counts() -> None:
    asked = scope(host="localhost", origin="http://localhost")
    asked["headers"].append((b"Origin", EVIL.encode()))
    assert EdgePolicy.make(environ={}).refusal(asked) is not None


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json"]
)
def test_a_body_that_is_not_json_by_its_type_is_refused(serving: Serve, env: type[CountEnv], kind: str) -> None:
    live = serving()
    for path in ("/reset", "/step", "/CountEnv/tasks"):
        answer = ask_http(live, "POST", path, content=b'{"action":{"op":"inc"}}', headers={"Content-Type": kind})
        assert answer.status_code in (415, 501), answer.text
        assert "application/json" in answer.json()["detail"] or answer.status_code == 501
    assert env.log.events == []


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.env+json"])
def test_json_bodies_are_read(serving: Serve, kind: str) -> None:
    answer = ask_http(serving(), "POST", "/step", content=b'{"action":{"op":"inc"}}', headers={"Content-Type": kind})
    assert answer.status_code == 200


def test_a_body_without_a_type_is_refused_unless_it_is_empty(serving: Serve, env: type[CountEnv]) -> None:
    live = serving()
    assert ask_http(live, "POST", "/step", content=b'{"action":{}}').status_code == 415
    assert env.log.events == []
    assert ask_http(live, "POST", "/reset").status_code == 200


def test_a_body_that_is_too_large_is_refused(serving: Serve, env: type[CountEnv]) -> None:
    live = serving(v1=V1Options(max_message_bytes=100_000))
    action = json.dumps({"action": {"op": "echo", "arg": "x" * 100_000}})
    answer = ask_http(live, "POST", "/step", content=action, headers=JSON)
    assert answer.status_code == 413
    assert "100000 bytes" in answer.json()["detail"]

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" " * 10_000

    try:
        assert ask_http(live, "POST", "/step", content=endless(), headers=JSON).status_code == 413
    except httpx.TransportError:
        pass  # the server answered and closed while we were writing
    assert env.log.events == []
    assert ask_http(live, "POST", "/step", json={"action": {"op": "echo", "arg": "x" * 90_000}}).status_code == 200


# ---------------------------------------------------------------- the token


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_token_is_wanted_everywhere_but_for_health(
    serving: Serve, env: type[CountEnv], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "variable":
        monkeypatch.setenv("OPENENV_SERVER_TOKEN", TOKEN)
    live = serving(token=TOKEN) if by == "argument" else serving()
    wrong = ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer ü"]
    for given in wrong:
        headers = {b"Authorization": given.encode()} if given else {}
        for method, path in (("POST", "/reset"), ("GET", "/state"), ("GET", "/openapi.json"), ("GET", "/nowhere")):
            answer = ask_http(live, method, path, headers=headers)
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert handshake(live) == 401
    assert handshake(live, "openenv.v1", Authorization="Bearer wrong") == 401
    assert env.log.events == []
    assert ask_http(live, "GET", "/health").status_code == 200
    assert ask_http(live, "POST", "/reset", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
    assert handshake(live, Authorization=f"Bearer {TOKEN}") == 101


def test_the_client_sends_the_token_and_says_when_it_is_missing(serving: Serve) -> None:
    live = serving(token=TOKEN)
    with GenericEnvClient(base_url=live, headers={"Authorization": f"Bearer {TOKEN}"}).sync() as client:
        assert client.reset().observation["count"] == 0
    stranger = GenericEnvClient(base_url=live).sync()
    with pytest.raises(ConnectError, match="token") as refused:
        stranger.reset()
    assert (refused.value.status, refused.value.attempts) == (401, 1)


def test_a_token_is_in_no_log_and_in_no_text(
    serving: Serve, caplog: pytest.LogCaptureFixture, env: type[CountEnv]
) -> None:
    caplog.set_level(logging.DEBUG, logger="openenv")
    live = serving(token=TOKEN)
    ask_http(live, "POST", "/reset", headers={"Authorization": f"Bearer {TOKEN}x"})
    client = GenericEnvClient(base_url=live, headers={"Authorization": f"Bearer {TOKEN}x"}).sync()
    with pytest.raises(ConnectError) as refused:
        client.reset()
    with GenericEnvClient(base_url=live, headers={"Authorization": f"Bearer {TOKEN}"}).sync() as friend:
        friend.reset(seed=77_000_123)
    assert caplog.records
    assert "77000123" not in caplog.text  # frames have the tokens of sessions in them
    assert TOKEN not in caplog.text + repr(refused.value) + repr(EdgePolicy.make(token=TOKEN, environ={}))
    for bad in ("two words", "", "naïve"):
        with pytest.raises(ValueError, match="token must be") as wrong:
            create_app(env, PickyAction, CountObservation, token=bad)
        assert not bad or bad not in str(wrong.value)


# ---------------------------------------------------------------- an app of one's own


def test_the_checks_stand_before_every_route_of_an_own_app(env: type[CountEnv]) -> None:
    app = FastAPI()
    HTTPEnvServer(env, PickyAction, CountObservation, token=TOKEN).register_routes(app)

    @app.post("/upload")
    async def upload() -> str:
        return "stored"

    with TestClient(app) as client:
        mine = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/upload", content=b"\x00", headers=mine).json() == "stored"
        assert client.post("/upload", content=b"\x00").status_code == 401
        assert client.post("/upload", headers={**mine, "Origin": EVIL}).status_code == 403
        with client.websocket_connect("/ws", headers=mine) as socket:
            socket.send_json({"type": "reset", "data": {}})
            assert socket.receive_json()["type"] == "observation"


# ---------------------------------------------------------------- errors


def secrets_told(live: LiveServer) -> dict[str, str]:
    """What clients are told when an environment, a validator and a serializer raise, on every adapter."""
    boom = {"op": "raise", "arg": "SECRET"}
    broken = {"op": "inc", "arg": "runtime error"}
    told = {}
    for name, action in (("raise", boom), ("validator", broken)):
        told[f"http {name}"] = ask_http(live, "POST", "/step", json={"action": action}).text
        with connect(live.ws) as ws:
            told[f"plain {name}"] = json.dumps(call(ws, "step", **action))
        with GenericEnvClient(base_url=live).sync() as client:
            client.reset()
            with pytest.raises((EnvExecutionError, ActionValidationError)) as raised:
                client.step(action)
            told[f"v1 {name}"] = repr(vars(raised.value)) + str(raised.value)
    return told


def test_errors_of_an_environment_are_told_without_a_traceback(serving: Serve) -> None:
    for where, text in secrets_told(serving()).items():
        assert ("ValueError" in text and "SECRET" in text) or "validator broke" in text, where
        assert "Traceback" not in text
        assert "envs.py" not in text


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_errors_of_an_environment_can_be_hidden(
    serving: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    caplog.set_level(logging.INFO, logger="openenv.server")
    if by == "variable":
        monkeypatch.setenv("OPENENV_EXPOSE_ERRORS", "0")
    live = serving(expose_errors=False) if by == "argument" else serving()
    for where, text in secrets_told(live).items():
        for secret in ("ValueError", "RuntimeError", "SECRET", "validator broke"):
            assert secret not in text, where
        trace = re.search(r"error ([0-9a-f]{8})", text)
        assert trace is not None, (where, text)
        assert f"(error {trace.group(1)})" in caplog.text
    assert "SECRET" in caplog.text


def test_what_an_environment_says_to_its_players_is_never_hidden(serving: Serve) -> None:
    with GenericEnvClient(base_url=serving(expose_errors=False)).sync() as client:
        client.reset()
        with pytest.raises(InvalidActionError, match="this is taken"):
            client.step({"op": "invalid", "arg": "this is taken"})
        with pytest.raises(ActionValidationError, match="I do not like it"):
            client.step({"op": "inc", "arg": "value error"})


BIG = "A" * 200_000
AWKWARD = [
    {"op": "raise", "arg": BIG},
    {"op": ["not text", BIG]},
    {"op": "inc", BIG: 1},
    {**{f"{BIG[:5000]}{n}": BIG[:1000] for n in range(60)}},
    {"op": {"deep": {"deeper": [BIG]}}},
    {"op": "inc", "arg": "runtime error", "metadata": {"x": BIG}},
]


@pytest.mark.parametrize("action", AWKWARD, ids=range(len(AWKWARD)))
def test_errors_are_bounded_and_do_not_give_the_input_back(serving: Serve, action: dict[str, Any]) -> None:
    live = serving()
    answers = [ask_http(live, "POST", "/step", json={"action": action}).text]
    with connect(live.ws) as ws:
        answers.append(ask(ws, json.dumps({"type": "step", "data": action})))
    with connect(live.ws, subprotocols=[Subprotocol("openenv.v1")]) as ws:
        ws.recv(20)
        ws.send(json.dumps({"type": "open", "data": {"features": ["seq"]}}))
        ws.recv(20)
        answers.append(ask(ws, json.dumps({"type": "step", "seq": 1, "data": action})))
    for answer in answers:
        assert "VALIDATION_ERROR" in answer or "EXECUTION_ERROR" in answer
        assert len(answer) < 60_000
        assert "A" * 2001 not in answer


def test_frames_and_paths_that_make_no_sense_are_not_given_back(serving: Serve) -> None:
    live = serving()
    with connect(live.ws) as ws:
        for frame in (BIG, json.dumps({"type": BIG}), json.dumps({"type": "step", "data": BIG}), json.dumps([BIG])):
            assert len(ask(ws, frame)) < 5000
        assert len(ask(ws, json.dumps({"type": "mcp", "data": {"jsonrpc": BIG}}))) < 5000
    name = "n" * 20_000
    for answer in (
        ask_http(live, "GET", f"/{name}/splits"),
        ask_http(live, "GET", "/state", headers={"OpenEnv-Session": name}),
        ask_http(live, "POST", "/reset", content=b"{" + BIG.encode(), headers=JSON),
        ask_http(live, "POST", "/reset", headers={"Origin": f"https://{name}"}),
        ask_http(live, "GET", "/schema", headers={"Host": f"{name}.example"}),
    ):
        assert 400 <= answer.status_code < 500
        assert len(answer.text) < 2000
