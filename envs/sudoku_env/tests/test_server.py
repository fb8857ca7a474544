"""A whole game through a real server, with the client of this package."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest
import uvicorn

from openenv.core.exceptions import ActionValidationError, InvalidActionError
from sudoku_env import SudokuAction, SudokuEnv
from sudoku_env.engine import solve
from sudoku_env.server.app import app, main


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.mark.parametrize("size", [4, 9])
def test_a_game_is_played_to_its_end(url: str, size: int) -> None:
    with SudokuEnv(base_url=url).sync() as env:
        result = env.reset(seed=7, size=size)
        solution = solve(result.observation.board)
        assert solution is not None
        total = 0.0
        for row, col in product(range(size), repeat=2):
            if not result.observation.board[row][col]:
                assert not result.done
                result = env.step(SudokuAction(row=row + 1, col=col + 1, value=solution[row][col]))
                assert result.reward == result.observation.reward
                total += result.reward or 0.0
        assert result.done
        assert result.observation.board == [list(row) for row in solution]
        assert total == pytest.approx(1.0)
        state = env.state()
        assert state.solved
        assert state.board_id == result.observation.board_id
        assert state.seed == 7


def test_mistakes_and_impossible_moves_leave_the_game_going(url: str) -> None:
    with SudokuEnv(base_url=url).sync() as env:
        board = env.reset(seed=2, size=4, episode_id="E").observation.board
        row, col = next(cell for cell in product(range(4), repeat=2) if board[cell[0]][cell[1]])
        given = SudokuAction(row=row + 1, col=col + 1, value=1)
        result = env.step(given)
        assert (result.observation.legal, result.reward, result.done) == (False, 0.0, False)
        with pytest.raises(InvalidActionError, match="no row 9 on a 4x4 board"):
            env.step(SudokuAction(row=9, col=1, value=1))
        off_schema = SudokuAction.model_construct(row=10, col=1, value=1, metadata={})
        with pytest.raises(ActionValidationError, match="row"):
            env.step(off_schema)
        state = env.state()
        assert (state.episode_id, state.mistakes, state.step_count) == ("E", 1, 1)
        assert state.board == board


def test_a_reset_out_of_range_says_why(url: str) -> None:
    with SudokuEnv(base_url=url).sync() as env:
        with pytest.raises(InvalidActionError, match="size must be 4 or 9, not 5"):
            env.reset(size=5)
        assert env.reset(size=4).observation.size == 4


def test_a_move_before_the_first_reset_is_refused(url: str) -> None:
    with SudokuEnv(base_url=url).sync() as env, pytest.raises(InvalidActionError, match=r"call reset\(\) first"):
        env.step(SudokuAction(row=1, col=1, value=1))


def test_many_players_have_a_board_each(url: str) -> None:
    players = [SudokuEnv(base_url=url).sync() for _ in range(8)]
    boards = {player.reset(seed=1).observation.board_id for player in players}
    for player in players:
        player.close()
    assert len(boards) == 8


def test_the_server_says_what_it_is(url: str) -> None:
    assert httpx.get(f"{url}/metadata", trust_env=False).json()["name"] == "sudoku_env"
    schema = httpx.get(f"{url}/schema", trust_env=False).json()
    assert set(schema["action"]["properties"]) == {"metadata", "row", "col", "value"}


def test_the_example_of_the_readme_prints_what_it_says(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", readme, re.DOTALL)
    assert match is not None
    code, output = match.groups()
    exec(code.replace("http://localhost:8000", url), {})
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(
    ("arguments", "variables", "place"),
    [
        ([], {}, ("127.0.0.1", 8000)),
        ([], {"HOST": "0.0.0.0", "PORT": "7860"}, ("0.0.0.0", 7860)),
        (["--port", "8001"], {"PORT": "7860"}, ("127.0.0.1", 8001)),
        (["--host", "::1"], {"HOST": "0.0.0.0"}, ("::1", 8000)),
    ],
)
def test_the_command_listens_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], variables: dict[str, str], place: tuple[str, int]
) -> None:
    served: list[tuple[str, int]] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, host, port, workers: served.append((host, port)))
    monkeypatch.setattr("sys.argv", ["sudoku-env", *arguments])
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    main()
    assert served == [place]


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["--port", "many"], 2), (["--prot", "1"], 2)])
def test_the_command_serves_only_what_it_understands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    monkeypatch.setattr(uvicorn, "run", lambda *args, **kwargs: pytest.fail("it served"))
    monkeypatch.setattr("sys.argv", ["sudoku-env", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code
    assert "--port" in "".join(capsys.readouterr())
