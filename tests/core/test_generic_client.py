"""`GenericEnvClient` and `GenericAction`."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from openenv.core.generic_client import GenericAction, GenericEnvClient
from support.clients import CountServer, act


def test_an_action_is_a_dict_of_its_fields() -> None:
    action = GenericAction(op="inc", arg=[1])
    assert action == {"op": "inc", "arg": [1]}
    assert repr(action) == "GenericAction(op='inc', arg=[1])"
    assert action["op"] == "inc"


def test_an_action_copies_and_pickles() -> None:
    action = GenericAction(op="inc")
    for twin in (copy.deepcopy(action), copy.copy(action), pickle.loads(pickle.dumps(action))):
        assert twin == action
        assert type(twin) is GenericAction


@pytest.mark.parametrize("action", [GenericAction(op="echo", arg=1), {"op": "echo", "arg": 1}, act("echo", 1)])
async def test_actions_of_all_kinds(server: CountServer, action: Any) -> None:
    async with GenericEnvClient(base_url=server.url) as client:
        reset = await client.reset()
        assert isinstance(reset.observation, dict)
        assert (await client.step(action)).observation["echo"] == 1
        assert (await client.state())["step_count"] == 1


async def test_metadata_beside_the_observation(server: CountServer) -> None:
    async with GenericEnvClient(base_url=server.url) as client:
        await client.reset()
        result = await client.step({"op": "meta"})
        assert result.metadata == {"k": 1}
