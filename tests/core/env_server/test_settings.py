"""Variables of a server: what they may hold, and how a wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.settings import flag, number
from support.envs import CountAction, CountEnv, CountObservation


@pytest.mark.parametrize(
    ("given", "default", "wanted"),
    [("true", False, True), (" YES ", False, True), ("1", False, True), ("0", True, False), ("", True, True)],
)
def test_a_flag_is_a_yes_or_none(monkeypatch: pytest.MonkeyPatch, given: str, default: bool, wanted: bool) -> None:
    monkeypatch.setenv("OPENENV_A_FLAG", given)
    assert flag("OPENENV_A_FLAG", default) is wanted


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf"])
def test_a_number_that_is_none_is_named(given: str) -> None:
    with pytest.raises(ValueError, match=f"OPENENV_X must be a number of at least 0, not '{given}'"):
        number({"OPENENV_X": given}, "OPENENV_X", 1.0)


@pytest.mark.parametrize(("given", "options"), [("0", {"zero": False}), ("1.5", {"kind": int})])
def test_some_numbers_must_be_whole_or_not_zero(given: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="OPENENV_X must be a number"):
        number({"OPENENV_X": given}, "OPENENV_X", 1.0, **options)
    assert number({"OPENENV_X": "2"}, "OPENENV_X", 1.0, **options) == 2
    assert number({}, "OPENENV_X", 1.0, **options) == 1.0


def test_a_grace_that_is_no_number_is_told_when_the_app_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_DRAIN_GRACE_S", "ten")
    with pytest.raises(ValueError, match="OPENENV_DRAIN_GRACE_S must be a number of at least 0, not 'ten'"):
        create_app(CountEnv, CountAction, CountObservation)
