"""The rule about the Dockerfile: what its image would do on a Space. It is read line by line; nothing is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openenv.validation.report import Report, Verdict

__all__ = ["check_dockerfile"]

_PLACES = ("Dockerfile", "server/Dockerfile")


def check_dockerfile(folder: Path, manifest: Mapping[str, Any], front: Mapping[str, str], report: Report) -> None:
    """Look at the Dockerfile of a package.

    Args:
        folder: the package.
        manifest: values of its ``openenv.yaml``.
        front: front matter of its README.
        report: what was found is added to it.
    """
    file = next((folder / place for place in _PLACES if (folder / place).is_file()), None)
    if file is None:
        report.add("dockerfile", Verdict.WARN, "there is no Dockerfile", "write one, as openenv init does")
        return
    lines = _instructions(file.read_text(encoding="utf-8", errors="replace"))
    if not any(word == "FROM" for word, _ in lines):
        report.add("dockerfile", Verdict.FAIL, f"{file.name} has no FROM", "begin it with FROM python:3.11-slim")
        return
    _check_user(lines, report)
    _check_command(lines, str(front.get("app_port", manifest.get("port", 8000))), report)
    _check_openenv(lines, report)


def _instructions(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments; continued lines are joined, comments left out."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(kept))
    found = re.findall(r"^\s*([A-Za-z]+)\s+(.*?)\s*$", joined, re.MULTILINE)
    return [(word.upper(), rest) for word, rest in found]


def _last_stage(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    start = max(index for index, (word, _) in enumerate(lines) if word == "FROM")
    return lines[start:]


def _check_user(lines: list[tuple[str, str]], report: Report) -> None:
    users = [rest.split(":")[0] for word, rest in _last_stage(lines) if word == "USER"]
    if not users or users[-1] in ("root", "0"):
        text = "its image runs as root, and a Space as user 1000: files that it wrote as root cannot be written there"
        report.add("dockerfile", Verdict.WARN, text, "RUN useradd --create-home --uid 1000 user, then USER user")


def _check_command(lines: list[tuple[str, str]], port: str, report: Report) -> None:
    commands = [rest for word, rest in _last_stage(lines) if word in ("CMD", "ENTRYPOINT")]
    if not commands:
        report.add("dockerfile", Verdict.FAIL, "its image starts nothing", "end it with CMD [...]")
        return
    command = re.sub(r'["\',\[\]]+', " ", " ".join(commands))
    workers = re.search(r"(?:--workers|-w)[= ]+(\d+)", command)
    if workers is not None and int(workers[1]) > 1:
        text = f"it starts {workers[1]} workers: a session lives in the memory of one of them"
        report.add("dockerfile", Verdict.FAIL, text, "start one: --workers 1")
    if re.search(r"--host[= ]+(127\.|localhost)", command):
        report.add("dockerfile", Verdict.FAIL, "it listens inside its container only", "listen at --host 0.0.0.0")
    fixed = re.search(r"--port[= ]+(\d+)", command)
    if fixed is not None and fixed[1] != port:
        text = f"it listens at port {fixed[1]}, and requests come to {port}"
        report.add("dockerfile", Verdict.FAIL, text, "listen at --port ${PORT:-" + port + "}, through sh -c")
    elif fixed is not None:
        text = f"it listens at port {fixed[1]} whatever PORT says"
        report.add("dockerfile", Verdict.WARN, text, "listen at --port ${PORT:-" + port + "}, through sh -c")


def _check_openenv(lines: list[tuple[str, str]], report: Report) -> None:
    """A bare name would be looked up in the package index, which knows another project under it."""
    for word, rest in lines:
        if word not in ("RUN", "ARG"):
            continue
        installs = word == "ARG" or re.search(r"\b(pip3?|uv)\b.*\b(install|add)\b", rest)
        if installs and re.search(r"""(?:^|[\s"'=])openenv(-core)?(\[[\w,-]+\])?(?=$|[\s"'])""", rest):
            text = f"it installs whatever the package index has as openenv: {rest[:80]}"
            move = 'pin a wheel or a commit, as "openenv @ git+https://...@commit"; openenv init shows how'
            report.add("dockerfile", Verdict.WARN, text, move)
            return
