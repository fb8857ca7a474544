"""Seeded schedules of faults on real sockets: each action that was acknowledged ran exactly once, on its own board.

``OPENENV_RANDOM_EPISODES`` says how many (500), ``OPENENV_RANDOM_SEED`` replays one alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from faults.random import episode as episode_module
from faults.random.episode import CuttingProxy, Episode, closed_wrongly, left_open, verify
from faults.random.schedule import Act, Fault, Schedule, draw
from openenv.core.session.events import Call, Effect, Op, Send
from openenv.core.session.keeping import SessionKeeper
from openenv.core.wire.v1 import Resumed
from openenv.testing import Oracle, ServerProcess

EPISODES = int(os.environ.get("OPENENV_RANDOM_EPISODES", "500"))
SEED = os.environ.get("OPENENV_RANDOM_SEED")
BATCHES = 1 if SEED else 10
KILLS = 0 if SEED else max(1, EPISODES // 50)
AT_ONCE = 8
CONTROL_EPISODES = 400
GRACE_S = 15.0
"""How long the server keeps a session: longer than any outage of a schedule."""


def _server(folder: Path, broken: str = "") -> tuple[ServerProcess, Path]:
    log = folder / "events.jsonl"
    environ = {
        "OPENENV_COUNTING_LOG": str(log),
        "OPENENV_COUNTING_CAPACITY": "256",
        "OPENENV_LEASE_GRACE_S": str(GRACE_S),
    }
    if not broken:
        return ServerProcess("openenv.testing.counting:app", environ=environ), log
    folders = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environ |= {"OPENENV_BROKEN": broken, "PYTHONPATH": folders}
    return ServerProcess("faults.random.broken:app", environ=environ), log


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    server, log = _server(tmp_path_factory.mktemp("random"))
    with server:
        yield server, log


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[ServerProcess, Path]]:
    server, log = _server(tmp_path)
    with server:
        yield server, log


async def _play(schedules: Iterable[Schedule], server: ServerProcess, at_once: int) -> list[Episode]:
    waiting = iter(schedules)
    episodes: list[Episode] = []

    async def play_some() -> None:
        for schedule in waiting:
            with CuttingProxy(server.port, schedule.cuts) as proxy:
                episode = Episode(schedule, server, proxy)
                episodes.append(episode)
                await episode.play()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(play_some())
    return episodes


def _verdict(episodes: list[Episode], oracle: Oracle) -> None:
    wrong = verify(episodes, oracle.events)
    assert not wrong, "\n".join([*wrong, "Replay one with OPENENV_RANDOM_SEED=<seed>."])


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_each_action_runs_exactly_once(batch: int, shared: tuple[ServerProcess, Path]) -> None:
    server, log = shared
    oracle = Oracle.from_now(log)
    seeds = [int(SEED)] if SEED else list(range(batch, EPISODES, BATCHES))
    episodes = await _play(map(draw, seeds), server, AT_ONCE)
    resumes = sum(episode.resumes for episode in episodes)
    print(f"{len(episodes)} episodes, {resumes} resumes, {sum(len(one.told) for one in episodes)} steps")
    _verdict(episodes, oracle)
    assert SEED or resumes > len(episodes) / 4, "the schedule hardly ever cut a session"


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not KILLS, reason="one seed is replayed")
async def test_a_killed_server_costs_no_certainty(own: tuple[ServerProcess, Path]) -> None:
    server, log = own
    schedules = [draw(10**6 + number, kills=True) for number in range(KILLS)]
    episodes = await _play(schedules, server, 1)
    _verdict(episodes, Oracle(log))
    assert closed_wrongly(Oracle(log).events) == []


@pytest.mark.timeout(7200)
async def test_nothing_is_left_open(shared: tuple[ServerProcess, Path]) -> None:
    """After all episodes: where even the last word of a client was cut off, its lease has run out."""
    _, log = shared
    async with asyncio.timeout(8 * GRACE_S):
        while left_open(Oracle(log).events):
            await asyncio.sleep(1.0)
    assert closed_wrongly(Oracle(log).events) == []


# ---------------------------------------------------------------- controls: what the schedule and its judge can see


def _sends_again(keeper: SessionKeeper, call: Call | None, answer: Resumed, now: float) -> list[Effect]:
    return [] if call is None or call.op is not Op.STEP else [Send(call)]


def _only_holes(schedule: Schedule) -> Schedule:
    """A black hole in the middle of many steps; what it held arrives when the client has gone on elsewhere."""
    acts = (Act("step", "sleep", 0.002),) * 40
    return replace(schedule, acts=acts, cuts=(), faults=(Fault("hole", 0.03, late=True),), ends="close", gentle=True)


CONTROLS = {
    # what is taken out of the server: (words of the verdict, methods of the client replaced, only black holes)
    "dedupe": ("ran 2 times", [("_go_on", _sends_again)], False),
    "old_token": ("the session was lost", [], False),
    "old_sockets": ("ran 2 times", [], True),
}


@pytest.mark.timeout(600)
@pytest.mark.skipif(SEED is not None, reason="one seed is replayed")
@pytest.mark.parametrize("broken", CONTROLS)
async def test_a_broken_end_is_seen(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are played until one is condemned; the last of them must be."""
    finds, replaced, holes = CONTROLS[broken]
    for method, instead in replaced:
        monkeypatch.setattr(SessionKeeper, method, instead)
    monkeypatch.setattr(episode_module, "PATIENCE_S", 5.0)
    server, log = _server(tmp_path, broken)
    wrong: list[str] = []
    with server:
        for first in range(0, CONTROL_EPISODES, 40):
            schedules = [_only_holes(draw(seed)) if holes else draw(seed) for seed in range(first, first + 40)]
            wrong = verify(await _play(schedules, server, AT_ONCE), Oracle(log).events)
            if any(finds in one for one in wrong):
                return
    raise AssertionError(f"nothing was found of what {broken} does, but {wrong}")
