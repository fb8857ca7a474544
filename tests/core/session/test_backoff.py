"""The waits between dials."""

from __future__ import annotations

import pytest

from openenv.core.session.backoff import Backoff


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999])
def test_waits_grow_up_to_a_bound_and_stay_in_it(draw: float) -> None:
    backoff = Backoff(first_s=0.1, longest_s=2.0, factor=2.0, draw=lambda: draw)
    waits = [backoff.delay(attempt) for attempt in range(1, 2000)]
    assert waits == sorted(waits)
    assert 0.05 <= waits[0] <= 0.1
    assert 1.0 <= waits[-1] <= 2.0


def test_two_clients_do_not_wait_alike() -> None:
    assert len({Backoff().delay(3) for _ in range(20)}) > 1
