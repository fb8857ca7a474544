"""The plugin in a user's project: loaded on request only, one test for each clause, fixtures for tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PLUGIN = "openenv.conformance.pytest_plugin"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_it_is_not_loaded_unasked(tmp_path: Path) -> None:
    done = run(tmp_path, "--conformance-server", "http://127.0.0.1:1")
    assert done.returncode == 4
    assert "unrecognized arguments" in done.stderr


def test_a_test_for_each_clause_of_a_server(ours: str, tmp_path: Path) -> None:
    done = run(tmp_path, "-p", PLUGIN, "--conformance-server", ours, "--conformance-plain-only")
    assert done.returncode == 0, done.stdout
    assert "PASSED" in done.stdout
    assert "P1[silence]" in done.stdout
    assert "E2" not in done.stdout


def test_a_violation_is_a_failure_that_says_what_was_seen(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        *("-p", PLUGIN, "--conformance-plain-only", "--conformance-timeout", "2"),
        *("--conformance-client", f"{sys.executable} -c pass"),
    )
    assert done.returncode == 1
    assert "[driver-ended]" in done.stdout
    assert "Traceback" not in done.stdout


def test_nobody_there_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "-p", PLUGIN, "--conformance-server", "http://127.0.0.1:1", "--conformance-plain-only")
    assert done.returncode == 1
    assert "cannot connect" in done.stdout


@pytest.fixture
def project(tmp_path: Path, ours: str) -> Path:
    (tmp_path / "test_mine.py").write_text(
        f"""
import sys

def test_server(conformance_server):
    report = conformance_server({ours!r}, only=["P1", "E9"])
    assert report.exit_code == 0, str(report)

def test_client(conformance_client):
    report = conformance_client([sys.executable, {str(HERE / "driver.py")!r}], only=["P13"])
    assert report.exit_code == 0, str(report)
"""
    )
    return tmp_path


def test_fixtures_for_tests_of_ones_own(project: Path) -> None:
    done = run(project, "-p", PLUGIN)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
