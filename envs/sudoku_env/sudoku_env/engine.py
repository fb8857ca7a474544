"""Sudoku itself: puzzles, rules and a solver. No server, no client, no clock.

A board is a tuple of rows; 0 is an empty cell. Rows, columns and values count from 1 in everything a
player sees; inside this module rows and columns are indices and count from 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isqrt

__all__ = ["SIZES", "Board", "Puzzle", "conflict", "make_puzzle", "render", "solutions", "solve"]

SIZES = (4, 9)
"""Board sizes that can be dealt."""

Board = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A board to fill, and the only way to fill it."""

    givens: Board
    solution: Board

    @property
    def size(self) -> int:
        """Cells in a row."""
        return len(self.givens)

    @property
    def holes(self) -> int:
        """Empty cells."""
        return sum(row.count(0) for row in self.givens)


def make_puzzle(size: int, seed: int, holes: int) -> Puzzle:
    """Deal a puzzle with exactly one solution.

    Args:
        size: cells in a row, 4 or 9.
        seed: the same seed, size and holes give the same puzzle, in every process.
        holes: empty cells to aim for. Digging stops early when every further hole would allow a second solution.

    Raises:
        ValueError: a size that is not in ``SIZES``, or fewer than one hole.
    """
    if size not in SIZES:
        raise ValueError(f"size must be one of {SIZES}, not {size}")
    if holes < 1:
        raise ValueError(f"holes must be at least 1, not {holes}")
    rng = random.Random(seed)
    solution = _filled_board(size, rng)
    board = [list(row) for row in solution]
    cells = [(row, col) for row in range(size) for col in range(size)]
    rng.shuffle(cells)
    dug = 0
    for row, col in cells:
        if dug == holes:
            break
        board[row][col] = 0
        if len(list(islice(solutions(board), 2))) == 1:
            dug += 1
        else:
            board[row][col] = solution[row][col]
    return Puzzle(givens=_frozen(board), solution=solution)


def solve(board: Sequence[Sequence[int]]) -> Board | None:
    """The first solution of a board, or None if it has none."""
    return next(solutions(board), None)


def solutions(board: Sequence[Sequence[int]]) -> Iterator[Board]:
    """Yield every solution of a board, lazily: two steps of this iterator tell whether the first is the only one."""
    size = len(board)
    grid = [list(row) for row in board]
    rows, cols, boxes = [0] * size, [0] * size, [0] * size  # bit sets of the values in use
    empty = []
    for row in range(size):
        for col in range(size):
            if value := grid[row][col]:
                bit = 1 << value
                if (rows[row] | cols[col] | boxes[_box(size, row, col)]) & bit:
                    return
                rows[row] |= bit
                cols[col] |= bit
                boxes[_box(size, row, col)] |= bit
            else:
                empty.append((row, col, _box(size, row, col)))
    yield from _fill(grid, empty, rows, cols, boxes)


def _fill(
    grid: list[list[int]],
    empty: list[tuple[int, int, int]],
    rows: list[int],
    cols: list[int],
    boxes: list[int],
) -> Iterator[Board]:
    """Fill the cell with the fewest candidates first, and go back where there are none."""
    if not empty:
        yield _frozen(grid)
        return
    full = (2 << len(grid)) - 2
    best, best_free, fewest = 0, 0, len(grid) + 1
    for index, (row, col, box) in enumerate(empty):
        free = full & ~(rows[row] | cols[col] | boxes[box])
        count = free.bit_count()
        if count < fewest:
            best, best_free, fewest = index, free, count
            if count <= 1:
                break
    empty[best], empty[-1] = empty[-1], empty[best]
    row, col, box = empty.pop()
    while best_free:
        bit = best_free & -best_free
        best_free ^= bit
        grid[row][col] = bit.bit_length() - 1
        rows[row] ^= bit
        cols[col] ^= bit
        boxes[box] ^= bit
        yield from _fill(grid, empty, rows, cols, boxes)
        rows[row] ^= bit
        cols[col] ^= bit
        boxes[box] ^= bit
    grid[row][col] = 0
    empty.append((row, col, box))
    empty[best], empty[-1] = empty[-1], empty[best]


def conflict(board: Sequence[Sequence[int]], row: int, col: int, value: int) -> str:
    """Where a value at an empty cell would stand twice: ``row``, ``column`` or ``box``; empty if nowhere."""
    size, side = len(board), isqrt(len(board))
    if value in board[row]:
        return "row"
    if any(board[other][col] == value for other in range(size)):
        return "column"
    top, left = row - row % side, col - col % side
    if any(value in board[other][left : left + side] for other in range(top, top + side)):
        return "box"
    return ""


def render(board: Sequence[Sequence[int]]) -> str:
    """The board as text: a dot for an empty cell, rules between the boxes."""
    side = isqrt(len(board))
    rule = "+".join("-" * (2 * side + (0 if index in (0, side - 1) else 1)) for index in range(side))
    lines = []
    for index, row in enumerate(board):
        if index and index % side == 0:
            lines.append(rule)
        marks = [str(value) if value else "." for value in row]
        lines.append(" | ".join(" ".join(marks[left : left + side]) for left in range(0, len(row), side)))
    return "\n".join(lines)


def _filled_board(size: int, rng: random.Random) -> Board:
    """Shuffle a filled board in the ways that keep it valid: bands, rows in a band, the same across, and the values."""
    side = isqrt(size)

    def lines() -> list[int]:
        bands = rng.sample(range(side), side)
        return [band * side + line for band in bands for line in rng.sample(range(side), side)]

    rows, cols = lines(), lines()
    values = rng.sample(range(1, size + 1), size)
    return tuple(tuple(values[(side * (row % side) + row // side + col) % size] for col in cols) for row in rows)


def _box(size: int, row: int, col: int) -> int:
    side = isqrt(size)
    return row // side * side + col // side


def _frozen(grid: Sequence[Sequence[int]]) -> Board:
    return tuple(tuple(row) for row in grid)
