"""Clients and processes: a forked child, the end of an interpreter, and the proxies of the environment."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from openenv.core.exceptions import ForkedClientError
from support.clients import CountClient, CountServer, act

TESTS = Path(__file__).resolve().parents[1]


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child; its exit code is 0 if the work was done, 1 if it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork with threads, which is the point here
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_at_once_and_the_parent_goes_on(server: CountServer) -> None:
    client = server.client()
    blocking = client.sync()
    blocking.reset()

    def child() -> None:
        for call in (
            lambda: blocking.step(act(mark="child")),
            blocking.state,
            blocking.reset,
            blocking.connect,
            blocking.close,
            client.state,
        ):
            with pytest.raises(ForkedClientError, match="another process"):
                call()

    assert in_child(child) == 0
    assert blocking.step(act(mark="parent")).observation.count == 1
    blocking.close()
    assert server.marks() == ["parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_finalizers_of_a_forked_child_leave_the_parents_socket_alone(server: CountServer) -> None:
    clients = [server.client().sync()]
    clients[0].reset()

    def child() -> None:
        clients.clear()
        gc.collect()

    assert in_child(child) == 0
    assert clients[0].step(act()).observation.count == 1
    assert server.env.log.of("close") == []
    clients[0].close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_client_made_in_a_forked_child_works(server: CountServer) -> None:
    parent = server.client().sync()
    parent.reset()

    def child() -> None:
        with CountClient(base_url=str(server.url)).sync() as client:
            assert client.reset().observation.count == 0
            assert client.step(act(mark="child")).observation.count == 1

    assert in_child(child) == 0
    assert parent.step(act(mark="parent")).observation.count == 1
    parent.close()
    assert server.marks() == ["child", "parent"]


SCRIPT = """
    import asyncio, sys
    from openenv.core.generic_client import GenericEnvClient

    url = sys.argv[1]
    blocking = [GenericEnvClient(base_url=url).sync() for _ in range(3)]
    for client in blocking:
        client.reset()
    on_a_loop = GenericEnvClient(base_url=url)

    async def main():
        await on_a_loop.reset()

    asyncio.run(main())
    bare = GenericEnvClient(base_url=url)
    bare.reset()
    print("done", flush=True)
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_an_interpreter_that_ends_with_live_clients_gives_their_sessions_back(server: CountServer, end: str) -> None:
    script = textwrap.dedent(SCRIPT) + end
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, server.url], capture_output=True, text=True, timeout=100
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
    server.env.log.wait_for("close", 5)
    assert len(server.env.log.of("reset")) == 5


def test_loopback_asks_no_proxy(server: CountServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    with server.client().sync() as client:
        assert client.reset().observation.count == 0
