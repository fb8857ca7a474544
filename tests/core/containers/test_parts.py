"""The parts that providers share: ports, the wait for a server, names of providers, what must not outlive a program."""

from __future__ import annotations

import http.server
import socket
import threading
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from openenv.core.containers.runtime import UVProvider, load_provider, provider_names, registry
from openenv.core.containers.runtime.engine import env_options, unique_name
from openenv.core.containers.runtime.readiness import free_port, wait_until_healthy
from openenv.core.exceptions import ProviderTimeoutError
from support.fake_engine import FakeEngine


def test_ports_are_free_and_differ() -> None:
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_server_is_ready_when_it_says_so() -> None:
    answers = [503, 404, 200]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop(0))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        wait_until_healthy(f"http://127.0.0.1:{server.server_port}/health", 30.0)
    finally:
        server.shutdown()
        server.server_close()
    assert answers == []


def test_the_wait_for_a_server_ends() -> None:
    looked: list[int] = []
    with pytest.raises(ProviderTimeoutError, match=r"Thing did not become ready within 0\.1 s"):
        wait_until_healthy(f"http://127.0.0.1:{free_port()}/health", 0.1, lambda: looked.append(1), what="Thing")
    assert looked


@pytest.mark.parametrize("name", ["PATH", "http_proxy", "DOCKER_HOST", "LD_PRELOAD", "XDG_RUNTIME_DIR", "HOME"])
def test_variables_that_the_command_itself_would_heed_are_given_by_value(name: str) -> None:
    assert env_options({name: "x", "HF_TOKEN": "s"}) == (["--env", f"{name}=x", "--env", "HF_TOKEN"], {"HF_TOKEN": "s"})


def test_names_of_containers_are_their_own() -> None:
    assert unique_name("reg:5000/org/My_env@sha256:abc") != unique_name("reg:5000/org/My_env@sha256:abc")
    assert unique_name("reg:5000/org/My_env:v1").startswith("My_env-")
    assert unique_name("/").startswith("env-")


def test_providers_by_name(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = EntryPoint("mycloud", "types:SimpleNamespace", registry.GROUP)
    other = EntryPoint("docker", "types:SimpleNamespace", registry.GROUP)

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "openenv.providers"
        return [one for one in (declared, other) if name in (None, one.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert provider_names() == ["docker", "mycloud", "swarm", "uv"]
    assert load_provider("mycloud", zone="x").zone == "x"
    assert type(load_provider("docker", engine="docker")).__name__ == "LocalDockerProvider"
    (engine.folder / "uv").symlink_to(engine.folder / "docker")
    assert isinstance(load_provider("uv", project_path="."), UVProvider)
    with pytest.raises(ValueError, match=r"no provider 'nope'; there are docker, mycloud, swarm, uv"):
        load_provider("nope")
