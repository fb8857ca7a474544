"""The echo through a real server, with the client of this package and without it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from echo_env import CallToolAction, EchoEnv, ListToolsAction
from echo_env.server.app import main
from echo_env.server.echo_environment import EchoEnvironment
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_types import CallToolObservation
from openenv.core.env_server.types import Action
from openenv.core.exceptions import InvalidActionError, SessionLostError, ToolCallError
from openenv.core.generic_client import GenericEnvClient
from openenv.testing import FaultProxy


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = create_app(EchoEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=8, mode="production")
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


def test_the_environment_without_a_server() -> None:
    env = EchoEnvironment()
    assert env.reset(episode_id="E").reward == 0.0
    assert [tool.name for tool in env.step(ListToolsAction()).tools] == ["echo_message", "echo_with_length"]
    assert env.step(CallToolAction(tool_name="echo_message", arguments={"message": "Hi"})).result.data == "Hi"
    assert (env.state.episode_id, env.state.step_count) == ("E", 1)
    with pytest.raises(InvalidActionError, match="CallToolAction"):
        env.step(Action())
    env.close()


def test_its_tools_are_listed_and_called(url: str) -> None:
    with EchoEnv(base_url=url).sync() as env:
        assert env.reset(episode_id="E").observation.metadata["status"] == "ready"
        (message, with_length) = env.list_tools()
        assert (message.name, with_length.name) == ("echo_message", "echo_with_length")
        assert message.input_schema["required"] == ["message"]
        assert env.call_tool("echo_message", message="Hello!") == "Hello!"
        assert env.call_tool("echo_with_length", message="Test") == {"message": "Test", "length": 4}
        stepped = env.step(CallToolAction(tool_name="echo_message", arguments={"message": "step"}))
        assert stepped.observation.result["data"] == "step"
        assert (env.state().episode_id, env.state().step_count) == ("E", 3)
        with pytest.raises(ToolCallError, match="shout"):
            env.call_tool("shout", message="?")


def test_protocol_client_keeps_production_session_after_close(url: str) -> None:
    port = int(url.rsplit(":", 1)[1])
    with FaultProxy("127.0.0.1", port) as proxy:
        cut = f"http://127.0.0.1:{proxy.port}"
        with EchoEnv(base_url=cut).sync() as env, GenericEnvClient(base_url=cut, resume=False).sync() as plain:
            env.reset(episode_id="mine")
            plain.reset(episode_id="other")
            env.call_tool("echo_message", message="1")
            proxy.cut()
            assert env.call_tool("echo_message", message="2") == "2"
            state = env.state()
            assert (state.episode_id, state.step_count) == ("mine", 2)
            with pytest.raises(SessionLostError):
                plain.step({"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "?"}})


def test_every_session_counts_for_itself(url: str) -> None:
    players = [EchoEnv(base_url=url).sync() for _ in range(4)]
    for number, player in enumerate(players, start=1):
        player.reset()
        for _ in range(number):
            player.call_tool("echo_message", message="x")
    assert [player.state().step_count for player in players] == [1, 2, 3, 4]
    for player in players:
        player.close()


def test_production_mode_has_no_simulation_routes(url: str) -> None:
    assert httpx.post(f"{url}/reset", json={}, trust_env=False).status_code == 404


def test_the_example_of_the_readme_prints_what_it_says(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", readme, re.DOTALL)
    assert match is not None
    code, output = match.groups()
    exec(code.replace("http://localhost:8000", url), {})
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(
    ("arguments", "variables", "place"),
    [
        ([], {}, ("127.0.0.1", 8000)),
        ([], {"HOST": "0.0.0.0", "PORT": "7860"}, ("0.0.0.0", 7860)),
        (["--port", "8001"], {"PORT": "7860"}, ("127.0.0.1", 8001)),
    ],
)
def test_the_command_listens_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], variables: dict[str, str], place: tuple[str, int]
) -> None:
    served: list[tuple[str, int]] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, host, port, workers: served.append((host, port)))
    monkeypatch.setattr("sys.argv", ["echo-env", *arguments])
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    main()
    assert served == [place]
