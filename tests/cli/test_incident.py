"""The verdict of the demo, on event logs written by hand: it must be able to go red."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openenv.cli._incident import CUTS, Act, Game, Verdict, judge, plan_games


def event(kind: str, board: str, episode: str | None = None, mark: tuple[str, int] | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"event": kind, "board_id": board, "episode_id": episode}
    return told if mark is None else {**told, "mark": {"episode": mark[0], "move": mark[1]}}


def test_moves_on_the_board_dealt_for_their_episode_are_fine() -> None:
    verdict = judge(
        [
            event("constructor", "b1"),
            event("reset", "b1", "game-1/1"),
            event("step", "b1", "game-1/1", ("game-1/1", 1)),
            event("step", "b1", "game-1/1", ("game-1/1", 2)),
            event("close", "b1"),
        ]
    )
    assert (verdict.boards, verdict.moves, verdict.stray, verdict.repeated) == (1, 2, 0, 0)


def test_moves_on_a_fresh_board_on_anothers_and_of_an_old_episode_are_stray() -> None:
    verdict = judge(
        [
            event("constructor", "b1"),
            event("constructor", "b2"),
            event("constructor", "b3"),
            event("reset", "b1", "game-1/1"),
            event("reset", "b2", "game-2/1"),
            event("step", "b3", None, ("game-1/1", 1)),
            event("step", "b2", "game-2/1", ("game-1/1", 2)),
            event("reset", "b1", "game-1/2"),
            event("step", "b1", "game-1/2", ("game-1/1", 3)),
            event("step", "b2", "game-2/1", ("game-2/1", 1)),
        ]
    )
    assert verdict.stray == 3


def test_a_move_that_ran_twice_is_counted() -> None:
    step = event("step", "b1", "game-1/1", ("game-1/1", 1))
    verdict = judge([event("constructor", "b1"), event("reset", "b1", "game-1/1"), step, step])
    assert (verdict.moves, verdict.stray, verdict.repeated) == (2, 0, 1)


def test_games_are_planned_from_the_seed() -> None:
    assert plan_games(3, 7) == [Game(1, 8, 4, 8), Game(2, 9, 9, 30), Game(3, 10, 4, 8)]


def test_a_game_is_cut_at_each_third() -> None:
    assert [Game(1, 1, 4, 8).moves_until(cut) for cut in range(1, CUTS + 2)] == [2, 5, 8]


def plain_act() -> Act:
    """Two games whose sessions were lost twice; of the second loss nobody knows whether the move ran. It did."""
    games = [Game(n, n, 4, 8, dealt=3, answered=15, lost=CUTS, lost_again=CUTS, unknown=1, solved=True) for n in (1, 2)]
    return Act(False, games, cuts=4, verdict=Verdict(boards=6, moves=32))


def kept_act() -> Act:
    games = [Game(n, n, 4, 8, dealt=1, answered=8, resumes=CUTS, solved=True) for n in (1, 2)]
    return Act(True, games, cuts=4, verdict=Verdict(boards=2, moves=16))


@pytest.mark.parametrize("act", [plain_act(), kept_act()])
def test_what_went_as_promised_is_no_problem(act: Act) -> None:
    assert act.problems() == []


@pytest.mark.parametrize("make", [plain_act, kept_act])
def test_problems_name_each_broken_promise_of_any_server(make: Callable[[], Act]) -> None:
    answered = make().total("answered")
    ran = make().verdict.moves
    for change, problem in (
        ({"cuts": 3}, "3 of 4 connections were cut"),
        ({"stray": 1}, "1 moves ran on a wrong board"),
        ({"repeated": 1}, "1 moves ran twice"),
        ({"moves": ran + 1}, f"{answered} moves were answered, but {ran + 1} ran"),
        ({"moves": answered - 1}, f"{answered} moves were answered, but {answered - 1} ran"),
    ):
        act = make()
        for name, value in change.items():
            setattr(act if name == "cuts" else act.verdict, name, value)
        assert act.problems() == [problem]
    act = make()
    act.games[1].solved = False
    assert act.problems() == ["a game was not solved"]


@pytest.mark.parametrize("name", ["lost", "lost_again"])
def test_a_plain_server_must_make_every_loss_loud(name: str) -> None:
    act = plain_act()
    setattr(act.games[1], name, CUTS - 1)
    assert act.problems() == ["a lost session was not told"]


def test_a_server_that_keeps_sessions_must_lose_none_and_resume_each() -> None:
    act = kept_act()
    act.games[0].lost = 1
    assert act.problems() == ["1 sessions were lost"]
    act = kept_act()
    act.games[0].resumes = 0
    assert act.problems() == ["2 of 4 sessions were resumed"]
    act = kept_act()
    act.verdict.boards = 3
    assert act.problems() == ["3 boards were made for 2 games"]
