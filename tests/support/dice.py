"""A good environment package, in words that tests change to plant a fault."""

from __future__ import annotations

import textwrap
from pathlib import Path

from openenv.validation import Report, Verdict

GOOD = """
import asyncio, os, random, signal, sqlite3, threading, time
from typing import Annotated, Any
from pydantic import Field
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from openenv.core.exceptions import InvalidActionError

class Roll(Action):
    bet: int = Field(ge=1, le=6, description="The face that will be up.")

class Die(Observation):
    face: int = 0
    wins: int = 0

class Other(Die):
    extra: int = 1

class Table(State):
    wins: int = 0

shared = {"rolls": 0, "db": None}  # of the module

class Dice(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self.draw = random.Random(1)
        self.wins = self.rolls = 0
        # constructor

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.draw = random.Random(seed)
        self.wins = self.rolls = 0
        # reset
        return Die()

    def step(self, action, timeout_s=None, **kwargs):
        self.rolls += 1
        face = self.draw.randint(1, 6)
        self.wins += face == action.bet
        # step
        return Die(face=face, wins=self.wins, reward=float(face == action.bet), done=self.rolls >= 10)

    @property
    def state(self):
        return Table(step_count=self.rolls, wins=self.wins)

    def close(self):
        pass

app = create_app(Dice, Roll, Die, max_concurrent_envs=4, state_cls=Table)
"""

MANIFEST = "spec_version: 1\nname: dice\ntype: space\nruntime: fastapi\napp: dice_app:app\nport: 8000\n"
PROJECT = '[project]\nname = "openenv-dice"\nversion = "0.1.0"\ndependencies = ["openenv>=0.11"]\n'
README = "---\ntitle: Dice\nsdk: docker\napp_port: 8000\n---\n\n# Dice\n"
DOCKERFILE = """\
FROM python:3.11-slim
RUN useradd --create-home --uid 1000 user
USER user
COPY . .
RUN pip install ./wheels/openenv-0.11.0-py3-none-any.whl .
CMD ["sh", "-c", "exec uvicorn dice_app:app --host 0.0.0.0 --port ${PORT:-8000} --workers 1"]
"""


def package(folder: Path, code: str = GOOD, **files: str | None) -> Path:
    """A package with this application, and some of its files in other words; None for without."""
    words: dict[str, str | None] = {
        "openenv.yaml": MANIFEST, "pyproject.toml": PROJECT, "README.md": README, "Dockerfile": DOCKERFILE, **files,
    }  # fmt: skip
    (folder / "dice_app.py").write_text(code)
    for name, text in words.items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


def with_fault(*changes: tuple[str, str]) -> str:
    code = GOOD
    for place, fault in changes:
        assert code.count(place) == 1, f"{place!r} is not one place"
        indent = " " * (len(code[: code.index(place)]) - code[: code.index(place)].rfind("\n") - 1)
        code = code.replace(place, textwrap.dedent(fault).strip().replace("\n", "\n" + indent))
    return code


def broken(report: Report) -> dict[str, Verdict]:
    found: dict[str, Verdict] = {}
    for one in report.findings:
        if one.verdict in (Verdict.FAIL, Verdict.WARN) and found.get(one.rule) is not Verdict.FAIL:
            found[one.rule] = one.verdict
    return found
