"""The example trains: as a script, and as the cells of its notebook under a running loop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ["--steps", "2", "--games", "2", "--group", "4", "--holes", "2", "--lessons", "30"]

pytestmark = pytest.mark.newest


def test_the_script_starts_a_server_trains_and_draws_the_rewards(tmp_path: Path) -> None:
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "grpo_sudoku.py"), *SHORT, "--out", "rewards.png"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"8 at once: granted", done.stdout), done.stdout
    rewards = [float(one) for one in re.findall(r"step +\d+ of 2   reward (\d\.\d\d)", done.stdout)]
    assert len(rewards) == 2
    assert all(0.0 <= one <= 1.0 for one in rewards)
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")


def test_the_notebook_trains_where_a_loop_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Any, log: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    url = start_server().url
    cells = json.loads((EXAMPLES / "grpo_sudoku.ipynb").read_text())["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert code.count("else []") == 1
    code = code.replace("else []", f"else {[*SHORT, '--url', url]}")
    code = re.sub(r"^from __future__ .*$", "", code, flags=re.M)

    async def run() -> None:
        exec(compile(code, "grpo_sudoku.ipynb", "exec"), {"__name__": "__main__"})

    asyncio.run(run())
    assert (tmp_path / "grpo_sudoku.png").read_bytes().startswith(b"\x89PNG")
    assert len(log.of("reset")) >= 16
    assert all(step["was_reset"] for step in log.of("step"))
