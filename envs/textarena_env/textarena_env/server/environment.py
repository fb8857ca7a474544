"""The environment: one instance plays one kind of TextArena game, game after game.

The rules, the words and the rewards are TextArena's. What is here: a fresh game for each reset, chance that belongs to
the session, and plain values for what crosses the wire.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from enum import Enum
from typing import Any

import textarena

from openenv.core.env_server.interfaces import Environment, EnvironmentMetadata
from openenv.core.exceptions import InvalidActionError
from textarena_env.models import TextArenaAction, TextArenaMessage, TextArenaObservation, TextArenaState
from textarena_env.rewards import GameSignals, signals_for
from textarena_env.server.chance import drawing_from, isolate

__all__ = ["TextArenaEnvironment"]

_WORD_LISTS = ("words", "averaged_perceptron_tagger_eng")
_RAW_STATE = ("turn", "game_state", "logs", "rewards", "done", "role_mapping", "game_info", "step_info")


class TextArenaEnvironment(Environment[TextArenaAction, TextArenaObservation, TextArenaState]):
    """Any game of TextArena.

    Args:
        env_id: TextArena's name of the game, as ``Sudoku-v0`` or ``Sudoku-v0-train``.
        num_players: players, all of whom the session plays.
        max_turns: turns of a game, instead of the game's own.
        download_nltk: fetch the word lists that word games need. Never happens unasked.
        env_kwargs: arguments of the game, as ``{"clues": 70}``.

    Raises:
        ValueError: there is no such game, or it has no such argument.
        RuntimeError: the word lists could not be fetched.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True  # instances share nothing, their chance included

    def __init__(
        self,
        env_id: str = "Sudoku-v0",
        *,
        num_players: int = 1,
        max_turns: int | None = None,
        download_nltk: bool = False,
        env_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if download_nltk:
            _fetch_word_lists()
        self.env_id = env_id
        self._arguments = {**(env_kwargs or {}), **({} if max_turns is None else {"max_turns": max_turns})}
        self._chance = random.Random()
        self._signals = GameSignals()
        self._env: Any = None  # with TextArena's wrappers
        self._opening = ""
        self._transcript = ""
        self._state = TextArenaState(env_id=env_id, num_players=num_players, max_turns=max_turns)
        self._make()

    def reset(  # type: ignore[override]  # no **kwargs: the server then names arguments that do not exist
        self, seed: int | None = None, episode_id: str | None = None
    ) -> TextArenaObservation:
        """Begin a new game.

        Args:
            seed: the same seed deals the same game; None draws a seed, which ``state()`` tells.
            episode_id: name of the episode; None makes one up.
        """
        seed = random.SystemRandom().randrange(2**31) if seed is None else seed
        env, players = self._make(), self._state.num_players
        with drawing_from(self._chance):
            env.reset(num_players=players, seed=seed)
        self._env, self._signals = env, signals_for(self.env_id)
        self._opening = self._transcript = ""
        self._state = TextArenaState(
            env_id=self.env_id,
            num_players=players,
            max_turns=self._state.max_turns,
            seed=seed,
            episode_id=episode_id or uuid.uuid4().hex,
        )
        observation = self._observe({})
        self._opening = self._transcript = "\n".join(message.content for message in observation.messages)
        return observation.model_copy(update={"prompt": self._opening.strip(), "reward": 0.0, "done": False})

    def step(self, action: TextArenaAction, timeout_s: float | None = None, **kwargs: Any) -> TextArenaObservation:
        """Say something to the game. What it does not understand it refuses in words; the second time in a row it ends.

        Args:
            action: what the player on turn says.
            timeout_s: not used; a move takes no time.

        Raises:
            InvalidActionError: no game is going on. It is not counted.
        """
        if self._env is None:
            raise InvalidActionError("There is no game yet; call reset() first.")
        if self._env.state.done:
            raise InvalidActionError("The game is over; call reset() for a new one.")
        with drawing_from(self._chance):
            done, info = self._env.step(action.message)
        state = self._state
        state.step_count += 1
        state.last_reward = self._reward()
        observation = self._observe(info or {})
        said = "\n".join(message.content for message in observation.messages)
        new = said.removeprefix(self._transcript)
        self._transcript = said
        signals = self._signals.of_step(action.message, new, state.last_reward, _unwrapped(self._env))
        observation.info["reward_signals"] = signals
        state.last_info = dict(observation.info)
        metadata = {**observation.metadata, "reward_signals": signals}
        return observation.model_copy(update={"metadata": metadata, "reward": state.last_reward, "done": bool(done)})

    @property
    def state(self) -> TextArenaState:
        """The game as it stands."""
        if self._env is None:
            return self._state
        kept = self._env.state
        raw = {name: _plain(getattr(kept, name, None)) for name in _RAW_STATE}
        if "reward_signals" in self._state.last_info:
            raw["reward_signals"] = self._state.last_info["reward_signals"]
        return self._state.model_copy(update={"turn": kept.turn, "raw_state": raw})

    def get_metadata(self) -> EnvironmentMetadata:
        """What ``GET /metadata`` tells."""
        return EnvironmentMetadata(
            name="textarena_env", description=f"{self.env_id}, a game of TextArena.", version="0.1.0"
        )

    def _make(self) -> Any:
        """A new game. TextArena's wrappers remember former games, so none is used twice."""
        spec = textarena.envs.registration.ENV_REGISTRY.get(self.env_id)
        if spec is None:
            raise ValueError(f"TextArena has no game {self.env_id!r}; its games: textarena.pprint_registry_detailed()")
        try:
            env = textarena.make(self.env_id, **self._arguments)
        except TypeError as error:
            raise ValueError(f"{self.env_id} does not take {self._arguments}: {error}") from error
        isolate()
        return env

    def _reward(self) -> float:
        kept = self._env.state
        rewards: dict[int, float] = kept.rewards or {}
        reward: float = rewards.get(kept.current_player_id, rewards.get(0, 0.0))
        return float(reward)

    def _observe(self, info: dict[str, Any]) -> TextArenaObservation:
        with drawing_from(self._chance):
            player, said = self._env.get_observation()
        kept = self._env.state
        return TextArenaObservation(
            prompt=self._opening.strip(),
            messages=_messages(said),
            current_player_id=player,
            legal_players=sorted(one for one in kept.role_mapping or {} if isinstance(one, int) and one >= 0),
            info=_plain(info),
            metadata={"env_id": self.env_id, "turn": kept.turn},
        )


def _unwrapped(env: Any) -> Any:
    while isinstance(env, textarena.Wrapper):
        env = env.env
    return env


def _messages(said: str | Iterable[tuple[Any, ...]]) -> list[TextArenaMessage]:
    """One message of a text; of a list of entries one for each voice and kind, runs joined."""
    if isinstance(said, str):
        return [TextArenaMessage(sender_id=textarena.GAME_ID, content=said, category="MESSAGE")]
    found: list[TextArenaMessage] = []
    for sender, content, *kind in said:
        category = getattr(kind[0], "name", str(kind[0])) if kind else "MESSAGE"
        if found and (found[-1].sender_id, found[-1].category) == (sender, category):
            found[-1].content += content
        else:
            found.append(TextArenaMessage(sender_id=sender, content=content, category=category))
    return found


def _plain(value: Any) -> Any:
    """What JSON can carry: of a set a sorted list, of a key its text, of an object its name or its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(one) for one in value), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.name if isinstance(value, Enum) else str(value)


def _fetch_word_lists() -> None:
    import nltk

    for name in _WORD_LISTS:
        if not nltk.download(name, quiet=True):
            raise RuntimeError(f"nltk could not fetch {name!r}; TEXTARENA_DOWNLOAD_NLTK=0 starts without it")
