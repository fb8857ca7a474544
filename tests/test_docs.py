"""The Python of README and guide, run as a reader would run it: files written, served, and played over the network.

A comment above each block says what it is: ``<!-- file: name.py -->`` is saved in an empty folder,
``<!-- run: server -->`` is run there as a script against that server, ``<!-- part -->`` is only compiled.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from openenv.cli.app import app as cli
from openenv.core import exceptions

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "envs").glob("*/README.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
ADDRESS = "http://localhost:8000"
SERVERS = {
    "sudoku": "sudoku_env.server.app:app",
    "gymnasium": "gymnasium_env.server.app:app",
    "guess": "guess_env:app",
    "search": "search_env:app",
    "echo": "echo_env.server.app:app",
    "corridor": "corridor_env:app",
    "counting": "openenv.testing.counting:app",
    "scored": "scored_env:app",
    "stock": "stock_env:app",
}

FENCE = re.compile(
    r"(?:^ *<!-- (?P<kind>file|run|part)(?:: (?P<what>[\w.]+))? -->\n)?^(?P<indent> *)```python\n(?P<code>.*?)^ *```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced Python block of a page."""

    page: str
    line: int
    kind: str
    what: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start("code"))
            code = textwrap.dedent(match["code"])
            found.append(Block(str(page.relative_to(ROOT)), line, match["kind"] or "", match["what"] or "", code))
    return found


BLOCKS = blocks()
FILES = [block for block in BLOCKS if block.kind == "file"]
TESTS = [block for block in FILES if block.what.startswith("test_")]
SCRIPTS = [block for block in BLOCKS if block.kind == "run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder, with every file of the docs in it."""
    folder = tmp_path_factory.mktemp("reader")
    for block in FILES:
        (folder / block.what).write_text(block.code)
    return folder


@dataclass(frozen=True)
class Server:
    """A server that the docs tell the reader to start."""

    process: subprocess.Popen[str]
    url: str
    log: Path


def start(app: str, folder: Path) -> Server:
    log = folder / f"{app.split(':')[0]}.log"
    command = [sys.executable, "-m", "uvicorn", app, "--port", "0"]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, text=True)
    while process.poll() is None:
        running = re.search(r"running on (http://[\d.]+:\d+)", log.read_text())
        if running:
            return Server(process, running.group(1), log)
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[dict[str, Server]]:
    running = {name: start(app, folder) for name, app in SERVERS.items()}
    yield running
    for server in running.values():
        server.process.terminate()
    codes = {name: server.process.wait(30) for name, server in running.items()}
    for name, server in running.items():
        assert "Traceback" not in server.log.read_text(), (name, codes[name])


def run(code: str, folder: Path, name: str = "snippet.py") -> subprocess.CompletedProcess[str]:
    (folder / name).write_text(code)
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, name], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_every_error_is_explained_to_its_reader() -> None:
    told = "".join(page.read_text() for page in PAGES)
    assert [name for name in exceptions.__all__ if f"`{name}`" not in told and name != "Outcome"] == []


def test_every_block_is_marked() -> None:
    assert len(SCRIPTS) >= 4
    assert len({block.what for block in FILES}) == len(FILES), "two pages have a file of the same name"
    assert [str(block) for block in BLOCKS if not block.kind] == []


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block_compiles(block: Block) -> None:
    compile(block.code, str(block), "exec")


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_script_runs_against_its_server(block: Block, folder: Path, servers: dict[str, Server]) -> None:
    assert ADDRESS in block.code
    done = run(block.code.replace(ADDRESS, servers[block.what].url), folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "a script of the docs shows something"
    assert not done.stderr


def test_moves_of_the_readme_are_right(folder: Path, servers: dict[str, Server]) -> None:
    told = []
    for script in (b for b in SCRIPTS if b.page == "README.md" and b.what == "sudoku"):
        done = run(script.code.replace(ADDRESS, servers["sudoku"].url), folder)
        told.append(done.stdout)
    reward = 1 / 6
    assert told == [f"Right. {reward} False\n", f"{[reward] * 8}\n", f"Right. {reward} False\n1\n"]


def test_environment_of_the_readme_has_forty_lines() -> None:
    (block,) = (b for b in FILES if b.page == "README.md")
    assert len([line for line in block.code.splitlines() if line.strip()]) <= 40


def test_environment_of_the_readme_plays_to_the_end(folder: Path, servers: dict[str, Server]) -> None:
    (script,) = (b for b in SCRIPTS if b.page == "README.md" and b.what == "guess")
    done = run(script.code.replace(ADDRESS, servers["guess"].url), folder)
    assert "Right! 1.0\n" in done.stdout
    assert "0 is not from 1 to 100" in done.stdout


def test_environment_of_the_readme_is_typed(folder: Path) -> None:
    cache = ROOT / ".mypy_cache" / "users"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "guess_env.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("block", TESTS, ids=str)
def test_tests_of_the_docs_pass(block: Block, folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", block.what]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert f"{block.code.count('def test_')} passed" in done.stdout


@contextmanager
def policy_server(command: list[str], folder: Path) -> Iterator[tuple[Iterator[str], str]]:
    """A policy server of the docs: its log, line by line, and its port."""
    process = subprocess.Popen([sys.executable, *command], cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        port = next(line.rpartition(":")[2].strip() for line in process.stderr if "policy server listens at" in line)
        yield process.stderr, port
        process.terminate()
        assert "Traceback" not in process.communicate(timeout=30)[1]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_policy_server_of_the_docs_serves_its_client(folder: Path) -> None:
    (folder / "serve_any_port.py").write_text((folder / "serve_policy.py").read_text().replace("8000", "0"))
    with policy_server(["serve_any_port.py"], folder) as (log, port):
        done = run((folder / "ask_policy.py").read_text().replace("8000", port), folder)
        assert (done.stdout, done.stderr) == ("(4, 2, 2)\n", "")
        learned = next(line for line in log if "chunks" in line)
        assert "2 chunks, mean reward 0.75" in learned


def test_policy_of_the_quickstart_balances(folder: Path) -> None:
    command = ["-m", "openenv.cli", "policy", "serve", "balance:Balance", "--port", "0"]
    with policy_server(command, folder) as (_, port):
        done = run((folder / "balance_rollout.py").read_text().replace("8000", port), folder)
        assert not done.stderr
        told = ast.literal_eval(done.stdout)
        assert told["episodes"] >= 8
        assert told["mean_reward"] > 200  # by chance it is 20


def commands(first: str) -> list[str]:
    """The shell lines of the docs that begin with this word."""
    text = "\n".join(page.read_text() for page in PAGES)
    shell = "\n".join(re.findall(r"^ *```(?:bash|console)?\n(.*?)^ *```$", text, re.M | re.S))
    return re.findall(rf"^(?:\$ )?({first} [^#\n]*?) *(?:#.*)?$", shell, re.M)


def test_commands_of_the_docs_exist_with_their_options() -> None:
    wrong, seen = [], 0
    for line in commands("openenv"):
        command: Any = typer.main.get_command(cli)
        words = shlex.split(line)[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        own = words[: words.index("--")] if "--" in words else words
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        seen += 1
        if hasattr(command, "commands") or {word.split("=")[0] for word in own if word.startswith("-")} - known:
            wrong.append(line)
    assert wrong == []
    assert seen >= 10


def test_make_targets_of_the_docs_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    told = {line.split()[1] for line in commands("make")}
    assert told - targets == set()
    assert told


def test_readme_tells_how_to_serve_its_environment() -> None:
    assert "uvicorn guess_env:app --port 8000\n" in (ROOT / "README.md").read_text()
