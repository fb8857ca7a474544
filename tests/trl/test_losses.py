"""Connections are cut in the second of three rounds: what each policy makes of it, by the server's log and
the trainer's advantages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from games import GameLog, GuideSudoku, ScriptedTrainer, Sudoku, Turn, guide_reward

from openenv import SessionLostError
from openenv.testing import FaultProxy, ServerProcess
from openenv.trl import protect, tool_env
from sudoku_env import SudokuEnv

Start = Callable[..., ServerProcess]
Proxied = Callable[[ServerProcess], FaultProxy]
Make = Callable[..., ScriptedTrainer]


class At:
    """Does something once, in one turn of one round."""

    def __init__(self, round_: int, turn: int, do: Callable[[], object]) -> None:
        self.when = (round_, turn)
        self.do = do

    def __call__(self, turn: Turn) -> None:
        if (turn.round, turn.turn) == self.when:
            self.do()


def normalised(rewards: list[float]) -> list[float]:
    """Advantages of a group, as the trainer computes them."""
    group = torch.tensor(rewards)
    return ((group - group.mean()) / (group.std() + 1e-4)).tolist()


CLEAN = normalised([1.0, 0.5, 1.0, 1.0]) + normalised([1.0, 0.25, 1.0, 1.0])


def test_with_resume_every_game_goes_on_on_its_own_board(
    start_server: Start, proxied: Proxied, trainer: Make, log: GameLog
) -> None:
    proxy = proxied(start_server())
    env = protect(functools.partial(GuideSudoku, proxy.url))
    training = trainer(env, env.rewards(guide_reward))
    training.on_turn = At(2, 2, proxy.cut)
    training.train()

    assert [row for seen in training.seen.advantages for row in seen] == pytest.approx(CLEAN * 3, abs=1e-3)
    logged = [entry for entry in training.state.log_history if "openenv/sessions_lost" in entry]
    assert [entry["openenv/sessions_lost"] for entry in logged] == [0.0, 0.0, 0.0]
    assert logged[1]["openenv/resumed"] >= 6  # of eight; two games were over, and nobody needed their sockets
    assert all(0 < entry["openenv/env_time_share"] <= 1 for entry in logged)
    log.assert_every_move_on_its_own_board()
    assert len(log.of("constructor")) == 8
    assert len(log.of("step")) == 3 * (3 * 2 + 1 + 3 * 4 + 1)


def test_mask_gives_lost_samples_no_advantage_and_leaves_their_siblings_theirs(
    start_server: Start, proxied: Proxied, trainer: Make, log: GameLog
) -> None:
    proxy = proxied(start_server(resume=False))
    env = protect(functools.partial(GuideSudoku, proxy.url))
    training = trainer(env, env.rewards(guide_reward))
    training.on_turn = At(2, 2, lambda: proxy.cut(connection=7))  # table 6, third of the second group
    training.train()

    before, cut, after = training.seen.advantages
    assert before == pytest.approx(CLEAN, abs=1e-3)
    assert after == pytest.approx(CLEAN, abs=1e-3)
    assert cut[:4] == pytest.approx(CLEAN[:4], abs=1e-3)
    assert cut[6] == 0.0
    assert [cut[4], cut[5], cut[7]] == pytest.approx(normalised([1.0, 0.25, 1.0]), abs=1e-3)
    lost = [entry["openenv/sessions_lost"] for entry in training.state.log_history if "reward" in entry]
    assert lost == [0.0, 1.0, 0.0]
    assert training.state.log_history[1]["rewards/guide_reward/mean"] == pytest.approx((3.5 + 2.25) / 7)
    log.assert_every_move_on_its_own_board()
    moves = [step for step in log.of("step") if step["episode_id"] == "6.2"]
    assert len(moves) == 1  # nothing was sent after the loss


def test_a_game_that_was_over_before_the_cut_keeps_its_reward(
    start_server: Start, proxied: Proxied, trainer: Make, log: GameLog
) -> None:
    proxy = proxied(start_server(resume=False))
    env = tool_env(Sudoku, client=SudokuEnv, url=proxy.url)
    training = trainer(env, env.rewards())
    training.on_turn = At(2, 4, proxy.cut)  # the boards of the first group had two holes
    training.train()

    cut = training.seen.rewards[1]
    assert [row[0] for row in cut[:4]] == pytest.approx([1.0, 0.5, 1.0, 1.0])
    assert cut[5][0] == pytest.approx(0.25)  # gave up before
    assert all(row[0] != row[0] for row in (cut[4], cut[6], cut[7]))
    assert training.seen.advantages[1] == pytest.approx([*CLEAN[:4], 0.0, 0.0, 0.0, 0.0], abs=1e-3)
    assert training.state.global_step == 3
    assert training.seen.advantages[2] == pytest.approx(CLEAN, abs=1e-3)
    log.assert_every_move_on_its_own_board()


def test_replay_lets_all_games_finish(start_server: Start, proxied: Proxied, trainer: Make, log: GameLog) -> None:
    proxy = proxied(start_server(resume=False))
    env = protect(functools.partial(GuideSudoku, proxy.url), on_session_lost="replay")
    training = trainer(env, env.rewards(guide_reward))
    training.on_turn = At(2, 3, proxy.cut)
    training.train()

    assert [row for seen in training.seen.advantages for row in seen] == pytest.approx(CLEAN * 3, abs=1e-3)
    entry = training.state.log_history[1]
    assert entry["openenv/sessions_lost"] == 0.0
    assert entry["openenv/replayed"] == 3.0  # three games of four moves were still going on
    log.assert_every_move_on_its_own_board()
    assert len({step["board_id"] for step in log.of("step") if step["episode_id"] == "6.2"}) == 2


def test_abort_ends_the_training(start_server: Start, proxied: Proxied, trainer: Make, log: GameLog) -> None:
    proxy = proxied(start_server(resume=False))
    env = protect(functools.partial(GuideSudoku, proxy.url), on_session_lost="abort")
    training = trainer(env, env.rewards(guide_reward))
    training.on_turn = At(2, 2, proxy.cut)
    with pytest.raises(SessionLostError, match="on_session_lost is 'abort'"):
        training.train()
    assert training.state.global_step == 1
    log.assert_every_move_on_its_own_board()


def test_what_protect_changes_for_an_unmodified_class(start_server: Start, proxied: Proxied, trainer: Make) -> None:
    def run(environment: Any, rewards: Any, proxy: FaultProxy) -> list[float]:
        training = trainer(environment, rewards)
        first = proxy.accepted
        training.on_turn = At(2, 2, lambda: proxy.cut(connection=first + 7))
        training.train()
        told = training.seen.texts[1][6]
        assert ("was lost after 1 step" in told) == (rewards is guide_reward)
        return training.seen.advantages[1]

    proxy = proxied(start_server(resume=False))
    plain = functools.partial(GuideSudoku, proxy.url)
    unprotected = run(plain, guide_reward, proxy)
    GuideSudoku.numbers = iter(range(100))
    env = protect(plain)
    protected = run(env, env.rewards(guide_reward), proxy)

    assert unprotected[4:] == pytest.approx(normalised([1.0, 0.25, 0.25, 1.0]), abs=1e-3)  # punished for a dead socket
    assert protected[6] == 0.0
    assert [protected[4], protected[5], protected[7]] == pytest.approx(normalised([1.0, 0.25, 1.0]), abs=1e-3)
