"""`MCPEnvironment` on its own: from a script, from an event loop, and as env packages override it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from fastmcp import FastMCP

from openenv.core.env_server import mcp_environment
from openenv.core.env_server.mcp_environment import MCPEnvironment, get_server_tools
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    ToolErrorType,
)
from openenv.core.env_server.types import Action, Observation, State
from support.tool_envs import ToolsEnv, fresh_tools


@pytest.fixture
def env() -> Iterator[ToolsEnv]:
    made = fresh_tools()()
    yield made
    made.gate.set()
    made.close()


def call(env: MCPEnvironment, name: str, timeout_s: float | None = None, **arguments: Any) -> CallToolObservation:
    seen = env.step(CallToolAction(tool_name=name, arguments=arguments), timeout_s=timeout_s)
    assert isinstance(seen, CallToolObservation)
    return seen


async def call_async(
    env: MCPEnvironment, name: str, timeout_s: float | None = None, **arguments: Any
) -> CallToolObservation:
    seen = await env.step_async(CallToolAction(tool_name=name, arguments=arguments), timeout_s=timeout_s)
    assert isinstance(seen, CallToolObservation)
    return seen


# ------------------------------------------------------------------- steps


def test_lists_its_tools(env: ToolsEnv) -> None:
    seen = env.step(ListToolsAction())
    assert isinstance(seen, ListToolsObservation)
    (inc,) = [tool for tool in seen.tools if tool.name == "inc"]
    assert inc.description == "Add to the counter."
    assert inc.input_schema["properties"] == {"by": {"default": 1, "type": "integer"}}


@pytest.mark.parametrize("tool", ["inc", "inc_async"])
def test_sync_steps_call_sync_and_async_tools(env: ToolsEnv, tool: str) -> None:
    assert call(env, tool).result.data["count"] == 1
    assert call(env, tool, by=2).result.data["count"] == 3


@pytest.mark.parametrize("tool", ["inc", "inc_async"])
async def test_async_steps_call_sync_and_async_tools(env: ToolsEnv, tool: str) -> None:
    assert (await call_async(env, tool)).result.data["count"] == 1


def test_a_sync_step_runs_sync_tools_on_its_own_thread(env: ToolsEnv) -> None:
    assert call(env, "inc").result.data["thread"] == threading.current_thread().name


async def test_async_steps_run_sync_tools_and_step_impl_on_one_other_thread(env: ToolsEnv) -> None:
    tool = (await call_async(env, "inc")).result.data["thread"]
    other = (await env.step_async(Action())).metadata["thread"]
    assert tool == other != threading.current_thread().name
    assert (await call_async(env, "inc_async")).result.data["thread"] == threading.current_thread().name


async def test_a_sync_step_under_a_running_loop_does_not_deadlock(env: ToolsEnv) -> None:
    assert call(env, "inc").result.data["count"] == 1
    assert call(env, "inc_async").result.data["count"] == 2
    assert (await call_async(env, "inc_async")).result.data["count"] == 3


def test_a_sync_tool_may_have_an_event_loop_of_its_own(env: ToolsEnv) -> None:
    assert call(env, "loop_inside").result.data == 5


async def test_an_async_step_too(env: ToolsEnv) -> None:
    assert (await call_async(env, "loop_inside")).result.data == 5


async def test_all_calls_share_one_inner_session(env: ToolsEnv) -> None:
    sessions = {(await call_async(env, "inc_async")).result.data["session"] for _ in range(3)}
    async with env.mcp_session() as client:
        assert client is env.mcp_client
        result = await client.call_tool("inc_async", {})
    sessions.add(result.data["session"])
    assert len(sessions) == 1
    assert env.mcp_client is not None
    assert env.mcp_client.is_connected()


def test_other_actions_go_to_step_impl_with_their_arguments() -> None:
    given: dict[str, Any] = {}

    class Env(ToolsEnv):
        def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            given.update(kwargs, timeout_s=timeout_s)
            return Observation(reward=1.0)

    env = fresh_tools(Env)()
    assert env.step(Action(), timeout_s=3, hint="x").reward == 1.0
    assert given == {"timeout_s": 3, "hint": "x"}
    env.close()


# ------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("tool", "arguments", "error_type"),
    [
        ("boom", {}, ToolErrorType.EXECUTION_ERROR),
        ("boom", {"text": "argument invalid: not found"}, ToolErrorType.EXECUTION_ERROR),
        ("refuse", {}, ToolErrorType.EXECUTION_ERROR),
        ("nan", {}, ToolErrorType.EXECUTION_ERROR),
        ("nope", {}, ToolErrorType.TOOL_NOT_FOUND),
        ("inc", {"by": "many"}, ToolErrorType.INVALID_ARGS),
        ("inc", {"other": 1}, ToolErrorType.INVALID_ARGS),
    ],
)
def test_the_class_of_what_was_raised_says_why(
    env: ToolsEnv, tool: str, arguments: dict[str, Any], error_type: ToolErrorType
) -> None:
    seen = call(env, tool, **arguments)
    assert seen.error is not None
    assert seen.error.error_type is error_type
    assert seen.error.message
    assert seen.result is None
    assert call(env, "inc").error is None


async def test_an_async_tool_past_its_time_is_cancelled(env: ToolsEnv) -> None:
    seen = await call_async(env, "wait_async", timeout_s=0.05)
    assert seen.error is not None
    assert seen.error.error_type is ToolErrorType.TIMEOUT
    assert "0.05 seconds" in seen.error.message
    assert [one["event"] for one in env.log.events] == ["init", "wait", "cancelled"]


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_tool_may_have_a_time_limit_of_its_own(env: ToolsEnv, blocks: bool) -> None:
    @env.mcp_server.tool(timeout=0.02, name="limited")
    async def waits() -> None:
        await asyncio.Event().wait()

    def blocked() -> None:
        env.gate.wait(30)

    if blocks:
        env.mcp_server.tool(blocked, timeout=0.02, name="limited")
    seen = await call_async(env, "limited")
    assert seen.error is not None
    assert seen.error.error_type is ToolErrorType.TIMEOUT


async def test_a_sync_tool_past_its_time_goes_on_and_the_next_call_waits_for_it(env: ToolsEnv) -> None:
    seen = await call_async(env, "wait", timeout_s=0.05)
    assert seen.error is not None
    assert seen.error.error_type is ToolErrorType.TIMEOUT
    then = asyncio.create_task(call_async(env, "inc"))
    await asyncio.sleep(0)
    env.gate.set()
    assert (await then).result.data["count"] == 2
    assert [one.get("tool") for one in env.log.events if one["event"] == "tool"] == ["waited", "inc"]


async def test_a_call_that_was_given_up_before_it_began_is_not_run(env: ToolsEnv) -> None:
    await call_async(env, "wait", timeout_s=0.02)
    seen = await call_async(env, "inc", timeout_s=0.02)
    assert seen.error is not None
    assert seen.error.error_type is ToolErrorType.TIMEOUT
    env.gate.set()
    assert (await call_async(env, "inc_async")).error is None
    await env.step_async(Action())  # behind whatever was queued
    assert "inc" not in [one.get("tool") for one in env.log.events]


async def test_the_module_constant_is_the_default_time(env: ToolsEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mcp_environment.MCP_TOOL_CALL_TIMEOUT == 30.0
    monkeypatch.setattr(mcp_environment, "MCP_TOOL_CALL_TIMEOUT", 0.02)
    seen = await call_async(env, "wait_async")
    assert seen.error is not None
    assert seen.error.error_type is ToolErrorType.TIMEOUT


async def test_a_cancelled_caller_cancels_the_tool(env: ToolsEnv) -> None:
    task = asyncio.create_task(call_async(env, "wait_async"))
    while not any(one["event"] == "wait" for one in env.log.events):
        await asyncio.sleep(0.002)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while not any(one["event"] == "cancelled" for one in env.log.events):
        await asyncio.sleep(0.002)


def test_a_closed_environment_says_so(env: ToolsEnv) -> None:
    env.close()
    assert env.mcp_client is None
    assert env.mcp_server is None
    with pytest.raises(RuntimeError, match="closed"):
        call(env, "inc")


async def test_without_the_constructor_of_the_base_it_says_what_to_do() -> None:
    class Env(ToolsEnv):
        def __init__(self) -> None:
            self.env_no = 0

    env = fresh_tools(Env)()
    with pytest.raises(RuntimeError, match=r"super\(\).__init__\(mcp_server\)"):
        call(env, "inc")
    assert env.step(Action()).metadata
    assert (await env.step_async(Action())).metadata


# ------------------------------------------------------------------- names and modes


@pytest.mark.parametrize("name", ["reset", "step", "state", "close"])
def test_reserved_names_are_refused(name: str) -> None:
    server: FastMCP[Any] = FastMCP("bad")
    server.tool(lambda: None, name=name)

    class Env(ToolsEnv):
        def build(self) -> FastMCP[Any]:
            return server

    with pytest.raises(ValueError, match=name):
        fresh_tools(Env)()


def test_a_reserved_name_that_comes_later_is_neither_listed_nor_called(env: ToolsEnv) -> None:
    env.mcp_server.tool(lambda: env.reset(), name="reset")
    assert "reset" not in [tool.name for tool in env.step(ListToolsAction()).tools]
    error = call(env, "reset").error
    assert error is not None
    assert error.error_type is ToolErrorType.TOOL_NOT_FOUND
    assert env.log.of("reset") == []


def test_the_decorator_refuses_reserved_names_and_unknown_modes(env: ToolsEnv) -> None:
    with pytest.raises(ValueError, match="Invalid mode 'test'"):
        env.tool(mode="test")

    def reset() -> None: ...

    with pytest.raises(ValueError, match="reset"):
        env.tool()(reset)


class ModesEnv(ToolsEnv):
    """Tools of each kind, some of them registered before there is a server."""

    def __init__(self) -> None:
        @self.tool()
        def early() -> str:
            return "both"

        super().__init__()

        @self.tool(mode="production")
        def which(x: int):  # type: ignore[no-untyped-def]
            return x * 2

        @self.tool(mode="simulation")
        def which(x: int) -> int:  # type: ignore[no-redef]  # noqa: F811
            return x * 3


@pytest.mark.parametrize(("mode", "answer"), [("production", 10), ("simulation", 15), (None, None)])
def test_tools_of_a_mode(mode: str | None, answer: int | None) -> None:
    env = fresh_tools(ModesEnv)()
    env._mode = mode
    names = [tool.name for tool in env.step(ListToolsAction()).tools]
    assert "early" in names
    assert ("which" in names) == (mode is not None)
    seen = call(env, "which", x=5)
    assert (seen.result and seen.result.data) == answer
    assert ("which" in env.get_callables()) == (mode is not None)
    env.close()


# ------------------------------------------------------------------- code mode


def test_code_calls_tools_as_functions(env: ToolsEnv) -> None:
    assert env.supports_code_mode
    seen = env.execute_code("def twice(n):\n    return [inc(n)['count'], inc(n)['count']]\nresult = twice(2)")
    assert seen.metadata == {"result": [2, 4]}
    assert (seen.done, seen.reward) == (False, 0.0)


@pytest.mark.parametrize(("code", "error"), [("1 +", "Syntax error"), ("boom('x')", "x"), ("nope()", "nope")])
def test_code_that_fails_says_why(env: ToolsEnv, code: str, error: str) -> None:
    assert error in env.execute_code(code).metadata["error"]


def test_the_tools_of_a_server_are_the_authors_own(env: ToolsEnv) -> None:
    tools = get_server_tools(env.mcp_server)
    assert tools["inc"].fn(by=2)["count"] == 2
    assert env.get_callables()["inc"] is tools["inc"].fn


# ------------------------------------------------------------------- overriding


class Overrides(ToolsEnv):
    """Both steps overridden, as env packages do that want a reward for a tool call."""

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        seen = super().step(action, timeout_s=timeout_s, **kwargs)
        seen.reward = 0.5
        return seen

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        seen = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        seen.reward = 0.5
        return seen


class StepOnly(ToolsEnv):
    """Only the sync step overridden."""

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        seen = super().step(action, timeout_s=timeout_s, **kwargs)
        seen.reward = 0.25
        return seen


@pytest.mark.parametrize(("base", "reward"), [(Overrides, 0.5), (StepOnly, 0.25)])
@pytest.mark.parametrize("tool", ["inc", "inc_async"])
async def test_an_override_of_step_is_called(base: type[ToolsEnv], reward: float, tool: str) -> None:
    env = fresh_tools(base)()
    assert (await call_async(env, tool)).reward == reward
    assert call(env, tool).reward == reward
    assert (await env.step_async(Action())).reward == reward
    env.close()


def test_closed_environments_are_let_go() -> None:
    cls = fresh_tools()
    made = []
    for _ in range(50):
        env = cls()
        assert call(env, "inc").error is None
        assert call(env, "inc_async").error is None
        env.close()
        made.append(weakref.ref(env))
        del env
    gc.collect()
    assert sum(ref() is not None for ref in made) <= 20


def test_one_server_for_several_environments() -> None:
    server: FastMCP[Any] = FastMCP("shared")

    @server.tool
    def where() -> str:
        return threading.current_thread().name

    class Env(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(server)

        def reset(self, *args: Any, **kwargs: Any) -> Observation:
            return Observation()

        def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            return Observation()

        @property
        def state(self) -> State:
            return State()

    before = len(server.middleware)
    envs = [Env() for _ in range(3)]
    assert [call(env, "where").result.data for env in envs] == [threading.current_thread().name] * 3
    assert len(server.middleware) == before + 1
    for env in envs:
        env.close()


def test_without_fastmcp_the_import_names_the_install() -> None:
    code = (
        "import sys; sys.modules['fastmcp'] = None\n"
        "try: from openenv.core import MCPEnvironment\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'openenv[mcp]'" in done.stdout


def test_a_server_imports_no_fastmcp() -> None:
    code = (
        "import sys; import openenv.core.env_server.http_server\n"
        "print([name for name in ('fastmcp', 'mcp', 'sse_starlette') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
