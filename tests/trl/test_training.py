"""A whole training with a model that samples its own tool calls, the tools that it is shown, and servers that leave."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import tiny_model as tiny
from games import GameLog, GuideSudoku, Sudoku, WatchedTrainer, guide_reward, rows
from transformers import TrainerCallback
from transformers.utils import get_json_schema

from openenv import ConnectError
from openenv.core.session.backoff import Backoff
from openenv.integrations.trl import built, guard
from openenv.testing import FaultProxy, ServerProcess
from openenv.trl import protect, tool_env
from sudoku_env import SudokuEnv
from sudoku_env.engine import make_puzzle, render

Start = Callable[..., ServerProcess]
Proxied = Callable[[ServerProcess], FaultProxy]
Make = Callable[..., Any]


def test_a_model_samples_its_own_moves_and_each_reward_is_logged_once(
    start_server: Start, trainer: Make, model: Any, tokenizer: Any, log: GameLog
) -> None:
    url = start_server().url
    env = tool_env(Sudoku, client=SudokuEnv, url=url)
    report = env.check(sessions=8, row=rows()[0])
    assert (report.dialect, report.resumes, report.tools) == ("openenv.v1", True, ("place",))
    Sudoku.numbers = iter(range(100))
    assert tiny.teach(model, tokenizer, lessons(tokenizer), steps=150) < 0.55

    training = trainer(env, env.rewards(), cls=WatchedTrainer, max_tool_calling_iterations=3, max_completion_length=300)
    training.train()

    moves = log.of("step")
    assert len(moves) >= 10
    log.assert_every_move_on_its_own_board()
    assert sum(entry.get("tools/call_frequency", 0) * 8 for entry in training.state.log_history) >= len(moves) > 0
    first = next(entry for entry in training.state.log_history if "reward" in entry)
    columns = [name for name in first if name.startswith("rewards/") and name.endswith("/mean")]
    assert len(columns) == 1
    assert first["reward"] == pytest.approx(first[columns[0]])
    assert all(len(row) == 1 for seen in training.seen.rewards for row in seen)


def lessons(tokenizer: Any) -> list[str]:
    """Prompts as the environment makes them, of the first turn and of the second."""
    found = []
    for seed in range(100, 108):
        board = f"table 1\n{render(make_puzzle(4, seed, 4).givens)}"
        turns = [{"role": "user", "content": f"Solve it.\n{board}"}]
        call = {"type": "function", "function": {"name": "place", "arguments": {"row": 1, "col": 2, "value": 3}}}
        more = [*turns, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": board[8:]}]
        for messages in (turns, more):
            options = {"tokenize": False, "add_generation_prompt": True}
            found.append(tokenizer.apply_chat_template(messages, tools=[Sudoku.place], **options))
    return found


@pytest.mark.parametrize(
    "make",
    [lambda url: protect(functools.partial(GuideSudoku, url)), lambda url: tool_env(Sudoku, client=SudokuEnv, url=url)],
)
def test_the_trainer_sees_the_declared_tools_and_no_others(make: Any, start_server: Start, trainer: Make) -> None:
    env = make(start_server().url)
    training = trainer(env, env.rewards(guide_reward if "Guide" in repr(env) else len))
    assert [tool.__name__ for tool in training.tools] == ["place"]
    shown = get_json_schema(training.tools[0])
    assert shown == get_json_schema(GuideSudoku.place)
    assert set(shown["function"]["parameters"]["properties"]) == {"row", "col", "value"}


def test_tools_that_an_older_trl_saw_on_the_instance_are_still_there(trainer: Make, start_server: Start) -> None:
    env = protect(functools.partial(BoundTools, start_server().url))
    training = trainer(env, env.rewards(guide_reward))
    assert [tool.__name__ for tool in training.tools] == ["place", "whole"]
    assert get_json_schema(training.tools[1])["function"]["description"] == "Look at the whole board."
    assert training.tools[1]() == "nothing yet"


class BoundTools(GuideSudoku):
    """Binds a tool to each instance, which newer versions of TRL no longer find."""

    def __init__(self, url: str) -> None:
        super().__init__(url)

        def whole(self: Any) -> str:
            """Look at the whole board."""
            return "nothing yet"

        self.whole = whole.__get__(self)


class AfterRound(TrainerCallback):
    """Does something after the first round."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.do()


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (guard, built):
        monkeypatch.setattr(module, "BACKOFF", Backoff(first_s=0.05, longest_s=0.2))


@pytest.mark.usefixtures("_quick")
def test_a_server_that_is_away_for_20_s_between_two_rounds_is_waited_for(
    start_server: Start, trainer: Make, log: GameLog
) -> None:
    server = start_server()
    env = protect(functools.partial(GuideSudoku, server.url, connect_timeout_s=1.0))
    training = trainer(env, env.rewards(guide_reward))
    timer = threading.Timer(20.0, server.start)
    began: list[float] = []

    def leave() -> None:
        server.kill()
        began.append(time.monotonic())
        timer.start()

    training.add_callback(AfterRound(leave))
    training.train()
    timer.join()

    assert time.monotonic() - began[0] >= 20.0
    assert training.state.global_step == 3
    lost = [entry["openenv/sessions_lost"] for entry in training.state.log_history if "reward" in entry]
    assert lost == [0.0, 0.0, 0.0]
    log.assert_every_move_on_its_own_board()
    assert {step["episode_id"].partition(".")[2] for step in log.of("step")} == {"1", "2", "3"}


@pytest.mark.usefixtures("_quick")
def test_a_server_that_is_gone_for_good_ends_the_training_within_the_deadline(
    start_server: Start, trainer: Make
) -> None:
    server = start_server()
    env = protect(functools.partial(GuideSudoku, server.url, connect_timeout_s=1.0), reset_deadline_s=4.0)
    training = trainer(env, env.rewards(guide_reward))
    began: list[float] = []

    def leave() -> None:
        server.kill()
        began.append(time.monotonic())

    training.add_callback(AfterRound(leave))
    with pytest.raises(ConnectError, match=r"no episode could be started in .*reset_deadline_s=4"):
        training.train()
    assert time.monotonic() - began[0] < 4.0 + 1.0  # a margin for a busy machine
    assert training.state.global_step == 1


def test_dead_connections_come_back_together(start_server: Start, proxied: Proxied, trainer: Make) -> None:
    """While the first reset of a round waits for its answer, the other connections of the pool are open already."""
    proxy = proxied(start_server(resume=False))
    env = tool_env(Sudoku, client=SudokuEnv, url=proxy.url)
    training = trainer(env, env.rewards())

    def cut_and_hold() -> None:
        dead = proxy.accepted
        proxy.cut()
        proxy.hold("reply")
        back = threading.Thread(target=lambda: (proxy.wait_for_connections(dead + 8), proxy.heal()))
        back.start()

    training.add_callback(AfterRound(cut_and_hold))
    training.train()
    assert training.state.global_step == 3


def test_a_training_in_a_notebook(start_server: Start, trainer: Make, log: GameLog) -> None:
    """Under a running loop, with bare calls of a client that is asynchronous there."""

    class Bare(GuideSudoku):
        def __init__(self, url: str) -> None:
            super().__init__(url)
            self.client = self.client.async_client

    env = protect(functools.partial(Bare, start_server().url))
    training = trainer(env, env.rewards(guide_reward), max_steps=2)

    async def cell() -> None:
        training.train()

    asyncio.run(cell())
    assert [row[0] for row in training.seen.rewards[1][:4]] == pytest.approx([1.0, 0.5, 1.0, 1.0])
    log.assert_every_move_on_its_own_board()
