"""Episodes as lines of JSON, written by a thread of its own."""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openenv.policy.rollout.stats import Episode

__all__ = ["JsonlRecorder"]


class JsonlRecorder:
    """Appends a line for each episode to a file. Use as a context manager, and as ``on_episode=``.

    Args:
        path: the file; its folder is made. Lines are added to one that exists.
        every: write one episode of so many.
        **about: put into every line, as ``process=0``.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path, *, every: int = 1, **about: Any) -> None:
        if every < 1:
            raise ValueError("every must be at least 1")
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        self._every = every
        self._about = about
        self._error: Exception | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="openenv-recorder", daemon=True)
        self._thread.start()

    def __call__(self, episode: Episode) -> None:
        """Take an episode.

        Raises:
            OSError: an earlier line could not be written.
        """
        self._check()
        if episode.number % self._every == 0:
            line = {**self._about, **asdict(episode), "time": round(time.time(), 3)}
            self._lines.put(json.dumps(line))

    def close(self) -> None:
        """Write what is left.

        Raises:
            OSError: a line could not be written.
        """
        self._lines.put(None)
        self._thread.join()
        self._file.close()
        self._check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                if self._error is None:
                    self._file.write(line + "\n")
                    self._file.flush()
            except (OSError, ValueError) as error:
                self._error = error
