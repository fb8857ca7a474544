"""Episodes as lines of JSON, and processes that are looked after."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openenv.policy.rollout import Episode, JsonlRecorder, WorkerError, run_workers


def episode(number: int) -> Episode:
    return Episode(number, env=1, reward=2.5, steps=3, success=True, terminated=True, truncated=False)


def test_every_nth_episode_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "made" / "here.jsonl"
    for _ in range(2):  # a second run adds to the file
        with JsonlRecorder(path, every=3, process=7) as record:
            for number in range(7):
                record(episode(number))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["number"] for line in lines] == [0, 3, 6] * 2
    assert {key: lines[0][key] for key in ("process", "reward", "steps", "success")} == {
        "process": 7,
        "reward": 2.5,
        "steps": 3,
        "success": True,
    }


def test_a_full_disk_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with pytest.raises(OSError, match="No space"), JsonlRecorder("/dev/full") as record:
        record(episode(0))


def work(end: str, number: int) -> Mapping[str, Any]:
    if number == 1 and end == "raises":
        raise ValueError("no such env")
    if number == 1 and end == "dies":
        os._exit(9)
    if end != "well":
        time.sleep(600)  # ended by the failure of the other one
    return {"number": number}


def test_workers_return_in_order() -> None:
    assert run_workers(partial(work, "well"), 3) == [{"number": 0}, {"number": 1}, {"number": 2}]


@pytest.mark.parametrize(("end", "said"), [("raises", "no such env"), ("dies", "exit code 9")])
def test_one_that_fails_ends_the_others(end: str, said: str) -> None:
    with pytest.raises(WorkerError, match=said) as caught:
        run_workers(partial(work, end), 3)
    assert caught.value.process == 1
