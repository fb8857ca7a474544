"""docs/SPEC-env-link.md is current, complete, and its examples are what servers really say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from openenv.conformance.clauses import CLAUSES
from openenv.core.session.features import Feature
from openenv.core.wire.messages import WSErrorCode
from openenv.core.wire.v1 import CloseCode, LostReason, V1ErrorCode
from openenv.testing import ServerProcess
from support.reference import reference_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "SPEC-env-link.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:^<!-- play: (plain|v1) -->\n)?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(match[1] or "", match[2].splitlines()) for match in BLOCK.finditer(TEXT)]
PLAYS = [(kind, lines) for kind, lines in BLOCKS if kind]


@pytest.mark.parametrize("script", ["spec_tables.py", "policy_spec.py"])
def test_generated_tables_are_current(script: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / script), "--check"], check=False, timeout=60)
    assert done.returncode == 0, f"run scripts/{script}"


def test_every_clause_is_stated_once() -> None:
    stated = re.findall(r"^\* \*\*((?:P|E)\d+[ab]?)\*\*", TEXT, re.MULTILINE)
    assert sorted(stated) == sorted(CLAUSES)


@pytest.mark.parametrize("one", [one for one in CLAUSES.values() if one.safety], ids=lambda one: str(one.id))
def test_what_is_more_than_the_plain_dialect_asks_is_marked(one: Any) -> None:
    assert f"**{one.id}** *(safety)*" in TEXT


@pytest.mark.parametrize(
    "words", [WSErrorCode, V1ErrorCode, LostReason, Feature], ids=lambda words: str(words.__name__)
)
def test_every_word_of_the_wire_is_explained(words: Any) -> None:
    assert [word.value for word in words if f"| `{word.value}` |" not in TEXT] == []


def test_every_final_close_code_is_listed() -> None:
    listed = re.findall(r"^\| (\d{4})(?: `\w+`)? \|.*\| yes \|$", TEXT, re.MULTILINE)
    assert sorted(map(int, listed)) == sorted(CloseCode)


def test_every_example_is_a_frame() -> None:
    kinds = set()
    for _, lines in BLOCKS:
        for line in lines:
            mark, _, frame = line.partition(" ")
            assert mark in (">>", "<<", "=="), line
            if mark == "<<" or (mark == ">>" and frame.startswith("{")):
                kinds.add(json.loads(frame)["type"])
    shown = {"welcome", "open", "queued", "opened", "resume", "resumed", "lost", "release", "cancel", "running"}
    assert kinds | {"running"} >= shown | {"reset", "step", "state", "mcp", "close", "observation", "error"}
    assert '{"type":"running","seq":n,"data":{}}' in TEXT


@pytest.fixture(scope="module", params=["reference", "ours"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "ours":
        with ServerProcess("openenv.testing.counting:app") as server:
            yield server.url
    else:
        with reference_server("v1_server") as found:
            yield found


@pytest.mark.parametrize(("kind", "lines"), PLAYS, ids=[f"{kind}-{number}" for number, (kind, _) in enumerate(PLAYS)])
def test_the_examples_are_what_a_server_says(kind: str, lines: list[str], url: str) -> None:
    offers = [Subprotocol("openenv.v1")] if kind == "v1" else None
    with connect(url.replace("http", "ws") + "/ws", subprotocols=offers, compression=None, proxy=None) as socket:
        for line in lines:
            mark, _, text = line.partition(" ")
            if mark == ">>":
                socket.send(text)
            elif mark == "<<":
                said = socket.recv(10)
                assert fits(json.loads(said), json.loads(text)), f"{said!r} where {text} was shown"
            else:
                with pytest.raises(ConnectionClosed) as closed:
                    socket.recv(10)
                assert closed.value.rcvd is not None
                assert f"{closed.value.rcvd.code} {closed.value.rcvd.reason}".strip() == text


VARIES = {"message", "env", "epoch", "token", "session", "server", "features", "size", "msg", "input"}
"""Members whose value is the server's own."""


def fits(said: Any, shown: Any, name: str = "") -> bool:
    """Whether a server's frame is the one shown, up to what varies; it may have more members."""
    if name in VARIES:
        return type(said) is type(shown) or name in ("env", "input")
    if name == "echo" and isinstance(shown, dict) and "seed" in shown:
        return True  # what a reset does with its arguments is the environment's own affair
    if isinstance(shown, dict):
        return isinstance(said, dict) and all(key in said and fits(said[key], shown[key], key) for key in shown)
    if isinstance(shown, list):
        return isinstance(said, list) and len(said) == len(shown) and all(map(fits, said, shown))
    return bool(said == shown) or (shown != shown and said != said)
