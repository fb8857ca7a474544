"""The same with the server of upstream 0.10.0, which keeps no session whose socket is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.harness import Stage
from openenv import SessionLostError
from openenv.testing import FaultProxy, Oracle
from openenv.trl import tool_env
from support.trainer_envs import Counter

Proxied = Callable[[str], FaultProxy]


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage("upstream", tmp_path, {"PYTHONPATH": ""}, ())
    with stage.server:
        yield stage


def test_a_lost_game_is_masked_and_never_played_on(upstream: Stage, fault_proxy: Proxied) -> None:
    proxy, oracle = fault_proxy(upstream.server.url), Oracle(upstream.log)
    env = tool_env(Counter, url=proxy.url)()
    env.reset(mark="one")
    assert env.count("1") == "count 1"
    proxy.cut_on_reply()
    for mark in ("2", "3"):
        with pytest.raises(SessionLostError, match="does not answer any more"):
            env.count(mark)
    assert env.get_reward() is None
    env.reset(mark="two")
    assert env.count("4") == "count 1"
    assert env.get_reward() == 1.0
    assert [event.mark for event in oracle.of("step")] == ["1", "2", "4"]
    assert oracle.episode_of("4") == "two"


def test_a_replayed_game_goes_on(upstream: Stage, fault_proxy: Proxied) -> None:
    proxy, oracle = fault_proxy(upstream.server.url), Oracle(upstream.log)
    env: Any = tool_env(Counter, url=proxy.url, on_session_lost="replay", volatile=("env",))()
    env.reset(mark="one")
    env.count("1")
    proxy.cut()
    assert env.count("2") == "count 2"
    assert env.get_reward() == 2.0
    assert oracle.times("1") == 2
    assert oracle.times("2") == 1


def test_check_says_that_nothing_is_resumed(upstream: Stage) -> None:
    report = tool_env(Counter, url=upstream.server.url).check(sessions=2)
    assert (report.dialect, report.resumes) == ("plain", False)
    assert "the episode is lost (mask)" in str(report)
    Oracle(upstream.log).wait_for_all_closed()


def test_the_schema_of_upstreams_server_becomes_a_tool(upstream: Stage) -> None:
    env = tool_env(url=upstream.server.url, tools="schema")()
    env.reset()
    assert '"count": 1' in env.act(op="inc")
