"""The kit as a user meets it: imports, fixtures, the counting server."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import openenv.testing
from openenv import GenericEnvClient, SessionLostError
from openenv.testing import Oracle, ServerProcess

pytest_plugins = ["pytester"]


def test_every_name_is_there() -> None:
    for name in openenv.testing.__all__:
        assert getattr(openenv.testing, name) is not None


@pytest.mark.parametrize("module", ["openenv.testing", "openenv.testing.plugin"])
def test_importing_the_kit_loads_nothing_of_the_server(module: str) -> None:
    heavy = "{'fastapi', 'uvicorn', 'pydantic', 'websockets', 'httpx', 'asyncio'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    allowed = "['asyncio']" if module.endswith("plugin") else "[]"  # pytest itself may load asyncio
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found in ("[]", allowed)


def test_the_plugin_is_registered_with_pytest() -> None:
    assert [point.value for point in entry_points(group="pytest11", name="openenv")] == ["openenv.testing.plugin"]


def test_a_users_test_with_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from openenv import GenericEnvClient, SessionLostError

        def test_loss(counting_server, counting_oracle, fault_proxy):
            proxy = fault_proxy(counting_server.url)
            client = GenericEnvClient(base_url=proxy.url).sync()
            client.reset(mark="first")
            client.step({"mark": "one"})
            proxy.cut()
            with pytest.raises(SessionLostError):
                client.step({"mark": "two"})
            client.reset(mark="second")
            client.step({"mark": "three"})
            client.close()
            counting_oracle.wait_for_all_closed()
            assert counting_oracle.times("two") == 0
            assert counting_oracle.episode_of("three") == "second"
            assert counting_oracle.problems() == []
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


@pytest.fixture
def server(tmp_path: Path) -> ServerProcess:
    environ = {"OPENENV_COUNTING_LOG": str(tmp_path / "log")}
    return ServerProcess("openenv.testing.counting:app", environ=environ)


def test_a_server_process_restarts_on_its_port_and_tells_what_it_wrote(server: ServerProcess, tmp_path: Path) -> None:
    with server:
        port, pid = server.port, server.pid
        with pytest.raises(RuntimeError, match="running already"):
            server.start()
        with GenericEnvClient(base_url=server.url).sync() as client:
            client.reset()
            server.restart()
            assert (server.port, server.pid != pid) == (port, True)
            with pytest.raises(SessionLostError):
                client.step({"mark": "lost"})
            client.reset()
        Oracle(tmp_path / "log").wait_until(lambda: Oracle(tmp_path / "log").of("close"))
    assert not server.alive


def test_a_server_that_cannot_start_says_why() -> None:
    broken = ServerProcess("openenv.testing.counting:no_such_app")
    with pytest.raises(openenv.testing.ProcessDied, match="no_such_app"):
        broken.start()
    assert not broken.alive
    broken.__exit__(None, None, None)
