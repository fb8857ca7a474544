"""What a program is told of the sessions of its server."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.observing import Observers, SessionEvent, SessionEventKind
from openenv.core.exceptions import ConcurrencyConfigurationError, EnvExecutionError
from openenv.testing import FaultProxy
from support.clients import CountClient, act
from support.envs import CountAction, CountEnv, CountObservation, fresh_env
from support.live import LiveServer, serve

KIND = SessionEventKind


@pytest.fixture
def events() -> queue.Queue[SessionEvent]:
    return queue.Queue()


@pytest.fixture
def url(events: queue.Queue[SessionEvent]) -> Iterator[LiveServer]:
    app = create_app(fresh_env(), CountAction, CountObservation, max_concurrent_envs=2)
    app.state.openenv_server.observe(events.put)
    with serve(app) as live:
        yield live


def told(events: queue.Queue[SessionEvent], until: SessionEventKind) -> list[SessionEvent]:
    """Events up to the first of a kind, which is waited for."""
    found = [events.get(timeout=30)]
    while found[-1].kind is not until:
        found.append(events.get(timeout=30))
    return found


def test_a_session_is_told_from_its_constructor_to_its_close(
    url: LiveServer, events: queue.Queue[SessionEvent]
) -> None:
    with CountClient(url).sync() as client:
        client.reset()
        client.step(act("sleep", 0.05))
        with pytest.raises(EnvExecutionError):
            client.step(act("raise"))
        client.state()
    found = told(events, KIND.CLOSED)
    assert [(one.kind, one.call, one.error, one.reason) for one in found] == [
        (KIND.OPENED, "", "", ""),
        (KIND.CALLED, "reset", "", ""),
        (KIND.CALLED, "step", "", ""),
        (KIND.CALLED, "step", "EXECUTION_ERROR", ""),
        (KIND.CALLED, "state", "", ""),
        (KIND.ENDED, "", "", "closed"),
        (KIND.CLOSED, "", "", ""),
    ]
    assert len({one.session_id for one in found}) == 1
    assert found[2].seconds >= 0.05


def test_a_cut_is_a_lease_and_coming_back_a_resume(url: LiveServer, events: queue.Queue[SessionEvent]) -> None:
    with FaultProxy("127.0.0.1", url.port) as proxy:
        client = CountClient(f"http://127.0.0.1:{proxy.port}").sync()
        client.reset()
        proxy.cut()
        told(events, KIND.LEASED)
        client.step(act())
        client.close()
    kinds = [one.kind for one in told(events, KIND.CLOSED)]
    assert kinds == [KIND.RESUMED, KIND.CALLED, KIND.ENDED, KIND.CLOSED]


def test_a_lost_session_says_why(url: LiveServer, events: queue.Queue[SessionEvent]) -> None:
    with FaultProxy("127.0.0.1", url.port) as proxy:
        client = CountClient(f"http://127.0.0.1:{proxy.port}", resume=False).sync()
        client.reset()
        proxy.cut()
        assert told(events, KIND.ENDED)[-1].reason == "dropped"
        client.close()


def test_an_observer_that_fails_is_logged_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    observers, seen = Observers(), list[SessionEvent]()

    def fails(event: SessionEvent) -> None:
        raise OSError("no screen")

    observers.add(fails)
    end = observers.add(seen.append)
    event = SessionEvent(KIND.OPENED, "s")
    observers.tell(event)
    end()
    observers.tell(event)
    assert seen == [event]
    assert caplog.text.count("an observer failed at opened of session s") == 2
    assert "no screen" in caplog.text


def test_the_number_of_sessions_can_be_changed_before_the_start_but_not_against_the_class() -> None:
    server = create_app(fresh_env(), CountAction, CountObservation).state.openenv_server
    server.limit_sessions(7)
    assert server.get_capacity_status().max_sessions == server.max_concurrent_envs == 7
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        server.limit_sessions(0)

    class Alone(CountEnv):
        SUPPORTS_CONCURRENT_SESSIONS = False

    alone = create_app(Alone, CountAction, CountObservation).state.openenv_server
    with pytest.raises(ConcurrencyConfigurationError):
        alone.limit_sessions(2)
    assert alone.get_capacity_status().max_sessions == alone.max_concurrent_envs == 1
