"""Pytest fixtures for tests against a network that fails. Registered as the plugin ``openenv``.

Pytest loads this module in every run, so it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from openenv.testing.oracle import Oracle
    from openenv.testing.processes import ServerProcess
    from openenv.testing.proxy import FaultProxy
    from openenv.testing.space import SpaceStub

__all__ = ["counting_oracle", "counting_server", "fault_proxy", "space_stub"]


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[str], FaultProxy]]:
    """Make a proxy in front of a server: ``proxy = fault_proxy("http://127.0.0.1:8000")``. Closed after the test."""
    from urllib.parse import urlsplit

    from openenv.testing.proxy import FaultProxy

    with ExitStack() as proxies:

        def make(target: str) -> FaultProxy:
            parts = urlsplit(target if "://" in target else f"http://{target}")
            return proxies.enter_context(FaultProxy(parts.hostname or "127.0.0.1", parts.port or 80))

        yield make


@pytest.fixture
def space_stub() -> Iterator[Callable[..., SpaceStub]]:
    """Make a stand-in for a Space in front of a server: ``space = space_stub("http://127.0.0.1:8000", "hf_test")``,
    with the arguments of `SpaceStub`. Closed after the test."""
    from openenv.testing.space import SpaceStub

    with ExitStack() as spaces:

        def make(target: str, *arguments: Any, **options: Any) -> SpaceStub:
            return spaces.enter_context(SpaceStub(target, *arguments, **options))

        yield make


@pytest.fixture
def counting_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of `CountingEnv` in a process of its own."""
    from openenv.testing.processes import ServerProcess

    environ = {"OPENENV_COUNTING_LOG": str(tmp_path / "counting.jsonl")}
    with ServerProcess("openenv.testing.counting:app", environ=environ) as server:
        yield server


@pytest.fixture
def counting_oracle(counting_server: ServerProcess, tmp_path: Path) -> Oracle:
    """The oracle that reads the log of `counting_server`."""
    from openenv.testing.oracle import Oracle

    return Oracle(tmp_path / "counting.jsonl")
