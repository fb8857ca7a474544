"""A program that is graded: started, waited for together with what it should do, and ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

from openenv.conformance.report import NotGraded

__all__ = ["Program"]

_LAST_WORDS = 600


class Program:
    """A running program.

    Args:
        process: it, with its output in one pipe.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.ended = asyncio.create_task(self._outlive())

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str]) -> Program:
        """Start a program in a process group of its own.

        Args:
            command: the program and its arguments.
            environ: added to the environment.

        Raises:
            NotGraded: it cannot be run.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise NotGraded(f"cannot run {command[0]}: {error.strerror or error}") from None
        return cls(process)

    async def _outlive(self) -> bytes:
        """Read the output to its end, and give the last words."""
        assert self._process.stdout is not None
        words = b""
        while more := await self._process.stdout.read(65536):
            words = (words + more)[-_LAST_WORDS:]
        await self._process.wait()
        return words

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    def last_words(self) -> str:
        """Its exit code and the last line that it wrote, as the end of a sentence; it must have ended."""
        words = self.ended.result().decode(errors="replace").strip()
        return f" with code {self.exit_code}" + (f": {words.splitlines()[-1][:300]}" if words else "")

    async def stop(self) -> None:
        """Kill it, with all that it has started."""
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
            await self._process.wait()
        self.ended.cancel()
        await asyncio.gather(self.ended, return_exceptions=True)
