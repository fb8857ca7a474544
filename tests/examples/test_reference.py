"""The reference programs against our ends, and against each other: they were written from the specification alone."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv import GenericEnvClient, SessionLostError
from openenv.conformance.clauses import CLAUSES, Dialect
from openenv.testing import FaultProxy, Oracle, ServerProcess
from support.reference import FOLDER, bugs, module, reference_server

SHARED = Path(__file__).parent / "shared"
PROGRAMS = ["plain_client", "plain_server", "v1_client", "v1_server"]
CLIENTS = [("plain_client", "PlainClient"), ("v1_client", "V1Client")]


@pytest.fixture(scope="module")
def counting() -> Iterator[ServerProcess]:
    with ServerProcess("openenv.testing.counting:app") as server:
        yield server


@pytest.fixture(params=["ours", "plain_server", "v1_server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of each kind with the probe environment."""
    if request.param == "ours":
        yield request.getfixturevalue("counting").url
    else:
        with reference_server(request.param) as found:
            yield found


def proxy_for(url: str) -> FaultProxy:
    return FaultProxy("127.0.0.1", int(url.rsplit(":", 1)[1]))


# ---------------------------------------------------------------- as programs


@pytest.mark.parametrize("features", ["seq,cancel,resume", "seq", "none"])
@pytest.mark.parametrize("program", ["plain_client", "v1_client"])
def test_client_program_plays_what_our_server_tells_it(program: str, features: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    environ = {"OPENENV_COUNTING_LOG": str(log), "OPENENV_FEATURES": features}
    with ServerProcess("leading_app:app", environ=environ, arguments=["--app-dir", str(SHARED)]) as server:
        done = subprocess.run(
            [sys.executable, str(FOLDER / f"{program}.py")],
            env={**os.environ, "OPENENV_URL": server.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    seen = Oracle(log)
    assert [event.mark for event in seen.of("step")] == ["1", "2", "3", "4", "5", "6"]
    assert len({event.env for event in seen.events}) == 1
    assert [len(seen.of(kind)) for kind in ("init", "reset", "state", "close")] == [1, 1, 2, 1]


# ---------------------------------------------------------------- client classes


@pytest.mark.parametrize(("name", "kind"), CLIENTS)
async def test_client_plays_an_episode_on_every_server(name: str, kind: str, url: str) -> None:
    client = getattr(module(name), kind)(url)
    first = await client.reset({"seed": 3})
    env = first["observation"]["env"]
    assert first["observation"]["count"] == 0
    echo = await client.step({"op": "echo", "arg": {"n": [1, None, "é"]}})
    assert echo["observation"]["echo"] == {"n": [1, None, "é"]}
    with pytest.raises(module("plain_client").CallFailed) as failed:
        await client.step({"op": "raise", "arg": "kaput"})
    assert failed.value.code == "EXECUTION_ERROR"
    done = await client.step({"op": "done"})
    assert (done["observation"]["env"], done["done"]) == (env, True)
    assert (await client.state())["env"] == env
    await client.close()


@pytest.mark.parametrize(("name", "kind"), CLIENTS)
async def test_clients_that_share_one_client_take_turns(name: str, kind: str, url: str) -> None:
    client = getattr(module(name), kind)(url)
    await client.reset()
    steps = [client.step({"op": "echo", "arg": number}) for number in range(8)]
    answers = await asyncio.gather(*steps)
    assert [one["observation"]["echo"] for one in answers] == list(range(8))
    assert [one["observation"]["count"] for one in answers] == list(range(1, 9))
    await client.close()


async def test_plain_client_never_steps_on_a_board_it_did_not_reset(url: str) -> None:
    plain = module("plain_client")
    with proxy_for(url) as proxy:
        client = plain.PlainClient(proxy.url)
        first = await client.reset()
        await client.step({"op": "inc"})
        await asyncio.to_thread(proxy.cut, "rst")
        for _ in range(2):
            with pytest.raises(plain.SessionLost):
                await client.step({"op": "inc"})
        again = await client.reset()
        assert again["observation"]["env"] != first["observation"]["env"]
        await client.close()


@pytest.mark.parametrize("server", ["ours", "v1_server"])
async def test_v1_client_comes_back_wherever_it_is_cut(server: str, counting: ServerProcess) -> None:
    with reference_server("v1_server") as reference:
        url = counting.url if server == "ours" else reference
        with proxy_for(url) as proxy:
            client = module("v1_client").V1Client(proxy.url)
            env = (await client.reset())["observation"]["env"]
            cuts = [("request", 0), ("request", 7), ("reply", 0), ("reply", 30)]
            for count, (way, after) in enumerate(cuts, start=1):
                await asyncio.to_thread(proxy.cut_after, after, way)
                seen = (await client.step({"op": "inc"}))["observation"]
                assert (seen["env"], seen["count"]) == (env, count)
            await asyncio.to_thread(proxy.wait_for_cuts, len(cuts))
            await client.close()


@pytest.mark.parametrize("server", ["ours", "v1_server"])
async def test_v1_client_learns_the_fate_of_a_call_that_was_given_up(server: str, counting: ServerProcess) -> None:
    v1, plain = module("v1_client"), module("plain_client")
    with reference_server("v1_server") as reference:
        client = v1.V1Client(counting.url if server == "ours" else reference)
        env = (await client.reset())["observation"]["env"]
        with pytest.raises(plain.CallTimeout, match="settle"):
            await client.step({"op": "sleep", "arg": 0.5}, timeout_s=0.1)
        late = await client.settle()
        if server == "ours":  # its environment cannot be interrupted, so the step was applied
            assert late["observation"]["count"] == 1
        else:
            assert late is None
        seen = (await client.step({"op": "inc"}))["observation"]
        assert (seen["env"], seen["count"]) == (env, 2 if server == "ours" else 1)
        await client.close()


# ---------------------------------------------------------------- our client on the reference servers


@pytest.mark.parametrize("program", ["plain_server", "v1_server"])
async def test_our_client_plays_on_the_reference_servers(program: str) -> None:
    with reference_server(program) as url:
        async with GenericEnvClient(base_url=url) as client:
            first = await client.reset(seed=3)
            env = first.observation["env"]
            result = await client.step({"op": "echo", "arg": "é"})
            assert (result.observation, result.reward) == ({"env": env, "count": 1, "echo": "é"}, 1.0)
            assert (await client.step({"op": "done"})).done
            assert (await client.state())["step_count"] == 2


async def test_our_client_resumes_on_the_reference_server() -> None:
    with reference_server("v1_server") as url, proxy_for(url) as proxy:
        async with GenericEnvClient(base_url=proxy.url) as client:
            env = (await client.reset()).observation["env"]
            for count, mode in enumerate(("rst", "fin"), start=1):
                await asyncio.to_thread(proxy.cut_on_reply, mode)
                seen = (await client.step({"op": "inc"})).observation
                assert (seen["env"], seen["count"]) == (env, count)


async def test_our_client_is_told_of_a_loss_by_the_plain_reference_server() -> None:
    with reference_server("plain_server") as url, proxy_for(url) as proxy:
        async with GenericEnvClient(base_url=proxy.url) as client:
            await client.reset()
            await asyncio.to_thread(proxy.cut, "rst")
            with pytest.raises(SessionLostError):
                await client.step({"op": "inc"})
            await client.reset()
            assert (await client.step({"op": "inc"})).observation["count"] == 1


# ---------------------------------------------------------------- bugs


@pytest.mark.parametrize("program", PROGRAMS)
def test_reference_programs_share_no_code_with_the_package(program: str) -> None:
    allowed = {"websockets", "plain_client", "plain_server", "v1_keeper", "v1_session", *sys.stdlib_module_names}
    for path in (FOLDER / f"{program}.py", FOLDER / "v1_session.py", FOLDER / "v1_keeper.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert {name.split(".")[0] for name in names} <= allowed


def graded(end: str) -> set[str]:
    return {one.id for one in CLAUSES.values() if end in one.ends}


@pytest.mark.parametrize(("end", "programs"), [("c", PROGRAMS[::2]), ("s", PROGRAMS[1::2])])
def test_every_clause_that_is_graded_has_a_planted_bug(end: str, programs: list[str]) -> None:
    planted = {clause for program in programs for _, clause in bugs(program)}
    assert graded(end) - planted == set()
    assert planted - set(CLAUSES) == set()


def test_bugs_have_names_of_their_own_and_clauses_of_their_programs_dialect() -> None:
    listed: dict[str, list[tuple[str, str]]] = {program: bugs(program) for program in PROGRAMS}
    assert sum(map(len, listed.values())) >= 25
    for program, pairs in listed.items():
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names))
        dialect = Dialect.PLAIN if program.startswith("plain") else Dialect.V1
        assert {CLAUSES[clause].dialect for _, clause in pairs} == {dialect}


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_unknown_bug_is_refused(program: str) -> None:
    command = [sys.executable, str(FOLDER / f"{program}.py"), "--bug", "no-such-bug"]
    done: subprocess.CompletedProcess[Any] = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
