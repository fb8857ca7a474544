"""The rollout worker of TRL's asynchronous trainer: a process of its own, with the factory and the rewards pickled.

The trainer itself needs a GPU server of vLLM; its worker needs one that answers, which is here `FakeVLLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_vllm import FakeVLLM
from games import GameLog, GuideSudoku, Sudoku, next_move, rows

from openenv.testing import FaultProxy, ServerProcess
from openenv.trl import protect, tool_env
from sudoku_env import SudokuEnv

pytestmark = pytest.mark.newest


def solved(completions: list[Any], **columns: Any) -> list[float]:
    """A reward function that sees no environments."""
    return [float("error" not in str(completion)) for completion in completions]


@pytest.fixture
def worker(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    from accelerate import PartialState
    from trl.experimental.async_grpo import async_rollout_worker as module

    PartialState()
    monkeypatch.setattr(module, "is_vllm_available", lambda: True)
    started: list[Any] = []

    def start(env: Any, reward_funcs: Any, url: str, holes: int = 4) -> Any:
        made = module.AsyncRolloutWorker(
            model_name="tiny",
            dataset=rows((holes,), rounds=8),
            reward_funcs=reward_funcs,
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            environment_factory=env,
            num_generations=4,
            max_inflight_tasks=4,
            max_tool_calling_iterations=12,
            vllm_server_url=url,
            queue_maxsize=4,
        )
        started.append(made)
        made.start()
        return made

    yield start
    for made in started:
        made.stop()


def group(worker: Any) -> list[Any]:
    """The next four samples, which are one group."""
    return [worker.rollout_buffer.get(timeout=60) for _ in range(4)]


def test_the_worker_plays_in_its_own_process_and_leaves_no_session(
    start_server: Callable[..., ServerProcess], tokenizer: Any, worker: Callable[..., Any], log: GameLog
) -> None:
    env = tool_env(Sudoku, client=SudokuEnv, url=start_server().url)
    with FakeVLLM(tokenizer, next_move) as vllm:
        running = worker(env, env.rewards(solved), vllm.url)
        samples = group(running)
        running.stop()
    assert sorted(sample.metrics["rewards/Sudoku"] for sample in samples) == pytest.approx([0.25, 1.0, 1.0, 1.0])
    assert {sample.metrics["rewards/solved"] for sample in samples} == {1.0}
    log.assert_every_move_on_its_own_board()
    log.wait_until_closed()
    assert len(log.of("constructor")) == 4


def test_the_worker_masks_what_is_lost(
    start_server: Callable[..., ServerProcess],
    proxied: Callable[[ServerProcess], FaultProxy],
    tokenizer: Any,
    worker: Callable[..., Any],
    log: GameLog,
) -> None:
    proxy = proxied(start_server(resume=False))
    env = tool_env(Sudoku, client=SudokuEnv, url=proxy.url)
    cut: list[str] = []

    def cutting(text: str) -> str:
        if not cut and text.count("<tool_call>") == 2:  # the first game that has come so far
            cut.append(text)
            proxy.cut()
        return next_move(text)

    with FakeVLLM(tokenizer, cutting) as vllm:
        running = worker(env, env.rewards(solved), vllm.url)
        first, second = group(running), group(running)
        running.stop()
    lost = [sample for sample in first if sample.metrics["reward"] != sample.metrics["reward"]]
    assert lost
    assert all(sample.advantage == 0.0 for sample in lost)
    assert all(sample.metrics["rewards/solved"] == 1.0 for sample in first if sample not in lost)
    assert all(sample.metrics["rewards/Sudoku"] in (0.25, 1.0) for sample in second)
    log.assert_every_move_on_its_own_board()


def test_a_lambda_is_refused_by_the_worker(tokenizer: Any, worker: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="picklable"):
        worker(protect(lambda: GuideSudoku("http://127.0.0.1:9")), [solved], "http://127.0.0.1:9")
