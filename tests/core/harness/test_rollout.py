"""Rollouts played by a harness: in a real environment where it matters, else in sessions that keep a log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openenv.core.client_types import StepResult
from openenv.core.env_server.mcp_types import Tool
from openenv.core.exceptions import SessionLostError
from openenv.core.harness import (
    CLIHarnessAdapter,
    HarnessRolloutResult,
    HarnessRunLimits,
    MCPHarnessAdapter,
    Message,
    ModelStepResult,
    ResourceSession,
    ResourceSessionFactory,
    RolloutEvent,
    SessionMCPBridge,
    StepEnvSessionAdapter,
    ToolResult,
    VerifyResult,
    _resolve_env_reward,  # programs of the OpenEnv world take it from here
    build_harness_rollout_func,
)
from openenv.core.llm_messages import LLMResponse, ToolCall
from support.clients import CountServer
from support.envs import CountAction

INC = Tool(name="inc", description="Count.", input_schema={"type": "object", "properties": {}})
DONE = Tool(name="done", description="Stop.", input_schema={"type": "object", "properties": {}})


def counting(server: CountServer, **more: Any) -> StepEnvSessionAdapter:
    """A session of a real `CountEnv`, each tool one of its ops."""
    return StepEnvSessionAdapter(
        server.client(),
        task="count",
        tool_specs=[INC, DONE],
        action_builder=lambda name, arguments: CountAction(op=name, metadata=arguments),
        initial_messages_builder=lambda result, task: [
            {"role": "user", "content": f"{task} from {result.observation.count}"}
        ],
        **more,
    )


def turn(*tools: str, text: str = "", ids: tuple[int, ...] = ()) -> ModelStepResult:
    calls = [ToolCall(id=f"call-{number}", name=name, args={}) for number, name in enumerate(tools)]
    return ModelStepResult(LLMResponse(text, calls), list(ids), [i + 100 for i in ids], [-0.5 for _ in ids])


class Model:
    """Says prepared turns, and keeps what it was asked."""

    def __init__(self, *turns: ModelStepResult) -> None:
        self.turns = list(turns)
        self.asked: list[tuple[list[Message], list[Tool], dict[str, Any]]] = []

    def __call__(self, messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        self.asked.append((messages, tools, sampling))
        return self.turns.pop(0)


class Scripted(ResourceSession):
    """A session with prepared tool results."""

    def __init__(self, *results: ToolResult | Exception, verdict: VerifyResult | None = None) -> None:
        self.results = list(results)
        self.verdict = verdict or VerifyResult()
        self.log: list[str] = []

    def initial_messages(self) -> list[Message]:
        return [{"role": "user", "content": "go"}]

    def list_tools(self) -> list[Tool]:
        return [INC]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        self.log.append(name)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        self.log.append("verify")
        self.final_state = final_state
        return self.verdict

    def close(self) -> None:
        self.log.append("close")


# ----------------------------------------------------------------- a step client as a session


def test_a_session_plays_one_episode_of_a_real_environment(server: CountServer) -> None:
    session = counting(server, seed=5, episode_id="E", reset_kwargs={"size": 3})
    assert session.initial_messages() == [{"role": "user", "content": "count from 0"}]
    assert session.list_tools() == [INC, DONE]
    result = session.call_tool("inc", {"mark": "m"})
    assert (result.data["observation"].count, result.data["reward"], result.done) == (1, 0.5, False)
    assert result.metadata["reward"] == 0.5
    assert result.metadata["state"]["step_count"] == 1
    assert session.call_tool("done", {}).done is True
    verdict = session.verify([{"role": "user", "content": "x"}])
    assert (verdict.env_reward, verdict.done, verdict.metrics) == (0.5, True, {"step_count": 2})
    assert verdict.artifacts["final_state"]["episode_id"] == "E"
    assert verdict.artifacts["transcript_length"] == 1
    session.close()
    session.close()
    server.env.log.wait_for("close")
    assert [one["seed"] for one in server.env.log.of("reset")] == [5]
    assert server.marks() == ["m", None]


def test_seed_and_name_in_reset_kwargs_win(server: CountServer) -> None:
    session = counting(server, seed=5, reset_kwargs={"seed": 9})
    assert server.env.log.of("reset")[0]["seed"] == 9
    session.close()


def test_unknown_and_reserved_tools_do_not_step(server: CountServer) -> None:
    session = counting(server)
    with pytest.raises(KeyError, match="Unknown tool: fly"):
        session.call_tool("fly", {})
    with pytest.raises(KeyError, match="reset"):
        session.call_tool("reset", {})
    assert server.env.log.of("step") == []
    session.close()
    reserved = Tool(name="step", description="", input_schema={})
    with pytest.raises(ValueError, match="step"):
        StepEnvSessionAdapter(
            object(), tool_specs=[reserved], action_builder=lambda *_: None, initial_messages_builder=lambda *_: []
        )


def test_a_client_that_cannot_be_reset_is_closed() -> None:
    class Broken:
        closed = 0

        def reset(self, **_: Any) -> StepResult[Any]:
            raise KeyboardInterrupt

        def close(self) -> None:
            self.closed += 1

    client = Broken()
    with pytest.raises(KeyboardInterrupt):
        StepEnvSessionAdapter(
            client, tool_specs=[], action_builder=lambda *_: None, initial_messages_builder=lambda *_: []
        )
    assert client.closed == 1


def test_builders_replace_the_default_result_and_verdict(server: CountServer) -> None:
    seen: list[Any] = []

    def verdict(transcript: Any, final_state: Any, last: Any, state: Any) -> VerifyResult:
        seen.append((transcript, final_state, last.observation.count, state.step_count))
        return VerifyResult(env_reward=9.0)

    session = counting(
        server,
        tool_result_builder=lambda name, arguments, result, state: ToolResult(data=[name, arguments, state.step_count]),
        verify_builder=verdict,
    )
    assert session.call_tool("inc", {"mark": 1}).data == ["inc", {"mark": 1}, 1]
    assert session.verify([], final_state="end").env_reward == 9.0
    assert seen == [([], "end", 1, 1)]
    session.close()


# ----------------------------------------------------------------------------- the white box


def test_the_loop_plays_until_the_environment_is_done(server: CountServer) -> None:
    session = counting(server)
    model = Model(turn("inc", text="one", ids=(1, 2)), turn("inc", "done", ids=(3,)))
    result = MCPHarnessAdapter().run_white_box(model, session, HarnessRunLimits(sampling={"temperature": 0.5}))
    assert result.done is True
    assert [entry.tool_name for entry in result.tool_trace] == ["inc", "inc", "done"]
    assert (result.prompt_ids, result.completion_ids) == ([1, 2, 3], [101, 102, 103])
    assert result.logprobs == [-0.5] * 3
    assert result.metrics == {"turns": 2, "tool_calls": 3}
    assert [event.type for event in result.events] == ["model_response", "tool_call"] + ["model_response"] + [
        "tool_call"
    ] * 2
    assert [message["role"] for message in result.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "tool",
    ]
    answer = json.loads(result.messages[2]["content"])
    assert answer["observation"]["count"] == 1  # a model's fields, not its repr
    assert [sampling for _, _, sampling in model.asked] == [{"temperature": 0.5}] * 2
    assert [len(messages) for messages, _, _ in model.asked] == [1, 3]
    assert len(server.env.log.of("step")) == 3
    session.close()


def test_the_loop_ends_when_the_model_calls_no_tool() -> None:
    session = Scripted()
    result = MCPHarnessAdapter().run_white_box(Model(turn(text="42")), session)
    assert (result.done, result.tool_trace, session.log) == (True, [], [])
    assert result.messages[-1] == {"role": "assistant", "content": "42"}


def test_limits_of_turns_and_calls() -> None:
    adapter = MCPHarnessAdapter()
    turns = adapter.run_white_box(
        Model(turn("inc"), turn("inc")), Scripted(ToolResult(1), ToolResult(2)), HarnessRunLimits(max_turns=2)
    )
    assert (turns.done, turns.metrics) == (False, {"turns": 2, "tool_calls": 2})
    session = Scripted(ToolResult(1), ToolResult(2))
    per_turn = adapter.run_white_box(
        Model(turn("a", "b"), turn("c", "d")), session, HarnessRunLimits(max_turns=2, max_tool_calls_per_turn=1)
    )
    assert session.log == ["a", "c"]
    assert per_turn.done is False
    session = Scripted(ToolResult(1))
    total = adapter.run_white_box(Model(turn("a", "b")), session, HarnessRunLimits(max_total_tool_calls=1))
    assert session.log == ["a"]
    assert total.done is False
    assert total.metrics["truncated"] is True


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult("plain"), "plain"),
        (ToolResult(None), ""),
        (ToolResult({"b": 1, "a": [2]}), '{"a": [2], "b": 1}'),
        (ToolResult(error="no such file"), "no such file"),
    ],
)
def test_what_the_model_reads_of_a_tool(result: ToolResult, text: str) -> None:
    played = MCPHarnessAdapter().run_white_box(Model(turn("inc"), turn()), Scripted(result))
    assert played.messages[2] == {"role": "tool", "tool_call_id": "call-0", "name": "inc", "content": text}


def test_what_a_tool_raises_ends_the_rollout() -> None:
    lost = SessionLostError(reason="connection_lost")
    with pytest.raises(SessionLostError):
        MCPHarnessAdapter().run_white_box(Model(turn("inc")), Scripted(lost))


# ----------------------------------------------------------------------------- the black box


def ask(bridge: SessionMCPBridge, method: str, **params: Any) -> dict[str, Any]:
    return bridge.handle_request({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})


def test_an_agent_reaches_the_tools_through_the_bridge(server: CountServer) -> None:
    def runner(bridge: SessionMCPBridge, _: ResourceSession, limits: HarnessRunLimits) -> HarnessRolloutResult:
        told = ask(bridge, "tools/call", name="done", arguments={"mark": "x"})
        return HarnessRolloutResult(events=[RolloutEvent("agent", told)], metrics={"turns": limits.max_turns})

    session = counting(server)
    result = CLIHarnessAdapter(runner).run_black_box(session)
    told = result.events[0].payload
    assert (told["id"], told["result"]["done"], told["result"]["error"]) == (7, True, None)
    assert result.metrics == {"turns": 10}
    assert server.marks() == ["x"]
    session.close()


def test_the_bridge_lists_tools() -> None:
    told = ask(SessionMCPBridge(Scripted()), "tools/list")
    assert told["result"]["tools"] == [{"name": "inc", "description": "Count.", "inputSchema": INC.input_schema}]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        ({"method": "tools/list"}, -32600, "Invalid Request"),
        ({"jsonrpc": "2.0", "method": "resources/list"}, -32601, "Method not found"),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {}}, -32602, "tool name"),
        ({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "reset"}}, -32602, "reset"),
    ],
)
def test_requests_that_the_bridge_refuses(request_: dict[str, Any], code: int, text: str) -> None:
    session = Scripted()
    told = SessionMCPBridge(session).handle_request({"id": "q", **request_})
    assert (told["id"], told["error"]["code"]) == ("q", code)
    assert text in told["error"]["message"]
    assert session.log == []


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (KeyError("Unknown tool: missing"), -32601, "Unknown tool: missing"),
        (ValueError("bad x"), -32602, "bad x"),
        (OSError("disk"), -32603, "disk"),
    ],
)
def test_a_tool_that_fails_is_an_error_for_the_agent(raised: Exception, code: int, text: str) -> None:
    told = ask(SessionMCPBridge(Scripted(raised)), "tools/call", name="inc")
    assert (told["error"]["code"], told["error"]["message"]) == (code, text)


def test_a_lost_session_is_not_for_the_agent() -> None:
    bridge = SessionMCPBridge(Scripted(SessionLostError(reason="connection_lost")))
    with pytest.raises(SessionLostError):
        ask(bridge, "tools/call", name="inc")


def test_each_harness_does_one_kind() -> None:
    with pytest.raises(NotImplementedError, match="CLIHarnessAdapter"):
        MCPHarnessAdapter().run_black_box(Scripted())
    with pytest.raises(NotImplementedError, match="MCPHarnessAdapter"):
        CLIHarnessAdapter(lambda *_: HarnessRolloutResult()).run_white_box(Model(), Scripted())


# ------------------------------------------------------------------------------ rollout_func


class Factory(ResourceSessionFactory[Scripted]):
    def __init__(self, *sessions: Scripted) -> None:
        self.sessions = list(sessions)
        self.tasks: list[Any] = []

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Scripted:
        self.tasks.append(task)
        return self.sessions[len(self.tasks) - 1]


def test_rollout_func_plays_a_session_for_each_prompt() -> None:
    sessions = [
        Scripted(ToolResult({"reward": n}, done=True), verdict=VerifyResult(float(n), metrics={"n": n})) for n in (1, 2)
    ]
    trainers: list[Any] = []
    factory = Factory(*sessions)
    rollout = build_harness_rollout_func(
        session_factory=factory,
        harness_adapter=MCPHarnessAdapter(),
        model_step_builder=lambda trainer, session: trainers.append((trainer, session)) or Model(turn("inc", ids=(4,))),
        reward_key="score",
    )
    assert rollout(["a", "b"], "trainer") == {
        "prompt_ids": [[4], [4]],
        "completion_ids": [[104], [104]],
        "logprobs": [[-0.5], [-0.5]],
        "score": [1.0, 2.0],
        "verify_metrics": [{"n": 1}, {"n": 2}],
    }
    assert factory.tasks == ["a", "b"]
    assert trainers == [("trainer", sessions[0]), ("trainer", sessions[1])]
    assert sessions[0].log == ["inc", "verify", "close"]
    assert sessions[0].final_state["tool_trace"][0]["result"]["data"] == {"reward": 1}


def test_rollout_func_closes_the_session_of_a_failed_rollout() -> None:
    session = Scripted(SessionLostError(reason="connection_lost"))
    rollout = build_harness_rollout_func(
        session_factory=Factory(session),
        harness_adapter=MCPHarnessAdapter(),
        model_step_builder=lambda *_: Model(turn("inc")),
    )
    with pytest.raises(SessionLostError):
        rollout(["a"], None)
    assert session.log == ["inc", "close"]


@pytest.mark.parametrize(
    ("results", "told", "reward"),
    [
        ([ToolResult(metadata={"reward": 0.5})], None, 0.5),
        ([ToolResult(metadata={"reward": 0.5}), ToolResult({"x": 1})], 0.5, 0.5),
        ([ToolResult({"reward": 1}), ToolResult({"reward": 2})], 2.0, 2.0),
        ([], 0.25, 0.25),
    ],
)
def test_the_reward_is_the_environments(results: list[ToolResult], told: float | None, reward: float) -> None:
    session = Scripted(*results)
    played = MCPHarnessAdapter().run_white_box(Model(*[turn("inc") for _ in results], turn()), session)
    assert _resolve_env_reward(played, VerifyResult(told)) == reward


def test_a_reward_that_the_environment_did_not_give_is_refused() -> None:
    played = MCPHarnessAdapter().run_white_box(Model(turn("inc"), turn()), Scripted(ToolResult({"reward": 1.0})))
    with pytest.raises(ValueError, match=r"must forward the environment reward.*1\.0.*0\.5"):
        _resolve_env_reward(played, VerifyResult(0.5))
    with pytest.raises(ValueError, match="did not produce an environment reward"):
        _resolve_env_reward(HarnessRolloutResult(), VerifyResult())


# ----------------------------------------------------------------------------- what is not here


@pytest.mark.parametrize("name", ["HarnessEnvironment", "HarnessConfig", "events_to_metadata"])
def test_names_of_other_layers_say_that_they_are_not_here(name: str) -> None:
    with pytest.raises(ImportError, match=f"{name} is not part of this package: it"):
        exec(f"from openenv.core.harness import {name}")
