"""The table of sessions that ``openenv serve`` shows: what is in it, and that it stays as small as the screen."""

from __future__ import annotations

import io

from rich.console import Console

from openenv.cli._board import Board
from openenv.core.env_server.observing import SessionEvent, SessionEventKind

KIND = SessionEventKind


def shown(board: Board, height: int = 30) -> str:
    console = Console(file=io.StringIO(), width=120, height=height)
    with console.capture() as captured:
        console.print(board.table(console, "maze at http://x", 64))
    return captured.get()


def test_a_row_tells_where_a_session_stands() -> None:
    now = [0.0]
    board = Board(clock=lambda: now[0])
    board(SessionEvent(KIND.OPENED, "aaaaaaaaaa"))
    board(SessionEvent(KIND.CALLED, "aaaaaaaaaa", call="reset"))
    for seconds in (0.001, 0.002, 1.5):
        board(SessionEvent(KIND.CALLED, "aaaaaaaaaa", call="step", seconds=seconds))
    board(SessionEvent(KIND.CALLED, "aaaaaaaaaa", call="step", error="VALIDATION_ERROR"))
    now[0] = 125.0
    text = shown(board)
    assert "maze at http://x   1 of 64 sessions, 1 so far" in text
    row = next(line for line in text.splitlines() if line.startswith("aaaaaaaa "))
    assert row.split() == ["aaaaaaaa", "open", "1", "3", "2.0", "ms,", "at", "most", "1.5", "s", "1", "2:05"]
    board(SessionEvent(KIND.CALLED, "aaaaaaaaaa", call="reset"))
    assert shown(board).splitlines()[-1].split() == ["aaaaaaaa", "open", "2", "0", "1", "2:05"]


def test_leased_resumed_and_lost_are_told() -> None:
    board = Board()
    board(SessionEvent(KIND.OPENED, "aaaaaaaaaa"))
    board(SessionEvent(KIND.LEASED, "aaaaaaaaaa"))
    assert "leased" in shown(board)
    board(SessionEvent(KIND.RESUMED, "aaaaaaaaaa"))
    assert "open, resumed 1" in shown(board)
    board(SessionEvent(KIND.ENDED, "aaaaaaaaaa", reason="expired"))
    board(SessionEvent(KIND.CLOSED, "aaaaaaaaaa"))
    assert "lost (expired), resumed 1" in shown(board)
    assert "0 of 64 sessions, 1 so far" in shown(board)


def test_a_thousand_sessions_fit_on_the_screen_and_the_old_ones_are_forgotten() -> None:
    board = Board()
    for number in range(1000):
        board(SessionEvent(KIND.OPENED, f"{number:08}"))
    text = shown(board, height=20)
    assert len(text.splitlines()) <= 20
    assert "1000 of 64 sessions" in text
    assert "and 985 more" in text
    for number in range(1000):
        board(SessionEvent(KIND.ENDED, f"{number:08}", reason="closed"))
        board(SessionEvent(KIND.CLOSED, f"{number:08}"))
    text = shown(board, height=20)
    assert len(text.splitlines()) == 7
    assert "0 of 64 sessions, 1000 so far" in text


def test_a_line_is_said_before_the_row_forgets() -> None:
    said: list[str] = []
    board = Board(say=said.append)
    for event in (
        SessionEvent(KIND.OPENED, "aaaaaaaaaa", seconds=0.25),
        SessionEvent(KIND.CALLED, "aaaaaaaaaa", call="reset", seconds=0.001),
        SessionEvent(KIND.CALLED, "aaaaaaaaaa", call="tools/call", seconds=0.004),
        SessionEvent(KIND.CALLED, "aaaaaaaaaa", error="INVALID_JSON"),
        SessionEvent(KIND.ENDED, "aaaaaaaaaa", reason="idle"),
        SessionEvent(KIND.CLOSED, "aaaaaaaaaa"),
    ):
        board(event)
    assert said == [
        "aaaaaaaa opened in 250.0 ms",
        "aaaaaaaa reset in 1.0 ms, episode 1",
        "aaaaaaaa call refused or failed: INVALID_JSON",
        "aaaaaaaa lost (idle): 1 steps (4.0 ms, at most 4.0 ms)",
    ]
