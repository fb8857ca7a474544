"""What a process holds, sampled while it works; and whether that grows."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WARM_UP = 0.25
"""Part of a run whose samples do not count: caches fill, pools grow."""


@dataclass(frozen=True)
class Held:
    """What a process holds at a moment.

    Attributes:
        at: progress of the run, from 0 to 1.
        rss_mb: resident memory, in MiB.
        threads: number of threads.
        fds: number of open descriptors.
    """

    at: float
    rss_mb: float
    threads: int
    fds: int


def held(pid: int, at: float = 0.0) -> Held:
    """Measure a process of this machine (Linux)."""
    folder = Path(f"/proc/{pid}")
    lines = (folder / "status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    kilobytes = int(fields["VmRSS"].split()[0])
    return Held(at, round(kilobytes / 1024, 2), int(fields["Threads"]), len(list((folder / "fd").iterdir())))


@dataclass
class Series:
    """Samples of one process during one part of a soak.

    Attributes:
        name: which process.
        idle_before: before the load.
        idle_after: after it, when everything was closed.
    """

    name: str
    pid: int
    samples: list[Held] = field(default_factory=list)
    idle_before: Held | None = None
    idle_after: Held | None = None

    def sample(self, at: float) -> None:
        self.samples.append(held(self.pid, at))

    def start(self) -> None:
        self.idle_before = held(self.pid)

    def settle(self, patience_s: float) -> None:
        """Wait until threads and descriptors are back where they were, at most ``patience_s`` seconds."""
        assert self.idle_before is not None
        before, deadline = self.idle_before, time.monotonic() + patience_s
        while True:
            now = self.idle_after = held(self.pid, 1.0)
            back = now.threads <= before.threads + 2 and now.fds <= before.fds + 2
            if back or time.monotonic() > deadline:
                return
            time.sleep(0.5)

    def growth(self, what: str) -> float:
        """Median of the last third over that of the first third, after the warm-up; 1 is flat."""
        values = [float(getattr(one, what)) for one in self.samples if one.at >= WARM_UP]
        third = max(1, len(values) // 3)
        return statistics.median(values[-third:]) / max(statistics.median(values[:third]), 1e-9)

    def slope(self, what: str) -> float:
        """Least-squares growth over the whole run, in the unit of what is measured, after the warm-up."""
        points = [(one.at, float(getattr(one, what))) for one in self.samples if one.at >= WARM_UP]
        if len(points) < 3:
            return 0.0
        return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope

    def problems(self, *, load_ratio: float, memory_ratio: float) -> list[str]:
        """What grew: empty if all is flat.

        Args:
            load_ratio: most growth of threads and descriptors under load.
            memory_ratio: most growth of memory.
        """
        found = []
        for what, limit in (("rss_mb", memory_ratio), ("threads", load_ratio), ("fds", load_ratio)):
            if self.growth(what) > limit:
                found.append(f"{self.name}: {what} grew to {self.growth(what):.2f} of what it was (at most {limit})")
        if self.idle_before is not None and self.idle_after is not None:
            for what in ("threads", "fds"):
                before, after = getattr(self.idle_before, what), getattr(self.idle_after, what)
                if after > before + 2:
                    found.append(f"{self.name}: {after} {what} when all was closed, {before} before the load")
        return found

    def rows(self) -> list[str]:
        """Lines of a markdown table."""
        rows = []
        before, after = self.idle_before, self.idle_after
        for what in ("rss_mb", "threads", "fds"):
            values = [getattr(one, what) for one in self.samples] or [0]
            cells = [self.name, what, getattr(before, what, ""), values[0], max(values), values[-1]]
            cells += [f"{self.growth(what):.3f}", f"{self.slope(what):+.2f}", getattr(after, what, "")]
            rows.append("| " + " | ".join(map(str, cells)) + " |")
        return rows

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


TABLE = [
    "| process | what | idle before | first | most | last | growth | slope | idle after |",
    "|---|---|---|---|---|---|---|---|---|",
]


class Sampler:
    """Samples processes on a thread of its own, every ``every_s`` seconds, until it is left."""

    def __init__(self, series: list[Series], progress: Callable[[], float], every_s: float) -> None:
        self._series, self._progress, self._every_s = series, progress, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            at = self._progress()
            for one in self._series:
                one.sample(at)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def say(text: str, *, end: str = "\n") -> None:
    """Show progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}{end}")
    sys.stderr.flush()


@dataclass
class Part:
    """One part of a soak, and how it went."""

    name: str
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
