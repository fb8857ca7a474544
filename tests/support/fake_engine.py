"""A container engine for tests: a command named ``docker`` (or otherwise) that writes down its arguments.

``run`` starts a real server of `CountEnv` on the published port, ``rm`` ends it. What is to go otherwise is in a file
of its folder, ``plan.json``, that maps a command to a list of outcomes, taken one by one: ``{"stderr": ...}``,
``{"hang": seconds}``, ``{"mute": true}`` for a container whose server never answers, ``{"dies": text}`` for one that
ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class FakeEngine:
    """The command, installed in a folder that tests put on PATH."""

    folder: Path

    def install(self, *names: str) -> None:
        """Put the command there under these names."""
        for name in names:
            script = self.folder / name
            script.write_text(
                f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {self.folder} {name} "$@"\n'
            )
            script.chmod(0o755)

    def plan(self, **outcomes: list[dict[str, Any]]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(outcomes))

    def calls(self, *first: str) -> list[list[str]]:
        """Arguments of the calls so far, those that begin so, without the ``version`` of a first look."""
        found = [entry["argv"] for entry in self._entries() if entry["argv"] != ["version"]]
        return [argv for argv in found if argv[: len(first)] == list(first)]

    def names(self) -> list[str]:
        """Names under which it was called."""
        return [entry["name"] for entry in self._entries()]

    def environment(self, first: str) -> dict[str, str]:
        """The environment of the last such call."""
        environment: dict[str, str] = [one["environ"] for one in self._entries() if one["argv"][0] == first][-1]
        return environment

    def running(self) -> list[str]:
        """Containers that were not removed."""
        return sorted(path.stem for path in self.folder.glob("*.container"))

    def wait_until(self, *first: str, count: int = 1, timeout_s: float = 30.0) -> None:
        end = time.monotonic() + timeout_s
        while len(self.calls(*first)) < count:
            assert time.monotonic() < end, f"waited for {first}; there was {self.calls()}"
            time.sleep(0.02)

    def wait_until_removed(self, timeout_s: float = 30.0) -> None:
        end = time.monotonic() + timeout_s
        while self.running():
            assert time.monotonic() < end, f"still there: {self.running()}; calls: {self.calls()}"
            time.sleep(0.02)

    def kill_all(self) -> None:
        for path in self.folder.glob("*.container"):
            _kill(path)

    def _entries(self) -> list[dict[str, Any]]:
        log = self.folder / "calls.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _kill(path: Path) -> None:
    pid = json.loads(path.read_text())["pid"]
    path.unlink(missing_ok=True)
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _outcome(folder: Path, command: str) -> dict[str, Any]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "plan.json"
        plan = json.loads(path.read_text()) if path.exists() else {}
        outcomes = plan.get(command, [])
        outcome: dict[str, Any] = outcomes.pop(0) if outcomes else {}
        path.write_text(json.dumps(plan))
    return outcome


def _run(folder: Path, argv: list[str], outcome: dict[str, Any]) -> None:
    name = argv[argv.index("--name") + 1]
    port = argv[argv.index("--publish") + 1].split(":")[1]
    pid, log = 0, folder / f"{name}.log"
    with log.open("w") as output:
        if "dies" in outcome:
            output.write(outcome["dies"])
        elif "mute" in outcome:
            output.write("still thinking\n")
        else:
            app = ["-m", "uvicorn", "support.count_app:app", "--host", "127.0.0.1", "--port", port]
            kwargs: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            pid = subprocess.Popen([sys.executable, *app], start_new_session=True, **kwargs).pid
    state = "exited 3" if "dies" in outcome else "running 0"
    (folder / f"{name}.container").write_text(json.dumps({"pid": pid, "state": state}))
    print(f"id-of-{name}")


def _main(folder: Path, name: str, argv: list[str]) -> int:
    with (folder / "calls.jsonl").open("a") as log:
        log.write(json.dumps({"name": name, "argv": argv, "environ": dict(os.environ)}) + "\n")
    command = " ".join(argv[:2]) if argv[0] in ("service", "swarm", "network") else argv[0]
    outcome = _outcome(folder, command)
    if "hang" in outcome:
        time.sleep(outcome["hang"])
    if "stderr" in outcome:
        print(outcome["stderr"], file=sys.stderr)
        return int(outcome.get("code", 1))
    container = folder / f"{argv[-1].removeprefix('id-of-')}.container"
    match command:
        case "run":
            _run(folder, argv, outcome)
        case "rm":
            if not container.exists():
                print(f"Error: No such container: {argv[-1]}", file=sys.stderr)
                return 1
            _kill(container)
        case "inspect":
            print(json.loads(container.read_text())["state"])
        case "logs":
            print(container.with_suffix(".log").read_text())
        case "service create":
            print("service-id")
        case "service logs":
            print("words of replicas")
        case "info":
            print(outcome.get("state", "inactive"))
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
