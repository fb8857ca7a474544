"""The line for a slot: places, positions, and who is told what."""

from __future__ import annotations

import asyncio

from openenv.core.env_server.waiting import TELL_AFTER_S, WaitingLine


async def test_places_are_numbered_in_order_of_arrival_and_move_up() -> None:
    line = WaitingLine()
    told: list[tuple[str, int]] = []
    places = {name: line.place(lambda at, name=name: told.append((name, at))) for name in "abc"}
    for place in places.values():
        await place.__aenter__()
    assert told == [("a", 1), ("b", 2), ("c", 3)]
    assert len(line) == 3
    await places["b"].__aexit__(None, None, None)
    assert [place.position for place in places.values()] == [1, 0, 2]
    await asyncio.sleep(2 * TELL_AFTER_S)
    assert told[3:] == [("c", 2)]  # nobody in front of the leaver is told again
    await places["a"].__aexit__(None, None, None)
    await places["c"].__aexit__(None, None, None)
    assert len(line) == 0


async def test_changes_in_quick_succession_are_told_once() -> None:
    line = WaitingLine()
    told: list[int] = []
    first, second = line.place(lambda _: None), line.place(lambda _: None)
    last = line.place(told.append)
    for place in (first, second, last):
        await place.__aenter__()
    await first.__aexit__(None, None, None)
    await second.__aexit__(None, None, None)
    await asyncio.sleep(2 * TELL_AFTER_S)
    assert told == [3, 1]


async def test_whoever_waits_is_woken_by_a_leaver_and_by_a_free_slot() -> None:
    line = WaitingLine()
    async with line.place(lambda _: None) as head:
        async with line.place(lambda _: None) as behind:
            waiting = asyncio.create_task(behind.change())
            await asyncio.sleep(0)
            line.wake()
            await waiting
            waiting = asyncio.create_task(head.change())
            await asyncio.sleep(0)
        await waiting
        await head.change(0.001)  # or when the time is over
