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
        PolicyLinkError,
        PolicyProtocolError,
        PolicyUsageError,
        ReuseError,
        ServerStopped,
    )
    from openenv.policy.messages import (
        REUSE_FEEDBACK_OBS,
        Action,
        Feedback,
        Infer,
        Metadata,
        Observation,
    )

__all__ = [
    "REUSE_FEEDBACK_OBS",
    "Action",
    "ConnectionReplaced",
    "Feedback",
    "Infer",
    "Metadata",
    "Observation",
    "PolicyLinkError",
    "PolicyProtocolError",
    "PolicyUsageError",
    "ReuseError",
    "ServerStopped",
]

_missing = [name for name in ("msgpack", "numpy") if find_spec(name) is None]
if _missing:
    raise ImportError(f"The policy link needs {' and '.join(_missing)}: pip install 'openenv[policy]'")

_MODULES = {
    "openenv.core.exceptions": (
        "ConnectionReplaced",
        "PolicyLinkError",
        "PolicyProtocolError",
        "PolicyUsageError",
        "ReuseError",
        "ServerStopped",
    ),
    "openenv.policy.messages": (
        "REUSE_FEEDBACK_OBS",
        "Action",
        "Feedback",
        "Infer",
        "Metadata",
        "Observation",
    ),
}

if not TYPE_CHECKING:  # a type checker would take any name for granted
    __getattr__, __dir__ = lazy_exports(
        __name__, {name: module for module, names in _MODULES.items() for name in names}
    )
