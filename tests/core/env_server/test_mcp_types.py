"""The tool types: what they accept, and the JSON they become."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from openenv.core.env_server import mcp_types
from openenv.core.env_server.mcp_types import (
    RESERVED_TOOL_NAMES,
    CallToolAction,
    CallToolObservation,
    JsonRpcError,
    JsonRpcErrorCode,
    JsonRpcRequest,
    JsonRpcResponse,
    ListToolsAction,
    ListToolsObservation,
    McpMethod,
    Tool,
    ToolError,
    ToolErrorType,
    WSMCPMessage,
    WSMCPResponse,
)
from openenv.core.env_server.types import Action, Observation

TOOL = {"name": "inc", "description": "add to the counter", "input_schema": {"type": "object"}}

WELL_FORMED: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (ListToolsAction, {}),
    (CallToolAction, {"tool_name": "inc"}),
    (ListToolsObservation, {"tools": [TOOL]}),
    (CallToolObservation, {"tool_name": "inc", "result": 3}),
    (Tool, TOOL),
    (ToolError, {"error_type": "timeout", "message": "too slow"}),
    (JsonRpcError, {"code": -32603, "message": "boom"}),
    (JsonRpcRequest, {"jsonrpc": "2.0", "method": "tools/list"}),
    (JsonRpcResponse, {"result": 1}),
    (WSMCPMessage, {"data": {}}),
    (WSMCPResponse, {"data": {}}),
]


@pytest.mark.parametrize(("model", "fields"), WELL_FORMED)
def test_accepts_its_fields_and_nothing_else(model: type[BaseModel], fields: dict[str, Any]) -> None:
    made = model.model_validate(fields)
    assert model.model_validate(made.model_dump()) == made
    with pytest.raises(ValidationError, match="extra_forbidden"):
        model.model_validate({**fields, "surprise": 1})


def test_every_model_of_the_module_is_checked_above() -> None:
    public = {getattr(mcp_types, name) for name in mcp_types.__all__}
    models = {value for value in public if isinstance(value, type) and issubclass(value, BaseModel)}
    assert models == {model for model, _ in WELL_FORMED}


def test_tool_actions_name_their_type_on_the_wire() -> None:
    assert issubclass(CallToolAction, Action)
    assert ListToolsAction().model_dump() == {"metadata": {}, "type": "list_tools"}
    call = CallToolAction(tool_name="inc", arguments={"by": 2})
    assert call.model_dump() == {
        "metadata": {},
        "type": "call_tool",
        "tool_name": "inc",
        "arguments": {"by": 2},
    }
    with pytest.raises(ValidationError):
        CallToolAction.model_validate({"type": "list_tools", "tool_name": "inc"})


def test_tool_observations_carry_a_result_or_an_error() -> None:
    assert issubclass(CallToolObservation, Observation)
    failed = CallToolObservation.model_validate(
        {"tool_name": "nope", "error": {"error_type": "tool_not_found", "message": "Unknown tool: 'nope'"}}
    )
    assert failed.error is not None
    assert failed.error.error_type is ToolErrorType.TOOL_NOT_FOUND
    assert failed.result is None


@pytest.mark.parametrize("answer", [0, None, False, {"a": [1]}])
def test_response_with_a_result_has_no_error_member(answer: Any) -> None:
    response = JsonRpcResponse.success(answer, request_id=7)
    assert response.model_dump() == {"jsonrpc": "2.0", "id": 7, "result": answer}
    assert "error" not in response.model_dump_json()


def test_response_with_an_error_has_no_result_member() -> None:
    response = JsonRpcResponse.error_response(JsonRpcErrorCode.METHOD_NOT_FOUND, request_id="a")
    assert response.model_dump() == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {"code": -32601, "message": "Method not found", "data": None},
    }
    assert "result" not in response.model_dump_json()


@pytest.mark.parametrize("code", list(JsonRpcErrorCode))
def test_every_code_has_a_text_that_can_be_replaced(code: JsonRpcErrorCode) -> None:
    assert JsonRpcError.from_code(code).message
    assert JsonRpcError.from_code(code, "why", data=[1]).model_dump() == {"code": code, "message": "why", "data": [1]}


@pytest.mark.parametrize(
    "request_",
    [{"method": "x"}, {"jsonrpc": "1.0", "method": "x"}, {"jsonrpc": "2.0"}, {"jsonrpc": "2.0", "method": 3}],
)
def test_request_that_is_not_json_rpc_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JsonRpcRequest.model_validate(request_)


def test_names_and_values_that_env_packages_know() -> None:
    assert frozenset({"reset", "step", "state", "close"}) == RESERVED_TOOL_NAMES
    assert [method.value for method in McpMethod] == ["tools/list", "tools/call"]
    assert {kind.value for kind in ToolErrorType} == {
        "execution_error",
        "invalid_args",
        "transport_error",
        "tool_not_found",
        "timeout",
    }
