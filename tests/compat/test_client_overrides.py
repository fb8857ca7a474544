"""Client classes of env packages that replace or reach into parts of `EnvClient`: frames, connections, calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from websockets.asyncio.client import connect as dial_async
from websockets.sync.client import connect as dial

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import State
from openenv.core.generic_client import GenericEnvClient
from support.envs import CountAction, CountEnv, CountObservation, fresh_env
from support.live import LiveServer, serve


@pytest.fixture
def env() -> type[CountEnv]:
    return fresh_env()


@pytest.fixture
def one_slot(env: type[CountEnv]) -> Iterator[LiveServer]:
    with serve(create_app(env, CountAction, CountObservation)) as url:
        yield url


class CountClient(EnvClient[CountAction, CountObservation, State]):
    async def twice(self) -> int:
        """A method of the package's own, that awaits the client's."""
        await self.step(CountAction(op="inc"))
        return (await self.step(CountAction(op="inc"))).observation.count

    async def steps_so_far(self) -> int:
        return (await self.state()).step_count

    def once(self) -> StepResult[CountObservation]:
        """One that is not async, and gives back what ``step`` gives."""
        return super().step(CountAction(op="inc"))


# ---------------------------------------------------------------- frames


REPLIES: dict[str, dict[str, Any]] = {
    "reset": {"observation": {"env_no": 1, "count": 0}, "reward": 0.0, "done": False},
    "step": {"observation": {"env_no": 1, "count": 41}, "reward": 1.0, "done": True},
    "state": {"episode_id": "e", "step_count": 3},
}


class Recorded:
    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []

    async def __call__(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.sent.append(message)
        return {"data": REPLIES[str(message["type"])]}


async def test_an_object_with_its_own_exchange_needs_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    client, exchange = CountClient(base_url="http://localhost:1"), Recorded()
    monkeypatch.setattr(client, "_send_and_receive", exchange)
    assert (await client.reset(seed=4)).observation.count == 0
    result = await client.step(CountAction(op="inc"))
    assert (result.observation.count, result.reward, result.done, result.observation.done) == (41, 1.0, True, True)
    assert await client.steps_so_far() == 3
    await client.close()
    assert [frame["type"] for frame in exchange.sent] == ["reset", "step", "state"]
    assert exchange.sent[0]["data"] == {"seed": 4}
    assert exchange.sent[1]["data"]["op"] == "inc"


def test_and_none_through_its_blocking_face(monkeypatch: pytest.MonkeyPatch) -> None:
    blocking = CountClient(base_url="http://localhost:1").sync()

    async def connected() -> CountClient:
        return blocking.async_client

    monkeypatch.setattr(blocking.async_client, "connect", connected)
    monkeypatch.setattr(blocking.async_client, "_send_and_receive", Recorded())
    with blocking:
        assert blocking.reset().done is False
        assert blocking.twice() == 41
        assert blocking.state().step_count == 3


def test_a_class_that_looks_at_frames_stays_in_its_session(one_slot: LiveServer, env: type[CountEnv]) -> None:
    seen: list[str] = []

    class Looking(GenericEnvClient):
        async def _send_and_receive(self, message: Mapping[str, Any]) -> dict[str, Any]:
            answer = await super()._send_and_receive(message)
            seen.extend([str(message["type"]), answer["type"]])
            return answer

    with Looking(one_slot).sync() as client:
        client.reset()
        assert client.step({"op": "inc"}).observation["count"] == 1
        assert client.state()["step_count"] == 1
    assert seen == ["reset", "observation", "step", "observation", "state", "state"]
    assert len(env.log.of("init")) == 1


# ---------------------------------------------------------------- methods of a package's own


def test_methods_of_a_package_in_every_style(one_slot: LiveServer, env: type[CountEnv]) -> None:
    with CountClient(one_slot).sync() as client:
        client.reset()
        assert client.twice() == 2
        assert client.once().observation.count == 3
        assert client.steps_so_far() == 3
    with CountClient(one_slot) as bare:
        bare.reset()
        assert bare.once().observation.count == 1

    async def main() -> None:
        async with CountClient(one_slot) as client:
            await client.reset()
            assert await client.twice() == 2
            assert (await client.once()).observation.count == 3

    asyncio.run(main())
    assert len(env.log.of("init")) == 3


# ---------------------------------------------------------------- connections


class DialsItself(CountClient):
    """As a package writes it that wants other keepalive times than the base class's."""

    def __init__(self, base_url: str, connect_timeout_s: float = 10.0, provider: Any = None) -> None:
        super().__init__(base_url=base_url, connect_timeout_s=connect_timeout_s, provider=provider)

    def connect(self) -> DialsItself:
        if self._ws is None:
            self._ws = dial(str(self._ws_url), open_timeout=self._connect_timeout, ping_timeout=120, proxy=None)
        return self

    def reset(self, size: int = 3, **kwargs: Any) -> Any:
        return super().reset(size=size, **kwargs)


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # packages know only this way
@pytest.mark.parametrize("style", ["with", "sync", "connect", "nothing"])
def test_a_connection_that_is_not_the_clients_own_is_not_played_on(
    style: str, one_slot: LiveServer, env: type[CountEnv], caplog: pytest.LogCaptureFixture
) -> None:
    client = DialsItself(one_slot)
    if style == "with":
        with client:
            assert client.reset(seed=1).observation.echo == {"size": 3}
            assert client.once().observation.count == 1
    elif style == "sync":
        with client.sync() as blocking:
            assert blocking.reset(seed=1).observation.echo == {"size": 3}
            assert blocking.step(CountAction(op="inc")).observation.count == 1
    else:
        if style == "connect":
            assert client.connect() is client
        assert client.reset(seed=1).observation.echo == {"size": 3}
        assert client.once().observation.count == 1
        client.close()
    env.log.wait_for("close", len(env.log.of("init")))
    stepped = {event["env_no"] for event in env.log.of("step")}
    assert stepped == {event["env_no"] for event in env.log.of("reset")}
    assert len(stepped) == 1
    warned = [record for record in caplog.records if "not its own" in record.message]
    assert len(warned) == (0 if style == "nothing" else 1)


async def test_nor_an_async_one(one_slot: LiveServer, env: type[CountEnv]) -> None:
    class Dials(CountClient):
        async def connect(self) -> Dials:
            self._ws = await dial_async(str(self._ws_url), proxy=None)
            return self

    async with Dials(one_slot) as client:
        await client.reset()
        assert await client.twice() == 2
    assert len({event["env_no"] for event in env.log.of("step")}) == 1


async def test_no_connection_may_be_set(one_slot: LiveServer) -> None:
    async with CountClient(one_slot) as client:
        client._ws = None
        await client.reset()
        assert client._ws is not None
