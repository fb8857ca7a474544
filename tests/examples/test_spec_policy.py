"""docs/SPEC-policy-link.md: its bytes are frames of every type, and servers answer so; its programs stand alone."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from conformance.policy.conftest import reference_server
from openenv.conformance.policy.clauses import REUSE
from openenv.conformance.policy.codec import pack, unpack
from openenv.conformance.policy.judge import Judge
from openenv.conformance.policy.messages import read_feedback, read_infer, read_message
from openenv.policy import Observations, PolicyServer
from openenv.policy.messages import SERVER_RESYNC, SERVER_STOP
from probe_env import ProbePolicy

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "SPEC-policy-link.md").read_text(encoding="utf-8")
HEX_COLUMNS = 80
DUMPS = re.findall(r"^<!-- bytes: (\w+) -->\n```\n(.*?)\n```$", TEXT, re.MULTILINE | re.DOTALL)
SHOWN = {
    name: bytes.fromhex("".join(line[:HEX_COLUMNS] for line in dump.splitlines()).replace(" ", ""))
    for name, dump in DUMPS
}
Served = tuple[str, Callable[[], object]]


def test_the_bytes_are_frames_of_every_type() -> None:
    judge = Judge("", "4a")
    kinds = set()
    for name, frame in SHOWN.items():
        assert pack(unpack(frame)) == frame
        if name == "indices":
            assert unpack(frame).tolist() == [0, 2]
            continue
        message = read_message(frame)
        kinds.add(message["message_type"])
        if message["message_type"] == "infer":
            assert read_infer(message, judge).reuse == ([True] if name == "reuse" else None)
        elif message["message_type"] == "feedback":
            read_feedback(message, judge)
    assert kinds == {"metadata", "infer", "action", "feedback"}
    assert not [one for one in judge.findings if one.name]


@pytest.mark.parametrize("reason", [SERVER_STOP, SERVER_RESYNC, "Feedback timeout"])
def test_every_reason_is_listed(reason: str) -> None:
    assert f"`{reason}` |" in TEXT


class Narrow(ProbePolicy):
    """The probe policy in float32."""

    def act(self, observations: Observations) -> Any:
        return super().act(observations).astype(np.float32)


@contextmanager
def ours() -> Iterator[Served]:
    with PolicyServer(Narrow(2, 1), "127.0.0.1", 0) as server:
        yield server.url, server.stop


@contextmanager
def reference() -> Iterator[Served]:
    with subprocess.Popen(
        reference_server("--horizon", "2", "--width", "1"), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), lambda: server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


@pytest.mark.parametrize("served", [ours, reference])
def test_servers_answer_so_to_the_byte(served: Callable[[], AbstractContextManager[Served]]) -> None:
    with served() as (url, stop), connect(url, compression=None, proxy=None) as socket:
        told, shown = read_message(socket.recv(10))["data"], read_message(SHOWN["metadata"])["data"]
        assert {name: told[name] for name in shown} == shown
        assert shown["features"] == [REUSE]
        socket.send(SHOWN["infer"])
        assert socket.recv(10) == SHOWN["action"]
        socket.send(SHOWN["feedback"])
        socket.send(SHOWN["reuse"])
        assert socket.recv(10) == SHOWN["action"]
        stop()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(10)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, SERVER_STOP)


@pytest.mark.parametrize("program", ["raw_client", "reference_server"])
def test_reference_programs_share_no_code(program: str) -> None:
    tree = ast.parse((ROOT / "examples" / "policy" / f"{program}.py").read_text(encoding="utf-8"))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in modules} - sys.stdlib_module_names
    assert others == {"msgpack", "numpy", "websockets"}
