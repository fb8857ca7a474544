"""What a server tells of itself when a connection opens (SPEC 5.1). What cannot be found out is left out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from openenv._version import __version__
from openenv.policy.observation_cache import REUSE_FEEDBACK_OBS

__all__ = ["assemble", "positive"]

logger = logging.getLogger("openenv.policy")

PROTOCOL_VERSION = 1


def assemble(policy: object, extra: Mapping[str, Any] | None = None, *, reuse: bool = True) -> dict[str, Any]:
    """Put a server's metadata together. Never raises over what a policy says of itself.

    Args:
        policy: its ``action_horizon``, ``action_dim`` and ``metadata``, if it has them.
        extra: the operator's own, which goes before everything else.
        reuse: list ``reuse-feedback-obs``.
    """
    found: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "server": "openenv",
        "server_version": __version__,
        "policy": type(policy).__name__,
    }
    for name in ("action_horizon", "action_dim"):
        number = positive(_attribute(policy, name))
        if number is not None:
            found[name] = number
    if reuse:
        found["features"] = [REUSE_FEEDBACK_OBS]
    found.update(_own(policy))
    found.update(extra or {})
    return found


def positive(value: object) -> int | None:
    """A positive whole number, or None for anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        number = value.__index__()
    except TypeError:
        return None  # an array of several numbers
    return int(number) if number > 0 else None


def _attribute(policy: object, name: str) -> object:
    try:
        return getattr(policy, name, None)
    except Exception:  # a property may do anything, and clients can still be served
        logger.warning("the policy's %s cannot be read; it is left out of the metadata", name, exc_info=True)
        return None


def _own(policy: object) -> Mapping[str, Any]:
    own = _attribute(policy, "metadata")
    try:
        own = own() if callable(own) else own
    except Exception:  # whatever a policy's method does, clients can still be served
        logger.warning("the policy's metadata() failed; it is left out", exc_info=True)
        return {}
    if own is None or isinstance(own, Mapping):
        return own or {}
    logger.warning("the policy's metadata is a %s and not a mapping; it is left out", type(own).__name__)
    return {}
