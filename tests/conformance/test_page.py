"""The web page's end of the link, graded as any other client is. Runs in Node, on Node's own WebSocket."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from importlib import resources
from pathlib import Path

from openenv.conformance.client.run import grade_client
from openenv.conformance.report import Verdict
from support.node import node_command

DRIVER = Path(__file__).with_name("page_driver.mjs")
CLAUSES = ["E2", "E3", "E5", "E7", "E9", "E10", "E12", "E13", "E18", "E20", "E21", "E22", "E23", "E24", "E25", "E27"]
"""Those of what the page does. It meets no plain server, none that does not number, and waits in no line."""


async def test_the_page_keeps_every_clause(tmp_path: Path) -> None:
    command = [*node_command(), str(DRIVER), str(link_module(tmp_path)), "{url}"]
    report = await grade_client(command, features=["seq", "cancel", "resume"], only=CLAUSES, timeout_s=20, jobs=4)
    assert {one.verdict for one in report.results} == {Verdict.PASS}, str(report)
    assert len(report.results) == len(CLAUSES)


HANGING = """
const { Link } = await import(process.argv[2]);
const told = [];
const link = new Link(process.argv[3], (state, detail) => told.push(detail ? `${state} ${detail}` : state));
await link.reset({}).catch((error) => told.push(error.reason));
console.log(JSON.stringify(told));
process.exit(0);
"""


def test_a_handshake_that_nobody_answers_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "hanging.mjs"
    script.write_text(HANGING)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are made, and never looked at
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}/ws"
        command = [*node_command(), str(script), link_module(tmp_path).as_uri(), url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == ["connecting", "lost unreachable", "unreachable"]
        with silent.accept()[0] as asked:
            assert asked.recv(3) == b"GET"


def link_module(folder: Path) -> Path:
    """The page's link, under a name that tells Node that it is a module."""
    module = folder / "link.mjs"
    source = resources.files("openenv.core.env_server").joinpath("web_static", "link.js")
    with resources.as_file(source) as path:
        shutil.copy(path, module)
    return module
