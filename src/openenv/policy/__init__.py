"""The policy link: a rollout client asks a training server for action chunks, and tells it what came of them.

Importing this package loads nothing of it; each name loads its module when it is first used. It needs the ``policy``
extra (msgpack, numpy).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.core.exceptions import (
        ConnectionReplaced,
        PolicyActionError,
        PolicyLinkError,
        PolicyProtocolError,
        PolicyUsageError,
        ReuseError,
        ServerStopped,
    )
    from openenv.policy.agent import WebSocketEnvClientAgent
    from openenv.policy.async_agent import AsyncWebSocketEnvClientAgent
    from openenv.policy.messages import (
        REUSE_FEEDBACK_OBS,
        Action,
        Feedback,
        Infer,
        Metadata,
        Observation,
    )
    from openenv.policy.metrics import ServerMetrics
    from openenv.policy.observation_cache import ObservationCache
    from openenv.policy.policy import EnvKey, Observations, Policy, Transitions
    from openenv.policy.server import PolicyServer

__all__ = [
    "REUSE_FEEDBACK_OBS",
    "Action",
    "AsyncWebSocketEnvClientAgent",
    "ConnectionReplaced",
    "EnvKey",
    "Feedback",
    "Infer",
    "Metadata",
    "Observation",
    "ObservationCache",
    "Observations",
    "Policy",
    "PolicyActionError",
    "PolicyLinkError",
    "PolicyProtocolError",
    "PolicyServer",
    "PolicyUsageError",
    "ReuseError",
    "ServerMetrics",
    "ServerStopped",
    "Transitions",
    "WebSocketEnvClientAgent",
]

_missing = [name for name in ("msgpack", "numpy") if find_spec(name) is None]
if _missing:
    raise ImportError(f"The policy link needs {' and '.join(_missing)}: pip install 'openenv[policy]'")

_MODULES = {
    "openenv.core.exceptions": (
        "ConnectionReplaced",
        "PolicyActionError",
        "PolicyLinkError",
        "PolicyProtocolError",
        "PolicyUsageError",
        "ReuseError",
        "ServerStopped",
    ),
    "openenv.policy.agent": ("WebSocketEnvClientAgent",),
    "openenv.policy.async_agent": ("AsyncWebSocketEnvClientAgent",),
    "openenv.policy.messages": (
        "REUSE_FEEDBACK_OBS",
        "Action",
        "Feedback",
        "Infer",
        "Metadata",
        "Observation",
    ),
    "openenv.policy.metrics": ("ServerMetrics",),
    "openenv.policy.observation_cache": ("ObservationCache",),
    "openenv.policy.policy": ("EnvKey", "Observations", "Policy", "Transitions"),
    "openenv.policy.server": ("PolicyServer",),
}

if not TYPE_CHECKING:  # a type checker would take any name for granted
    __getattr__, __dir__ = lazy_exports(
        __name__, {name: module for module, names in _MODULES.items() for name in names}
    )
