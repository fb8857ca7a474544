"""A server whose environment tells its client what to do next, so that the reference clients play as programs.

The log is that of `openenv.testing.counting`. Serve it with ``uvicorn leading_app:app``.
"""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.testing.counting import CountingAction, CountingEnv, CountingObservation, CountingState

STEP = {"op": "echo", "arg": "é"}
SCRIPT: list[dict[str, Any]] = [
    {"call": "step", "action": {**STEP, "mark": "1"}},
    {"call": "state"},
    {"call": "step", "action": {**STEP, "mark": "2"}},
    {"call": "step", "action": {"op": "raise", "arg": "as told", "mark": "3"}, "else": {"call": "state"}},
    {"call": "together", "calls": [{"call": "step", "action": {**STEP, "mark": mark}} for mark in "456"]},
    {"call": "close"},
]


class LeadingObservation(CountingObservation):
    """Says what to do next."""

    next: Any = None


class LeadingState(CountingState):
    """Says what to do next."""

    next: Any = None


class LeadingEnv(CountingEnv):
    """Leads its client through the script, one entry a call."""

    def __init__(self) -> None:
        super().__init__()
        self.script = iter(SCRIPT)

    def reset(self, *args: Any, **kwargs: Any) -> LeadingObservation:
        return self._led(super().reset(*args, **kwargs))

    def step(self, action: CountingAction, *args: Any, **kwargs: Any) -> LeadingObservation:
        return self._led(super().step(action, *args, **kwargs))

    @property
    def state(self) -> LeadingState:
        return LeadingState(**super().state.model_dump(), next=next(self.script, None))

    def _led(self, seen: CountingObservation) -> LeadingObservation:
        return LeadingObservation(**seen.model_dump(), next=next(self.script, None))


app = create_app(LeadingEnv, CountingAction, LeadingObservation, max_concurrent_envs=4, state_cls=LeadingState)
