"""The line for a slot of a full server: order of arrival, nobody starved, nobody over capacity, leaving is free."""

from __future__ import annotations

import asyncio

import pytest

from openenv.core.exceptions import CapacityError
from support.clients import CountClient, count_server

SLOTS = 8
CLIENTS = 500


def alive(events: list[dict[str, object]]) -> int:
    """The most environments that lived at the same time."""
    now = most = 0
    for event in events:
        now += {"init": 1, "close": -1}.get(str(event["event"]), 0)
        most = max(most, now)
    return most


async def test_500_clients_at_8_slots_are_admitted_in_order_of_arrival() -> None:
    admitted: list[int] = []
    positions: dict[int, list[int]] = {}

    async def visit(number: int, here: asyncio.Event) -> None:
        def queued(position: int) -> None:
            positions.setdefault(number, []).append(position)
            here.set()

        client = CountClient(server.url, wait_for_slot=300.0, on_queued=queued)
        await client.connect()
        admitted.append(number)
        here.set()
        await client.reset()
        await client.close()

    with count_server(SLOTS, plain=False) as server:
        tasks = []
        holders = [CountClient(server.url) for _ in range(SLOTS)]
        for holder in holders:
            await holder.reset()
        for number in range(CLIENTS):
            here = asyncio.Event()
            tasks.append(asyncio.create_task(visit(number, here)))
            await here.wait()  # one after another: now it stands in the line
        assert [told[0] for told in positions.values()] == list(range(1, CLIENTS + 1))
        for holder in holders:
            await holder.close()
        await asyncio.gather(*tasks)
        assert sorted(admitted) == list(range(CLIENTS))  # nobody starved
        late = max(place - number for place, number in enumerate(admitted))
        assert late < 2 * SLOTS  # in order, but for what the network does to those admitted together
        assert all(told == sorted(told, reverse=True) for told in positions.values())
        assert alive(server.env.log.events) == SLOTS
        server.env.log.wait_for("close", CLIENTS + SLOTS)


async def test_leaving_the_line_costs_those_behind_nothing() -> None:
    with count_server(1, plain=False) as server:
        holder = CountClient(server.url)
        await holder.reset()
        seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

        def waiting(name: str) -> CountClient:
            return CountClient(server.url, wait_for_slot=300.0, on_queued=lambda at: seen.put_nowait((name, at)))

        leaver, stayer = waiting("leaver"), waiting("stayer")
        leaving = asyncio.create_task(leaver.connect())
        assert await seen.get() == ("leaver", 1)
        staying = asyncio.create_task(stayer.connect())
        assert await seen.get() == ("stayer", 2)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await seen.get() == ("stayer", 1)
        await holder.close()
        await staying
        await stayer.reset()
        assert len(server.env.log.of("init")) == 2
        await stayer.close()


async def test_the_wait_ends_with_its_time() -> None:
    with count_server(1, plain=False) as server:
        holder = CountClient(server.url)
        await holder.reset()
        with pytest.raises(CapacityError) as refused:
            await CountClient(server.url, wait_for_slot=0.3).connect()
        assert (refused.value.active, refused.value.max) == (1, 1)
        here = asyncio.Event()
        patient = CountClient(server.url, wait_for_slot=300.0, on_queued=lambda _: here.set())
        admitted = asyncio.create_task(patient.connect())
        await here.wait()
        await holder.close()
        await admitted
        await patient.close()


async def test_a_newcomer_that_does_not_wait_overtakes_nobody() -> None:
    with count_server(1, plain=False) as server:
        holder = CountClient(server.url)
        await holder.reset()
        here = asyncio.Event()
        patient = CountClient(server.url, wait_for_slot=300.0, on_queued=lambda _: here.set())
        admitted = asyncio.create_task(patient.connect())
        await here.wait()
        hasty = CountClient(server.url, connect_timeout_s=0.2)
        with pytest.raises(CapacityError):
            await hasty.connect()
        await holder.close()
        await admitted
        assert patient.session.number == 1
        await patient.close()
