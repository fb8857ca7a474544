"""TRL's rollout worker for harness sessions imports this package, and plays with its plain loop of tool calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_vllm import FakeVLLM
from games import GameLog, next_move
from test_async import group

from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    MCPHarnessAdapter,
    ResourceSessionFactory,
    StepEnvSessionAdapter,
    ToolResult,
    VerifyResult,
)
from openenv.testing import FaultProxy, ServerProcess
from sudoku_env import SudokuAction, SudokuEnv

pytestmark = pytest.mark.newest

DIGIT = {"type": "integer"}
PLACE = Tool(
    name="place",
    description="Write a value into an empty cell.",
    input_schema={"type": "object", "properties": {"row": DIGIT, "col": DIGIT, "value": DIGIT}},
)


class Games(ResourceSessionFactory[Any]):
    """Makes a session for each game."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.options = options

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        mark = {"episode": episode_id}
        return StepEnvSessionAdapter(
            SudokuEnv(base_url=self.url, **self.options),
            task=task,
            seed=seed,
            episode_id=episode_id,
            reset_kwargs={"size": 4, "holes": 3},
            tool_specs=[PLACE],
            action_builder=lambda name, arguments: SudokuAction(**arguments, metadata=mark),
            initial_messages_builder=lambda result, prompt: [
                {"role": "user", "content": f"table 0\n{result.observation.text}"}
            ],
            tool_result_builder=lambda name, arguments, result, state: ToolResult(
                data=result.observation.text, done=result.done
            ),
            verify_builder=lambda transcript, final, last, state: VerifyResult(env_reward=float(state.solved)),
        )


@pytest.fixture
def worker(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from accelerate import PartialState
    from games import rows
    from trl.experimental.async_grpo import async_rollout_worker, openenv_harness

    PartialState()
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    started: list[Any] = []

    def start(factory: Any, url: str) -> Any:
        made = openenv_harness.HarnessRolloutWorker(
            harness_session_factory=factory,
            harness_adapter=MCPHarnessAdapter(),
            model_name="tiny",
            dataset=rows((3,), rounds=8),
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            num_generations=4,
            max_inflight_tasks=4,
            max_tool_calling_iterations=8,
            vllm_server_url=url,
            queue_maxsize=4,
        )
        started.append(made)
        made.start()
        return made

    yield start
    for made in started:
        made.stop()


class MakeGames:
    """Pickles, and makes the factory in the worker's process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments = (arguments, options)

    def __call__(self) -> Games:
        positional, named = self.arguments
        return Games(*positional, **named)


def test_the_worker_plays_harness_sessions(
    start_server: Callable[..., ServerProcess], tokenizer: Any, worker: Callable[..., Any], log: GameLog
) -> None:
    with FakeVLLM(tokenizer, next_move) as vllm:
        running = worker(MakeGames(start_server().url), vllm.url)
        samples = group(running)
        running.stop()
    assert [sample.metrics["rewards/harness_reward"] for sample in samples] == [1.0] * 4
    assert all(re.search("place", str(sample.completion)) for sample in samples)
    log.assert_every_move_on_its_own_board()
    log.wait_until_closed()


def test_a_lost_session_is_unscorable(
    start_server: Callable[..., ServerProcess],
    proxied: Callable[[ServerProcess], FaultProxy],
    tokenizer: Any,
    worker: Callable[..., Any],
    log: GameLog,
) -> None:
    proxy = proxied(start_server(resume=False))
    cut: list[str] = []

    def cutting(text: str) -> str:
        if not cut and text.count("<tool_call>") == 2:
            cut.append(text)
            proxy.cut(connection=1)
        return next_move(text)

    with FakeVLLM(tokenizer, cutting) as vllm:
        running = worker(MakeGames(proxy.url), vllm.url)
        samples = group(running)  # of the first group three are left, which have no tokens of the lost one
        running.stop()
    assert cut
    assert all(sample.metrics["rewards/harness_reward"] == 1.0 for sample in samples)
    assert sum(sample.group_id == 0 for sample in samples) == 3
    log.assert_every_move_on_its_own_board()
