"""What clients send: the frames of upstream's client and of ours, as a server that writes them down got them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from interop.sides import OURS, UPSTREAM, Driver, Side

OBSERVATION = '{"type":"observation","data":{"observation":{"metadata":{}},"reward":null,"done":false}}'


class Recorder:
    """Answers every request, and keeps what it got."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.gone = threading.Event()
        self.port = 0

    def __call__(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.paths.append(socket.request.path)
        self.headers.append({name.lower(): value for name, value in socket.request.headers.raw_items()})
        try:
            for frame in socket:
                assert isinstance(frame, str)
                self.frames.append(json.loads(frame))
                if self.frames[-1]["type"] == "state":
                    socket.send('{"type":"state","data":{"episode_id":null,"step_count":0}}')
                elif self.frames[-1]["type"] != "close":
                    socket.send(OBSERVATION)
        except ConnectionClosed:
            pass  # an end without a close frame is an end
        self.gone.set()


@contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    server: Server = serve(recorder, "127.0.0.1", 0)
    recorder.port = server.socket.getsockname()[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        thread.join()


def episode(side: Side, mode: str, path: str = "", **settings: Any) -> Recorder:
    with recording() as recorder, Driver(side, mode) as driver:
        driver.new(f"http://127.0.0.1:{recorder.port}{path}", **settings)
        _ = driver.reset().value
        _ = driver.reset(seed=1, episode_id="E é", level=[1, {"a": None}]).value
        _ = driver.call("step", {"op": "echo", "arg": "é\U0001f600", "metadata": {}}).value
        _ = driver.state().value
        _ = driver.call("close").value
        assert recorder.gone.wait(30)
    return recorder


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_both_clients_send_the_same_frames(mode: str) -> None:
    theirs, ours = (episode(side, mode) for side in (UPSTREAM, OURS))
    assert ours.frames == theirs.frames
    assert ours.frames[0] == {"type": "reset", "data": {}}
    assert ours.frames[-1] == {"type": "close"}
    assert ours.paths == theirs.paths == ["/ws"]


@pytest.mark.parametrize("path", ["/", "/ws", "/prefix", "/prefix/"])
def test_both_clients_dial_the_same_path(path: str) -> None:
    theirs, ours = (episode(side, "async", path) for side in (UPSTREAM, OURS))
    assert len(ours.paths) == 1
    if path == "/ws":
        assert (theirs.paths, ours.paths) == (["/ws/ws"], ["/ws"])
    else:
        assert ours.paths == theirs.paths


def test_both_clients_send_the_headers_they_are_given() -> None:
    for side in (UPSTREAM, OURS):
        recorder = episode(side, "async", headers={"Authorization": "Bearer t", "X-More": "1"})
        assert recorder.headers[0]["authorization"] == "Bearer t"
        assert recorder.headers[0]["x-more"] == "1"
