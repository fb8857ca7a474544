"""The sessions of people who look at the web page: a few, beside those of training.

A visitor never takes a training slot. Of a class that may live several times, visitors have places of their own. Of
one that may not, a visitor plays while nobody trains, and the session ends the moment somebody wants to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from openenv.core.env_server.sessions import SessionManager
from openenv.core.env_server.settings import number
from openenv.core.env_server.v1_options import V1Options
from openenv.core.session.features import Feature

__all__ = ["Visitors", "WebOptions", "visitor_link"]

_PAGE_SPEAKS = frozenset({Feature.SEQ, Feature.CANCEL, Feature.RESUME})


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Settings of the web page.

    Attributes:
        sessions: most visitors with a session at any moment.
        idle_s: seconds of silence after which a visitor's session ends.

    Raises:
        ValueError: one of them is below 1, or no number above 0.
    """

    sessions: int = 4
    idle_s: float = 300.0

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise ValueError(f"sessions must be at least 1, not {self.sessions}; without web= there is no page")
        if not self.idle_s > 0:  # nor NaN
            raise ValueError(f"idle_s must be a number of seconds above 0, not {self.idle_s}")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read ``OPENENV_WEB_SESSIONS`` and ``OPENENV_WEB_IDLE_S``.

        Raises:
            ValueError: one of them is not a number above 0.
        """
        sessions = number(environ, "OPENENV_WEB_SESSIONS", cls().sessions, int, zero=False)
        return cls(sessions=int(sessions), idle_s=number(environ, "OPENENV_WEB_IDLE_S", cls().idle_s, zero=False))


class Visitors(SessionManager):
    """The sessions of visitors.

    Args:
        trainers: the sessions that go first.
        options: how many visitors.
        beside: whether visitors may have environments while trainers have; otherwise they give way.
    """

    def __init__(self, trainers: SessionManager, options: WebOptions, *, beside: bool) -> None:
        super().__init__(
            trainers.setup,
            max_sessions=options.sessions if beside else 1,
            drain_grace_s=trainers.drain_grace_s,
        )
        self._trainers = trainers
        self._beside = beside
        if not beside:
            trainers.guests = self

    @property
    def full(self) -> bool:
        """Whether a newcomer has to wait for somebody to go."""
        return super().full or (not self._beside and self._trainers.active > 0)


def visitor_link(options: V1Options, web: WebOptions) -> V1Options:
    """What visitors' sockets are offered: what the server offers and the page speaks.

    A lease lives no longer than a silent session would.
    """
    features = (options.features & _PAGE_SPEAKS) | {Feature.SEQ}
    return replace(options, features=features, grace_s=min(options.grace_s, web.idle_s))
