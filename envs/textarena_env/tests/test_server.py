"""Games through a real server: with the client of this package, and with one that runs upstream's code."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from openenv.core.exceptions import ActionValidationError, InvalidActionError
from openenv.core.generic_client import GenericEnvClient
from textarena_env import TextArenaAction, TextArenaEnv
from textarena_env.server.app import app, main

HERE = Path(__file__).parent
PEER = HERE.parents[2] / ".peer" / "bin" / "python"


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


def a_right_move(url: str, seed: int) -> str:
    """Found by asking: the first hole takes one of nine values, and each game may try one."""
    with TextArenaEnv(base_url=url).sync() as env:
        for value in range(1, 10):
            env.reset(seed=seed)
            board = env.state().raw_state["game_state"]["board"]
            row, col = next((row, col) for row in range(9) for col in range(9) if not board[row][col])
            result = env.step(TextArenaAction(message=f"[{row + 1} {col + 1} {value}]"))
            if not result.observation.info["reward_signals"]["game.invalid_move"]:
                return f"[{row + 1} {col + 1} {value}]"
    raise AssertionError("no value fits")


def test_our_client_reads_the_game_in_typed_models(url: str) -> None:
    move = a_right_move(url, 5)
    with TextArenaEnv(base_url=url).sync() as env:
        opening = env.reset(seed=5, episode_id="E").observation
        assert "You are playing Sudoku" in opening.prompt
        result = env.step(TextArenaAction(message=move))
        assert (result.reward, result.done) == (0.0, False)
        (message,) = result.observation.messages
        assert (message.sender_id, message.category) == (-1, "MESSAGE")
        assert message.content.startswith(opening.messages[0].content)
        assert f"[Player] {move}" in message.content[len(opening.messages[0].content) :]
        state = env.state()
        assert (state.episode_id, state.env_id, state.seed, state.turn, state.step_count) == ("E", "Sudoku-v0", 5, 1, 1)
        env.step(TextArenaAction(message="hello"))
        last = env.step(TextArenaAction(message="hello"))
        assert last.done
        assert last.reward == pytest.approx(1 / 21)
        with pytest.raises(InvalidActionError, match="over"):
            env.step(TextArenaAction(message=move))


def test_a_client_of_upstream_sees_the_same_game(url: str) -> None:
    if not PEER.exists():
        if os.environ.get("OPENENV_PEER_REQUIRED"):
            pytest.fail("no .peer: make peer")
        pytest.skip("no .peer: make peer")
    moves = [a_right_move(url, 6), "hello", "hello"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(PEER), "-W", "ignore", str(HERE / "upstream_player.py"), url, "6", *moves]
    told = json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, timeout=60).stdout)

    with TextArenaEnv(base_url=url).sync() as env:
        results = [env.reset(seed=6), *(env.step(TextArenaAction(message=move)) for move in moves)]
        state = env.state()
    assert [(reward, done) for _, reward, done in told["results"]] == [(one.reward, one.done) for one in results]
    assert told["results"][-1][1:] == [pytest.approx(1 / 21), True]
    for (theirs, _, _), ours in zip(told["results"], results, strict=True):
        expected: dict[str, Any] = ours.observation.model_dump()
        names = ("prompt", "messages", "current_player_id", "legal_players", "info")
        assert {name: theirs[name] for name in names} == {name: expected[name] for name in names}
    assert told["results"][1][0]["info"]["reward_signals"]["game.progress"] == pytest.approx(1 / 21)
    for name in ("env_id", "num_players", "turn", "last_reward", "last_info", "raw_state"):
        assert told["state"][name] == state.model_dump()[name], name


def test_many_players_have_a_game_each(url: str) -> None:
    players = [TextArenaEnv(base_url=url).sync() for _ in range(8)]
    try:
        boards = [player.reset(seed=seed % 4).observation.prompt for seed, player in enumerate(players)]
        assert boards[:4] == boards[4:]
        assert len(set(boards)) == 4
        for player in players[:4]:
            player.step(TextArenaAction(message="hello"))
        assert [player.state().step_count for player in players] == [1] * 4 + [0] * 4
    finally:
        for player in players:
            player.close()


def test_the_server_says_what_it_is_and_what_it_takes(url: str) -> None:
    assert httpx.get(f"{url}/metadata", trust_env=False).json()["name"] == "textarena_env"
    schema = httpx.get(f"{url}/schema", trust_env=False).json()
    assert set(schema["action"]["properties"]) == {"metadata", "message"}
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset()
        with pytest.raises(ActionValidationError, match="message"):
            env.step({"text": "[1 1 1]"})


def test_the_example_of_the_readme_prints_what_it_says(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    readme = HERE.parent.joinpath("README.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", readme, re.DOTALL)
    assert match is not None
    code, output = match.groups()
    exec(code.replace("http://localhost:8000", url), {})
    assert capsys.readouterr().out == output


def test_the_command_listens_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[str, int]] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, host, port, workers: served.append((host, port)))
    for arguments, variables in ([], {"HOST": "0.0.0.0", "PORT": "7860"}), (["--port", "8001"], {"PORT": "7860"}):
        monkeypatch.delenv("HOST", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.argv", ["textarena-env", *arguments])
        main()
    assert served == [("0.0.0.0", 7860), ("127.0.0.1", 8001)]
