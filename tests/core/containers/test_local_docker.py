"""`LocalDockerProvider` with an engine that writes down its arguments and runs real servers; clients started by it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openenv.core.containers.runtime import ContainerProvider, KubernetesProvider, LocalDockerProvider, local_docker
from openenv.core.containers.runtime.engine import Refused
from openenv.core.exceptions import ConnectError, ProviderError, ProviderTimeoutError, SessionLostError
from openenv.core.session.events import Op
from support.clients import CountClient
from support.envs import CountAction
from support.fake_engine import FakeEngine
from support.live import LiveServer

# ------------------------------------------------------------------------ what the engine is told


def test_the_arguments_of_a_run(engine: FakeEngine) -> None:
    provider = LocalDockerProvider()
    url = provider.start_container(
        "hub.example/org/count-env:v1",
        env_vars={"TOKEN": "s3cret", "HTTP_PROXY": "http://p", "EMPTY": ""},
        environment={"MODE": "mock"},
        container_port=7860,
        command="serve --now",
        memory="1g",
        read_only=True,
        volume=["a:/a", "b:/b"],
        gpus=None,
    )
    (argv,) = engine.calls("run")
    name = argv[3]
    port = LiveServer(url).port
    assert url == f"http://localhost:{port}"
    assert name.startswith("count-env-")
    assert argv == [
        *("run", "--detach", "--name", name, "--publish", f"127.0.0.1:{port}:7860"),
        *("--env", "TOKEN", "--env", "HTTP_PROXY=http://p", "--env", "EMPTY", "--env", "MODE"),
        *("--memory", "1g", "--read-only", "--volume", "a:/a", "--volume", "b:/b"),
        *("hub.example/org/count-env:v1", "serve", "--now"),
    ]
    told = engine.environment("run")
    assert (told["TOKEN"], told["EMPTY"], told["MODE"]) == ("s3cret", "", "mock")
    assert told.get("HTTP_PROXY") != "http://p"  # which would be the engine's own
    provider.stop_container()
    assert engine.calls("stop") == [["stop", f"id-of-{name}"]]
    assert engine.calls("rm") == [["rm", "--force", "--volumes", f"id-of-{name}"]]
    assert engine.running() == []


def test_a_port_that_is_wanted_is_used(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}])
    provider = LocalDockerProvider()
    assert provider.start_container("x", port=45678) == "http://localhost:45678"
    assert "127.0.0.1:45678:8000" in engine.calls("run")[0]
    provider.stop_container()


@pytest.mark.parametrize("name", ["podman", "nerdctl"])
def test_another_engine_where_there_is_no_docker(engine: FakeEngine, name: str) -> None:
    (engine.folder / "docker").unlink()
    engine.install(name)
    engine.plan(run=[{"mute": True}])
    provider = LocalDockerProvider()
    provider.start_container("x")
    provider.stop_container()
    assert set(engine.names()) == {name}


def test_an_engine_that_does_not_work_is_passed_over_or_told(engine: FakeEngine) -> None:
    engine.install("podman")
    engine.plan(version=[{"stderr": "first line\nCannot connect to the daemon"}, {}])
    LocalDockerProvider()
    assert engine.names() == ["docker", "podman"]
    engine.plan(version=[{"stderr": "Cannot connect to the daemon"}])
    with pytest.raises(RuntimeError, match="docker is not available: Cannot connect"):
        LocalDockerProvider(engine="docker")
    (engine.folder / "docker").unlink()
    (engine.folder / "podman").unlink()
    with pytest.raises(ProviderError, match="Install and start Docker, Podman or nerdctl"):
        LocalDockerProvider()


# ------------------------------------------------------------------------------- failed starts


def test_a_refused_start_is_told_without_secrets_and_leaves_nothing(engine: FakeEngine) -> None:
    engine.plan(run=[{"stderr": "pull access denied for x", "code": 125}])
    provider = LocalDockerProvider()
    with pytest.raises(ProviderError, match=r"ended with 125: pull access denied") as caught:
        provider.start_container("x", env_vars={"TOKEN": "s3cret", "PATH": "s3cret"})
    assert "s3cret" not in str(caught.value)
    assert len(engine.calls("rm")) == 1
    provider.stop_container()
    assert len(engine.calls("rm")) == 1  # there was nothing left to stop


def test_what_a_refused_container_wrote_is_in_the_error(engine: FakeEngine) -> None:
    class Named(LocalDockerProvider):
        def _generate_container_name(self, image: str) -> str:
            return "named"

    (engine.folder / "named.container").write_text('{"pid": 0, "state": "created"}')
    (engine.folder / "named.log").write_text("exec format error")
    engine.plan(run=[{"stderr": "oci runtime error"}])
    with pytest.raises(Refused, match=r"(?s)oci runtime error.*exec format error"):
        Named().start_container("x")
    assert engine.running() == []


def test_a_port_that_somebody_took_is_chosen_anew(engine: FakeEngine) -> None:
    taken = {"stderr": "Bind for 127.0.0.1:1 failed: port is already allocated", "code": 125}
    engine.plan(run=[taken, taken, {"mute": True}])
    provider = LocalDockerProvider()
    url = provider.start_container("x")
    assert len(engine.calls("run")) == 3
    assert len({argv[5] for argv in engine.calls("run")}) == 3
    assert engine.calls("run")[-1][5] == f"127.0.0.1:{LiveServer(url).port}:8000"
    provider.stop_container()
    engine.plan(run=[taken])
    with pytest.raises(ProviderError, match="already allocated"):
        provider.start_container("x", port=45678)  # this one was wanted


def test_a_container_that_ends_is_noticed_at_once(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_docker, "_LOOK_AGAIN_S", 0.0)
    engine.plan(run=[{"dies": "ModuleNotFoundError: No module named 'server'"}])
    provider = LocalDockerProvider()
    url = provider.start_container("x")
    with pytest.raises(ProviderError, match=r"(?s)ended while it was starting \(exited 3\).*ModuleNotFoundError"):
        provider.wait_for_ready(url, timeout_s=60)
    assert engine.running() == []


def test_one_container_at_a_time(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}])
    provider = LocalDockerProvider()
    provider.start_container("x")
    with pytest.raises(ProviderError, match="already"):
        provider.start_container("x")
    provider.stop_container()
    assert engine.running() == []


def test_a_container_that_never_answers(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}])
    provider = LocalDockerProvider()
    url = provider.start_container("x")
    with pytest.raises(TimeoutError, match=r"(?s)did not become ready within 0\.2 s.*still thinking") as caught:
        provider.wait_for_ready(url, timeout_s=0.2)
    assert isinstance(caught.value, ProviderTimeoutError)
    assert len(engine.running()) == 1  # the caller may want to wait on
    provider.close()
    assert engine.running() == []


# ------------------------------------------------------------------------------------ stopping


def test_a_stop_that_fails_is_tried_again(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}], rm=[{"stderr": "daemon is busy"}] * 2)
    provider = LocalDockerProvider()
    provider.start_container("x")
    provider.stop_container()
    assert len(engine.calls("rm")) == 3
    assert engine.running() == []


def test_a_stop_that_fails_for_good_is_told_and_can_be_repeated(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}], rm=[{"stderr": "daemon is busy"}] * 3)
    provider = LocalDockerProvider()
    provider.start_container("x")
    with pytest.raises(ProviderError, match="daemon is busy"):
        provider.stop_container()
    assert len(engine.running()) == 1
    provider.stop_container()
    assert engine.running() == []
    provider.stop_container()
    assert len(engine.calls("rm")) == 4


def test_a_container_that_somebody_else_removed_is_stopped(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}])
    provider = LocalDockerProvider()
    provider.start_container("x")
    engine.kill_all()
    provider.stop_container()
    assert len(engine.calls("rm")) == 1


def test_leaving_the_block_stops_the_container(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}])
    with LocalDockerProvider() as provider:
        provider.start_container("x")
        assert len(engine.running()) == 1
    assert engine.running() == []


# ------------------------------------------------------------------- however the program ends

PROGRAM = """
import os, sys, time
from openenv.core.containers.runtime import LocalDockerProvider
provider = LocalDockerProvider()
{code}
"""


def program(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(code=code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_program_that_just_ends(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}])
    out, err = program("provider.start_container('x')").communicate(timeout=60)
    assert (out, err) == ("", "")
    assert engine.running() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_is_killed(engine: FakeEngine, how: signal.Signals) -> None:
    engine.plan(run=[{"mute": True}])
    process = program("provider.start_container('x'); print('up', flush=True); time.sleep(600)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert len(engine.running()) == 1
    process.send_signal(how)
    process.communicate(timeout=60)
    engine.wait_until_removed()


def test_ctrl_c_during_a_start(engine: FakeEngine) -> None:
    engine.plan(run=[{"hang": 600}])
    process = program("provider.start_container('x')")
    engine.wait_until("run")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert engine.calls("rm")[0][-1] == engine.calls("run")[0][3]


def test_a_forked_child_that_ends_leaves_the_container_to_its_parent(engine: FakeEngine) -> None:
    engine.plan(run=[{"mute": True}])
    code = """
url = provider.start_container('x')
if os.fork() == 0:
    sys.exit(0)  # runs what is registered for the end of the program
os.wait()
print('forked', flush=True)
sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(code=code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "forked\n"
    assert len(engine.running()) == 1
    _, err = process.communicate("\n", timeout=60)
    assert err == ""
    assert engine.running() == []


# ------------------------------------------------------------------------ clients started by it


async def play(client: Any) -> int:
    await client.reset()
    count: int = (await client.step(CountAction())).observation.count
    await client.close()
    return count


async def test_a_client_from_an_image(engine: FakeEngine, tmp_path: Path) -> None:
    log = tmp_path / "env.jsonl"
    handle = CountClient.from_docker_image("x", env_vars={"COUNT_ENV_LOG": str(log)}, message_timeout_s=33.0)
    assert engine.calls("run") == []  # nothing has happened yet
    client = await handle
    assert isinstance(client, CountClient)
    assert client._timeouts[Op.STEP] == (33.0, "message_timeout_s")
    assert client.base_url is not None
    assert await play(client) == 1
    assert engine.running() == []
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()][:3] == ["init", "reset", "step"]
    with pytest.raises(RuntimeError, match="used already"):
        await handle
    with pytest.raises(RuntimeError, match="used already"):
        handle.sync()
    assert len(engine.calls("run")) == 1


def test_the_same_from_synchronous_code(engine: FakeEngine) -> None:
    client = CountClient.from_docker_image("x").sync()
    client.reset()
    assert client.step(CountAction()).observation.count == 1
    client.close()
    assert engine.running() == []
    with CountClient.from_docker_image("x") as blocking:
        blocking.reset()
        assert blocking.state().step_count == 0
    assert engine.running() == []


def test_a_handle_is_a_coroutine(engine: FakeEngine) -> None:
    client = asyncio.run(CountClient.from_docker_image("x"))
    assert engine.running() != []
    client.sync().close()
    assert engine.running() == []

    async def block() -> int:
        async with CountClient.from_docker_image("x") as inner:
            await inner.reset()
            return (await inner.step(CountAction())).observation.count

    assert asyncio.run(block()) == 1
    assert engine.running() == []
    unused = CountClient.from_docker_image("x")
    unused.close()
    with pytest.raises(RuntimeError, match="used already"):
        unused.sync()
    with pytest.raises(AttributeError, match=r"await it, or call its sync"):
        unused.reset  # type: ignore[attr-defined]


def asynchronous(handle: Any) -> Any:
    return asyncio.run(handle)


def blocking(handle: Any) -> Any:
    return handle.sync()


@pytest.mark.parametrize("use", [asynchronous, blocking])
def test_a_start_that_fails_leaves_nothing(engine: FakeEngine, use: Callable[[Any], Any]) -> None:
    engine.plan(run=[{"mute": True}])
    with pytest.raises(TimeoutError, match="still thinking"):
        use(CountClient.from_docker_image("x", ready_timeout_s=0.2))
    assert engine.running() == []
    engine.plan(run=[{"stderr": "no such image"}])
    with pytest.raises(ProviderError, match="no such image"):
        use(CountClient.from_docker_image("x"))
    with pytest.raises(ValueError, match="mode"):
        use(CountClient.from_docker_image("x", mode="nonsense"))
    assert engine.running() == []


@pytest.mark.parametrize("use", [asynchronous, blocking])
def test_a_client_that_cannot_connect_leaves_nothing(engine: FakeEngine, use: Callable[[Any], Any]) -> None:
    class Elsewhere(LocalDockerProvider):
        def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
            return

    engine.plan(run=[{"mute": True}])
    with pytest.raises(ConnectError):
        use(CountClient.from_docker_image("x", provider=Elsewhere(), connect_timeout_s=0.2))
    assert engine.running() == []


async def test_a_caller_that_goes_away_during_a_start_leaves_nothing(engine: FakeEngine) -> None:
    engine.plan(run=[{"hang": 0.5}])
    starting = asyncio.ensure_future(CountClient.from_docker_image("x"))
    await asyncio.to_thread(engine.wait_until, "run")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.to_thread(engine.wait_until, "rm")
    await asyncio.to_thread(engine.wait_until_removed)


def test_an_interrupted_program_that_goes_on_leaves_nothing(engine: FakeEngine) -> None:
    engine.plan(run=[{"hang": 0.5}])
    code = """
import asyncio
from support.clients import CountClient
try:
    asyncio.run(CountClient.from_docker_image("x"))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(code=code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    engine.wait_until("run")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "interrupted\n"
    engine.wait_until("rm")  # while the program is still there
    engine.wait_until_removed()
    process.communicate("\n", timeout=60)


async def test_a_child_session_is_on_the_same_server(engine: FakeEngine) -> None:
    async with CountClient.from_docker_image("x") as client:
        child = await client.new_session()
        assert child.base_url == client.base_url
        await child.close()
        assert len(engine.running()) == 1  # the server is its parent's
    assert engine.running() == []


async def test_a_provider_that_knows_its_image_is_started_by_the_client(engine: FakeEngine) -> None:
    class Count(LocalDockerProvider):
        def start_container(self, image: str = "count", **kwargs: Any) -> str:  # type: ignore[override]
            return super().start_container(image, **kwargs)

    client = CountClient(provider=Count(), connect_timeout_s=0.5)  # a start takes longer, and has its own time
    assert engine.calls("run") == []
    await client.reset()
    assert client.base_url is not None
    assert client._ws_url == client.base_url.replace("http", "ws", 1) + "/ws"
    first = engine.running()
    await client.disconnect()
    await client.reset()
    assert engine.running() == first
    engine.plan(rm=[{"stderr": "daemon is busy"}] * 3)
    with pytest.raises(ProviderError, match="busy"):
        await client.close()
    await client.close()  # tried again
    assert engine.running() == []
    assert client.base_url is client._ws_url is None
    await client.reset()  # a closed client can be used again: on another server
    assert len(engine.calls("run")) == 2
    await client.close()
    assert engine.running() == []


async def test_a_provider_that_needs_an_image_says_what_to_do(engine: FakeEngine) -> None:
    client = CountClient(provider="docker")
    with pytest.raises(ValueError, match=r"requires image. Use from_docker_image"):
        await client.reset()
    await client.close()
    assert engine.calls("run") == []


async def test_a_refused_reconnect_never_stops_the_container(engine: FakeEngine) -> None:
    client = await CountClient.from_docker_image("x", resume=False)
    await client.reset()
    (container,) = engine.folder.glob("*.container")
    os.kill(json.loads(container.read_text())["pid"], signal.SIGKILL)  # its server is gone, the container is not
    with pytest.raises(SessionLostError):
        await client.state()
    for _ in range(2):
        with pytest.raises(ConnectError):
            await client.reset(timeout_s=0.3)
    assert engine.calls("rm") == engine.calls("stop") == []
    assert len(engine.calls("run")) == 1
    await client.close()
    assert engine.running() == []


def test_spaces_are_run_from_the_hubs_registry(engine: FakeEngine) -> None:
    for kwargs, tag in (({}, "latest"), ({"tag": "v2"}, "v2")):
        client = CountClient.from_env("OpenEnv/echo_env", **kwargs).sync()
        assert engine.calls("run")[-1][-1] == f"registry.hf.space/openenv-echo-env:{tag}"
        client.close()
    assert engine.running() == []


# ------------------------------------------------------------------------------------ families


def test_kubernetes_is_a_name_only() -> None:
    assert issubclass(KubernetesProvider, ContainerProvider)
    with pytest.raises(TypeError, match="abstract"):
        KubernetesProvider()  # type: ignore[abstract]
