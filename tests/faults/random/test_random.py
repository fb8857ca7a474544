"""Seeded schedules of faults on real sockets: each action that was acknowledged ran exactly once, on its own board.

``OPENENV_RANDOM_EPISODES`` says how many (500), ``OPENENV_RANDOM_SEED`` replays one alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.random.episode import Episode, closed_wrongly, left_open, verify
from faults.random.schedule import draw
from openenv.testing import FaultProxy, Oracle, ServerProcess

EPISODES = int(os.environ.get("OPENENV_RANDOM_EPISODES", "500"))
SEED = os.environ.get("OPENENV_RANDOM_SEED")
BATCHES = 1 if SEED else 10
KILLS = 0 if SEED else max(1, EPISODES // 50)
AT_ONCE = 8
GRACE_S = 15.0
"""How long the server keeps a session: longer than any outage of a schedule."""


def _server(folder: Path) -> tuple[ServerProcess, Path]:
    log = folder / "events.jsonl"
    environ = {
        "OPENENV_COUNTING_LOG": str(log),
        "OPENENV_COUNTING_CAPACITY": "256",
        "OPENENV_LEASE_GRACE_S": str(GRACE_S),
    }
    return ServerProcess("openenv.testing.counting:app", environ=environ), log


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


async def _play(seeds: list[int], server: ServerProcess, at_once: int, *, kills: bool = False) -> list[Episode]:
    waiting = iter(seeds)
    episodes: list[Episode] = []

    async def play_some() -> None:
        for seed in waiting:
            with FaultProxy("127.0.0.1", server.port) as proxy:
                episode = Episode(draw(seed, kills=kills), server, proxy)
                episodes.append(episode)
                await episode.play()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, len(seeds))):
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
    episodes = await _play(seeds, server, AT_ONCE)
    resumes = sum(episode.resumes for episode in episodes)
    print(f"{len(episodes)} episodes, {resumes} resumes, {sum(len(one.told) for one in episodes)} steps")
    _verdict(episodes, oracle)
    assert SEED or resumes > len(episodes) / 4, "the schedule hardly ever cut a session"


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not KILLS, reason="one seed is replayed")
async def test_a_killed_server_costs_no_certainty(own: tuple[ServerProcess, Path]) -> None:
    server, log = own
    episodes = await _play([10**6 + number for number in range(KILLS)], server, 1, kills=True)
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
