"""How long to wait before the next dial."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with (equal) jitter, so that many clients of one lost server do not return at once.

    Attributes:
        first_s: upper bound of the first wait, in seconds.
        longest_s: upper bound of any wait, in seconds.
        factor: growth of the bound from one attempt to the next.
        draw: source of uniform numbers in [0, 1).
    """

    first_s: float = 0.1
    longest_s: float = 5.0
    factor: float = 2.0
    draw: Callable[[], float] = random.SystemRandom().random  # never the generator that a program has seeded

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the ``attempt``-th failed dial, from 1: between half its bound and all of it."""
        bound = min(self.longest_s, self.first_s * self.factor ** min(attempt - 1, 32))
        return bound * (0.5 + 0.5 * self.draw())
