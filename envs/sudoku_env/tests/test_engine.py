"""The engine: rules, solver, and puzzles with one solution."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice, permutations, product

import pytest

from sudoku_env.engine import SIZES, Board, conflict, make_puzzle, render, solutions, solve

VALID = ((1, 2, 3, 4), (3, 4, 1, 2), (2, 1, 4, 3), (4, 3, 2, 1))


def is_valid(board: Board) -> bool:
    """Whether a full board keeps the rules; written without the engine."""
    size = len(board)
    side = round(size**0.5)
    want = set(range(1, size + 1))
    rows = [set(row) for row in board]
    cols = [set(col) for col in zip(*board, strict=True)]
    boxes = [
        {board[top + r][left + c] for r in range(side) for c in range(side)}
        for top in range(0, size, side)
        for left in range(0, size, side)
    ]
    return all(unit == want for unit in rows + cols + boxes)


def all_valid_4x4() -> list[Board]:
    """Every full 4x4 board, by trying all rows."""
    rows = list(permutations((1, 2, 3, 4)))
    return [board for board in product(rows, repeat=4) if is_valid(board)]


def test_the_solver_finds_every_board_there_is() -> None:
    empty = [[0] * 4 for _ in range(4)]
    assert set(solutions(empty)) == set(all_valid_4x4())
    assert len(list(solutions(empty))) == 288


def test_solver_counts_agree_with_brute_force() -> None:
    everything = all_valid_4x4()
    for seed in range(30):
        board = [list(row) for row in make_puzzle(4, seed, 9).givens]
        for row, col in product(range(4), repeat=2):
            if board[row][col]:
                board[row][col] = 0  # one hole more: now there may be several solutions
                break
        fits = [
            full for full in everything if all(board[r][c] in (0, full[r][c]) for r, c in product(range(4), repeat=2))
        ]
        assert sorted(solutions(board)) == sorted(fits)


def test_boards_that_break_a_rule_have_no_solution() -> None:
    for cell in ((0, 1), (1, 0), (1, 1)):
        board = [[0] * 4 for _ in range(4)]
        board[0][0] = board[cell[0]][cell[1]] = 3
        assert solve(board) is None


@pytest.mark.parametrize(("size", "holes"), [(4, 6), (4, 8), (4, 10), (9, 30), (9, 50)])
def test_puzzles_have_exactly_one_solution(size: int, holes: int) -> None:
    for seed in range(25):
        puzzle = make_puzzle(size, seed, holes)
        assert is_valid(puzzle.solution)
        assert puzzle.size == size
        assert puzzle.holes == holes
        assert list(islice(solutions(puzzle.givens), 2)) == [puzzle.solution]
        for row, col in product(range(size), repeat=2):
            assert puzzle.givens[row][col] in (0, puzzle.solution[row][col])


def test_too_many_holes_stop_where_the_solution_is_no_longer_the_only_one() -> None:
    puzzle = make_puzzle(4, 1, 16)
    assert 1 <= puzzle.holes < 16
    assert solve(puzzle.givens) == puzzle.solution
    for row, col in product(range(4), repeat=2):
        if puzzle.givens[row][col]:
            board = [list(line) for line in puzzle.givens]
            board[row][col] = 0
            assert len(list(islice(solutions(board), 2))) == 2


def test_seeds_deal_the_same_board_in_another_process() -> None:
    code = (
        "from sudoku_env.engine import *; print([make_puzzle(z, s, 8 * (z - 3)).givens for z in SIZES for s in (0, 7)])"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert other == str([make_puzzle(size, seed, 8 * size - 24).givens for size in SIZES for seed in (0, 7)])


def test_seeds_deal_different_boards() -> None:
    assert len({make_puzzle(9, seed, 40).givens for seed in range(50)}) == 50


@pytest.mark.parametrize(("size", "holes"), [(5, 3), (16, 3), (0, 1), (4, 0)])
def test_impossible_puzzles_are_refused(size: int, holes: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        make_puzzle(size, 0, holes)


def test_conflict_names_the_unit() -> None:
    board = [[0, 0, 0, 4], [0, 0, 0, 0], [0, 2, 0, 0], [3, 0, 0, 0]]
    assert conflict(board, 0, 0, 4) == "row"
    assert conflict(board, 0, 0, 3) == "column"
    assert conflict(board, 3, 1, 2) == "column"
    assert conflict(board, 2, 0, 3) == "column"
    assert conflict(board, 2, 1, 3) == "box"
    assert conflict(board, 1, 2, 4) == "box"
    assert conflict(board, 0, 0, 1) == ""


def test_render() -> None:
    assert render([[0, *VALID[0][1:]], *VALID[1:]]) == "\n".join(
        [". 2 | 3 4", "3 4 | 1 2", "----+----", "2 1 | 4 3", "4 3 | 2 1"]
    )
    lines = render(make_puzzle(9, 0, 30).solution).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [index for index, line in enumerate(lines) if set(line) == {"-", "+"}] == [3, 7]
