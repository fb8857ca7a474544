"""The right to come back to a session."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.core.session.leases import EndedSessions, Ghost, Granted, Refused, TokenRing
from openenv.core.wire.v1 import LostReason


def ring() -> TokenRing:
    numbers = itertools.count()
    return TokenRing(draw=lambda: f"token-{next(numbers)}")


def granted(ring: TokenRing, token: str, attempt: int = 1) -> str:
    verdict = ring.present(token, attempt)
    assert isinstance(verdict, Granted)
    return verdict.token


def test_tokens_are_random_and_long() -> None:
    first, second = TokenRing().first, TokenRing().first
    assert first != second
    assert len(first) >= 43  # 256 bits


def test_tokens_are_not_kept() -> None:
    tokens = TokenRing(draw=lambda: "a-secret")
    kept = [getattr(tokens._current, name) for name in ("digest", "attempt")]
    assert "a-secret" not in repr(kept)


@pytest.mark.parametrize("token", ["", "other", "token-1", "töken", "\ud800"])
def test_a_foreign_token_is_refused_and_changes_nothing(token: str) -> None:
    tokens = ring()
    assert tokens.present(token, 99) == Refused()
    assert not tokens.holds(token)
    assert granted(tokens, "token-0", attempt=1)


def test_a_resume_tells_a_new_token_and_the_old_one_stays_good_until_the_new_one_is_known_to_have_come() -> None:
    tokens = ring()
    new = granted(tokens, tokens.first)
    assert new != tokens.first
    assert tokens.holds(tokens.first)
    assert tokens.holds(new)
    tokens.arrived()
    assert not tokens.holds(tokens.first)
    assert tokens.present(tokens.first, 2) == Refused()
    assert tokens.holds(new)


def test_presenting_the_new_token_voids_the_old_one() -> None:
    tokens = ring()
    new = granted(tokens, tokens.first)
    newer = granted(tokens, new)
    assert tokens.present(tokens.first, 2) == Refused()
    assert tokens.holds(new)  # its own answer may be lost
    assert tokens.holds(newer)


def test_a_client_whose_answer_was_lost_comes_again_with_the_old_token() -> None:
    tokens = ring()
    lost = granted(tokens, tokens.first, 1)
    new = granted(tokens, tokens.first, 2)
    assert new != lost
    assert not tokens.holds(lost)  # it reached nobody
    assert tokens.holds(new)


def test_an_overtaken_dial_is_a_ghost_and_changes_nothing() -> None:
    tokens = ring()
    new = granted(tokens, tokens.first, 3)
    assert tokens.present(tokens.first, 2) == Ghost()
    assert tokens.holds(new)
    assert granted(tokens, tokens.first, 3)  # an equal number: another holder


def test_attempts_are_counted_for_each_token() -> None:
    tokens = ring()
    new = granted(tokens, tokens.first, 7)
    tokens.arrived()
    assert granted(tokens, new, 1)


def test_arrived_without_a_told_token_does_nothing() -> None:
    tokens = ring()
    tokens.arrived()
    assert tokens.holds(tokens.first)


@given(st.lists(st.sampled_from(["present", "lose", "speak", "ghost"]), max_size=40))
def test_one_client_never_locks_itself_out(happenings: list[str]) -> None:
    """A lawful client: it counts its dials, may lose any answer, and speaks only on a socket whose answer it has."""
    tokens = ring()
    mine, attempt, attached = tokens.first, 0, True
    for what in happenings:
        if what in ("present", "lose"):
            attempt += 1
            new = granted(tokens, mine, attempt)
            attached = what == "present"
            if attached:
                mine, attempt = new, 0
        elif what == "speak" and attached:
            tokens.arrived()
        elif what == "ghost" and attempt > 1:
            assert tokens.present(mine, attempt - 1) == Ghost()
        assert tokens.holds(mine)


def test_endings_are_remembered_up_to_a_bound() -> None:
    ended = EndedSessions(kept=2)
    assert ended.reason("a") is LostReason.UNKNOWN
    ended.add("a", LostReason.IDLE)
    ended.add("b", LostReason.EVICTED)
    assert ended.reason("a") is LostReason.IDLE
    ended.add("c", LostReason.CLOSED)
    assert [ended.reason(name) for name in "abc"] == [LostReason.UNKNOWN, LostReason.EVICTED, LostReason.CLOSED]
