"""JSON-RPC of ``/mcp``: bodies that are built, and what answers mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openenv.core.exceptions import CapacityError, EnvironmentFactoryError, Outcome, ServerError
from openenv.core.wire.json_codec import MalformedFrame
from openenv.core.wire.jsonrpc import (
    McpFeature,
    Response,
    RpcMethod,
    offered_features,
    read_features,
    request_body,
    session_error,
    told_session,
    tool_error,
)


def failed(code: int, message: str = "no", data: Any = None) -> Response:
    return Response.read({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message, "data": data}}, 1)


@pytest.mark.parametrize(
    ("session", "params", "expected"),
    [
        (None, b"", {}),
        (None, b"{}", {}),
        ('é"', b"{}", {"session_id": 'é"'}),
        ("s", b' {"name": "x", "arguments": {"session_id": "mine"}} ', None),
    ],
)
def test_a_request_has_its_session_beside_its_params(session: str | None, params: bytes, expected: Any) -> None:
    body = json.loads(request_body("k", RpcMethod.CALL, session, params))
    if expected is None:
        expected = {"session_id": "s", "name": "x", "arguments": {"session_id": "mine"}}
    assert body == {"jsonrpc": "2.0", "id": "k", "method": "tools/call", "params": expected}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"jsonrpc": "1.0", "id": 1, "result": 1},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "result": 1, "error": {"code": 1}},
        {"jsonrpc": "2.0", "id": 2, "result": 1},
        {"jsonrpc": "2.0", "id": 1, "error": "no"},
        {"jsonrpc": "2.0", "id": 1, "error": {"message": "no"}},
    ],
)
def test_what_answers_no_request_of_ours(body: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        Response.read(body, 1)


def test_a_result_may_be_null_and_an_error_may_have_no_id() -> None:
    assert Response.read({"jsonrpc": "2.0", "id": 1, "result": None}, 1) == Response(None)
    assert Response.read({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "x"}}, 1).is_error


def test_an_answer_survives_as_a_dict() -> None:
    for response in (Response({"a": 1}), failed(-32603, "boom", {"x": 1})):
        assert Response.read(response.as_dict()) == response


def test_sessions_that_are_gone_or_not_ready() -> None:
    for code in (-32602, -32600):
        assert failed(code, "Unknown session_id: x").session_unknown
    assert not failed(-32602, "Invalid params").session_unknown
    assert failed(-32600, "Session x is still initializing; retry shortly").session_not_ready
    assert failed(-32000, "x", {"outcome": "unknown"}).outcome_unknown
    assert not failed(-32000, "x").outcome_unknown


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (failed(-32602), Outcome.NOT_APPLIED),
        (failed(-32603, "Unknown tool: 'x'"), Outcome.NOT_APPLIED),
        (failed(-32603, "boom"), Outcome.UNKNOWN),
        (failed(-32603, "boom", {"outcome": "applied"}), Outcome.APPLIED),
        (failed(-32603, "boom", {"outcome": "a newer word"}), Outcome.UNKNOWN),
    ],
)
def test_what_became_of_a_failed_call(response: Response, outcome: Outcome) -> None:
    assert tool_error("t", response).outcome is outcome


def test_a_tool_error_carries_what_the_tool_said() -> None:
    content = [{"type": "text", "text": "why"}]
    data = {"content": content, "structured_content": {"a": 1}, "error_type": "execution_error"}
    error = tool_error("t", failed(-32603, "why", data))
    assert (error.tool, error.content, error.structured_content) == ("t", content, {"a": 1})
    assert error.error_type == "execution_error"
    assert "why" in str(error)


def test_why_no_session_was_made() -> None:
    full = session_error(failed(-32000, "full", {"active_sessions": 2, "max_sessions": 2}), "ws://x")
    assert isinstance(full, CapacityError)
    assert (full.active, full.max) == (2, 2)
    broken = session_error(failed(-32000, "x", {"factory_name": "Env"}), "ws://x")
    assert isinstance(broken, EnvironmentFactoryError)
    assert broken.factory_name == "Env"
    other = session_error(failed(-32601, "Method not found"), "ws://x")
    assert isinstance(other, ServerError)
    assert other.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("result", [None, 5, {}, {"session_id": ""}, {"session_id": 5}])
def test_a_session_without_an_id(result: Any) -> None:
    assert told_session(Response(result)) is None
    assert told_session(Response({"session_id": "s"})) == "s"


def test_features_are_offered_and_read() -> None:
    assert read_features(offered_features()) == frozenset(McpFeature)
    assert read_features("Token , later") == {McpFeature.TOKEN}
    assert read_features("") == frozenset()
