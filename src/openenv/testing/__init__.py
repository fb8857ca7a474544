"""Tools for testing clients and servers against a network that fails. Nothing is loaded before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.testing.controls import CutMode, Direction, ProxyControls
    from openenv.testing.counting import (
        AsyncCountingEnv,
        CountingAction,
        CountingEnv,
        CountingObservation,
        CountingState,
    )
    from openenv.testing.oracle import Event, Oracle
    from openenv.testing.processes import ProcessDied, ProxyProcess, ServerProcess
    from openenv.testing.proxy import FaultProxy
    from openenv.testing.space import SpaceRequest, SpaceStub

__all__ = [
    "AsyncCountingEnv",
    "CountingAction",
    "CountingEnv",
    "CountingObservation",
    "CountingState",
    "CutMode",
    "Direction",
    "Event",
    "FaultProxy",
    "Oracle",
    "ProcessDied",
    "ProxyControls",
    "ProxyProcess",
    "ServerProcess",
    "SpaceRequest",
    "SpaceStub",
]

_MODULES = {
    "controls": ("CutMode", "Direction", "ProxyControls"),
    "counting": ("AsyncCountingEnv", "CountingAction", "CountingEnv", "CountingObservation", "CountingState"),
    "oracle": ("Event", "Oracle"),
    "processes": ("ProcessDied", "ProxyProcess", "ServerProcess"),
    "proxy": ("FaultProxy",),
    "space": ("SpaceRequest", "SpaceStub"),
}

__getattr__, __dir__ = lazy_exports(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)
