"""The numbered calls of a session: every order of events within bounds, and random ones beyond."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.core.session.ledger import Ledger, Todo, Verdict

A, B = b"digest a", b"digest b"
REPLY = b'{"type":"observation","seq":1,"data":{}}'


def data(frame: bytes) -> dict[str, Any]:
    return dict(json.loads(frame)["data"])


def code(verdict: Verdict) -> str:
    return str(data(verdict.frame)["code"])


def finished(last_seq: int = 1) -> Ledger:
    ledger = Ledger()
    for seq in range(1, last_seq + 1):
        assert ledger.request(seq, A).todo is Todo.RUN
        ledger.finish(REPLY)
    return ledger


def running() -> Ledger:
    ledger = Ledger()
    assert ledger.request(1, A).todo is Todo.RUN
    return ledger


def snapshot(ledger: Ledger) -> tuple[Any, ...]:
    return tuple(getattr(ledger, name) for name in Ledger.__slots__)


def test_calls_run_in_order() -> None:
    ledger = finished(3)
    assert (ledger.last_seq, ledger.running) == (3, False)


def test_a_repeated_request_is_answered_with_the_reply_that_was_sent() -> None:
    assert finished().request(1, A) == Verdict(Todo.SEND, REPLY)


def test_a_repeated_request_waits_while_its_call_runs() -> None:
    assert running().request(1, A) == Verdict(Todo.WAIT)


@pytest.mark.parametrize("make", [finished, running])
def test_the_same_number_with_other_bytes_is_a_mismatch(make: Any) -> None:
    verdict = make().request(1, B)
    assert code(verdict) == "SEQ_MISMATCH"
    assert data(verdict.frame)["applied"] is False
    assert json.loads(verdict.frame)["seq"] == 1


@pytest.mark.parametrize("seq", [0, 1, 4, 9])
def test_a_lower_number_or_a_gap_is_out_of_order(seq: int) -> None:
    ledger = finished(2)
    before = snapshot(ledger)
    assert code(ledger.request(seq, A)) == "SEQ_OUT_OF_ORDER"
    assert snapshot(ledger) == before


@pytest.mark.parametrize("seq", [0, 2, 7])
def test_another_call_while_one_runs_is_busy(seq: int) -> None:
    ledger = running()
    before = snapshot(ledger)
    verdict = ledger.request(seq, A)
    assert (code(verdict), data(verdict.frame)["applied"]) == ("BUSY", False)
    assert snapshot(ledger) == before


def test_a_reply_at_the_limit_passes_and_one_over_it_is_replaced() -> None:
    ledger = Ledger(max_reply_bytes=len(REPLY))
    ledger.request(1, A)
    assert ledger.finish(REPLY) == REPLY
    ledger.request(2, A)
    told = ledger.finish(REPLY + b" ")
    assert json.loads(told)["seq"] == 2
    assert {name: data(told)[name] for name in ("code", "size", "limit", "applied")} == {
        "code": "REPLY_TOO_LARGE",
        "size": len(REPLY) + 1,
        "limit": len(REPLY),
        "applied": True,
    }
    assert ledger.request(2, A).frame == told  # the same bytes again, not the reply
    assert ledger.request(3, A).todo is Todo.RUN


def test_cancel_before_its_request_uses_up_the_number() -> None:
    ledger = finished(2)
    told = ledger.cancel(3)
    assert told.todo is Todo.SEND
    assert (code(told), data(told.frame)["applied"], json.loads(told.frame)["seq"]) == ("CANCELLED", False, 3)
    assert ledger.last_seq == 3
    assert ledger.request(3, B) == ledger.request(3, A) == told  # there are no bytes to compare
    assert ledger.missed(2) == told.frame
    assert ledger.cancel(3) == Verdict(Todo.NOTHING)
    assert ledger.request(4, A).todo is Todo.RUN


def test_cancel_of_a_running_call_is_asked_each_time_and_changes_nothing() -> None:
    ledger = running()
    before = snapshot(ledger)
    assert ledger.cancel(1) == ledger.cancel(1) == Verdict(Todo.CANCEL)
    assert snapshot(ledger) == before


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_cancel_of_a_finished_call_does_nothing(seq: int) -> None:
    ledger = finished(2)
    before = snapshot(ledger)
    assert ledger.cancel(seq) == Verdict(Todo.NOTHING)
    assert snapshot(ledger) == before


def test_cancel_of_what_cannot_come_yet_is_refused() -> None:
    assert code(running().cancel(2)) == "BUSY"
    assert code(finished(2).cancel(4)) == "SEQ_OUT_OF_ORDER"


def test_what_a_client_missed() -> None:
    assert Ledger().missed(0) is None
    assert running().missed(0) is None
    assert finished(2).missed(1) == REPLY
    assert finished(2).missed(2) is None


def test_without_numbers_each_request_is_a_call_and_errors_carry_no_number() -> None:
    ledger = Ledger(numbered=False, max_reply_bytes=1)
    assert ledger.request(None, A).todo is Todo.RUN
    busy = ledger.request(None, A)
    assert code(busy) == "BUSY"
    assert "seq" not in json.loads(busy.frame)
    assert "seq" not in json.loads(ledger.finish(REPLY))
    assert ledger.request(None, A).todo is Todo.RUN


# ---------------------------------------------------------------- every order of events

Move = tuple[str, int, bytes]


def moves(most: int) -> Iterator[Move]:
    for seq in range(most + 2):
        yield ("request", seq, A)
        yield ("request", seq, B)
        yield ("cancel", seq, b"")
    yield ("finish", 0, b"")


class Watched:
    """A ledger, and what it has said so far: the oracle of the tests below."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.runs: dict[int, bytes] = {}
        self.answers: dict[int, bytes] = {}

    def key(self) -> tuple[Any, ...]:
        return (*snapshot(self.ledger), *sorted(self.runs.items()), *sorted(self.answers.items()))

    def play(self, move: Move) -> None:
        kind, seq, digest = move
        before = snapshot(self.ledger)
        if kind == "finish":
            if self.ledger.running:
                reply = b'{"reply":%d}' % self.ledger.last_seq
                assert self.ledger.finish(reply) == reply
                self.answers[self.ledger.last_seq] = reply
            return
        verdict = self.ledger.request(seq, digest) if kind == "request" else self.ledger.cancel(seq)
        last = before[Ledger.__slots__.index("last_seq")]
        was_running = before[Ledger.__slots__.index("running")]
        if verdict.todo is Todo.RUN:
            assert kind == "request"
            assert not was_running
            assert seq == last + 1
            assert seq not in self.runs, "run twice"
            assert seq not in self.answers, "run after it was cancelled"
            self.runs[seq] = digest
        elif verdict.todo is Todo.SEND and seq == last + 1 and kind == "cancel" and not was_running:
            assert seq not in self.runs
            self.answers[seq] = verdict.frame
        else:
            assert snapshot(self.ledger) == before, "a refusal changed something"
            self.check(kind, seq, digest, verdict)
        assert self.ledger.last_seq == max([0, *self.runs, *self.answers])

    def check(self, kind: str, seq: int, digest: bytes, verdict: Verdict) -> None:
        current = seq == self.ledger.last_seq > 0
        if verdict.todo is Todo.WAIT:
            assert kind == "request"
            assert current
            assert self.runs[seq] == digest
            assert seq not in self.answers
        elif verdict.todo is Todo.CANCEL:
            assert kind == "cancel"
            assert current
            assert seq not in self.answers
        elif verdict.todo is Todo.SEND and current and self.runs.get(seq, digest) == digest:
            assert verdict.frame == self.answers[seq], "another answer than the first"
        elif verdict.todo is Todo.SEND:
            assert code(verdict) in ("BUSY", "SEQ_MISMATCH", "SEQ_OUT_OF_ORDER")
        else:
            assert kind == "cancel"
            assert seq <= self.ledger.last_seq


def test_every_order_of_events_within_bounds() -> None:
    most = 3
    start = Watched()
    seen, todo = {start.key()}, [start]
    edges = 0
    while todo:
        state = todo.pop()
        for move in moves(most):
            nxt = copy.deepcopy(state)
            nxt.play(move)
            edges += 1
            if nxt.ledger.last_seq <= most and nxt.key() not in seen:
                seen.add(nxt.key())
                todo.append(nxt)
    assert edges > 1000, "the bounds are so narrow that nothing was explored"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("request"), st.integers(0, 12), st.sampled_from([A, B])),
            st.tuples(st.just("cancel"), st.integers(0, 12), st.just(b"")),
            st.just(("finish", 0, b"")),
        ),
        max_size=60,
    )
)
def test_random_orders_of_events(played: list[Move]) -> None:
    watched = Watched()
    for move in played:
        watched.play(move)
