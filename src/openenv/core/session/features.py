"""Optional parts of the env link, and the one rule by which both ends agree on them.

A server lists the features it implements; a client uses one only if it is listed on this connection; a server
that lists one serves every client that does not use it. So any two versions work together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

__all__ = ["FEATURES_VARIABLE", "Feature", "agreed", "enabled_features"]

FEATURES_VARIABLE = "OPENENV_FEATURES"
"""Environment variable, read by either end: a comma-separated list of the features to use; ``none`` for none."""


class Feature(StrEnum):
    """Features of ``openenv.v1``."""

    SEQ = "seq"
    """Calls are numbered, so that a reply can only answer its own request."""
    CANCEL = "cancel"
    """A caller that gives up tells the server, and learns what became of its call."""
    RESUME = "resume"
    """A session outlives its socket for a while."""
    QUEUE = "queue"
    """A client may wait in line for a slot of a full server."""
    MSGPACK = "msgpack"
    """Calls and replies may be binary frames, in which arrays and bytes stay what they are (E29)."""


_NEEDS = {Feature.CANCEL: Feature.SEQ, Feature.RESUME: Feature.SEQ}


def _complete(features: Iterable[Feature]) -> frozenset[Feature]:
    """Leave out what cannot work without a feature that is missing."""
    chosen = set(features)
    return frozenset(feature for feature in chosen if _NEEDS.get(feature, feature) in chosen)


def enabled_features(environ: Mapping[str, str], *, resume: bool = True, msgpack: bool = True) -> frozenset[Feature]:
    """What this end may use.

    Args:
        environ: the process's environment.
        resume: False leaves ``resume`` out.
        msgpack: False leaves ``msgpack`` out: what it needs is not installed.

    Raises:
        ValueError: the variable names a feature that does not exist, or that needs what is not installed.
    """
    off = {name for name, on in ((Feature.RESUME, resume), (Feature.MSGPACK, msgpack)) if not on}
    given = environ.get(FEATURES_VARIABLE)
    names = [feature.value for feature in Feature] if given is None else _names(given)
    unknown = [name for name in names if name not in set(Feature)]
    if unknown:
        raise ValueError(f"{FEATURES_VARIABLE} names unknown features: {', '.join(unknown)}. There are: {_all()}.")
    if given is not None and not msgpack and Feature.MSGPACK in names:
        raise ValueError(f"{FEATURES_VARIABLE} names msgpack, which needs: pip install 'openenv[policy]'")
    return _complete(Feature(name) for name in names if name not in off)


def _names(given: str) -> list[str]:
    names = [name.strip().lower() for name in given.split(",")]
    return [name for name in names if name not in ("", "none")]


def _all() -> str:
    return ", ".join(feature.value for feature in Feature)


def agreed(mine: Iterable[Feature], listed: Iterable[str]) -> frozenset[Feature]:
    """The features to use on a connection whose server listed ``listed``; unknown names are ignored."""
    theirs = set(listed)
    return _complete(feature for feature in mine if feature.value in theirs)
