"""Chat environments keep messages in their models: `Message` as the type of a field, and its way over the wire."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from openenv.core.env_client import EnvClient
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Action, Environment, Message, Observation, State
from support.live import serve


class Say(Action):
    text: str


class Heard(Observation):
    messages: list[Message] = Field(default_factory=list)


class Talk(State):
    history: list[Message] = Field(default_factory=list)


class TalkEnvironment(Environment[Say, Heard, Talk]):
    def __init__(self) -> None:
        self._talk = Talk()

    def reset(self) -> Heard:
        self._talk = Talk(history=[{"role": "system", "content": "Be brief."}])
        return Heard(messages=list(self._talk.history))

    def step(self, action: Say) -> Heard:
        self._talk.history.append({"role": "assistant", "content": action.text})
        return Heard(messages=list(self._talk.history))

    @property
    def state(self) -> Talk:
        return self._talk


class TalkClient(EnvClient[Say, Heard, Talk]):
    def _parse_state(self, payload: dict[str, Any]) -> Talk:
        return Talk(**payload)


def test_a_message_is_a_type_for_fields() -> None:
    assert Heard.model_json_schema()["$defs"]["Message"]["required"] == ["role", "content"]
    with pytest.raises(ValidationError):
        Heard(messages=[{"role": "user"}])


def test_messages_in_observations_and_states_arrive() -> None:
    said = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Yes."}]
    with serve(create_app(TalkEnvironment, Say, Heard, state_cls=Talk)) as server, TalkClient(server).sync() as client:
        assert client.reset(seed=1).observation.messages == said[:1]
        assert client.step(Say(text="Yes.")).observation.messages == said
        assert client.state().history == said
