"""Environments that are good are found to be clean: the project's own, and what ``openenv init`` makes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openenv.cli._templates import TEMPLATES
from openenv.cli.app import app
from openenv.validation import Report, Verdict, validate_package

ROOT = Path(__file__).parents[2]


def assert_clean(report: Report) -> None:
    assert [one for one in report.findings if one.verdict in (Verdict.FAIL, Verdict.WARN)] == []
    assert report.count(Verdict.PASS) >= 13


@pytest.mark.parametrize("name", ["echo_env", "gymnasium_env", "sudoku_env"])
def test_the_projects_own_environments_are_clean(name: str) -> None:
    assert_clean(validate_package(ROOT / "envs" / name))


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_what_init_makes_is_clean(template: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert CliRunner().invoke(app, ["init", "my_env", "--template", template]).exit_code == 0
    assert_clean(validate_package(tmp_path / "my_env"))
