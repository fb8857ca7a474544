"""Scenarios against a hostile network: who plays, on which stage, and the report by guarantee."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.harness import LINKS, Farm, Link, World
from openenv.testing import Oracle

GUARANTEES = [f"G{number}" for number in range(1, 13)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "guarantee(*ids, hazards=(), clients=('async', 'sync'), servers=('ours', 'upstream')): what a scenario attacks",
    )
    config.addinivalue_line(
        "markers", "server(own=False, arguments=(), **environ): the server of a scenario; its own if it is harmed"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "link" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("guarantee")
        assert mark is not None, f"{metafunc.definition.name} names no guarantee"
        clients = mark.kwargs.get("clients", ("async", "sync"))
        servers = mark.kwargs.get("servers", ("ours", "upstream"))
        links = [link for link in LINKS if link.client in clients and link.server in servers]
        metafunc.parametrize("link", links, ids=str, scope="function")


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    farm = Farm(tmp_path_factory.mktemp("farm"))
    yield farm
    farm.close()


@pytest.fixture
async def world(request: pytest.FixtureRequest, link: Link, farm: Farm, tmp_path: Path) -> AsyncIterator[World]:
    """The stage, and at the end the verdict of its log."""
    mark = request.node.get_closest_marker("server")
    options: dict[str, Any] = dict(mark.kwargs) if mark else {}
    own, arguments = options.pop("own", False), tuple(options.pop("arguments", ()))
    environ = {f"OPENENV_{name.upper()}": str(value) for name, value in options.items()}
    stage = farm.stage(link.server, environ, arguments, own)
    world = World(link, stage, tmp_path, Oracle.from_now(stage.log))
    try:
        yield world
        await world.finish()
    finally:
        world.plan()
        if own:
            stage.server.__exit__(None, None, None)


# ---------------------------------------------------------------- the report


class Report:
    """Counts scenarios and cases by guarantee."""

    def __init__(self) -> None:
        self.names: dict[str, tuple[str, ...]] = {}
        self.hazards: dict[str, set[str]] = defaultdict(set)
        self.results: dict[str, dict[str, str]] = defaultdict(dict)

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("guarantee")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            report.names[name] = mark.args
            for hazard in mark.kwargs.get("hazards", ()):
                report.hazards[hazard].add(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.partition("[")[0]
    if name in _report().names and (report.when == "call" or report.outcome != "passed"):
        before = _report().results[name].get(report.nodeid, "passed")
        _report().results[name][report.nodeid] = report.outcome if before == "passed" else before


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
