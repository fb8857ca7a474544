"""What a server tells of itself when a connection opens (SPEC 5.1). What cannot be found out is left out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from openenv._version import __version__
from openenv.core.wire.arrays import encode
from openenv.core.wire.json_codec import UnencodableValue
from openenv.policy.messages import PROTOCOL_VERSION, REUSE_FEEDBACK_OBS, Metadata

__all__ = ["assemble"]

logger = logging.getLogger("openenv.policy")

_NUMBERS = ("action_horizon", "action_dim")


def assemble(policy: object, extra: Mapping[str, Any] | None = None, *, reuse: bool = True) -> Metadata:
    """Put a server's metadata together. Never raises over what a policy says of itself.

    Args:
        policy: its ``action_horizon``, ``action_dim`` and ``metadata``, if it has them.
        extra: the operator's own, which goes before everything else.
        reuse: list ``reuse-feedback-obs``.

    Returns:
        What can be sent. A value that has no form on the wire is left out, with a warning.
    """
    found: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "server": "openenv",
        "server_version": __version__,
        "policy": type(policy).__name__,
        **{name: _attribute(policy, name) for name in _NUMBERS},
    }
    if reuse:
        found["features"] = [REUSE_FEEDBACK_OBS]
    found.update(_own(policy))
    found.update(extra or {})
    for name in _NUMBERS:
        found[name] = _positive(found[name])
        if found[name] is None:
            del found[name]
    return Metadata({name: value for name, value in found.items() if _can_be_sent(name, value)})


def _positive(value: object) -> int | None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        number = int(value.__index__())
    except TypeError:
        return None  # an array of several numbers
    return number if number > 0 else None


def _can_be_sent(name: object, value: object) -> bool:
    try:
        encode({name: value})
    except UnencodableValue as error:
        logger.warning("%r cannot be told to clients and is left out of the metadata: %s", name, error)
        return False
    return True


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
