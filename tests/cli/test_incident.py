"""The verdict of the demo, on event logs written by hand: it must be able to go red."""

from __future__ import annotations

from typing import Any

from openenv.cli._incident import Game, Verdict, judge, plan_games
from openenv.cli.demo import _problems


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
    assert verdict.stray_by_game == {"game-1": 3}


def test_a_move_that_ran_twice_is_counted() -> None:
    step = event("step", "b1", "game-1/1", ("game-1/1", 1))
    verdict = judge([event("constructor", "b1"), event("reset", "b1", "game-1/1"), step, step])
    assert (verdict.moves, verdict.stray, verdict.repeated) == (2, 0, 1)


def test_games_are_planned_from_the_seed() -> None:
    assert plan_games(3, 7) == [Game(1, 8, 4, 8), Game(2, 9, 9, 30), Game(3, 10, 4, 8)]


def played() -> list[Game]:
    return [
        Game(1, 1, 4, 8, before=4, first="SessionLostError", retry="SessionLostError", after=8, solved=True),
        Game(2, 2, 4, 8, before=4, first="SessionLostError", retry="SessionLostError", after=8, solved=True),
    ]


def fine() -> dict[str, Any]:
    return {"boards": 4, "moves": 24}


def test_problems_name_each_broken_promise() -> None:
    assert _problems(played(), 2, Verdict(**fine())) == []
    assert _problems(played(), 1, Verdict(**fine())) == ["1 of 2 connections were cut"]
    assert _problems(played(), 2, Verdict(**fine(), stray=1)) == ["1 moves ran on a wrong board"]
    assert _problems(played(), 2, Verdict(**fine(), repeated=1)) == ["1 moves ran twice"]
    assert _problems(played(), 2, Verdict(boards=4, moves=25)) == ["24 moves were answered, but 25 ran"]
    for name, value, problem in (
        ("first", "answered", "a lost session was not told"),
        ("retry", "answered", "a lost session was not told"),
        ("solved", False, "a game was not solved"),
    ):
        games = played()
        setattr(games[1], name, value)
        assert _problems(games, 2, Verdict(**fine())) == [problem]
