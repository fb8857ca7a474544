"""A client written for upstream's package, whose interpreter runs this: three hooks, models that it has itself.

Plays the moves that it is given and prints what it saw. argv: the url, a seed, then moves.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel, Field

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import Action, Observation, State


class Message(BaseModel):
    sender_id: int
    content: str
    category: str


class Say(Action):
    message: str


class Seen(Observation):
    prompt: str
    messages: list[Message] = Field(default_factory=list)
    current_player_id: int = 0
    legal_players: list[int] = Field(default_factory=list)
    info: dict[str, Any] = Field(default_factory=dict)


class Kept(State):
    env_id: str
    num_players: int
    max_turns: int | None = None
    turn: int = 0
    last_reward: float = 0.0
    last_info: dict[str, Any] = Field(default_factory=dict)
    raw_state: dict[str, Any] = Field(default_factory=dict)


class Player(EnvClient[Say, Seen, Kept]):
    def _step_payload(self, action: Say) -> dict[str, Any]:
        return {"message": action.message}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Seen]:
        fields = {name: value for name, value in payload["observation"].items() if name in Seen.model_fields}
        done, reward = payload["done"], payload["reward"]
        return StepResult(observation=Seen(**{**fields, "done": done, "reward": reward}), reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> Kept:
        return Kept(**{name: payload[name] for name in Kept.model_fields if name in payload})


async def play(url: str, seed: int, moves: list[str]) -> dict[str, Any]:
    async with Player(base_url=url) as player:
        results = [await player.reset(seed=seed)]
        for move in moves:
            results.append(await player.step(Say(message=move)))
        state = await player.state()
        return {
            "results": [(one.observation.model_dump(), one.reward, one.done) for one in results],
            "state": state.model_dump(),
        }


sys.stdout.write(json.dumps(asyncio.run(play(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))))
