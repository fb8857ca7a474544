"""Nothing is left running: not when the program ends, and not when it is killed.

What is to be stopped is registered. An orderly end of the program stops it; for every other end there is a watchdog, a
shell that waits for the end of a pipe that only this process holds, and then runs a command.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from subprocess import DEVNULL, PIPE, Popen

__all__ = ["Leftover"]

logger = logging.getLogger("openenv.client")

_WATCH = 'read -r word; test "$word" = done || exec "$@"'


class Leftover:
    """Something that must not outlive this process, until `settled`.

    Args:
        stop: stops it, at an orderly end of the program.
        command: stops it from outside; run if this process is killed. Only where there is a ``sh``.
    """

    def __init__(self, stop: Callable[[], object], command: Sequence[str]) -> None:
        self._stop = stop
        self._pid = os.getpid()
        self._watchdog: Popen[bytes] | None = None
        _leftovers[id(self)] = self
        _watched.add(self)
        shell = shutil.which("sh")
        if shell is not None and os.name == "posix":
            self._watchdog = Popen(
                [shell, "-c", _WATCH, "openenv-watchdog", *command],
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )

    def settled(self) -> None:
        """It is stopped: forget it."""
        _leftovers.pop(id(self), None)
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None or watchdog.stdin is None:
            return
        try:
            watchdog.stdin.write(b"done\n")
            watchdog.stdin.close()
        except OSError:
            pass  # somebody has killed it
        watchdog.wait()

    def at_exit(self) -> None:
        """Stop it, best effort; a forked child leaves that to its parent."""
        if self._pid != os.getpid():
            return
        try:
            self._stop()
        except Exception:  # the program ends, and the others are to be stopped too
            logger.warning("something that was started could not be stopped at exit", exc_info=True)

    def after_fork(self) -> None:
        """In a forked child: let go of the pipe, or the watchdog would wait for the child's end as well."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None and watchdog.stdin is not None:
            watchdog.stdin.close()
            watchdog.returncode = 0  # it is not this process's to wait for


_leftovers: dict[int, Leftover] = {}
_watched: weakref.WeakSet[Leftover] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for leftover in list(_leftovers.values()):
        leftover.at_exit()


def _after_fork() -> None:
    for leftover in list(_watched):
        leftover.after_fork()
    _leftovers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
