"""Environments in the style of TRL's guide, and a trainer whose model plays as a script says."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiny_model as tiny
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from openenv.trl import ToolEnv
from sudoku_env import SudokuAction, SudokuEnv
from sudoku_env.engine import solve


class GuideSudoku:
    """As a user writes it who has read TRL's guide, and knows nothing of lost sessions."""

    numbers = itertools.count()

    def __init__(self, url: str, **options: Any) -> None:
        self.client = SudokuEnv(base_url=url, **options).sync()
        self.table = next(self.numbers)
        self.game = 0
        self.reward = 0.0
        self.done = False

    def reset(self, **kwargs: Any) -> str:
        """Deal a board."""
        self.game += 1
        self.reward, self.done = 0.0, False
        result = self.client.reset(
            seed=kwargs["seed"], size=4, holes=kwargs["holes"], episode_id=f"{self.table}.{self.game}"
        )
        return f"table {self.table}\n{result.observation.text}"

    def place(self, row: int, col: int, value: int) -> str:
        """Write a value into an empty cell.

        Args:
            row: Row of the cell, from 1.
            col: Column of the cell, from 1.
            value: The value, from 1 to 4.

        Returns:
            The board.
        """
        if self.done:
            raise ValueError("Game over.")
        mark = {"episode": f"{self.table}.{self.game}"}
        result = self.client.step(SudokuAction(row=row, col=col, value=value, metadata=mark))
        self.reward += result.reward or 0.0
        self.done = result.done
        return result.observation.text


class Sudoku(ToolEnv):
    """The same in fewer lines."""

    numbers = itertools.count()

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._table = next(self.numbers)
        self._game = 0

    def _arguments(self, row: Any) -> dict[str, Any]:
        self._game += 1
        return {**super()._arguments(row), "size": 4, "episode_id": f"{self._table}.{self._game}"}

    def _opening(self, result: Any) -> str:
        return f"table {self._table}\n{result.observation.text}"

    def place(self, row: int, col: int, value: int) -> str:
        """Write a value into an empty cell.

        Args:
            row: Row of the cell, from 1.
            col: Column of the cell, from 1.
            value: The value, from 1 to 4.

        Returns:
            The board.
        """
        mark = {"episode": f"{self._table}.{self._game}"}
        return self._step(SudokuAction(row=row, col=col, value=value, metadata=mark)).observation.text


def guide_reward(environments: list[Any], **kwargs: Any) -> list[float]:
    """The reward function of the guide."""
    return [env.reward for env in environments]


def rows(holes: tuple[int, ...] = (2, 4), rounds: int = 3) -> Dataset:
    """One row a game; two groups, and so two rows, a round of eight samples."""
    prompt = [{"role": "user", "content": "Solve it.\n"}]
    games = [(seed, holes[seed % len(holes)]) for seed in range(rounds * 2)]
    return Dataset.from_list([{"prompt": prompt, "seed": seed, "holes": count} for seed, count in games])


def config(folder: Path, **changes: Any) -> GRPOConfig:
    """Three rounds of eight samples in groups of four."""
    return GRPOConfig(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_steps": 3,
            "max_completion_length": 700,
            "max_tool_calling_iterations": 12,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "shuffle_dataset": False,
            "disable_tqdm": True,
            "learning_rate": 1e-4,
            "seed": 1,
            **changes,
        }
    )


@dataclass
class Turn:
    """Where a training is when it generates: round and turn count from 1."""

    round: int
    turn: int


@dataclass
class Seen:
    """What a training has seen, a list entry a round."""

    advantages: list[list[float]] = field(default_factory=list)
    rewards: list[list[float]] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)


class WatchedTrainer(GRPOTrainer):
    """Notes the advantages and rewards of every round."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen = Seen()
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        self.seen.rewards.append(rewards.tolist())
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.seen.advantages.append(output["advantages"].tolist())
        decoded = self.processing_class.batch_decode(output["completion_ids"])
        self.seen.texts.append(decoded)
        return output


class ScriptedTrainer(WatchedTrainer):
    """Its model reads the board and writes the next right move; every fourth table gives up after a move.

    ``on_turn`` is called before each generation.
    """

    on_turn: Callable[[Turn], object] = staticmethod(lambda turn: None)
    _turn = 0

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        texts = self.processing_class.batch_decode(prompt_ids)
        first = not any("<tool_call>" in text for text in texts)
        self._turn = 1 if first else self._turn + 1
        self.on_turn(Turn(len(self.seen.advantages) + 1, self._turn))
        said = [next_move(text) + "<|im_end|>" for text in texts]
        return [self.processing_class(text, add_special_tokens=False)["input_ids"] for text in said], None


def next_move(text: str, quits: frozenset[int] = frozenset({1})) -> str:
    """What the script says at the end of a conversation: the next right move; every fourth table gives up after one."""
    table = int(re.findall(r"table (\d+)", text)[-1])
    if "error" in text or (table % 4 in quits and "<tool_call>" in text):
        return "I stop."
    lines = re.findall(r"^(?:<tool_response>)?([1-4.] [1-4.] \| [1-4.] [1-4.])", text, re.M)[-4:]
    board = [[0 if mark == "." else int(mark) for mark in re.findall(r"[1-4.]", line)] for line in lines]
    solution = solve(board)
    for row, col in itertools.product(range(4), range(4)):
        if not board[row][col] and solution is not None:
            return tiny.call_text(row + 1, col + 1, solution[row][col])
    return "Done."


@dataclass
class GameLog:
    """Reads the event log of the sudoku server."""

    path: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == event]

    def assert_every_move_on_its_own_board(self) -> None:
        for step in self.of("step"):
            assert step["was_reset"], step
            assert step["episode_id"] == step["mark"]["episode"], step

    @property
    def open_boards(self) -> set[str]:
        made = {one["board_id"] for one in self.of("constructor")}
        return made - {one["board_id"] for one in self.of("close")}

    def wait_until_closed(self, timeout_s: float = 30.0) -> None:
        """Wait until every board was closed."""
        deadline = time.monotonic() + timeout_s
        while self.open_boards:
            assert time.monotonic() < deadline, f"{len(self.open_boards)} boards are still open"
            time.sleep(0.02)
