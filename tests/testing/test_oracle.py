"""The oracle, on logs written by hand: it must be able to go red."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openenv.testing import Oracle


def write(path: Path, *lines: str) -> Oracle:
    """Lines as ``event phase env [mark]``; the thread is the environment's own unless an ``@`` names one."""
    with path.open("a") as file:
        for number, line in enumerate(lines):
            words, _, thread = line.partition("@")
            event, phase, env, *mark = words.split()
            entry = {"event": event, "phase": phase, "env": env, "thread": thread or env, "time": float(number)}
            file.write(json.dumps({**entry, "mark": mark[0] if mark else ""}) + "\n")
    return Oracle(path)


LIFE = ["init begin a", "init end a", "reset begin a r1", "reset end a r1", "step begin a s1", "step end a s1"]
CLOSE = ["close begin a", "close end a"]


def test_says_where_and_how_often_a_step_ran(tmp_path: Path) -> None:
    oracle = write(tmp_path / "log", *LIFE, *CLOSE)
    assert oracle.times("s1") == 1
    assert oracle.times("never") == 0
    assert oracle.env_of("s1") == "a"
    assert oracle.episode_of("s1") == "r1"
    assert (oracle.envs(), oracle.built(), oracle.alive()) == (["a"], ["a"], [])
    assert oracle.was_reset("a")
    assert oracle.closes("a") == 1
    assert oracle.problems() == []


def test_sees_a_step_on_a_fresh_environment(tmp_path: Path) -> None:
    oracle = write(tmp_path / "log", *LIFE, "init begin b", "init end b", "step begin b s2")
    assert oracle.env_of("s2") == "b"
    assert oracle.episode_of("s2") is None
    assert oracle.alive() == ["a", "b"]


def test_sees_a_step_that_ran_twice(tmp_path: Path) -> None:
    oracle = write(tmp_path / "log", *LIFE, "step begin a s1", "step end a s1")
    assert oracle.times("s1") == 2
    with pytest.raises(LookupError, match="2 times"):
        oracle.episode_of("s1")
    with pytest.raises(LookupError, match="no environment"):
        oracle.env_of("never")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([*LIFE, *CLOSE, "close begin a"], "close  after close"),
        ([*LIFE, *CLOSE, "step begin a s2"], "step s2 after close"),
        ([*LIFE, "step begin a s2@other", "step end a s2@other"], "ran on"),
        ([*LIFE, "step begin a s2", "state begin a", "step end a s2"], "while state ran"),
    ],
    ids=["second close", "step after close", "foreign thread", "two at once"],
)
def test_sees_what_a_server_must_never_do(tmp_path: Path, lines: list[str], problem: str) -> None:
    assert any(problem in one for one in write(tmp_path / "log", *lines).problems())


def test_counts_environments_alive_at_once(tmp_path: Path) -> None:
    oracle = write(tmp_path / "log", "init begin a", "init begin b", "init raised b", "init begin c", "init end c")
    assert oracle.most_alive() == 2


def test_reads_on_where_it_was_and_leaves_half_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    oracle = write(log, *LIFE)
    assert oracle.times("s1") == 1
    later = Oracle.from_now(log)
    with log.open("a") as file:
        file.write('{"event": "step", "phase": "begin", "env": "a", "ma')
        file.flush()
        assert later.events == []
        file.write('rk": "s2"}\n')
    assert [event.mark for event in later.events] == ["s2"]
    assert oracle.times("s2") == 1


def test_waits_for_events_and_says_what_there_was(tmp_path: Path) -> None:
    oracle = write(tmp_path / "log", *LIFE)
    assert [event.mark for event in oracle.wait_for("step", mark="s1")] == ["s1"]
    with pytest.raises(TimeoutError, match=r"(?s)2 x step.*step begin a s1"):
        oracle.wait_for("step", 2, timeout_s=0.05)
    with pytest.raises(TimeoutError, match="every close"):
        oracle.wait_for_all_closed(timeout_s=0.05)
    with pytest.raises(TimeoutError):
        Oracle(tmp_path / "no log").wait_for("init", timeout_s=0.02)
