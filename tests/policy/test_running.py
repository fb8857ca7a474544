"""Where a policy's code runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from openenv.policy.running import PolicyRunner


def same(value: Any) -> Any:
    return value


async def test_plain_calls_run_in_one_thread_in_order() -> None:
    runner = PolicyRunner()
    seen: list[tuple[int, str]] = []

    def call(number: int) -> int:
        seen.append((number, threading.current_thread().name))
        return number

    try:
        results = await asyncio.gather(*(runner.call(call, lambda n=n: n, same) for n in range(20)))  # type: ignore[misc]
        assert results == list(range(20))
        assert [number for number, _ in seen] == results
        assert len({name for _, name in seen}) == 1
        assert threading.current_thread().name not in {name for _, name in seen}
    finally:
        runner.close()


async def test_coroutines_run_on_the_loop_and_not_beside_each_other() -> None:
    runner = PolicyRunner()
    running = 0

    async def call(number: int) -> str:
        nonlocal running
        assert running == 0
        running += 1
        await asyncio.sleep(0)
        running -= 1
        return threading.current_thread().name

    try:
        names = await asyncio.gather(*(runner.call(call, lambda: 1, same) for _ in range(5)))
        assert set(names) == {threading.current_thread().name}
    finally:
        runner.close()


@pytest.mark.parametrize("where", ["prepare", "function", "finish"])
async def test_what_fails_does_not_stop_the_next(where: str) -> None:
    runner = PolicyRunner()

    def step(name: str) -> Any:
        def run(*_: Any) -> int:
            if name == where:
                raise KeyError(name)
            return 1

        return run

    try:
        with pytest.raises(KeyError, match=where):
            await runner.call(step("function"), step("prepare"), step("finish"), learns=True)
        assert not runner.is_learning
        assert await runner.call(same, lambda: 5, same) == 5
    finally:
        runner.close()


async def test_learning_is_seen_from_outside() -> None:
    runner = PolicyRunner()
    try:
        assert not runner.is_learning
        assert await runner.call(lambda _: runner.is_learning, lambda: 1, same, learns=True)
        assert not await runner.call(lambda _: runner.is_learning, lambda: 1, same)
        with runner.learning(), runner.learning():
            assert runner.is_learning
        assert not runner.is_learning
    finally:
        runner.close()
