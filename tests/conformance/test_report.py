"""Clauses, findings, and how they add up."""

from __future__ import annotations

import pytest

from openenv.conformance.clauses import CLAUSES, Dialect, clause, select
from openenv.conformance.client.run import SCENARIOS
from openenv.conformance.report import UPSTREAM, Finding, Note, Report, Skip, Verdict, Violation
from openenv.conformance.server.run import CHECKS


def test_numbers_stand_in_order_and_say_their_dialect() -> None:
    assert [one.id for one in CLAUSES.values() if one.dialect is Dialect.PLAIN] == [f"P{n}" for n in range(1, 28)]
    v1 = [one.id for one in CLAUSES.values() if one.dialect is Dialect.V1]
    assert [one for one in v1 if one[-1].isdigit()] == [f"E{n}" for n in range(1, 31)]


def test_every_clause_that_is_graded_has_something_that_grades_it() -> None:
    assert {one.clause for one in CHECKS} == {one.id for one in select("s")}
    assert {number for one in SCENARIOS for number in one.clauses} >= {one.id for one in select("c")} - {"E15b"}


def test_every_check_and_scenario_says_what_it_does() -> None:
    assert all(one.name for one in CHECKS)
    assert all(one.text for one in SCENARIOS)
    names = [one.name for one in SCENARIOS]
    assert len(names) == len(set(names))


def test_select_leaves_out() -> None:
    assert {one.dialect for one in select("s", plain_only=True)} == {Dialect.PLAIN}
    assert [one.id for one in select("c", only=["E9", "P1", "P7"])] == ["P7", "E9"]


def report(*findings: Finding) -> Report:
    made = Report("it", [clause("P1"), clause("P2")])
    made.add(findings)
    return made


def test_the_worst_finding_makes_the_verdict() -> None:
    made = report(
        Finding("P1", Verdict.PASS),
        Finding.of("P1", Violation("bad", "seen"), "check"),
        Finding.of("P1", Note("odd", "seen"), "check"),
        Finding.of("P2", Skip("why not"), "check"),
        Finding("P2", Verdict.PASS),
        Finding("P3", Verdict.PASS),
    )
    assert [one.verdict for one in made.results] == [Verdict.VIOLATION, Verdict.PASS]
    assert made.exit_code == 1
    assert [one.clause for one in made.named("bad")] == ["P1"]
    assert "[bad] seen" in str(made)
    assert "[odd]" not in str(made)
    assert str(made).splitlines()[-1] == "it: 1 pass, 0 note, 1 violation, 0 skip"


def test_what_nothing_was_found_of_is_skipped() -> None:
    assert [one.verdict for one in report().results] == [Verdict.SKIP, Verdict.SKIP]
    assert report().exit_code == 0


@pytest.mark.parametrize("name", UPSTREAM)
def test_a_known_deviation_is_a_note_where_it_is_tolerated(name: str) -> None:
    said = Violation(name, "seen")
    assert Finding.of("P21", said, "").verdict is Verdict.VIOLATION
    tolerated = Finding.of("P21", said, "", upstream=True)
    assert tolerated.verdict is Verdict.NOTE
    assert UPSTREAM[name] in tolerated.text
    assert "seen" in tolerated.text


def test_other_violations_are_not_tolerated() -> None:
    assert Finding.of("P3", Violation("other", "seen"), "", upstream=True).verdict is Verdict.VIOLATION
