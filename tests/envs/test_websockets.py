"""What a client does when its socket goes away, on a real server whose log says what ran where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openenv.core.exceptions import Outcome, SessionLostError
from openenv.core.generic_client import GenericEnvClient
from openenv.testing import FaultProxy
from support.clients import CountServer, count_server


@pytest.fixture
def server() -> Iterator[CountServer]:
    with count_server() as server:
        yield server


@pytest.fixture
def proxy(server: CountServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.url.port) as proxy:
        yield proxy


@pytest.mark.parametrize("mode", ["rst", "fin"])
async def test_protocol_client_reconnects_after_close(server: CountServer, proxy: FaultProxy, mode: str) -> None:
    async with GenericEnvClient(base_url=proxy.url) as client:
        assert proxy.cut(mode) == 1  # nothing was asked yet: there is no episode to lose
        first = await client.reset(seed=1)
        assert first.observation["count"] == 0
        await client.step({"op": "inc"})
        await client.disconnect()
        server.env.log.wait_for("close")
        second = await client.reset(seed=2)
        result = await client.step({"op": "inc"})
        assert result.observation["count"] == 1
        assert second.observation["env_no"] == result.observation["env_no"] != first.observation["env_no"]
    assert [one["seed"] for one in server.env.log.of("reset")] == [1, 2]
    assert server.strays() == []


@pytest.mark.parametrize("mode", ["rst", "fin"])
async def test_protocol_client_raises_when_session_lost_mid_episode(
    server: CountServer, proxy: FaultProxy, mode: str
) -> None:
    async with GenericEnvClient(base_url=proxy.url) as client:
        first = await client.reset(episode_id="one")
        await client.step({"op": "inc", "metadata": {"mark": "before"}})
        assert proxy.cut(mode) == 1

        for retry in range(2):
            with pytest.raises(SessionLostError) as caught:
                await client.step({"op": "inc", "metadata": {"mark": f"lost {retry}"}})
            assert (caught.value.episode_id, caught.value.steps, caught.value.session) == ("one", 1, 1)
            assert isinstance(caught.value, ConnectionError)
        assert caught.value.outcome is Outcome.NOT_APPLIED  # the retry was not even sent
        with pytest.raises(SessionLostError):
            await client.state()

        second = await client.reset(episode_id="two")
        assert second.observation["env_no"] != first.observation["env_no"]
        result = await client.step({"op": "inc", "metadata": {"mark": "after"}})
        assert (result.observation["env_no"], result.observation["count"]) == (second.observation["env_no"], 1)
    assert server.marks() == ["before", "after"]
    assert server.strays() == []
