"""``make soak``: a long run of clients and servers under faults. Writes a report, and fails if anything grew.

Not part of ``make test``. Needs Linux (it reads /proc). Variables of the Makefile: ``SOAK_CYCLES``, ``SOAK_MINUTES``,
``SOAK_SEED``.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import openenv
from soak.cycles import run_cycles
from soak.default_times import run_default_times
from soak.measure import TABLE, Part, say
from soak.random_faults import run_faults


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cycles", type=int, default=10_000)
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--report", type=Path, default=Path("build/soak"))
    given = arguments.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    logging.getLogger("openenv").setLevel(logging.CRITICAL)  # thousands of lost sessions are what is asked for here
    _raise_descriptor_limit()
    parts = []
    with tempfile.TemporaryDirectory(prefix="openenv-soak-") as name:
        folder = Path(name)
        todo: list[Callable[[], Part]] = []
        if given.cycles:
            todo.append(lambda: run_cycles(given.cycles))
        todo.append(lambda: run_default_times(folder))
        if given.minutes:
            todo.append(lambda: run_faults(given.minutes, folder, seed))
        for run in todo:
            part = run()
            parts.append(part)
            say(f"{part.name}: {'FAILED' if part.problems else 'passed'} in {part.seconds:.0f} s")
            _write(given.report, parts)
    sys.stdout.write(given.report.with_suffix(".md").read_text())
    return 1 if any(part.problems for part in parts) else 0


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))


def _write(path: Path, parts: list[Part]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(_markdown(parts))
    content = [{**vars(part), "series": [one.as_dict() for one in part.series]} for part in parts]
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


def _markdown(parts: list[Part]) -> str:
    lines = ["# Soak", "", f"openenv {openenv.__version__}, Python {platform.python_version()}, {platform.system()}"]
    for part in parts:
        lines += ["", f"## {part.name}", "", f"{'FAILED' if part.problems else 'Passed'} in {part.seconds:.0f} s.", ""]
        lines += [f"* {name}: {_shown(value)}" for name, value in part.facts.items()]
        if part.series:
            lines += ["", *TABLE, *(row for one in part.series for row in one.rows())]
        if part.problems:
            lines += ["", "Problems:", "", *(f"* {problem}" for problem in part.problems)]
    if any(part.series for part in parts):
        lines += ["", "Growth: median of the last third over that of the first, after a quarter of warm-up; 1 is flat."]
        lines += ["Slope: growth over the whole run in the unit of the row."]
    return "\n".join(lines) + "\n"


def _shown(value: object) -> object:
    return ", ".join(f"{name} {count}" for name, count in value.items()) if isinstance(value, dict) else value


if __name__ == "__main__":
    raise SystemExit(main())
