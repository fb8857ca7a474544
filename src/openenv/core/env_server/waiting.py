"""The line of clients that wait for a slot of a full server: first come, first served (E28)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Place", "WaitingLine"]

TELL_AFTER_S = 0.05
"""Changes of position within this time are told together."""


class Place:
    """One client's place in the line; an async context in which it stands there.

    Attributes:
        position: 1 for the head of the line, 0 for a place that was left.
    """

    def __init__(self, line: WaitingLine, told: Callable[[int], object]) -> None:
        self._line = line
        self._told = told
        self._last_told = 0
        self.position = 0

    async def __aenter__(self) -> Self:
        self._line.join(self)
        self.tell()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.leave(self)

    def tell(self) -> None:
        """Tell the client where it stands, if that has changed."""
        if self.position not in (0, self._last_told):
            self._last_told = self.position
            self._told(self.position)

    async def change(self, timeout_s: float | None = None) -> None:
        """Wait until somebody left the line, a slot became free, or ``timeout_s`` have passed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._line.change()
        except TimeoutError:
            pass


class WaitingLine:
    """Places in order of arrival. Its length is the number of clients that wait."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._changed = asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._places)

    def place(self, told: Callable[[int], object]) -> Place:
        """A place for a client; it stands in the line while its context lasts."""
        return Place(self, told)

    def join(self, place: Place) -> None:
        """Stand at the end."""
        self._places.append(place)
        place.position = len(self._places)

    def leave(self, place: Place) -> None:
        """Step out, wherever one stood; those behind move up."""
        index = self._places.index(place)
        del self._places[index]
        place.position = 0
        for behind in self._places[index:]:
            behind.position -= 1
        self.wake()
        if self._places and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_AFTER_S, self._tell)

    def wake(self) -> None:
        """Let everybody look again: a slot is free, or the server is going to stop."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait for the next `wake`."""
        await self._changed.wait()

    def _tell(self) -> None:
        self._telling = None
        for place in self._places:
            place.tell()
