"""The web page's end of the link, graded as any other client is. Runs in Node, on Node's own WebSocket."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from openenv.conformance.client.run import grade_client
from openenv.conformance.report import Verdict
from support.node import node_command

DRIVER = Path(__file__).with_name("page_driver.mjs")
CLAUSES = ["E2", "E3", "E5", "E7", "E9", "E10", "E12", "E13", "E18", "E20", "E21", "E22", "E23", "E24", "E25", "E27"]
"""Those of what the page does. It meets no plain server, none that does not number, and waits in no line."""


async def test_the_page_keeps_every_clause(tmp_path: Path) -> None:
    source = resources.files("openenv.core.env_server").joinpath("web_static", "link.js")
    module = tmp_path / "link.mjs"  # as Node knows modules
    with resources.as_file(source) as path:
        shutil.copy(path, module)
    command = [*node_command(), str(DRIVER), str(module), "{url}"]
    report = await grade_client(command, features=["seq", "cancel", "resume"], only=CLAUSES, timeout_s=20, jobs=4)
    assert {one.verdict for one in report.results} == {Verdict.PASS}, str(report)
    assert len(report.results) == len(CLAUSES)
