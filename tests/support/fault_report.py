"""The report of the fault suite by guarantee. Its hooks are those of `tests/conftest.py`, for with several workers the
process that reports is one that never collects the suite."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["GUARANTEES", "pytest_runtest_logreport", "pytest_terminal_summary"]

GUARANTEES = [f"G{number}" for number in range(1, 13)]


class Report:
    """Counts scenarios and cases by guarantee."""

    def __init__(self) -> None:
        self.names: dict[str, tuple[str, ...]] = {}
        self.hazards: dict[str, set[str]] = defaultdict(set)
        self.results: dict[str, dict[str, str]] = defaultdict(dict)

    def add(self, case: str, outcome: str, guarantees: Iterable[str], hazards: Iterable[str]) -> None:
        """Take in the outcome of one phase of a case; a case is what its worst phase is."""
        name = case.partition("[")[0]
        self.names[name] = tuple(guarantees)
        for hazard in hazards:
            self.hazards[hazard].add(name)
        if self.results[name].get(case, "passed") == "passed":
            self.results[name][case] = outcome

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for guarantee in GUARANTEES:
            scenarios = [name for name, ids in self.names.items() if guarantee in ids and name in self.results]
            cases = [result for name in scenarios for result in self.results[name].values()]
            passed = cases.count("passed")
            rows.append({"guarantee": guarantee, "scenarios": len(scenarios), "cases": len(cases), "passed": passed})
        return rows

    def markdown(self) -> str:
        lines = ["| guarantee | scenarios | cases | passed |", "|---|---|---|---|"]
        lines += [f"| {r['guarantee']} | {r['scenarios']} | {r['cases']} | {r['passed']} |" for r in self.rows()]
        cases = [result for results in self.results.values() for result in results.values()]
        lines.append(f"| all | {len(self.results)} | {len(cases)} | {cases.count('passed')} |")
        lines.append("")
        lines.append("Hazards: " + ", ".join(sorted(self.hazards, key=lambda name: (len(name), name))))
        return "\n".join(lines)


report = Report()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    about = dict(report.user_properties)
    if "guarantees" in about and report.outcome != "rerun" and (report.when == "call" or report.outcome != "passed"):
        _report().add(report.nodeid, report.outcome, about["guarantees"], about["hazards"])


def _report() -> Report:
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not report.results:
        return
    terminalreporter.section("fault scenarios by guarantee")
    terminalreporter.write_line(report.markdown())
    path = os.environ.get("OPENENV_FAULT_REPORT")
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).with_suffix(".md").write_text(report.markdown() + "\n")
        hazards = {name: sorted(tests) for name, tests in report.hazards.items()}
        content = {"guarantees": report.rows(), "hazards": hazards, "results": report.results}
        Path(path).with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
