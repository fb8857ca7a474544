"""The environment by itself: five games played to their end, seeds, chance of its own, signals. No server."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from openenv.core.exceptions import InvalidActionError
from textarena_env.models import TextArenaAction, TextArenaObservation
from textarena_env.rewards import WordleSignals
from textarena_env.server.app import settings
from textarena_env.server.environment import TextArenaEnvironment


def neighbour(name: str) -> Any:
    """A module that lies beside this one, however the tests are started."""
    spec = importlib.util.spec_from_file_location(f"textarena_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAYERS = neighbour("players").PLAYERS


def say(env: TextArenaEnvironment, message: str) -> TextArenaObservation:
    return env.step(TextArenaAction(message=message))


def text(observation: TextArenaObservation) -> str:
    return "\n".join(message.content for message in observation.messages)


def win(env: TextArenaEnvironment) -> tuple[TextArenaObservation, list[str]]:
    """Play to the end; the last observation and every text."""
    observation, texts = None, []
    while observation is None or not observation.done:
        for move in PLAYERS[env.env_id](env.state.raw_state["game_state"]):
            observation = say(env, move)
            texts.append(text(observation))
            assert observation.info["reward_signals"]["game.invalid_move"] == 0.0, (move, texts[-1])
    return observation, texts


@pytest.mark.parametrize("game", PLAYERS)
def test_a_game_is_won(game: str) -> None:
    env = TextArenaEnvironment(game)
    opening = env.reset(seed=3)
    assert (opening.reward, opening.done) == (0.0, False)
    if game == "Minesweeper-v0":
        assert not say(env, "[4 4]").done
    last, texts = win(env)
    assert (last.reward, last.done) == (1.0, True)
    assert last.info["reward_signals"]["game.progress"] == pytest.approx(1.0) or game == "FrozenLake-v0"
    assert texts[0].startswith(opening.messages[0].content)
    assert last.prompt == opening.prompt == opening.messages[0].content.strip()
    state = env.state
    assert (state.last_reward, state.raw_state["done"], state.raw_state["rewards"]) == (1.0, True, {"0": 1})
    json.dumps(state.model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize("game", PLAYERS)
def test_a_seed_deals_the_same_game_whatever_else_draws(game: str) -> None:
    alone = TextArenaEnvironment(game)
    opening = alone.reset(seed=11)
    first = say(alone, "[4 4]")  # Minesweeper lays its mines now
    mirror, other = TextArenaEnvironment(game), TextArenaEnvironment(game)
    random.seed(1)
    before = random.getstate()
    assert mirror.reset(seed=11) == opening
    other.reset(seed=12)
    say(other, "[4 4]")
    assert say(mirror, "[4 4]") == first
    assert mirror.state.raw_state == alone.state.raw_state
    assert random.getstate() == before, "the global generator was touched"
    assert mirror.reset(seed=11) == opening, "a former game is remembered"


def test_games_in_threads_deal_what_they_deal_alone() -> None:
    def deal(seed: int) -> list[str]:
        env = TextArenaEnvironment("LightsOut-v0")
        return [env.reset(seed=seed + offset).prompt for offset in range(20)]

    expected = {seed: deal(seed) for seed in range(0, 80, 20)}
    assert len({board for boards in expected.values() for board in boards}) == 80
    found: dict[int, list[str]] = {}
    stop = threading.Event()

    def disturb() -> None:
        while not stop.wait(0.0001):
            random.seed(0)

    noise = threading.Thread(target=disturb)
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: deal(seed)})) for seed in expected]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in [noise, *threads]:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        noise.join()
        sys.setswitchinterval(interval)
    assert found == expected


def test_without_a_seed_the_state_tells_the_one_that_was_drawn() -> None:
    env = TextArenaEnvironment("LightsOut-v0")
    opening = env.reset()
    seed = env.state.seed
    assert env.reset().prompt != opening.prompt
    assert env.reset(seed=seed).prompt == opening.prompt


def test_refused_moves_are_told_and_the_second_in_a_row_ends_the_game() -> None:
    env = TextArenaEnvironment()
    env.reset(seed=3)
    row, col, value = next(PLAYERS["Sudoku-v0"](env.state.raw_state["game_state"]))[1:-1].split()
    first = say(env, f"[{row} {col} {int(value) % 9 + 1}]")
    assert (first.reward, first.done, first.info["reward_signals"]["game.invalid_move"]) == (0.0, False, 1.0)
    assert "You attempted an invalid move" in text(first)
    assert env.state.turn == 0
    assert say(env, f"[{row} {col} {value}]").info["reward_signals"] == {
        "game.invalid_move": 0.0,
        "game.progress": pytest.approx(1 / 21),
    }
    say(env, "hello")
    last = say(env, "hello")
    assert (last.reward, last.done) == (pytest.approx(1 / 21), True)
    assert last.metadata["reward_signals"] == last.info["reward_signals"] == env.state.last_info["reward_signals"]
    assert env.state.step_count == 4
    with pytest.raises(InvalidActionError, match="over"):
        say(env, "[1 1 1]")
    assert env.state.step_count == 4


def test_a_move_before_the_first_game_is_refused() -> None:
    with pytest.raises(InvalidActionError, match="reset"):
        say(TextArenaEnvironment(), "[1 1 1]")


def test_a_game_without_wrappers_tells_who_said_what() -> None:
    env = TextArenaEnvironment("Sudoku-v0-raw")
    opening = env.reset(seed=3)
    assert [message.category for message in opening.messages] == ["PROMPT", "GAME_BOARD"]
    said = say(env, "[9 9 9]").messages
    assert [(message.sender_id, message.category) for message in said] == [(0, "PLAYER_ACTION"), (-1, "GAME_ADMIN")]
    assert said[0].content == "[9 9 9]"


def test_one_session_plays_all_players() -> None:
    env = TextArenaEnvironment("TicTacToe-v0", num_players=2)
    assert env.reset(seed=1).legal_players == [0, 1]
    assert [say(env, f"[{cell}]").current_player_id for cell in (0, 3, 1, 4)] == [1, 0, 1, 0]
    last = say(env, "[2]")
    assert (last.reward, last.done) == (1.0, True)
    assert env.state.raw_state["rewards"] == {"0": 1, "1": -1}


def test_arguments_of_the_game_and_the_limit_of_turns_are_used() -> None:
    env = TextArenaEnvironment("TowerOfHanoi-v0", max_turns=1, env_kwargs={"num_disks": 4})
    assert "[4, 3, 2, 1]" in env.reset().prompt
    assert not say(env, "[A B]").done
    assert say(env, "[A C]").done  # TextArena counts a turn after it has looked at the limit
    assert env.state.max_turns == 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [({"env_id": "Sudoku-v9"}, "no game 'Sudoku-v9'"), ({"env_kwargs": {"clue": 1}}, "does not take .*clue")],
)
def test_a_game_that_does_not_exist_is_named(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TextArenaEnvironment(**arguments)


def test_no_word_list_is_fetched_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk

    asked: list[str] = []
    monkeypatch.setattr(nltk, "download", lambda name, **options: asked.append(name))
    for game in PLAYERS:
        TextArenaEnvironment(game).reset()
    assert asked == []
    with pytest.raises(RuntimeError, match="could not fetch 'words'"):
        TextArenaEnvironment(download_nltk=True)
    assert asked == ["words"]


def test_settings_are_read_from_variables() -> None:
    assert settings({})["env_id"] == "Sudoku-v0"
    assert settings({})["download_nltk"] is False
    assert settings(
        {
            "TEXTARENA_ENV_ID": "LightsOut-v0",
            "TEXTARENA_NUM_PLAYERS": "2",
            "TEXTARENA_MAX_TURNS": "9",
            "TEXTARENA_DOWNLOAD_NLTK": "1",
            "TEXTARENA_KW_size": "4",
            "TEXTARENA_KW_MODE": "fast",
        }
    ) == {
        "env_id": "LightsOut-v0",
        "num_players": 2,
        "max_turns": 9,
        "download_nltk": True,
        "env_kwargs": {"size": 4, "mode": "fast"},
    }


def test_wordle_is_told_letter_by_letter() -> None:
    env = TextArenaEnvironment()
    env.reset(seed=1)
    signals = WordleSignals()
    said = "\n[GAME] You submitted [crane].\nFeedback:\nC R A N E\nG X Y Y X\n\nYou have 5 guesses left."
    told = [signals.of_step(f"I say [{word}]", said, 0.5, env._env) for word in ("crane", "CRANE", "slate")]
    assert [one["wordle.repetitions"] for one in told] == [1.0, 0.0, 1.0]
    assert (told[0]["wordle.greens"], told[0]["wordle.yellows"], told[0]["wordle.correct"]) == (0.2, 0.4, 0.5)
    assert signals.of_step("nothing", "", 0.0, env._env)["wordle.greens"] == 0.0
