"""The checkers in a user's own tests: ``pytest -p openenv.conformance.pytest_plugin``. Loaded only on request.

With ``--conformance-server URL`` or ``--conformance-client CMD`` it adds one test for each clause; the first of them
runs the checker, and all read its report. The fixtures `conformance_server` and `conformance_client` grade what a
test gives them.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from openenv.conformance.clauses import select
from openenv.conformance.client.run import grade_client
from openenv.conformance.report import NotGraded, Report, Result, Verdict
from openenv.conformance.server.run import grade_server
from openenv.conformance.server.target import Target

__all__ = ["ClauseFile", "ClauseTest", "conformance_client", "conformance_server"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what is to be graded."""
    group = parser.getgroup("conformance", "grade a server or a client of the env link")
    group.addoption("--conformance-server", metavar="URL", help="add a test for each clause of this server")
    group.addoption("--conformance-client", metavar="CMD", help="add a test for each clause of this client's driver")
    group.addoption("--conformance-plain-only", action="store_true", help="leave out the clauses of openenv.v1")
    group.addoption("--conformance-upstream", action="store_true", help="tolerate what upstream 0.10.0 is known for")
    group.addoption("--conformance-timeout", type=float, default=10.0, metavar="S", help="bound of every wait")


class ClauseFailed(Exception):
    """A clause does not hold."""


class ClauseTest(pytest.Item):
    """One clause of one subject."""

    def __init__(self, *, number: str, grade: Callable[[], Report], **more: Any) -> None:
        super().__init__(**more)
        self.number = number
        self.grade = grade

    def runtest(self) -> None:
        """Read the clause's result out of the report."""
        found = [one for one in self.grade().results if one.clause.id == self.number]
        if not found or found[0].verdict is Verdict.SKIP:
            pytest.skip(_said(found[0]) if found else "not graded")
        if found[0].verdict is Verdict.VIOLATION:
            raise ClauseFailed(f"{found[0].clause.text}\n{_said(found[0])}")
        if found[0].verdict is Verdict.NOTE:
            self.add_report_section("call", "conformance", _said(found[0]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A violation needs no traceback."""
        if isinstance(excinfo.value, ClauseFailed | NotGraded):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """What the report calls it."""
        return self.path, None, self.name


def _said(result: Result) -> str:
    return "\n".join(f"[{one.name}] {one.text}" if one.name else one.text for one in result.worst)


class ClauseFile(pytest.Collector):
    """The clauses of one subject; it is graded once, when its first test runs."""

    def __init__(self, *, end: str, grade: Callable[[], Report], plain_only: bool, **more: Any) -> None:
        super().__init__(**more)
        self._end = end
        self._plain_only = plain_only
        self._grade = grade
        self._outcome: Report | NotGraded | None = None

    def collect(self) -> Iterator[ClauseTest]:
        """One test for each clause."""
        for one in select(self._end, plain_only=self._plain_only):
            name = f"{one.id}[{one.title}]"
            yield ClauseTest.from_parent(self, name=name, number=one.id, grade=self._graded)

    def _graded(self) -> Report:
        if self._outcome is None:
            try:
                self._outcome = self._grade()
            except NotGraded as error:
                self._outcome = error
        if isinstance(self._outcome, NotGraded):
            raise self._outcome
        return self._outcome


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the clauses behind whatever else was collected."""
    plain_only = bool(config.getoption("--conformance-plain-only"))
    settings: dict[str, Any] = {"upstream": bool(config.getoption("--conformance-upstream"))}
    timeout_s = float(config.getoption("--conformance-timeout"))
    url, command = config.getoption("--conformance-server"), config.getoption("--conformance-client")
    graders: list[tuple[str, str, Callable[[], Report]]] = []
    if url:
        target = Target(str(url), timeout_s=timeout_s, plain_only=plain_only)
        graders.append(("s", f"server {url}", lambda: grade_server(target, **settings)))
    if command:
        words = shlex.split(str(command))
        more = {"timeout_s": timeout_s, "plain_only": plain_only, **settings}
        graders.append(("c", f"client {command}", lambda: asyncio.run(grade_client(words, **more))))
    for end, name, grade in graders:
        parent = ClauseFile.from_parent(session, name=name, end=end, grade=grade, plain_only=plain_only)
        items.extend(parent.collect())


@pytest.fixture
def conformance_server() -> Callable[..., Report]:
    """Grade a server: ``conformance_server("http://127.0.0.1:8000")``; it takes what `Target` and `grade_server` do."""

    def grade(url: str, *, only: Sequence[str] = (), upstream: bool = False, **target: Any) -> Report:
        return grade_server(Target(url, **target), only=only, upstream=upstream)

    return grade


@pytest.fixture
def conformance_client() -> Callable[..., Report]:
    """Grade a client: ``conformance_client(["python", "driver.py"])``; it takes what `grade_client` does."""

    def grade(command: Sequence[str], **settings: Any) -> Report:
        return asyncio.run(grade_client(command, **settings))

    return grade
