"""`DockerSwarmProvider`: what Docker is told, with an engine that writes it down."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from openenv.core.containers.runtime import DockerSwarmProvider
from openenv.core.exceptions import ProviderError, ProviderTimeoutError
from support.fake_engine import FakeEngine
from support.live import LiveServer

ACTIVE = {"info": [{"state": "active"}]}


def test_a_service_from_its_making_to_its_removal(engine: FakeEngine) -> None:
    engine.plan(**ACTIVE)
    provider = DockerSwarmProvider()
    assert engine.calls("swarm") == []
    url = provider.start_container(
        "org/count-env:v1",
        env_vars={"TOKEN": "s3cret"},
        replicas=3,
        cpu_limit=0.5,
        memory_limit="1g",
        constraints=["node.role==worker"],
        labels={"team": "rl"},
        command="serve --now",
    )
    (argv,) = engine.calls("service", "create")
    name = argv[4]
    assert name.startswith("count-env-swarm-")
    assert argv == [
        *("service", "create", "--detach", "--name", name, "--replicas", "3"),
        *("--publish", f"{LiveServer(url).port}:8000", "--env", "TOKEN"),
        *("--limit-cpu", "0.5", "--limit-memory", "1g", "--constraint", "node.role==worker", "--label", "team=rl"),
        *("org/count-env:v1", "serve", "--now"),
    ]
    assert engine.environment("service")["TOKEN"] == "s3cret"
    with pytest.raises(ProviderError, match="already"):
        provider.start_container("x")
    provider.stop_container()
    provider.stop_container()
    assert engine.calls("service", "rm") == [["service", "rm", name]]


def test_the_swarm_and_its_network_are_made(engine: FakeEngine) -> None:
    engine.plan(**{"network inspect": [{"stderr": "network rl not found"}]})
    provider = DockerSwarmProvider(overlay_network="rl")
    assert engine.calls("swarm") == [["swarm", "init"]]
    assert engine.calls("network", "create") == [["network", "create", "--driver", "overlay", "--attachable", "rl"]]
    provider.start_container("x", port=45679)
    (argv,) = engine.calls("service", "create")
    assert argv[5:11] == ["--replicas", "2", "--publish", "45679:8000", "--network", "rl"]
    provider.close()
    engine.plan(**ACTIVE)
    DockerSwarmProvider(overlay_network="rl")
    assert len(engine.calls("network", "create")) == 1


def test_no_swarm_where_none_may_be_made(engine: FakeEngine) -> None:
    with pytest.raises(RuntimeError, match=r"it is inactive.*docker swarm init"):
        DockerSwarmProvider(auto_init_swarm=False)
    assert engine.calls("swarm") == []


def test_unknown_settings_are_refused(engine: FakeEngine) -> None:
    engine.plan(**ACTIVE)
    with pytest.raises(ValueError, match="gpus, memory"):
        DockerSwarmProvider().start_container("x", memory="1g", gpus="all")
    assert engine.calls("service") == []


def test_a_failed_start_leaves_nothing(engine: FakeEngine) -> None:
    plan: dict[str, list[dict[str, Any]]] = {"service create": [{"stderr": "no suitable node"}]}
    engine.plan(**ACTIVE, **plan)
    provider = DockerSwarmProvider()
    with pytest.raises(ProviderError, match="no suitable node"):
        provider.start_container("x")
    assert len(engine.calls("service", "rm")) == 1
    provider.start_container("x")  # and it can be tried again
    provider.stop_container()


def test_what_the_replicas_wrote_is_told(engine: FakeEngine) -> None:
    engine.plan(**ACTIVE)
    provider = DockerSwarmProvider()
    url = provider.start_container("x")
    with pytest.raises(ProviderTimeoutError, match="words of replicas"):
        provider.wait_for_ready(url, timeout_s=0.1)
    provider.stop_container()


def test_a_service_does_not_outlive_its_program(engine: FakeEngine) -> None:
    engine.plan(**ACTIVE)
    code = (
        "from openenv.core.containers.runtime import DockerSwarmProvider as P\n"
        "p = P(); p.start_container('x'); import os; os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    engine.wait_until("service", "rm")
