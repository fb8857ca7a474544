# %% [markdown]
"""# A language model learns Sudoku with GRPO

A model plays 4x4 boards on a server, through the `environment_factory` of TRL's `GRPOTrainer`, and learns from the
rewards. Without `--model` it is a tiny one that is made on the spot and taught in seconds by a weak player; to play
well it learns by playing, in some minutes on two cores. `--model Qwen/Qwen3-0.6B` takes one of the hub.

    pip install . -r examples/requirements.txt envs/sudoku_env
    python examples/grpo_sudoku.py
"""

# %%
from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import matplotlib.pyplot as plt
import tiny_model
import torch
import transformers
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from openenv.testing import ServerProcess
from openenv.trl import ToolEnv, tool_env
from sudoku_env import SudokuAction, SudokuEnv
from sudoku_env.engine import make_puzzle

SIZE = 4
TASK = "Solve this Sudoku, one move a turn:\n"

# %% [markdown]
"""## The environment

The public methods of a `ToolEnv` are the tools of the model, and what they return is what it reads. Nothing here knows
about lost connections: `tool_env` sees to it that a game is never played on in another session, and that one that is
lost is never scored.
"""


# %%
def describe(board: list[list[int]]) -> str:
    """The board, a line a row; a dot is an empty cell."""
    return "\n".join("".join(str(value or ".") for value in line) for line in board)


class Sudoku(ToolEnv):
    """One game a dataset row; the columns go to the server's reset."""

    reset_columns = ("seed", "size", "holes", "max_mistakes")

    def _opening(self, result: Any) -> str:
        return describe(result.observation.board)

    def place(self, row: int, col: int, value: int) -> str:
        """Write a value into an empty cell.

        Args:
            row: Row of the cell, from 1 (top).
            col: Column of the cell, from 1 (left).
            value: The value, from 1 to 4.
        """
        observation = self._step(SudokuAction(row=row, col=col, value=value)).observation
        return f"{'right' if observation.legal else 'wrong'}\n{describe(observation.board)}"


def games(count: int, holes: int, seed: int) -> Dataset:
    """Boards to learn on. All samples of a group play the same one."""
    row = {"prompt": [{"role": "user", "content": TASK}], "size": SIZE, "holes": holes, "max_mistakes": 10}
    return Dataset.from_list([{**row, "seed": 1000 * seed + game} for game in range(count)])


# %% [markdown]
"""## The model

The tiny one is shown how a weak player writes its moves: two of five are right, the others are any digits. What makes
it better than its teacher is the reward.
"""


# %%
def lessons(tokenizer: Any, boards: Dataset) -> tuple[list[str], dict[str, tuple[int, int, int]]]:
    """Conversations that wait for a move, of the first turn and of later ones, and a right move for each."""
    draw, moves = random.Random(0), {}
    for game in list(boards) * 24:
        puzzle = make_puzzle(game["size"], game["seed"], game["holes"])
        board = [list(row) for row in puzzle.givens]
        cells = [(row, col) for row in range(SIZE) for col in range(SIZE) if not board[row][col]]
        draw.shuffle(cells)
        messages: list[dict[str, Any]] = [{"role": "user", "content": TASK + describe(board)}]
        for row, col in cells:
            value = puzzle.solution[row][col]
            options = {"tools": [Sudoku.place], "tokenize": False, "add_generation_prompt": True}
            moves[tokenizer.apply_chat_template(messages, **options)] = (row + 1, col + 1, value)
            call = {"name": "place", "arguments": {"row": row + 1, "col": col + 1, "value": value}}
            board[row][col] = value
            messages.append({"role": "assistant", "tool_calls": [{"type": "function", "function": call}]})
            messages.append({"role": "tool", "content": f"right\n{describe(board)}"})
    return list(moves), moves


def make_tiny(boards: Dataset, seed: int, steps: int) -> tuple[Any, Any]:
    """The tiny model, taught, and its tokenizer."""
    torch.set_num_threads(1)  # it is too small to gain from more
    tokenizer = tiny_model.make_tokenizer()
    model = tiny_model.make_model(tokenizer, seed, width=64, layers=2)
    prompts, moves = lessons(tokenizer, boards)

    def weak_player(draw: random.Random, prompt: str) -> str:
        return tiny_model.call_text(*moves[prompt]) if draw.random() < 0.4 else tiny_model.any_move(draw, prompt)

    def show(step: int, loss: float) -> None:
        if step % 50 == 0 or step == steps:
            print(f"  taught {step:3d} of {steps} steps   loss {loss:.2f}", flush=True)

    print(f"Teaching a model of {model.num_parameters():,} weights how a move is written.", flush=True)
    tiny_model.teach(model, tokenizer, prompts, steps, answer=weak_player, rate=3e-3, on_step=show)
    return model, tokenizer


# %% [markdown]
"""## Progress

One line a step, and a picture at the end.
"""


# %%
class Progress(TrainerCallback):
    """Prints a line for each step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.rewards: list[float] = []
        self.began = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """A step is over."""
        if logs is None or "reward" not in logs:
            return
        self.rewards.append(logs["reward"])
        bar = "█" * round(20 * logs["reward"])
        left = (time.monotonic() - self.began) / len(self.rewards) * (self.steps - len(self.rewards))
        lost = logs.get("openenv/sessions_lost", 0.0)
        told = f"   {lost:.0f} games lost, not scored" if lost else ""
        step = f"  step {len(self.rewards):3d} of {self.steps}   reward {logs['reward']:.2f}"
        print(f"{step} {bar:20s}   {left:4.0f} s left{told}", flush=True)


def draw_rewards(rewards: list[float], title: str, out: Path) -> Any:
    """The rewards of the steps, and their course, saved as PNG."""
    steps, course, mean = range(1, len(rewards) + 1), [], None
    for reward in rewards:
        mean = reward if mean is None else 0.8 * mean + 0.2 * reward
        course.append(mean)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.scatter(steps, rewards, s=18, color="#9db4d3", label="a step", zorder=2)
    axes.plot(steps, course, color="#1f4e8c", linewidth=2.5, label="running mean", zorder=3)
    axes.axhline(1.0, color="#5a9367", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        "all solved", (0, 1.0), (2, 4), xycoords=("axes fraction", "data"), textcoords="offset points", color="#5a9367"
    )
    axes.set(xlim=(0, len(rewards) + 1), ylim=(0, 1.1), xlabel="step", ylabel="share of the empty cells filled")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(axis="y", color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(out, dpi=150)
    return figure


# %% [markdown]
"""## The training

`check` looks at the server before anything is loaded: is it there, has it a place for every sample, does it resume?
"""


# %%
@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """The server at `url`, or one that lives as long as this block."""
    if url:
        yield url
        return
    with ServerProcess("sudoku_env.server.app:app") as local:
        yield local.url


def settings(options: argparse.Namespace) -> GRPOConfig:
    """What the trainer is told."""
    return GRPOConfig(
        output_dir=str(options.out.with_suffix("")),
        max_steps=options.steps,
        num_generations=options.group,
        per_device_train_batch_size=options.group * min(options.games, 4),
        max_tool_calling_iterations=options.holes + 2,  # two mistakes are allowed
        max_completion_length=256 * (options.holes + 3) if options.model else 90 * (options.holes + 3),
        learning_rate=options.learning_rate or (1e-6 if options.model else 5e-4),
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        temperature=1.0,
        beta=0.0,
        seed=options.seed,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=bool(options.model),
        **({"chat_template_kwargs": {"enable_thinking": False}} if options.model else {}),
    )


def train(options: argparse.Namespace) -> list[float]:
    """Train, and draw the rewards.

    Returns:
        The mean reward of each step, from 0 to 1.
    """
    transformers.utils.logging.set_verbosity_error()
    with server(options.url) as url, tool_env(Sudoku, client=SudokuEnv, url=url) as env:
        data, args = games(options.games, options.holes, options.seed), settings(options)
        print(env.check(sessions=args.per_device_train_batch_size, row=data[0]), flush=True)
        model, tokenizer = options.model, None
        if not options.model:
            model, tokenizer = make_tiny(data, options.seed, options.lessons)
        progress = Progress(options.steps)
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            args=args,
            train_dataset=data,
            environment_factory=env,
            reward_funcs=env.rewards(),
            callbacks=[progress],
        )
        trainer.remove_callback(PrinterCallback)
        print(f"Playing {args.per_device_train_batch_size} games a step.", flush=True)
        trainer.train()
    who = options.model or "A tiny model"
    draw_rewards(progress.rewards, f"{who} learns 4x4 Sudoku, {options.holes} cells empty", options.out)
    print(f"The rewards are drawn in {options.out}.", flush=True)
    return progress.rewards


# %%
def parse(arguments: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train a language model to play 4x4 Sudoku with GRPO.")
    parser.add_argument("--model", help="a model of the hub, or a folder; a tiny one is made without it")
    parser.add_argument("--url", help="a server of envs/sudoku_env; one is started without it")
    parser.add_argument("--steps", type=int, default=80, help="steps of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the boards, the weights and the sampling (%(default)s)")
    parser.add_argument("--games", type=int, default=1, help="different boards (%(default)s)")
    parser.add_argument("--holes", type=int, default=3, help="empty cells of a board (%(default)s)")
    parser.add_argument("--group", type=int, default=24, help="samples of each board a step (%(default)s)")
    parser.add_argument("--lessons", type=int, default=250, help="steps that the tiny model is taught (%(default)s)")
    parser.add_argument("--learning-rate", type=float, help="0.0005 for the tiny model, else 0.000001")
    parser.add_argument("--out", type=Path, default=Path("grpo_sudoku.png"), help="the picture (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    train(parse(sys.argv[1:] if "__file__" in globals() else []))
