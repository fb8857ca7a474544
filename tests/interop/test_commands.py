"""Commands for people at the real upstream server: ``openenv doctor`` and ``openenv play``."""

from __future__ import annotations

import json

from interop.sides import UPSTREAM, Servers
from support.commands import openenv


def test_doctor_at_upstreams_server(servers: Servers) -> None:
    server = servers(UPSTREAM)
    before = len(server.events())
    done = openenv("doctor", server.url, "--json")
    report = json.loads(done.stdout)
    found = {finding["check"]: finding for finding in report["findings"]}
    assert (done.returncode, report["usable"]) == (0, True), done.stdout
    assert found["dialect"]["data"] == {"dialect": "plain"}
    assert found["slot"]["data"]["took_slot"]
    assert found["mode"]["data"] == {"mode": "simulation"}
    assert found["mcp"]["data"] == {"there": True}
    assert [one for one in server.events()[before:] if one["event"] in ("reset", "step")] == []


def test_play_at_upstreams_server(servers: Servers) -> None:
    server = servers(UPSTREAM)
    before = len(server.events())
    done = openenv("play", server.url, "--seed", "7", typed='{"op": "echo"}\nstate\n')
    assert done.returncode == 0, done.stderr
    kinds = [one["event"] for one in server.events()[before:] if one["event"] in ("reset", "step")]
    assert kinds == ["reset", "step"]
    assert "step_count: 1" in done.stdout
