"""SIGTERM on a real process that runs plain ``uvicorn module:app``."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from openenv.core.env_server.signals import early_drain
from support.envs import LOG_VARIABLE, read_log, wait_for_log
from support.live import LiveServer, serve_process

APP = "support.count_app:app"


def terminate(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    return output


def closes(log: Path) -> Counter[int]:
    return Counter(event["env_no"] for event in read_log(log) if event["event"] == "close")


@pytest.mark.parametrize(("seconds", "grace"), [(1.0, "30"), (3600.0, "0.5")], ids=["ends in time", "never returns"])
def test_five_idle_sessions_and_one_long_step(tmp_path: Path, seconds: float, grace: str) -> None:
    log = tmp_path / "log"
    variables = {LOG_VARIABLE: str(log), "OPENENV_DRAIN_GRACE_S": grace}
    with serve_process(APP, env=variables) as (url, process), ExitStack() as stack:
        sockets = [stack.enter_context(connect(url.ws)) for _ in range(6)]
        for ws in sockets:
            ws.send('{"type":"reset"}')
            ws.recv(20)
        sockets[0].send(json.dumps({"type": "step", "data": {"op": "sleep", "arg": seconds}}))
        wait_for_log(log, "step", 1)
        output = terminate(process)
        with pytest.raises(ConnectionClosed) as caught:
            sockets[1].recv(20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1012
    assert "Traceback" not in output
    assert process.returncode in (0, -signal.SIGTERM)
    ended = closes(log)
    assert set(ended.values()) == {1}
    if seconds == 1.0:
        assert len(ended) == 6
        assert "not closed" not in output
    else:
        assert len(ended) == 5
        assert output.count("not closed: busy") == 1


@pytest.mark.parametrize("prefix", ["", "/web"])
def test_an_http_step_that_never_returns_does_not_keep_the_process(tmp_path: Path, prefix: str) -> None:
    log = tmp_path / "log"
    answers: list[httpx.Response] = []

    def step(url: LiveServer) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as web:
            header = {"OpenEnv-Session": web.post(f"{prefix}/reset").headers["OpenEnv-Session"]}
            answers.append(web.post(f"{prefix}/step", json={"action": {"op": "sleep", "arg": 3600}}, headers=header))

    variables = {LOG_VARIABLE: str(log), "OPENENV_DRAIN_GRACE_S": "0.5", "ENABLE_WEB_INTERFACE": "true"}
    with serve_process(APP, env=variables) as (url, process):
        caller = threading.Thread(target=step, args=(url,))
        caller.start()
        wait_for_log(log, "step", 1)
        output = terminate(process)
        caller.join(20)
    assert "Traceback" not in output
    assert "not closed: busy" in output
    assert answers[0].status_code == 503
    assert answers[0].json()["applied"] is None


async def test_handlers_are_chained_and_put_back() -> None:
    import asyncio

    seen: list[str] = []
    begun = asyncio.Event()

    def server_handler(number: int, frame: object) -> None:
        seen.append("server")

    before = signal.signal(signal.SIGTERM, server_handler)
    try:
        with early_drain(begun.set):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(begun.wait(), 20)
        assert signal.getsignal(signal.SIGTERM) is server_handler
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["server", "server"]


async def test_default_handlers_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert not callable(before)
    with early_drain(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is before
