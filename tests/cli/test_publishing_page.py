"""The commands of docs/publishing.md, run as they are printed: against a server, an engine and a Hub of the tests."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openenv.testing import ServerProcess
from support.fake_engine import FakeEngine
from support.hub_stub import TOKEN, HubStub, StubSpace

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "publishing.md").read_text()
LINES = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)
    for line in block.splitlines()
    if "openenv " in line
]
SHOWN = re.search(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)


Reader = tuple[HubStub, FakeEngine, Callable[[str], subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ServerProcess("sudoku_env.server.app:app") as running:
        yield running.url


@pytest.fixture
def run(server: str, tmp_path: Path) -> Iterator[Reader]:
    """A reader's folder, a Hub and an engine; and what runs a line there."""
    folder = tmp_path / "sudoku_env"
    shutil.copytree(ROOT / "envs" / "sudoku_env", folder)
    (tmp_path / "bin").mkdir()
    engine = FakeEngine(tmp_path / "bin")
    engine.install("docker")
    launcher = tmp_path / "bin" / "openenv"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m openenv.cli "$@"\n')
    launcher.chmod(0o755)
    with HubStub() as hub:
        hub.spaces["my-org/my-env"] = StubSpace()
        dockerfile = b"FROM python:3.12\nRUN pip install openenv\n"
        hub.spaces["org/game"] = StubSpace({"Dockerfile": dockerfile, "README.md": b""})
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf"), "COLUMNS": "300"}

        def line(text: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["/bin/sh", "-c", text.replace("http://localhost:8000", server)],
                cwd=folder,
                env={**os.environ, **env, "PATH": f"{engine.folder}{os.pathsep}{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )

        yield hub, engine, line


@pytest.mark.parametrize("text", LINES)
def test_a_command_of_the_page_does_what_it_says(text: str, run: Reader) -> None:
    hub, engine, line = run
    before = {name: (dict(space.files), len(space.pulls)) for name, space in hub.spaces.items()}
    done = line(text)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert TOKEN not in done.stdout + done.stderr
    after = {name: (dict(space.files), len(space.pulls)) for name, space in hub.spaces.items()}
    changed = {name for name in after if after[name] != before.get(name)}
    expected: dict[str, set[str]] = {
        "push . --private": {"me/sudoku_env"},
        "push . --repo-id": {"my-org/my-env"},
        "fork org/game --safe --repo-id": {"me/game-safe"},
    }
    wanted = next((names for words, names in expected.items() if words in text), set())
    assert changed == (wanted if not text.endswith("fork org/game") else {"me/game"})
    assert bool(engine.calls("build")) == ("openenv build" in text)


def test_the_doctors_words_are_as_shown(run: Reader) -> None:
    done = run[2]("openenv doctor http://localhost:8000")
    assert SHOWN is not None

    def bare(text: str) -> list[str]:
        return [re.sub(r"\d+(\.\d+)?", "N", line) for line in text.splitlines()]

    assert bare(done.stdout) == bare(SHOWN[1])


def test_the_page_names_every_command() -> None:
    assert {line.split("openenv ")[1].split()[0] for line in LINES} == {"play", "doctor", "build", "push", "fork"}
