"""What a client of tools makes of a server's replies: no server, the replies are written here."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.core.env_server.mcp_types import CallToolObservation, ListToolsObservation
from openenv.core.mcp_client import GenericMCPObservation, MCPToolClient


@pytest.mark.parametrize(
    ("observation", "model"),
    [
        ({"tools": []}, ListToolsObservation),
        ({"tool_name": "add", "result": 8}, CallToolObservation),
        ({"prompt": "Guess"}, GenericMCPObservation),
    ],
)
def test_metadata_beside_an_observation_goes_before_what_is_in_it(observation: dict[str, Any], model: type) -> None:
    reply = {"observation": {**observation, "metadata": {"from": "inside"}}, "reward": 1.0, "done": True}
    client = MCPToolClient("http://localhost:1")
    alone = client._parse_result(reply)
    assert isinstance(alone.observation, model)
    assert alone.observation.metadata == {"from": "inside"}
    both = client._parse_result({**reply, "metadata": {"from": "beside"}})
    assert isinstance(both.observation, model)
    assert both.observation.metadata == both.metadata == {"from": "beside"}
    assert (both.reward, both.done) == (1.0, True)
    assert reply["observation"]["metadata"] == {"from": "inside"}  # type: ignore[index]
