"""docs/SPEC-policy-link.md is complete, its bytes are frames, and servers really answer with them."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from conformance.policy.conftest import reference_server
from openenv.conformance.policy.clauses import POLICY_CLAUSES, REUSE
from openenv.conformance.policy.codec import pack, unpack
from openenv.conformance.policy.judge import Judge
from openenv.conformance.policy.messages import read_feedback, read_infer, read_message
from openenv.policy import PolicyServer
from openenv.policy.messages import SERVER_RESYNC, SERVER_STOP
from probe_env import ProbePolicy

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "SPEC-policy-link.md").read_text(encoding="utf-8")
[BLOCK] = re.findall(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FRAMES = re.findall(r"^(>>|<<) (\w+) [^\n]*\n((?:[0-9a-f]{2}[ \n])+)", BLOCK, re.MULTILINE)
SHOWN = [(mark, kind, bytes.fromhex(text)) for mark, kind, text in FRAMES]
Served = tuple[str, Callable[[], object]]


def test_every_clause_is_stated_once() -> None:
    stated = re.findall(r"^\* \*\*(\d[\d.]*[a-g])\*\* ", TEXT, re.MULTILINE)
    assert stated == sorted(stated, key=list(POLICY_CLAUSES).index)
    assert stated == list(POLICY_CLAUSES)


@pytest.mark.parametrize("word", [SERVER_STOP, SERVER_RESYNC, "Feedback timeout"])
def test_every_reason_is_listed(word: str) -> None:
    assert f"| 1001 | `{word}` |" in TEXT


def test_the_bytes_are_frames_of_every_type() -> None:
    assert {kind for _, kind, _ in SHOWN} == {"metadata", "infer", "action", "feedback"}
    judge = Judge("", "4a")
    for mark, kind, frame in SHOWN:
        message = read_message(frame)
        assert message["message_type"] == kind
        assert (mark == ">>") == (kind in ("infer", "feedback"))
        assert pack(unpack(frame)) == frame
        if kind == "infer":
            read_infer(message, judge)
        elif kind == "feedback":
            read_feedback(message, judge)
    assert not [one for one in judge.findings if one.name]
    assert any("reuse" in read_message(frame) for _, _, frame in SHOWN)


@contextmanager
def ours() -> Iterator[Served]:
    with PolicyServer(ProbePolicy(2, 1), "127.0.0.1", 0) as server:
        yield server.url, server.stop


@contextmanager
def reference() -> Iterator[Served]:
    command = reference_server("--horizon", "2", "--width", "1", "--dtype", "float64")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), lambda: server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


@pytest.mark.parametrize("served", [ours, reference])
def test_servers_answer_so_to_the_byte(served: Callable[[], object]) -> None:
    with served() as (url, stop), connect(url, compression=None, proxy=None) as socket:  # type: ignore[attr-defined]
        for mark, kind, frame in SHOWN:
            if mark == ">>":
                socket.send(frame)
            elif kind == "metadata":
                said, shown = read_message(socket.recv(10))["data"], read_message(frame)["data"]
                assert {name: said[name] for name in shown} == shown
                assert said["features"] == [REUSE]
            else:
                assert socket.recv(10) == frame
        stop()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(10)
    assert closed.value.rcvd is not None
    assert f"== {closed.value.rcvd.code} {closed.value.rcvd.reason}" == BLOCK.splitlines()[-1]


@pytest.mark.parametrize("program", ["raw_client", "reference_server"])
def test_reference_programs_share_no_code(program: str) -> None:
    tree = ast.parse((ROOT / "examples" / "policy" / f"{program}.py").read_text(encoding="utf-8"))
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in modules} - sys.stdlib_module_names
    assert others == {"msgpack", "numpy", "websockets"}
