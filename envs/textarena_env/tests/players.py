"""Players that win the five games, from what state() tells. No sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

Game = dict[str, Any]
"""``raw_state["game_state"]``."""


def sudoku(game: Game) -> Iterator[str]:
    """Fill the empty cells in the only way."""
    board = [list(row) for row in game["board"]]
    holes = [cell for cell in product(range(9), repeat=2) if not board[cell[0]][cell[1]]]

    def fits(row: int, col: int, value: int) -> bool:
        box = [board[row // 3 * 3 + i][col // 3 * 3 + j] for i, j in product(range(3), repeat=2)]
        return value not in board[row] and value not in [line[col] for line in board] and value not in box

    def fill(index: int) -> bool:
        if index == len(holes):
            return True
        row, col = holes[index]
        for value in range(1, 10):
            if fits(row, col, value):
                board[row][col] = value
                if fill(index + 1):
                    return True
                board[row][col] = 0
        return False

    assert fill(0)
    return (f"[{row + 1} {col + 1} {board[row][col]}]" for row, col in holes)


def hanoi(game: Game) -> Iterator[str]:
    """The shortest way."""

    def move(disks: int, source: str, target: str, spare: str) -> Iterator[str]:
        if disks:
            yield from move(disks - 1, source, spare, target)
            yield f"[{source} {target}]"
            yield from move(disks - 1, spare, target, source)

    return move(len(game["towers"]["A"]), "A", "C", "B")


def frozen_lake(game: Game) -> Iterator[str]:
    """The shortest way around the holes."""
    steps = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
    start, goal, grid = tuple(game["player_pos"]), tuple(game["goal_pos"]), game["grid"]
    ways: dict[tuple[int, ...], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for name, (down, right) in steps.items():
            there = (here[0] + down, here[1] + right)
            if there not in ways and all(0 <= one < len(grid) for one in there) and grid[there[0]][there[1]] != "H":
                ways[there] = [*ways[here], name]
                queue.append(there)
    return (f"[{name}]" for name in ways[goal])


def lights_out(game: Game) -> Iterator[str]:
    """Try each way to press the top row; the row above then tells the presses of the next."""
    grid = game["grid"]
    size = len(grid)
    for top in product([False, True], repeat=size):
        lights, pressed, row_presses = [list(row) for row in grid], [], list(top)
        for row in range(size):
            for col in (one for one in range(size) if row_presses[one]):
                pressed.append((row, col))
                for down, right in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)):
                    if 0 <= row + down < size and 0 <= col + right < size:
                        lights[row + down][col + right] ^= True
            row_presses = lights[row]
        if not any(map(any, lights)) and len(pressed) <= 20:
            return (f"[{row} {col}]" for row, col in pressed)
    raise AssertionError("no way in 20 moves")


def mines(game: Game) -> Iterator[str]:
    """Every cell that is hidden and holds no mine; asks again after each move, for one may open many."""
    for row, col in product(range(len(game["grid"])), range(len(game["grid"][0]))):
        if game["grid"][row][col] != -1 and not game["revealed"][row][col]:
            yield f"[{row} {col}]"
            return


PLAYERS: dict[str, Callable[[Game], Iterator[str]]] = {
    "Sudoku-v0": sudoku,
    "Minesweeper-v0": mines,
    "TowerOfHanoi-v0": hanoi,
    "FrozenLake-v0": frozen_lake,
    "LightsOut-v0": lights_out,
}
