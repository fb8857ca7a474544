"""The package through a real server, with its own client; how the server is told what to serve."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import httpx
import numpy as np
import pytest
import uvicorn

from gymnasium_env import GymnasiumAction, GymnasiumEnvClient
from gymnasium_env.server import app as module
from gymnasium_env.server.app import _from_environ, app, create_gymnasium_app, main
from openenv.core.exceptions import InvalidActionError, SessionLostError
from openenv.gymnasium import space_from_schema


@contextmanager
def serve(app: Any) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(app) as url:
        yield url


def test_an_episode_is_that_of_the_local_environment(url: str) -> None:
    local = gymnasium.make("CartPole-v1")
    with GymnasiumEnvClient(base_url=url).sync() as env:
        result, (wanted, _) = env.reset(seed=7), local.reset(seed=7)
        ended = False
        while not ended:
            assert isinstance(result.observation.obs, np.ndarray)
            assert result.observation.obs.dtype == np.float32
            np.testing.assert_array_equal(result.observation.obs, wanted)
            result = env.step(GymnasiumAction(action=1))
            wanted, reward, terminated, truncated, _ = local.step(1)
            assert (result.reward, result.terminated, result.truncated) == (reward, terminated, truncated)
            ended = terminated or truncated
        assert result.done
        state = env.state()
        assert (state.env_id, state.seed, state.reward_threshold) == ("CartPole-v1", 7, 475.0)
        assert space_from_schema(state.action_space) == local.action_space


def test_the_server_says_what_it_is(url: str) -> None:
    assert httpx.get(f"{url}/metadata", trust_env=False).json()["name"] == "gymnasium_env"
    schema = httpx.get(f"{url}/schema", trust_env=False).json()
    shown = schema["action"]["properties"]["action"]
    assert (shown["type"], shown["minimum"], shown["maximum"]) == ("integer", 0, 1)
    local = gymnasium.make("CartPole-v1")
    assert space_from_schema(schema["observation"]["properties"]["obs"]) == local.observation_space


def test_sessions_play_different_environments(url: str) -> None:
    names = ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Taxi-v4"]
    players = [GymnasiumEnvClient(base_url=url).sync() for _ in names]
    for player, name in zip(players, names, strict=True):
        player.reset(seed=1, env_id=name)
    for player, name in zip(players, names, strict=True):
        local = gymnasium.make(name)
        local.reset(seed=1)
        local.action_space.seed(0)
        action = local.action_space.sample()
        seen = player.step(GymnasiumAction(action=action)).observation.obs
        np.testing.assert_array_equal(seen, local.step(action)[0])
        player.close()


def test_what_is_not_allowed_leaves_the_episode_going(url: str) -> None:
    with GymnasiumEnvClient(base_url=url).sync() as env:
        with pytest.raises(InvalidActionError, match="call reset"):
            env.step(GymnasiumAction(action=1))
        env.reset()
        with pytest.raises(InvalidActionError, match="no action of Discrete"):
            env.step(GymnasiumAction(action=2))
        env.step(GymnasiumAction(action=1))
        assert env.state().step_count == 1
        with pytest.raises(InvalidActionError, match="NoSuch"):
            env.reset(env_id="NoSuch-v0")
        with pytest.raises(SessionLostError, match="reset_failed"):  # the caller meant another episode
            env.step(GymnasiumAction(action=1))
        assert env.reset().observation.obs.shape == (4,)


def served_by(environ: dict[str, str], **reset: Any) -> Any:
    with serve(_from_environ(environ)) as url, GymnasiumEnvClient(base_url=url).sync() as env:
        env.reset(**reset)
        return env.state()


def test_variables_say_what_is_served() -> None:
    assert served_by({}).env_id == "CartPole-v1"
    chosen = {"GYM_ENV_ID": "FrozenLake-v1", "GYM_KWARGS": json.dumps({"render_mode": "ansi", "map_name": "8x8"})}
    state = served_by(chosen)
    assert (state.env_id, state.render_mode, state.observation_space["maximum"]) == ("FrozenLake-v1", "ansi", 63)
    assert served_by(chosen, env_id="CartPole-v1").env_id == "CartPole-v1"
    with pytest.raises(InvalidActionError, match="plays FrozenLake-v1 and no other"):
        served_by({**chosen, "GYM_FIXED": "1"}, env_id="CartPole-v1")


def test_a_module_is_imported_where_the_server_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import gymnasium\ngymnasium.register('mine/Cart-v3', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    tmp_path.joinpath("my_own_carts.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    assert served_by({"GYM_ENV_ID": "my_own_carts:mine/Cart-v3"}).env_id == "mine/Cart-v3"


@pytest.mark.parametrize("text", ["{", "[1]", '"ansi"'])
def test_arguments_that_are_no_object(text: str) -> None:
    with pytest.raises(ValueError, match="GYM_KWARGS"):
        _from_environ({"GYM_KWARGS": text})


def test_an_environment_that_is_not_there_stops_the_server_at_its_start() -> None:
    with pytest.raises(gymnasium.error.Error, match="NoSuch"):
        _from_environ({"GYM_ENV_ID": "NoSuch-v0"})
    with pytest.raises(TypeError, match="depth"):
        create_gymnasium_app(lambda: gymnasium.make("CartPole-v1"), depth=3)


def test_the_example_of_the_readme_prints_what_it_says(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", readme, re.DOTALL)
    assert match is not None
    code, output = match.groups()
    exec(code.replace("http://localhost:8000", url), {})
    assert capsys.readouterr().out == output
    (typed,) = [block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "EnvClient(" in block]
    exec(typed.replace("http://localhost:8000", url), {})
    assert capsys.readouterr().out.endswith(" False 3\n")


@pytest.mark.parametrize(
    ("arguments", "variables", "place"),
    [
        ([], {}, ("127.0.0.1", 8000)),
        ([], {"HOST": "0.0.0.0", "PORT": "7860"}, ("0.0.0.0", 7860)),
        (["--port", "8001"], {"PORT": "7860"}, ("127.0.0.1", 8001)),
        (["--host", "::1"], {"HOST": "0.0.0.0"}, ("::1", 8000)),
    ],
)
def test_the_command_listens_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], variables: dict[str, str], place: tuple[str, int]
) -> None:
    served: list[tuple[str, int]] = []
    monkeypatch.setattr(module.uvicorn, "run", lambda app, host, port, workers: served.append((host, port)))
    monkeypatch.setattr("sys.argv", ["gymnasium-env", *arguments])
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    main()
    assert served == [place]
