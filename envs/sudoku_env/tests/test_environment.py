"""The environment as the server drives it: rules, rewards, ends, and its event log."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from openenv.core.exceptions import InvalidActionError
from sudoku_env.engine import make_puzzle, solve
from sudoku_env.models import SudokuAction, SudokuObservation
from sudoku_env.server.sudoku_environment import DIFFICULTIES, SudokuEnvironment


@pytest.fixture
def env() -> SudokuEnvironment:
    return SudokuEnvironment()


def right_moves(observation: SudokuObservation) -> list[SudokuAction]:
    solution = solve(observation.board)
    assert solution is not None
    return [
        SudokuAction(row=row + 1, col=col + 1, value=solution[row][col])
        for row, col in product(range(observation.size), repeat=2)
        if not observation.board[row][col]
    ]


@pytest.mark.parametrize("size", [4, 9])
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_right_moves_sum_to_one_and_end_the_game(env: SudokuEnvironment, size: int, difficulty: str) -> None:
    observation = env.reset(seed=3, size=size, difficulty=difficulty)
    assert observation.reward is None
    assert not observation.done
    moves = right_moves(observation)
    assert len(moves) == observation.remaining == round(DIFFICULTIES[difficulty] * size * size)
    rewards = []
    for number, move in enumerate(moves, start=1):
        observation = env.step(move)
        assert observation.legal
        assert observation.board[move.row - 1][move.col - 1] == move.value
        assert observation.remaining == len(moves) - number
        assert observation.done == observation.solved == (number == len(moves))
        assert observation.reward == 1 / len(moves)
        rewards.append(observation.reward)
    assert sum(rewards) == pytest.approx(1.0)
    assert env.state.solved
    assert env.state.step_count == len(moves)
    assert env.state.mistakes == 0


def test_refused_moves_are_answered_and_counted_and_change_nothing(env: SudokuEnvironment) -> None:
    env.step(right_moves(env.reset(seed=1, size=4, holes=9, max_mistakes=1000))[0])
    board = env.state.board
    solution = solve(board)
    assert solution is not None
    told = []
    for row, col, value in product(range(4), range(4), range(1, 5)):
        if board[row][col] == 0 and solution[row][col] == value:
            continue
        observation = env.step(SudokuAction(row=row + 1, col=col + 1, value=value))
        told.append(observation.message)
        assert not observation.legal
        assert observation.reward == 0.0
        assert observation.mistakes == len(told)
        assert observation.board == board
        assert not observation.done
    assert len(told) == 4**3 - 8
    assert env.state.step_count == len(told) + 1
    for reason in ("this row", "this column", "this box", "was dealt", "already holds", "no solution"):
        assert any(reason in message for message in told), reason


def test_the_last_allowed_mistake_ends_the_game(env: SudokuEnvironment) -> None:
    observation = env.reset(seed=5, size=4, max_mistakes=3)
    right = right_moves(observation)[0]
    wrong = SudokuAction(row=right.row, col=right.col, value=right.value % 4 + 1)
    assert [env.step(wrong).done for _ in range(3)] == [False, False, True]
    with pytest.raises(InvalidActionError, match="game is over"):
        env.step(right)
    assert env.state.mistakes == 3
    assert not env.state.solved
    assert not env.reset(seed=5, size=4).done
    assert env.step(right).legal


def test_moves_before_a_reset_are_refused(env: SudokuEnvironment) -> None:
    assert not env.state.was_reset
    with pytest.raises(InvalidActionError, match="reset"):
        env.step(SudokuAction(row=1, col=1, value=1))
    assert env.state.step_count == 0


@pytest.mark.parametrize(
    ("move", "name"),
    [((5, 1, 1), "row 5"), ((1, 9, 1), "column 9"), ((1, 1, 7), "value 7")],
)
def test_moves_off_a_small_board_are_refused_and_not_counted(
    env: SudokuEnvironment, move: tuple[int, int, int], name: str
) -> None:
    env.reset(seed=1, size=4)
    with pytest.raises(InvalidActionError, match=f"no {name} on a 4x4 board"):
        env.step(SudokuAction(row=move[0], col=move[1], value=move[2]))
    assert env.state.mistakes == 0
    assert env.state.step_count == 0


@pytest.mark.parametrize("move", [{"row": 0}, {"col": 10}, {"value": 0}, {"value": 10}, {"row": "x"}, {"extra": 1}])
def test_the_schema_refuses_what_no_board_has(move: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SudokuAction.model_validate({"row": 1, "col": 1, "value": 1, **move})


def test_seeds_repeat_a_board_and_no_seed_draws_one_that_state_tells(env: SudokuEnvironment) -> None:
    first = env.reset(seed=11, size=4).board
    assert env.reset(seed=11, size=4).board == first
    assert env.reset(seed=12, size=4).board != first
    drawn = [env.reset(size=9, holes=20).board for _ in range(2)]
    assert drawn[0] != drawn[1]
    seed = env.state.seed
    assert seed is not None
    assert SudokuEnvironment().reset(seed=seed, size=9, holes=20).board == drawn[1]
    assert [list(row) for row in make_puzzle(9, seed, 20).givens] == drawn[1]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"size": 5}, "size"), ({"difficulty": "mad"}, "difficulty"), ({"holes": 0}, "holes"), ({"holes": 99}, "holes"),
     ({"max_mistakes": 0}, "max_mistakes")],
)  # fmt: skip
def test_a_refused_reset_leaves_the_game_as_it_was(
    env: SudokuEnvironment, arguments: dict[str, object], name: str
) -> None:
    observation = env.reset(seed=2, size=9, episode_id="mine")
    with pytest.raises(InvalidActionError, match=name):
        env.reset(**arguments)  # type: ignore[arg-type]
    assert env.state.board == observation.board
    assert env.state.episode_id == "mine"


def test_state_is_a_copy_without_the_solution(env: SudokuEnvironment) -> None:
    observation = env.reset(seed=4, size=4, episode_id="E")
    state = env.state
    assert state.givens == state.board == observation.board
    assert (state.seed, state.size, state.episode_id, state.was_reset) == (4, 4, "E", True)
    assert state.board_id == observation.board_id
    assert str(solve(observation.board)) not in str(state)
    env.step(right_moves(observation)[0])
    assert state.board == observation.board
    assert env.state.board != observation.board
    assert env.state.givens == observation.board


def test_every_instance_is_a_board_of_its_own() -> None:
    first, second = SudokuEnvironment(), SudokuEnvironment()
    assert first.reset(seed=1).board_id == first.reset(seed=2).board_id == first.state.board_id
    assert first.state.board_id != second.state.board_id


def test_the_event_log_tells_what_ran_on_which_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("SUDOKU_EVENT_LOG", str(path))
    env, other = SudokuEnvironment(), SudokuEnvironment()
    with pytest.raises(InvalidActionError):
        other.step(SudokuAction(row=1, col=2, value=3, metadata={"mark": "stray"}))
    observation = env.reset(seed=9, size=4, episode_id="E")
    env.step(right_moves(observation)[0].model_copy(update={"metadata": {"mark": "m1"}}))
    env.close()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["event"] for event in events] == ["constructor", "constructor", "step", "reset", "step", "close"]
    mine, its = env.state.board_id, other.state.board_id
    assert [event["board_id"] for event in events] == [mine, its, its, mine, mine, mine]
    stray, reset, step = events[2:5]
    assert (stray["was_reset"], stray["episode_id"], stray["mark"]) == (False, None, {"mark": "stray"})
    assert (reset["episode_id"], reset["seed"], reset["size"]) == ("E", 9, 4)
    assert (step["was_reset"], step["episode_id"], step["mark"]) == (True, "E", {"mark": "m1"})
