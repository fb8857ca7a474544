"""Puts questions to whichever openenv its interpreter has, about what stands beside the session; prints the answers.

Rubrics, harness, messages of language models, web forms, metadata, small functions; the answers are one JSON object.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

from openenv.core import llm_client, utils  # noqa: E402
from openenv.core.client_types import StepResult  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.mcp_types import CallToolAction, Tool  # noqa: E402
from openenv.core.env_server.serialization import (  # noqa: E402
    deserialize_action,
    deserialize_action_with_preprocessing,
    serialize_observation,
)
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402
from openenv.core.harness import (  # noqa: E402
    HarnessRolloutResult,
    HarnessRunLimits,
    MCPHarnessAdapter,
    ModelStepResult,
    SessionMCPBridge,
    StepEnvSessionAdapter,
    ToolResult,
    ToolTraceEntry,
    VerifyResult,
    _resolve_env_reward,
    build_harness_rollout_func,
)
from openenv.core.llm_client import LLMResponse, ToolCall  # noqa: E402
from openenv.core.rubrics import (  # noqa: E402
    ExponentialDiscountingTrajectoryRubric,
    Gate,
    LLMJudge,
    Rubric,
    RubricDict,
    RubricList,
    Sequential,
    WeightedSum,
)

try:
    from openenv.core.env_server.web_interface import load_environment_metadata
except ImportError:
    load_environment_metadata = None  # type: ignore[assignment]


ADDRESSES = [("http://h", 80), ("http://h:1/v1/", None), ("h:1", None), ("http://h?x", 1), ("http://h:1", 2)]
REWARDS: list[Any] = [([1], None), ([1, None], 1.0), ([], 0.5), ([], None), ([1], 2)]
"""What the tool results of a rollout tell of the reward, and what its verdict tells."""


class Fixed(Rubric):
    def __init__(self, score: float) -> None:
        super().__init__()
        self.score = score

    def forward(self, action: Any, observation: Any) -> float:
        return self.score


class Slow(Fixed):
    async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
        return self.score


class Won(ExponentialDiscountingTrajectoryRubric):
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
        return 1.0 if trajectory[-1][1].done else 0.5


class Model(llm_client.LLMClient):
    def __init__(self, answer: str) -> None:
        super().__init__("http://nowhere", 1)
        self.answer = answer

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        return self.answer


class Env(Environment):  # type: ignore[type-arg]
    def __init__(self, rubric: Any = None) -> None:
        super().__init__(rubric=rubric)

    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Observation:
        self._reset_rubric()
        return Observation()

    def step(self, action: Any, timeout_s: Any = None, **kwargs: Any) -> Observation:
        return Observation(reward=self._apply_rubric(action, Observation(done=True)))

    @property
    def state(self) -> State:
        return State()


class Client:
    """A step client of a very small game."""

    def __init__(self) -> None:
        self.count = 0
        self.asked: list[Any] = []

    def reset(self, **kwargs: Any) -> StepResult[Any]:
        self.asked.append(kwargs)
        return StepResult({"text": "ready"}, 0.0, False)

    def step(self, action: Any) -> StepResult[Any]:
        self.count += 1
        self.asked.append(action)
        return StepResult({"text": action}, 0.25, action == "stop")

    def state(self) -> State:
        return State(episode_id="E", step_count=self.count)

    def close(self) -> None:
        self.asked.append("closed")


class Letters(Action):
    letter: str = "a"
    tokens: Any = None
    action_id: int = 0


def told(question: Any) -> Any:
    """An answer, or what kind of error it was."""
    try:
        return question()
    except Exception as error:
        return {"raised": type(error).__name__, "builtin": [base.__name__ for base in type(error).__mro__][-3]}


def rubrics() -> dict[str, Any]:
    nested = Sequential(Gate(Fixed(1.0)), WeightedSum([Fixed(0.2), Fixed(0.8)], [0.5, 0.5]))
    hooked, seen = Sequential(Fixed(0.5)), []
    hooked.register_forward_pre_hook(lambda _, a, o: seen.append(["pre", a, o]))
    hooked.register_forward_hook(lambda _, a, o, s: seen.append(["post", a, o, s]))
    won = Won(gamma=0.5, intermediate_reward=0.1)
    asynchronous = [
        Slow(0.3),
        Sequential(Fixed(1.0), Slow(0.4), Fixed(0.5)),
        Sequential(Slow(0.0), Fixed(0.5)),
        Gate(Slow(0.4), 0.5),
        WeightedSum([Slow(1.0), Fixed(0.0)], [0.25, 0.75]),
    ]
    judged = [(answer, asyncio.run(LLMJudge("{action}", Model(answer))("a", "o"))) for answer in ("0.7", "8", "none")]
    return {
        "sync": [rubric("a", "o") for rubric in (Sequential(), Sequential(Fixed(0.0), Fixed(1.0)), nested, hooked)],
        "hooks": [seen, hooked.last_score],
        "async": [asyncio.run(rubric("a", "o")) for rubric in asynchronous],
        "names": [name for name, _ in nested.named_rubrics("top")],
        "paths": [told(lambda path=path: nested.get_rubric(path).score) for path in ("rubric_1.rubric_0", "x")],
        "sizes": [len(nested), len(RubricList([Fixed(1.0)])), list(RubricDict({"a": Fixed(1.0)}))],
        "containers": [told(lambda: RubricList()("a", "o")), told(lambda: RubricDict({})("a", "o"))],
        "weights": [told(lambda: WeightedSum([Fixed(1.0)], [0.5])), told(lambda: WeightedSum([], [1.0]))],
        "episode": [
            [won("a", Observation()), won("a", Observation(done=True))],
            won.compute_step_rewards(),
            len(won.trajectory),
            won.state_dict(),
            told(lambda: Won(gamma=2.0)),
        ],
        "judge": judged,
        "environment": [Env().step(None).reward, Env(Gate(Fixed(0.7), 0.5)).step(None).reward],
    }


def messages() -> dict[str, Any]:
    tools = [{"name": "f", "inputSchema": {"oneOf": [{"type": "null"}, {"type": "object", "x": 1}]}}, {"name": "g"}]
    schemas: list[Any] = [
        *(None, {}, {"type": "string"}, {"anyOf": [{"type": "null"}]}, {"oneOf": []}),
        {"allOf": [{"properties": {"a": 1}, "required": ["a"]}, {"properties": {"b": 1}}]},
    ]
    calls = LLMResponse("t", [ToolCall("c", "f", {"x": [1]})]).to_message_dict()
    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        calls,
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "tool", "tool_call_id": "d", "content": "2"},
        {"role": "assistant", "content": "a"},
    ]
    return {
        "schemas": [llm_client._clean_mcp_schema(schema) for schema in schemas],
        "openai": llm_client._mcp_tools_to_openai(tools),
        "anthropic": llm_client._mcp_tools_to_anthropic(tools),
        "talk": llm_client._openai_msgs_to_anthropic(talk),
        "calls": calls,
        "urls": [
            told(lambda given=given: type("C", (Model,), {"__init__": llm_client.LLMClient.__init__})(*given).base_url)
            for given in [
                ("http://h", 80),
                ("http://h:1/v1/", None),
                ("h:1", None),
                ("http://h?x", 1),
                ("http://h:1", 2),
            ]
        ],
    }


def harness() -> dict[str, Any]:
    tools = [Tool(name=name, description="", input_schema={"type": "object"}) for name in ("go", "stop")]

    def session(client: Any, **more: Any) -> Any:
        return StepEnvSessionAdapter(
            client,
            task="T",
            tool_specs=tools,
            action_builder=lambda name, arguments: name,
            initial_messages_builder=lambda result, task: [{"role": "user", "content": task}],
            **more,
        )

    def model_of(*turns: list[str]) -> Any:
        said = iter(turns)

        def step(messages: Any, tools: Any, sampling: Any) -> ModelStepResult:
            calls = [ToolCall(f"c{n}", name, {}) for n, name in enumerate(next(said))]
            return ModelStepResult(LLMResponse("hm", calls), [1], [2], [-0.5])

        return step

    client = Client()
    one = session(client, seed=3, episode_id="E", reset_kwargs={"seed": 4})
    bridge = SessionMCPBridge(one)
    requests = [
        {"id": 1, "method": "tools/list"},
        *({"jsonrpc": "2.0", "id": 2, "method": method} for method in ("tools/list", "tools/call", "nope")),
        *(
            {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": name}}
            for name in ("go", "reset", "x")
        ),
    ]
    answers = [bridge.handle_request(request) for request in requests]
    for answer in answers:
        answer.get("error", {}).pop("message", None)
    rollouts = []
    for limits, turns in (
        (None, [["go"], ["go", "stop", "go"]]),
        (None, [[]]),
        (HarnessRunLimits(max_turns=1), [["go"]]),
        (HarnessRunLimits(max_turns=2, max_tool_calls_per_turn=1), [["go", "go"], ["go"]]),
    ):
        played = MCPHarnessAdapter().run_white_box(model_of(*turns), session(Client()), limits)
        events = [[event.type, event.payload] for event in played.events]
        rollouts.append([played.messages, events, played.done, played.metrics, played.prompt_ids, played.logprobs])
    rewards = []
    for entries, verdict in (
        ([{"reward": 1}], None),
        ([{"reward": 1}, {}], 1.0),
        ([], 0.5),
        ([], None),
        ([{"reward": 1}], 2),
    ):
        rollout = HarnessRolloutResult(tool_trace=[ToolTraceEntry("t", {}, ToolResult(data)) for data in entries])
        rewards.append(told(lambda r=rollout, v=verdict: _resolve_env_reward(r, VerifyResult(env_reward=v))))

    class Factory:
        def create(self, task: Any, seed: Any = None, episode_id: Any = None) -> Any:
            return session(Client())

    func = build_harness_rollout_func(
        session_factory=Factory(),
        harness_adapter=MCPHarnessAdapter(),
        model_step_builder=lambda trainer, session: model_of(["go"], ["stop"]),
    )
    last = one.verify([{}])
    one.close()
    one.close()
    return {
        "bridge": answers,
        "asked": client.asked,
        "verdict": [last.env_reward, last.done, last.metrics, last.artifacts],
        "rollouts": rollouts,
        "rewards": rewards,
        "rollout_func": func(["p"], None),
        "reserved": told(
            lambda: StepEnvSessionAdapter(
                Client(),
                tool_specs=[Tool(name="reset", description="", input_schema={})],
                action_builder=lambda *_: None,
                initial_messages_builder=lambda *_: [],
            )
        ),
    }


def forms() -> list[Any]:
    data = [
        {"letter": "b", "tokens": "[1, 2]", "action_id": "7"},
        {"tokens": "nonsense", "action_id": "x"},
        {"tokens": "3"},
        {"letter": 5},
        {"type": "call_tool", "tool_name": "t", "arguments": '{"x": 1}'},
        {"type": "list_tools"},
    ]
    found = []
    for fields in data:
        for cls in (Letters, Action, CallToolAction):
            for read in (deserialize_action, deserialize_action_with_preprocessing):
                found.append(told(lambda f=fields, c=cls, r=read: r(f, c).model_dump()))
    seen = Observation(done=True, reward=1, metadata={"k": 1})
    return [*found, serialize_observation(seen), serialize_observation(Observation())]


def metadata() -> Any:
    if load_environment_metadata is None:
        return None
    kinds = [(Env, None), (Env, "e"), (functools.partial(Env, None), "e"), (Env(), "e")]
    return [load_environment_metadata(env, name).model_dump() for env, name in kinds]


def small() -> list[Any]:
    urls = ["http://h:1/", "https://h/x", "ws://h", "wss://h/", "h:1"]
    return [[utils.convert_to_ws_url(url) for url in urls], utils.hf_space_subdomain("Org/My_env.x")]


answers = {
    "rubrics": rubrics(),
    "messages": messages(),
    "harness": harness(),
    "forms": forms(),
    "metadata": metadata(),
    "small": small(),
}
json.dump(answers, sys.stdout, default=str)
