"""Several rollouts at once, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import traceback
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["WorkerError", "run_workers"]


class WorkerError(RuntimeError):
    """A process failed; the others were ended.

    Attributes:
        process: its number.
        detail: its traceback, or how it ended.
    """

    def __init__(self, process: int, detail: str) -> None:
        self.process = process
        self.detail = detail
        super().__init__(f"process {process} failed, and the others were ended: {detail}")

    def __reduce__(self) -> tuple[type[WorkerError], tuple[int, str]]:
        return type(self), (self.process, self.detail)


def run_workers(
    work: Callable[[int], Mapping[str, Any]], processes: int, *, start_method: str = "spawn"
) -> list[Mapping[str, Any]]:
    """Run ``work(number)`` in as many processes, and wait for all.

    Args:
        work: can be pickled; called with 0, 1, ... A process that shares an env id with others should seed itself with
            ``seed + number * num_envs``. Returns plain values.
        processes: how many.
        start_method: of `multiprocessing`.

    Returns:
        What each returned, in order.

    Raises:
        WorkerError: one failed; the others were ended.
    """
    context: Any = multiprocessing.get_context(start_method)
    ends, running = {}, []
    try:
        for number in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, number, sender), name=f"rollout-{number}")
            process.start()
            sender.close()
            ends[receiver] = number
            running.append(process)
        results: dict[int, Mapping[str, Any]] = {}
        while len(results) < processes:
            waiting = [end for end, number in ends.items() if number not in results]
            for end in multiprocessing.connection.wait(waiting):
                number = ends[end]
                results[number] = _result(end, number, running[number])
        return [results[number] for number in range(processes)]
    finally:
        for process in running:
            if process.is_alive():
                process.terminate()
        for process in running:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _result(end: Any, number: int, process: Any) -> Mapping[str, Any]:
    try:
        ok, value = end.recv()
    except EOFError:
        process.join(10)
        raise WorkerError(number, f"it ended with exit code {process.exitcode}") from None
    if not ok:
        raise WorkerError(number, str(value))
    result: Mapping[str, Any] = value
    return result


def _run(work: Callable[[int], Mapping[str, Any]], number: int, end: Any) -> None:
    try:
        end.send((True, work(number)))
    except Exception:  # told to the process that waits, which raises it
        end.send((False, traceback.format_exc()))
