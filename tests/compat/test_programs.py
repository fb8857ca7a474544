"""A program for each of the thirteen names that environment packages use most: both packages print the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from interop.sides import OURS, UPSTREAM, Side, need_peer

HERE = Path(__file__).parent
NAMES = sorted({path.stem for path in (HERE / "programs").glob("*.py")} - {"counter"})


@pytest.fixture(scope="module")
def told() -> dict[Side, dict[str, str]]:
    need_peer()
    found = {}
    for side in (OURS, UPSTREAM):
        environ = {name: value for name, value in os.environ.items() if side.is_ours or name != "PYTHONPATH"}
        command = [side.python, str(HERE / "run_all.py")]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=110)
        found[side] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_there_is_one_for_each_name() -> None:
    assert len(NAMES) == 13


@pytest.mark.parametrize("name", NAMES)
def test_a_program_prints_the_same_with_both_packages(name: str, told: dict[Side, dict[str, str]]) -> None:
    assert "Traceback" not in told[UPSTREAM][name]
    assert told[OURS][name] == told[UPSTREAM][name]
