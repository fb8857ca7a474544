"""The long scenarios with the times that a user has who sets none: pings every 20 s, a minute for a call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openenv import SessionLostError
from openenv.testing import Oracle, ProxyProcess, ServerProcess
from soak.measure import Part, say
from soak.players import KINDS, make_client

BLOCKED_S = 45.0
HOLE_S = 50.0


def run_default_times(folder: Path) -> Part:
    """Run the scenarios at once, each with clients of its own."""
    part = Part(f"default times: a loop blocked for {BLOCKED_S:g} s, a black hole of {HOLE_S:g} s")
    log = folder / "default-times.jsonl"
    began = time.monotonic()
    with ServerProcess("openenv.testing.counting:app", environ={"OPENENV_COUNTING_LOG": str(log)}) as server:
        say(f"default times: {HOLE_S:g} s of silence")
        scenarios: list[tuple[Callable[..., str], Any]] = [
            (one, kind) for one in (_blocked_loop, _busy_trainer, _black_hole) for kind in KINDS
        ]
        with ThreadPoolExecutor(len(scenarios)) as pool:
            jobs = [(one, kind, pool.submit(one, server, kind, Oracle(log))) for one, kind in scenarios]
            for one, kind, job in jobs:
                name = f"{one.__name__.strip('_').replace('_', ' ')}, {kind}"
                try:
                    part.facts[name] = job.result()
                except Exception as error:  # every failed scenario is told, whatever it raised
                    part.problems.append(f"{name}: {type(error).__name__}: {error}")
    part.seconds = time.monotonic() - began
    return part


def _blocked_loop(server: ServerProcess, kind: str, oracle: Oracle) -> str:
    async def play() -> str:
        client = make_client(server.url, kind)
        first = (await client.reset(mark=f"blocked.{kind}")).observation
        await client.step({"mark": f"blocked.{kind}.1"})
        time.sleep(BLOCKED_S)
        if kind == "v1":
            seen = (await client.step({"mark": f"blocked.{kind}.2"})).observation
            assert (seen["env"], seen["count"]) == (first["env"], 2), seen
            resumes = client.session.resumes
            await client.close()
            return f"went on in the same session after {resumes} resume(s)"
        for _ in range(2):
            try:
                await client.step({"mark": f"blocked.{kind}.2"})
            except SessionLostError as lost:
                reason = lost.reason
            else:
                raise AssertionError("a step was answered after the loss")
        await client.reset(mark=f"blocked.{kind}.again")
        await client.close()
        assert oracle.times(f"blocked.{kind}.2") == 0
        return f"SessionLostError ({reason}) until reset()"

    return asyncio.run(play())


def _busy_trainer(server: ServerProcess, kind: str, oracle: Oracle) -> str:
    with make_client(server.url, kind).sync() as client:
        first = client.reset(mark=f"busy.{kind}").observation
        time.sleep(BLOCKED_S)
        seen = client.step({"mark": f"busy.{kind}.1"}).observation
        assert (seen["env"], seen["count"]) == (first["env"], 1), seen
        session = client.session
        assert (session.resumes, session.losses) == (0, 0), session
    return "the connection was kept"


def _black_hole(server: ServerProcess, kind: str, oracle: Oracle) -> str:
    with ProxyProcess("127.0.0.1", server.port) as proxy, make_client(proxy.url, kind).sync() as client:
        first = client.reset(mark=f"hole.{kind}").observation
        client.step({"mark": f"hole.{kind}.1"})
        proxy.black_hole()
        healed = threading.Event()
        healer = threading.Timer(HOLE_S, lambda: (healed.set(), proxy.heal()))
        healer.start()
        began = time.monotonic()
        try:
            seen = client.step({"mark": f"hole.{kind}.2"}).observation
        except SessionLostError as lost:
            if kind == "v1":
                raise
            assert not healed.is_set(), "noticed only when the network was whole again"
            took = time.monotonic() - began
            healer.join()
            client.reset(mark=f"hole.{kind}.again")
            assert oracle.times(f"hole.{kind}.2") <= 1
            return f"SessionLostError ({lost.reason}, {lost.outcome}) after {took:.1f} s"
        assert kind == "v1", "a plain session outlived the black hole"
        assert (seen["env"], seen["count"]) == (first["env"], 2), seen
        assert oracle.times(f"hole.{kind}.2") == 1
        took = time.monotonic() - began - HOLE_S
        return f"answered by the same session {took:.1f} s after the network was whole, applied once"
