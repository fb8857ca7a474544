"""What ``openenv serve`` shows of its sessions: a table on a terminal that is kept up to date, else a line for each
thing that happens. Steps have no line of their own: an end and a reset sum up those before them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from openenv.core.env_server.observing import SessionEvent, SessionEventKind

__all__ = ["Board", "lines_of"]

KEPT_ENDS = 5
"""How many sessions that are over are still shown."""
RECENT = 200
"""Over how many steps the times are taken."""

_LOST = frozenset({"dropped", "expired", "idle", "evicted", "failed"})


@dataclass
class Row:
    """What is known of one session.

    Attributes:
        name: the first letters of its id.
        began: when it was opened, on the clock of `time.monotonic`.
        episodes: resets that were answered.
        steps: steps and tool calls that were answered since the last reset.
        errors: calls that failed.
        resumes: how often its client came back.
        status: ``open``, ``leased``, ``lost (why)``, ``closed``.
        times: of the latest steps, in seconds.
    """

    name: str
    began: float
    episodes: int = 0
    steps: int = 0
    errors: int = 0
    resumes: int = 0
    status: str = "open"
    times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def timing(self) -> str:
        """The middle and the longest of the latest step times."""
        if not self.times:
            return ""
        ordered = sorted(self.times)
        return f"{_shown(ordered[len(ordered) // 2])}, at most {_shown(ordered[-1])}"

    def take(self, event: SessionEvent) -> None:
        """Note what happened."""
        match event.kind:
            case SessionEventKind.CALLED:
                self.errors += bool(event.error)
                if event.call == "reset" and not event.error:
                    self.episodes, self.steps = self.episodes + 1, 0
                    self.times.clear()
                elif event.call in ("step", "tools/call") and not event.error:
                    self.steps += 1
                    self.times.append(event.seconds)
            case SessionEventKind.LEASED:
                self.status = "leased"
            case SessionEventKind.RESUMED:
                self.status, self.resumes = "open", self.resumes + 1
            case SessionEventKind.ENDED:
                self.status = f"lost ({event.reason})" if event.reason in _LOST else event.reason


class Board:
    """Follows the sessions of a server; an observer of it.

    Args:
        say: writes a line, where lines are wanted.
        clock: seconds.
    """

    def __init__(
        self, say: Callable[[str], object] = lambda line: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._over: deque[Row] = deque(maxlen=KEPT_ENDS)
        self._opened = 0

    def __call__(self, event: SessionEvent) -> None:
        """Note what happened to a session."""
        with self._lock:
            row = self._rows.get(event.session_id)
            if row is None:
                if event.kind is SessionEventKind.CLOSED:
                    return
                row = self._rows[event.session_id] = Row(event.session_id[:8], self._clock())
                self._opened += 1
            for line in lines_of(event, row):
                self._say(f"{row.name} {line}")
            row.take(event)
            if event.kind is SessionEventKind.ENDED:
                self._over.append(self._rows.pop(event.session_id))

    def table(self, console: Console, heading: str, capacity: int) -> RenderableType:
        """The sessions as they are now, in as many lines as the console has."""
        with self._lock:
            rows, over = list(self._rows.values()), list(self._over)
        head = Text(f"{heading}   {len(rows)} of {capacity} sessions, {self._opened} so far", style="bold")
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("session", "status", "episode", "step", "step time", "errors", "age"):
            table.add_column(title, justify="left" if title in ("session", "status", "step time") else "right")
        room = max(3, console.size.height - 5 - len(over))
        for row in [*rows[-room:], *over]:
            style = "yellow" if row.status == "leased" else "red" if row.status.startswith("lost") else None
            style = "dim" if style is None and row.status != "open" else style
            status = f"{row.status}, resumed {row.resumes}" if row.resumes else row.status
            age = _age(self._clock() - row.began)
            cells = (row.name, status, str(row.episodes), str(row.steps), row.timing, str(row.errors or ""), age)
            table.add_row(*cells, style=style)
        hidden = len(rows) - room
        parts: list[RenderableType] = [head, table] if rows or over else [head]
        return Group(*parts, *([Text(f"and {hidden} more", style="dim")] if hidden > 0 else []))


def lines_of(event: SessionEvent, row: Row) -> list[str]:
    """What to say of an event.

    Args:
        event: what happened.
        row: its session, as it was before.
    """
    summary = f": {row.steps} steps ({row.timing})" if row.steps else ""
    match event.kind:
        case SessionEventKind.OPENED:
            return [f"opened in {_shown(event.seconds)}"]
        case SessionEventKind.CALLED if event.error:
            return [f"{event.call or 'call'} refused or failed: {event.error}"]
        case SessionEventKind.CALLED if event.call == "reset":
            after = f"; episode {row.episodes} had{summary[1:]}" if summary else ""
            return [f"reset in {_shown(event.seconds)}, episode {row.episodes + 1}{after}"]
        case SessionEventKind.LEASED:
            return ["leased: its connection is gone, it waits for its client"]
        case SessionEventKind.RESUMED:
            return ["resumed"]
        case SessionEventKind.ENDED:
            how = f"lost ({event.reason})" if event.reason in _LOST else event.reason
            return [f"{how}{summary}"]
    return []


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _age(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}:{rest:02}"
