"""Collects what one scenario or phase finds: which clauses came up, and which of them were broken."""

from __future__ import annotations

from openenv.conformance.client.sessions import Fault
from openenv.conformance.report import Finding, Verdict

__all__ = ["Fault", "Judge"]


class Judge:
    """What was found so far.

    Args:
        name: of the scenario or phase.
        main: the clause to blame when the other end goes silent or away; a scenario changes it as it goes on.
    """

    def __init__(self, name: str, main: str) -> None:
        self.name = name
        self.main = main
        self._checked: dict[str, str] = {}
        self._said: dict[tuple[str, str], Finding] = {}

    def expect(self, holds: bool, clause: str, name: str = "", text: str = "") -> None:
        """Grade by a clause; a violation does not end the scenario."""
        self._checked.setdefault(clause, "")
        if not holds:
            self._say(clause, Verdict.VIOLATION, name, text)

    def need(self, holds: bool, clause: str, name: str, text: str) -> None:
        """Grade by a clause whose violation ends the scenario.

        Raises:
            Fault: it does not hold.
        """
        self._checked.setdefault(clause, "")
        if not holds:
            raise Fault(clause, name, text)

    def passed(self, clause: str, text: str = "") -> None:
        """A clause came up and held."""
        self._checked[clause] = text or self._checked.get(clause, "")

    def note(self, clause: str, name: str, text: str) -> None:
        """Worth knowing, and no violation."""
        self._say(clause, Verdict.NOTE, name, text)

    def fault(self, name: str, text: str) -> Fault:
        """What ends the scenario under the clause that it is at; to be raised."""
        return Fault(self.main, name, text)

    def end(self, fault: Fault) -> None:
        """Take what ended the scenario."""
        self._say(fault.clause, Verdict.VIOLATION, fault.name, fault.text)

    def _say(self, clause: str, verdict: Verdict, name: str, text: str) -> None:
        self._said.setdefault((clause, name), Finding(clause, verdict, name, text, self.name))

    @property
    def findings(self) -> list[Finding]:
        """What was said, and a pass for each clause that came up and of which no ill was said."""
        bad = {one.clause for one in self._said.values() if one.verdict is Verdict.VIOLATION}
        passes = [
            Finding(clause, Verdict.PASS, text=text, check=self.name)
            for clause, text in self._checked.items()
            if clause not in bad
        ]
        return [*self._said.values(), *passes]
