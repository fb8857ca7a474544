"""A server of Sudoku, a proxy before it, and a model for each test. ``make test-trl`` runs this, where torch is."""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import games
import pytest
import tiny_model as tiny
import torch
from games import GameLog, ScriptedTrainer, WatchedTrainer

from openenv.testing import FaultProxy, ServerProcess

torch.set_num_threads(1)  # a model this small gains nothing, and the machine may be busy
warnings.filterwarnings("ignore", category=DeprecationWarning)


@pytest.fixture(autouse=True)
def _tables_from_zero() -> None:
    games.GuideSudoku.numbers = itertools.count()
    games.Sudoku.numbers = itertools.count()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny.make_tokenizer()


@pytest.fixture
def model(tokenizer: Any) -> Any:
    return tiny.make_model(tokenizer)


@pytest.fixture
def log(tmp_path: Path) -> GameLog:
    return GameLog(tmp_path / "games.jsonl")


@pytest.fixture
def start_server(log: GameLog) -> Iterator[Callable[..., ServerProcess]]:
    """Starts the Sudoku server; ``resume=False`` makes it a plain one."""
    running: list[ServerProcess] = []

    def start(resume: bool = True, **arguments: Any) -> ServerProcess:
        environ = {"SUDOKU_EVENT_LOG": str(log.path), **({} if resume else {"OPENENV_FEATURES": ""})}
        running.append(ServerProcess("sudoku_env.server.app:app", environ=environ, **arguments).start())
        return running[-1]

    yield start
    for server in running:
        server.__exit__(None, None, None)


@pytest.fixture
def proxied() -> Iterator[Callable[[ServerProcess], FaultProxy]]:
    open_proxies: list[FaultProxy] = []

    def make(server: ServerProcess) -> FaultProxy:
        open_proxies.append(FaultProxy("127.0.0.1", server.port).start())
        return open_proxies[-1]

    yield make
    for proxy in open_proxies:
        proxy.close()


@pytest.fixture
def trainer(model: Any, tokenizer: Any, tmp_path: Path) -> Callable[..., WatchedTrainer]:
    """Makes a trainer; the class and the configuration can be changed."""

    def make(env: Any, reward_funcs: Any = None, *, cls: Any = ScriptedTrainer, **changes: Any) -> WatchedTrainer:
        data = changes.pop("train_dataset", games.rows())
        return cls(
            model=copy.deepcopy(model),
            processing_class=tokenizer,
            args=games.config(tmp_path / "run", **changes),
            train_dataset=data,
            environment_factory=env,
            **({} if reward_funcs is None else {"reward_funcs": reward_funcs}),
        )

    return make
