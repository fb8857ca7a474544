"""Clients of tools: `MCPClientBase`, `MCPToolClient` and `GenericMCPObservation`.

Here a method call becomes the parameters of a request, and an answer becomes tools or a tool's result. The session is
held over HTTP; its rules are in `openenv.core.session.attached`, its wires in `openenv.core.mcp_link`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import ConfigDict, Field

from openenv.core.client_types import ClientSession, StepResult
from openenv.core.env_client import UNSET, Dialer, EnvClient, MaybeSeconds, bare, seconds
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import Observation, State
from openenv.core.exceptions import LateResultError, Outcome, ReplyValidationError, SessionLostError, ToolCallError
from openenv.core.hooks import parse_model, parse_result
from openenv.core.mcp_link import McpLink
from openenv.core.session.attached import AttachedMachine
from openenv.core.session.events import Op
from openenv.core.session.states import Row
from openenv.core.transport.base import FrameTransport
from openenv.core.transport.http import HttpPoster
from openenv.core.wire.jsonrpc import (
    SESSION_HEADER,
    TOKEN_HEADER,
    HeldSession,
    Response,
    tool_error,
)
from openenv.core.wire.messages import Reply

__all__ = ["GenericMCPObservation", "MCPClientBase", "MCPToolClient", "ToolDescriptor"]


class GenericMCPObservation(Observation):
    """An observation of any environment: fields that are not declared are kept."""

    model_config = ConfigDict(extra="allow")


class ToolDescriptor(Tool):
    """A tool with everything that the server tells of it; members without a field here are kept as extras.

    Attributes:
        title: its name for people.
        output_schema: JSON Schema of its structured result.
        annotations: hints, as ``readOnlyHint``.
    """

    model_config = ConfigDict(extra="allow")

    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)
    title: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


@dataclass(frozen=True)
class _McpDialer(Dialer):
    """Reaches both halves of a server: its ``/ws`` for a session, and its ``/mcp``."""

    connect_timeout_s: float | None = None

    async def attach(self, held: HeldSession) -> FrameTransport:
        """Open a socket for a session. A server that gave it a secret is shown that in a header; another one knows the
        session by its id in the query."""
        address = await self.where()
        if held.token:
            return await self.dial(address, {SESSION_HEADER: held.session_id, TOKEN_HEADER: held.token})
        return await self.dial(address.with_query("session_id", held.session_id))

    async def poster(self) -> HttpPoster:
        """What posts to ``/mcp``."""
        address = await self.where()
        return HttpPoster(address, "/mcp", self.headers_for(address), self.connect_timeout_s, self.max_message_bytes)


class MCPClientBase(EnvClient[Any, Observation, State]):
    """Client of an environment whose actions are tools.

    The session is held over HTTP and outlives every socket: a dropped connection costs at most the call in flight,
    and that one says so. `SessionLostError` means that the server does not know the session any more; ``reset()``
    makes a new one.

    Args:
        base_url: server address, as ``http://localhost:8000``.
        connect_timeout_s: seconds for opening a connection, retries included. None for no limit.
        message_timeout_s: seconds for a call, everything included. None for no limit.
        websocket_ping_interval_s: as for `EnvClient`.
        websocket_ping_timeout_s: as for `EnvClient`.
        provider: as for `EnvClient`.
        mode: ``production``, and nothing else.
        max_message_size_mb: largest reply that is accepted, in millions of bytes. None for no limit.
        headers: further headers of every request and handshake, as ``{"Authorization": "Bearer ..."}``.
        reset_timeout_s: seconds for a reset; default ``message_timeout_s``.
        step_timeout_s: seconds for a step; default ``message_timeout_s``.
        state_timeout_s: seconds for a state call; default ``message_timeout_s``.
        tool_timeout_s: seconds for a tool call, or for listing the tools; default ``message_timeout_s``.
        io: as for `EnvClient`.
        require_reset: refuse step, state and tool calls before the first reset.
        on_resumed: called with the session after each time that it got a socket again; must not block.
        on_session_lost: called with the error after each loss, likewise.
        token: as for `EnvClient`.

    Raises:
        ValueError: another mode, no usable address, a bad number, or what can be no token.
    """

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float | None = 10.0,
        message_timeout_s: float | None = 60.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        max_message_size_mb: float | None = 100.0,
        headers: Mapping[str, str] | None = None,
        *,
        reset_timeout_s: MaybeSeconds = UNSET,
        step_timeout_s: MaybeSeconds = UNSET,
        state_timeout_s: MaybeSeconds = UNSET,
        tool_timeout_s: MaybeSeconds = UNSET,
        io: Literal["auto", "thread"] = "auto",
        require_reset: bool = False,
        on_resumed: Callable[[ClientSession], object] | None = None,
        on_session_lost: Callable[[SessionLostError], object] | None = None,
        token: str | bool | None = None,
    ) -> None:
        if (mode or "production").lower() != "production":
            raise ValueError(
                f"MCPToolClient works in 'production' mode only, not {mode!r}; GenericEnvClient knows simulation."
            )
        super().__init__(
            base_url,
            connect_timeout_s,
            message_timeout_s,
            max_message_size_mb,
            websocket_ping_interval_s,
            websocket_ping_timeout_s,
            provider,
            "production",
            headers,
            reset_timeout_s=reset_timeout_s,
            step_timeout_s=step_timeout_s,
            state_timeout_s=state_timeout_s,
            io=io,
            require_reset=require_reset,
            on_resumed=on_resumed,
            on_session_lost=on_session_lost,
            token=token,
        )
        if tool_timeout_s is not UNSET:
            limit = (seconds("tool_timeout_s", tool_timeout_s), "tool_timeout_s")
            self._timeouts[Op.TOOL] = self._timeouts[Op.LIST_TOOLS] = limit
        known = self._dialer
        self._dialer: Dialer = _McpDialer(
            known.address,
            known.server,
            known.headers,
            known.ping,
            known.max_message_bytes,
            known.credentials,
            connect_timeout_s=self._connect_timeout,
        )

    def _begin(self) -> None:
        super()._begin()
        self._tools_cache: list[Tool] | None = None
        self._tools_of = 0  # the session that they are of

    def _new_machine(self) -> AttachedMachine:
        return AttachedMachine(require_reset=self._require_reset, url=self._shown_url)

    def _new_link(self) -> McpLink:
        dialer = cast("_McpDialer", self._dialer)
        machine = cast("AttachedMachine", self._machine)
        return McpLink(machine, dialer.attach, dialer.poster, self._news_hook(), self._shown_url)

    @property
    def use_production_mode(self) -> bool:
        """Whether tools are called over HTTP, in a session that outlives its sockets. If it is set to False, they are
        called by way of ``step()``: of a subclass, say, that wants to see every call of a tool as an action."""
        return bool(vars(self).get("_tools_over_http", self._begun))

    @use_production_mode.setter
    def use_production_mode(self, wanted: bool) -> None:
        vars(self)["_tools_over_http"] = wanted

    # ------------------------------------------------------------------ tools

    @bare
    async def list_tools(self, use_cache: bool = True) -> list[Tool]:
        """The environment's tools.

        Args:
            use_cache: take the list of an earlier call in this session, if there was one.

        Returns:
            The tools, each with all that the server tells of it. Empty only if the environment has none.

        Raises:
            ConnectError: the server cannot be reached.
            SessionLostError: the session is gone; raised until a ``reset()`` has completed.
            ToolCallError: the server answered with an error.
            CallTimeoutError: no answer in time.
        """
        known = vars(self).get("_tools_cache") if use_cache and self._tools_are_current else None
        if known is None:
            if self.use_production_mode:
                known = _tools(await self._call(Op.LIST_TOOLS, {}))
            else:
                known = await self._tools_by_step()
            self._tools_cache = known
            self._tools_of = self._machine.number if self._begun else 0
        return list(known)

    @property
    def _tools_are_current(self) -> bool:
        if not self._begun:
            return True
        return self._machine.row not in (Row.LOST, Row.CLOSED) and self._tools_of == self._machine.number

    async def _tools_by_step(self) -> list[Tool]:
        seen = (await self.step(ListToolsAction())).observation
        if not isinstance(seen, ListToolsObservation):
            raise ReplyValidationError(model="ListToolsObservation", payload=seen.model_dump())
        return seen.tools

    # ------------------------------------------------------------------ hooks

    def _step_payload(self, action: Any) -> dict[str, Any]:
        if isinstance(action, ListToolsAction):
            return {"type": action.type}
        if isinstance(action, CallToolAction):
            return {"type": action.type, "tool_name": action.tool_name, "arguments": action.arguments}
        return super()._step_payload(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Observation]:
        seen = payload.get("observation")
        if not isinstance(seen, Mapping):
            return parse_result(GenericMCPObservation, payload)
        if payload.get("metadata"):  # what the server says beside an observation goes before what is in it
            seen = {**seen, "metadata": payload["metadata"]}
            payload = {**payload, "observation": seen}
        if isinstance(seen.get("tool_name"), str) and seen.keys() >= {"tool_name", "result"}:
            return parse_result(CallToolObservation, payload)
        if isinstance(seen.get("tools"), list) and seen.keys() <= {"tools", "metadata", "done", "reward"}:
            listed = {**seen, "tools": [_descriptor(tool) for tool in seen["tools"]]}
            return parse_result(ListToolsObservation, {**payload, "observation": listed})
        return parse_result(GenericMCPObservation, payload)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return cast("State", parse_model(State, payload))

    def _result(self, reply: Reply) -> StepResult[Observation]:
        """What ``settle()`` hands over may be the late result of a tool."""
        if reply.kind == "mcp":
            return StepResult(observation=GenericMCPObservation.model_validate({"result": _tool_result("", reply)}))
        return super()._result(reply)


class MCPToolClient(MCPClientBase):
    """A client that calls tools one at a time: `list_tools`, `call_tool`, `get_tool`, `has_tool`."""

    @bare
    async def call_tool(self, name: str | None = None, /, **arguments: Any) -> Any:
        """Call a tool, at most once; exactly once while the server, if it is ours, lives.

        Args:
            name: the tool. Given by position, so that a tool may have an argument of this name; by name if not.
            **arguments: its arguments.

        Returns:
            The tool's result: its ``data`` where the server tells that.

        Raises:
            TypeError: no tool is named.
            ToolCallError: the tool failed, or there is no such tool, or the arguments do not fit.
            OutcomeUnknownError: the connection broke, and nobody can tell whether the tool ran. Told once; the session
                goes on, and nothing was sent again.
            SessionLostError: the session is gone; raised until a ``reset()`` has completed.
            ActionValidationError: an argument has no JSON form; nothing was sent.
            CallTimeoutError: no answer in time.
            ConnectError: the server cannot be reached; nothing was sent.
        """
        name = arguments.pop("name", None) if name is None else name
        if not isinstance(name, str):
            raise TypeError(f"call_tool() needs the name of a tool, not {name!r}")
        if not self.use_production_mode:
            return await self._call_by_step(name, arguments)
        try:
            reply = await self._call(Op.TOOL, {"name": name, "arguments": arguments})
        except LateResultError as late:
            if late.reply is not None and late.reply.kind == "mcp":
                late.result = _late_result(late.reply)
            raise
        return _tool_result(name, reply)

    async def _call_by_step(self, name: str, arguments: dict[str, Any]) -> Any:
        seen = (await self.step(CallToolAction(tool_name=name, arguments=arguments))).observation
        told = seen.model_dump()
        _raise_observed(name, told.get("error"))
        result = told.get("result", told)
        return result.get("data", result) if isinstance(result, dict) else result

    @bare
    async def get_tool(self, name: str) -> Tool | None:
        """The tool of this name; None if there is none. Raises as `list_tools`."""
        return next((tool for tool in await self.list_tools() if tool.name == name), None)

    @bare
    async def has_tool(self, name: str) -> bool:
        """Whether there is a tool of this name. Raises as `list_tools`."""
        return await self.get_tool(name) is not None


# ------------------------------------------------------------------ from answers to values


def _tools(reply: Reply) -> list[Tool]:
    response = Response.read(reply.data)
    if response.is_error:
        raise tool_error("tools/list", response)
    result = response.result
    listed = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(listed, list):
        raise ReplyValidationError(model="tools/list", payload=result if isinstance(result, dict) else {"data": result})
    return [_descriptor(tool) for tool in listed]


_SPELLINGS = {"inputSchema": "input_schema", "outputSchema": "output_schema"}


def _descriptor(tool: Any) -> Tool:
    """A tool as it was told. Servers spell the schemas in two ways."""
    told = {_SPELLINGS.get(key, key): value for key, value in tool.items()} if isinstance(tool, Mapping) else tool
    if isinstance(told, dict) and told.get("description") is None:
        told.pop("description", None)
    return cast("Tool", parse_model(ToolDescriptor, told))


def _tool_result(name: str, reply: Reply) -> Any:
    response = Response.read(reply.data)
    if response.is_error:
        raise tool_error(name, response)
    result = response.result
    if isinstance(result, dict) and result.keys() >= {"tool_name", "error"}:  # an environment that runs tools in step()
        _raise_observed(name, result["error"])
        result = result.get("result")
    if not isinstance(result, dict):
        return result
    if result.get("is_error") is True or result.get("isError") is True:
        raise _failed(name, result)
    return result.get("data", result)


def _raise_observed(name: str, error: Any) -> None:
    if error is None:
        return
    told = error if isinstance(error, dict) else {"message": str(error)}
    kind = told.get("error_type")
    raise ToolCallError(
        str(told.get("message") or ""),
        tool=name,
        error_type=kind if isinstance(kind, str) else None,
        outcome=Outcome.NOT_APPLIED if kind == "tool_not_found" else Outcome.UNKNOWN,
    )


def _failed(name: str, result: Mapping[str, Any]) -> ToolCallError:
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    structured = result.get("structured_content", result.get("structuredContent"))
    return ToolCallError(
        _text_of(blocks),
        tool=name,
        content=blocks,
        structured_content=structured if isinstance(structured, dict) else None,
        error_type="execution_error",
        outcome=Outcome.APPLIED,
    )


def _text_of(blocks: Sequence[Any]) -> str:
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _late_result(reply: Reply) -> Any:
    try:
        return _tool_result("", reply)
    except ToolCallError as error:
        return error
