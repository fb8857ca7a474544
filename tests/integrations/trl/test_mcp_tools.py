"""The tools that an MCP environment lists, as the methods of a trainer's environment."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openenv import SessionLostError
from openenv.testing import FaultProxy, ServerProcess
from openenv.trl import tool_env
from support.tool_envs import tool_server

SHARED = Path(__file__).parents[2] / "interop" / "shared"


def test_the_tools_that_a_server_lists_are_those_of_the_model() -> None:
    with tool_server() as server:
        factory = tool_env(url=str(server.url), tools="mcp")
        env = factory()
        listed = {tool["name"] for tool in server.ask("tools/list", {"session_id": server.create()})["result"]["tools"]}
        assert listed == {name for name, _ in inspect.getmembers(type(env), inspect.isfunction) if name in listed}
        assert factory.tools == listed
        assert inspect.signature(env.inc).parameters["by"].default == 1
        assert inspect.getdoc(env.inc) == "Add to the counter.\n\nArgs:\n    by: by"
        env.reset(seed=1)
        assert env.inc(by=2)["count"] == 2
        assert env.inc()["count"] == 3
        with pytest.raises(RuntimeError) as failed:
            env.boom(text="out of cards")
        assert "out of cards" in str(failed.value)
        assert "session" not in str(failed.value)
        report = factory.check(tool=("inc", {"by": 1}))
        assert (report.dialect, report.resumes) == ("mcp", True)
        copy = pickle.loads(pickle.dumps(factory))
        assert copy().inc.__doc__ == env.inc.__doc__
        assert len(server.events("tool")) == 3


def test_a_dropped_connection_costs_no_game(fault_proxy: Callable[[str], FaultProxy]) -> None:
    with tool_server() as server:
        proxy = fault_proxy(str(server.url))
        env = tool_env(url=proxy.url, tools="mcp")()
        env.reset()
        assert env.inc()["count"] == 1
        proxy.cut()
        assert env.inc()["count"] == 2
        env_numbers = {event["env_no"] for event in server.events("tool")}
        assert len(env_numbers) == 1


def test_a_session_that_the_server_no_longer_knows_is_masked() -> None:
    apps = ServerProcess("tool_app:app", environ={"PYTHONPATH": f"{SHARED}:{os.environ.get('PYTHONPATH', '')}"})
    with apps as server:
        env: Any = tool_env(url=server.url, tools="mcp")()
        env.reset()
        assert env.inc()["count"] == 1
        assert env.greet(name="you") == "Hello, you!"  # an argument may have any name
        server.restart()
        with pytest.raises(SessionLostError, match="does not answer any more"):
            env.inc()
        assert env.get_reward() is None
        env.reset()
        assert env.inc()["count"] == 1
