"""An append-only record of what ran on which board, one JSON object a line.

A client can only tell what it was answered. A test that wants to know *on which board* a move ran, and
how often, reads this log.
"""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["EventLog"]


class EventLog:
    """Appends events to a file. Processes may share the file: each line is one write.

    Args:
        path: the file; None or empty writes nothing.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path

    @classmethod
    def from_environ(cls) -> EventLog:
        """The log that ``SUDOKU_EVENT_LOG`` names."""
        return cls(os.environ.get("SUDOKU_EVENT_LOG"))

    def write(self, event: str, **fields: Any) -> None:
        """Append one event.

        Raises:
            OSError: the file cannot be written.
        """
        if not self._path:
            return
        line = json.dumps({"event": event, **fields}, separators=(",", ":"))
        with open(self._path, "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")
