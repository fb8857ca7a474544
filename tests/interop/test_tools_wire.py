"""``/mcp`` byte by byte: the same requests are sent to upstream's server and to ours, and the answers compared.

Answers to requests that work are the same, byte for byte. Errors have the same code and members; their texts where no
library's words are in them. What is no request at all has status 400 here and 200 there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from interop.sides import OURS, UPSTREAM, Mirror, mirror_server

Twins = tuple[Mirror, Mirror]
ENV_NO = re.compile(r'env_no[\\"]*: ?\d+')
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """Both servers with tools; fresh, so that the environments have the same numbers."""
    directory = tmp_path_factory.mktemp("tools")
    with (
        mirror_server(UPSTREAM, directory, "tool_app:app") as theirs,
        mirror_server(OURS, directory, "tool_app:app") as ours,
    ):
        yield theirs, ours


def request(method: str, params: dict[str, Any] | None = None, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, **({} if params is None else {"params": params})}


def post(server: Mirror, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/mcp", json=body, trust_env=False, timeout=30)


def call(name: str, session: str | None = None, /, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return request("tools/call", params if session is None else {**params, "session_id": session}, "é")


def named(text: str) -> str:
    """Without the names of sessions, which are random, and the numbers of environments: upstream makes one for more
    requests."""
    return ENV_NO.sub("env_no:N", UUID.sub("ID", text))


def test_a_session_is_answered_byte_for_byte(tools: Twins) -> None:
    seen = []
    for server in tools:
        created = post(server, request("openenv/session/create"))
        session = created.json()["result"]["session_id"]
        answers = [
            created,
            post(server, request("tools/list", {"session_id": session})),
            post(server, call("inc", session, by=3)),
            post(server, call("inc_async", session)),
            post(server, call("greet", session, name="Zoë")),
            post(server, request("tools/call", {"name": "inc", "session_id": session}, None)),
            post(server, request("openenv/session/close", {"session_id": session})),
        ]
        assert {answer.status_code for answer in answers} == {200}
        seen.append([named(answer.text) for answer in answers])
    assert seen[0] == seen[1]


def test_errors_have_the_same_codes_and_members(tools: Twins) -> None:
    seen = []
    for server in tools:
        session = post(server, request("openenv/session/create")).json()["result"]["session_id"]
        answers = [
            post(server, body).json()
            for body in (
                call("boom", session),
                call("refuse", session, why="no"),
                call("nope", session),
                request("tools/call", {"session_id": session}),
                request("openenv/session/close"),
                request("openenv/session/close", {"session_id": "nope"}),
                request("tools/list", {"session_id": "nope"}),
                request("nope"),
            )
        ]
        assert all(set(answer["error"]) == {"code", "message", "data"} for answer in answers)
        post(server, request("openenv/session/close", {"session_id": session}))
        seen.append([(one["id"], one["error"]["code"], one["error"]["message"]) for one in answers])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("body", [b"{", b"5", b"[]", b"{}", b'{"jsonrpc":"2.0","method":5,"id":1}'])
def test_what_is_no_request_has_the_same_members(tools: Twins, body: bytes) -> None:
    theirs, ours = (
        httpx.post(f"{server.url}/mcp", content=body, headers={"Content-Type": "application/json"}, trust_env=False)
        for server in tools
    )
    assert (theirs.status_code, ours.status_code) == (200, 400)
    assert ours.json()["error"].keys() == theirs.json()["error"].keys()
    assert ours.json()["id"] is theirs.json()["id"] is None


def test_frames_and_the_bare_socket_are_answered_byte_for_byte(tools: Twins) -> None:
    seen = []
    for server in tools:
        bodies = [
            call("inc", by=2),
            request("tools/list"),
            request("openenv/session/create"),
            call("greet", name="Zoë"),
        ]
        steps = [
            {"type": "call_tool", "tool_name": "inc", "arguments": {"by": 2}},
            {"type": "list_tools"},
            {"type": "call_tool", "tool_name": "nope", "arguments": {}},
            {"type": "call_tool", "tool_name": "boom", "arguments": {}},
        ]
        answers = []
        with connect(f"{server.ws}", proxy=None) as ws:
            for frame in [{"type": "mcp", "data": body} for body in bodies] + [
                {"type": "step", "data": step} for step in steps
            ]:
                ws.send(json.dumps(frame))
                answers.append(named(str(ws.recv(30))))
        with connect(f"{server.ws.removesuffix('/ws')}/mcp", proxy=None) as ws:
            for body in bodies:
                ws.send(json.dumps(body))
                answers.append(named(str(ws.recv(30))))
        seen.append(answers)
    assert seen[0] == seen[1]
