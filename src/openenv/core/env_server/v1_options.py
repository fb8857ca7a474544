"""What a server offers of ``openenv.v1``, and its times and bounds."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from openenv.core.env_server.settings import number
from openenv.core.session.features import Feature, enabled_features
from openenv.core.wire.array_values import installed

__all__ = ["V1Options", "worker_count"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class V1Options:
    """Settings of ``openenv.v1`` on a server.

    Attributes:
        features: what is offered; without any, the server speaks the plain dialect only.
        grace_s: how long a session whose socket is gone is kept for its client, in seconds.
        evict_after_s: how long such a session is safe from newcomers at a full server, in seconds; None for the
            default of 5.
        first_frame_s: how long a socket may take to say what it wants, in seconds.
        max_message_bytes: largest frame that the server reads. It is told to clients; what enforces it is the
            server that runs the app (uvicorn: ``ws_max_size``, 16 MiB by default).
        max_reply_bytes: largest reply that is kept for a client that may come back; a larger one becomes an error.
    """

    features: frozenset[Feature] = field(default_factory=lambda: enabled_features({}, msgpack=installed()))
    grace_s: float = 600.0
    evict_after_s: float | None = None
    first_frame_s: float = 10.0
    max_message_bytes: int = 16 * MIB
    max_reply_bytes: int = 128 * MIB

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the settings of this process.

        ``OPENENV_FEATURES``, ``OPENENV_LEASE_GRACE_S``, ``OPENENV_EVICT_AFTER_S``, ``OPENENV_MAX_MESSAGE_BYTES`` and
        ``OPENENV_MAX_REPLY_BYTES``. Where several worker processes share the port, ``resume`` is not offered: a
        client that comes back could meet another process. They are counted as `worker_count` says.

        Raises:
            ValueError: a variable cannot be read.
        """
        features = enabled_features(environ, resume=worker_count(environ) == 1, msgpack=installed())
        given: dict[str, Any] = {
            field: number(environ, variable, 0, kind)
            for variable, (field, kind) in _VARIABLES.items()
            if environ.get(variable)
        }
        return cls(features=features, **given)


_VARIABLES: Mapping[str, tuple[str, type[int] | type[float]]] = {
    "OPENENV_LEASE_GRACE_S": ("grace_s", float),
    "OPENENV_EVICT_AFTER_S": ("evict_after_s", float),
    "OPENENV_MAX_MESSAGE_BYTES": ("max_message_bytes", int),
    "OPENENV_MAX_REPLY_BYTES": ("max_reply_bytes", int),
}


def worker_count(
    environ: Mapping[str, str] = os.environ, argv: Sequence[str] | None = None, process: Any = None
) -> int:
    """How many worker processes serve this port, as far as one of them can know.

    ``OPENENV_WORKERS`` decides, where it is set. Otherwise, whichever says more: ``WEB_CONCURRENCY``, the settings of
    the uvicorn that started this process, ``--workers`` or ``-w`` on the command line of uvicorn or gunicorn.
    """
    if environ.get("OPENENV_WORKERS"):
        return max(1, int(number(environ, "OPENENV_WORKERS", 1, int)))
    process = multiprocessing.current_process() if process is None else process
    config = (getattr(process, "_kwargs", None) or {}).get("config")
    counts = [environ.get("WEB_CONCURRENCY"), getattr(config, "workers", None), _from_command(argv or sys.argv)]
    return max([1, *(int(str(count)) for count in counts if str(count).isdigit())])


def _from_command(argv: Sequence[str]) -> str | None:
    if not argv or not re.search(r"uvicorn|gunicorn", argv[0]):
        return None
    found = re.search(r"(?:^|\s)(?:--workers|-w)[= ]?(\d+)(?:\s|$)", " ".join(argv[1:]))
    return found.group(1) if found else None
